"""Speculative Jacobi decoding (Teng et al., ICLR 2025): exact and training-free.

The drafts of a pass are the tokens that the last pass sampled behind its first rejection, tested against
the distributions they were sampled from. Unlike in the reference code, end-of-line cells inside the window
are known instead of drafted and rejected, images of a batch do not wait for the slowest, and an empty
residual (p = q) is not NaN.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..schedule import Schedule
from ..session import DecodeEvent, DecodingSession
from .options import Options, at_least
from .speculative import Drafter, Front, exact, speculate

RANDOM, LEFT, ABOVE = "random", "left", "above"
DRAFTS = {
    RANDOM: "any code",
    LEFT: "the token to the left",
    ABOVE: "the token above, which is ours",
}


@dataclass(frozen=True)
class SJDOptions(Options):
    """window: cells a pass feeds, the last final one included; the published counts use 16, Janus-Pro 32.

    drafts: what a cell holds that no pass has sampled yet. coupled: sample drafts with one noise row per
    seed and cell, as MC-SJD does, so that they change less from pass to pass; just as exact, as a rejected
    draft is still replaced by fresh noise.
    """

    window: int = field(default=16, metadata={"help": "cells a pass feeds"})
    drafts: str = field(default=RANDOM, metadata={"help": "first guess of a cell", "choices": DRAFTS})
    coupled: bool = field(default=False, metadata={"help": "draft with one noise row per seed and cell"})

    def __post_init__(self) -> None:
        at_least(1, window=self.window)
        if self.drafts not in DRAFTS:
            raise ValueError(f'Unknown drafts "{self.drafts}": choose one of {", ".join(DRAFTS)}.')

    def lookahead(self, schedule: Schedule) -> int:
        return self.window


def sjd(session: DecodingSession, options: SJDOptions, rule: str) -> Iterator[DecodeEvent]:
    """Tokens of the last pass, tested like drafts of a model."""
    return speculate(session, options.window, jacobi(session, options.drafts), exact, rule, coupled=options.coupled)


def jacobi(session: DecodingSession, drafts: str) -> Drafter:
    """Drafts from the last pass, and first guesses where it did not reach."""

    def draft(front: Front) -> tuple[Tensor, Tensor]:
        present = session.tokens_at(front.cells)
        log_q, left_over = shifted(front.log_p, front.advance, front.cells.shape[1])
        known = left_over | front.forced
        last = front.cells[:, :1] - 1 + left_over.sum(1, keepdim=True)
        guess = first_guess(session, drafts, front.cells, last, front.uniform)
        tokens = torch.where(known, present, guess).clamp(max=session.backbone.codebook_size - 1)
        return tokens, torch.where(left_over[..., None], log_q, certain(tokens, log_q))

    return draft


def shifted(log_p: Tensor, advance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """log_p [..., m, V] from `advance` [...] cells further on: [..., count, V], and where it reaches, [..., count]."""
    index = advance[..., None] + torch.arange(count, device=advance.device)
    inside = index < log_p.shape[-2]
    index = index.clamp(max=log_p.shape[-2] - 1)[..., None].expand(*index.shape, log_p.shape[-1])
    return log_p.gather(-2, index), inside


def certain(tokens: Tensor, like: Tensor) -> Tensor:
    """The log-distributions that have all of their mass on `tokens` [...]; like [..., V]."""
    return torch.full_like(like, -torch.inf).scatter_(-1, tokens[..., None], 0.0)


def first_guess(session: DecodingSession, drafts: str, cells: Tensor, last: Tensor, uniform: Tensor) -> Tensor:
    """Tokens for raster cells [B, ..., n] that no pass has sampled; last [B, ..., 1]: the cell before the first
    of them; uniform [B, ..., n]: random numbers in [0, 1) for drafts "random"."""
    grid, size = session.grid, session.backbone.codebook_size
    if drafts == RANDOM:
        return (uniform * size).long()
    last = last - (last % grid.stride >= grid.cols).long()  # an end-of-line cell is no example
    left = session.tokens_at(last).expand_as(cells)
    if drafts == LEFT:
        return left
    return torch.where(cells < grid.stride, left, session.tokens_at((cells - grid.stride).clamp(min=0)))
