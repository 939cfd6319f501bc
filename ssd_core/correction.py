"""The update rules: how a verify pass corrects the tokens of a drafted block (paper Sec. 3.3, Table 3).

Legend: p is the backbone's distribution at a cell, given the block's present tokens; q the reference
the present token is tested against, at first the draft's. All functions work on log-probabilities
fp32 [..., V] and tokens int64 [...], for all cells of a block in one expression.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

GREEDY, SAMPLE, ACCEPT_REJECT, SHARED_NOISE = "greedy", "sample", "accept-reject", "shared-noise"
RULES = {
    GREEDY: "A: the likeliest code of every pass",
    SAMPLE: "B: a fresh sample of every pass",
    ACCEPT_REJECT: "C: keep a token with probability min(1, p/q), else sample the residual (the paper's default)",
    SHARED_NOISE: "D: one noise row per seed and cell for all passes, so that rounds converge to AR's picture",
}


@dataclass(frozen=True)
class Draws:
    """The random numbers of one pass, made only when a rule asks for them.

    uniform() -> [...], fresh() and shared() -> Gumbel noise [..., V].
    """

    uniform: Callable[[], Tensor]
    fresh: Callable[[], Tensor]
    shared: Callable[[], Tensor]


@dataclass(frozen=True)
class Correction:
    """tokens after the pass; the reference log-probabilities for the next one; which tokens were kept."""

    tokens: Tensor
    log_q: Tensor
    accepted: Tensor


def target(rule: str, log_p: Tensor) -> Tensor:
    """The distribution that a rule samples, log p [..., V]: with "greedy" the likeliest code has all of it."""
    if rule != GREEDY:
        return log_p
    return torch.full_like(log_p, -torch.inf).scatter_(-1, log_p.argmax(-1, keepdim=True), 0.0)


def residual(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log max(p - q, 0), up to a constant: what to sample when a draft from q is rejected under p.

    Where p - q is nowhere positive it is undefined (p = q up to rounding): p itself.
    """
    p = log_p.exp()
    rest = (p - log_q.exp()).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 1e-12, rest, p).log()


def draft(rule: str, log_q: Tensor, draws: Draws) -> Tensor:
    """First tokens of a drafted block: the likeliest ones, or with rule D the ones its noise picks."""
    return (log_q + draws.shared() if rule == SHARED_NOISE else log_q).argmax(-1)


def sample_first(rule: str, log_p: Tensor, draws: Draws) -> Tensor:
    """A token whose context is final, drawn exactly as AR draws it."""
    return (log_p if rule == GREEDY else log_p + draws.shared()).argmax(-1)


def correct(rule: str, log_p: Tensor, log_q: Tensor, tokens: Tensor, draws: Draws) -> Correction:
    """One verify-and-correct round. Raises ValueError for an unknown rule."""
    if rule == ACCEPT_REJECT:
        return _accept_reject(log_p, log_q, tokens, draws)
    if rule == GREEDY:
        updated = log_p.argmax(-1)
    elif rule == SAMPLE:
        updated = (log_p + draws.fresh()).argmax(-1)
    elif rule == SHARED_NOISE:
        updated = (log_p + draws.shared()).argmax(-1)
    else:
        raise ValueError(f'Unknown update rule "{rule}": choose one of {", ".join(RULES)}.')
    return Correction(updated, log_q, updated == tokens)


def _accept_reject(log_p: Tensor, log_q: Tensor, tokens: Tensor, draws: Draws) -> Correction:
    """Rule C. A rejected cell's p becomes its next reference; an accepted cell keeps its reference."""
    p_token = log_p.gather(-1, tokens[..., None])[..., 0]
    q_token = log_q.gather(-1, tokens[..., None])[..., 0]
    accepted = draws.uniform().log() < p_token - q_token
    resampled = (residual(log_p, log_q) + draws.fresh()).argmax(-1)
    return Correction(
        torch.where(accepted, tokens, resampled),
        torch.where(accepted[..., None], log_q, log_p),
        accepted,
    )
