"""1D multi-token prediction: the horizontal heads of SSD alone, in raster order (paper Sec. 4, "1D-MTP").

Relaxed, as in the paper's tables: k_h tokens at once get one verify pass, one correction and one commit
pass, whatever was accepted. Strict: exact speculative sampling, one pass for each chain of drafts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..correction import Draws, correct, draft, sample_first
from ..grid import TokenGrid
from ..heads import Heads
from ..schedule import Schedule
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession
from .options import Options
from .speculative import chain, exact, speculate


@dataclass(frozen=True)
class MTPOptions(Options):
    """strict: stop at the first rejected draft, so that tokens are distributed exactly as AR's."""

    strict: bool = field(default=False, metadata={"help": "stop at the first rejected draft: exact"})

    def lookahead(self, schedule: Schedule) -> int:
        return schedule.k_h + 1 if self.strict else 0

    def planned_nfe(self, schedule: Schedule, grid: TokenGrid) -> int | None:
        """Relaxed: the published counts, 1056 (Lumina-mGPT), 232 (Janus-Pro), 3420 (Emu3) at k_h = 5.

        For each line a pass for its first cell, two per k_h others, and one for its end-of-line cell, save
        the picture's last; a line is a row, or the whole picture where nothing ends a row. One prefill.
        """
        if self.strict:
            return None
        lines, cells = (grid.rows, grid.cols) if grid.eol else (1, grid.size)
        return lines * (1 + 2 * math.ceil((cells - 1) / schedule.k_h) + grid.eol) + 1 - grid.eol


def mtp(session: DecodingSession, heads: Heads, k_h: int, options: MTPOptions, rule: str) -> Iterator[DecodeEvent]:
    """k_h drafts at a time from the horizontal heads."""
    if options.strict:
        return speculate(session, k_h + 1, chain(session, heads, k_h, rule), exact, rule)
    return _relaxed(session, heads, k_h, rule)


def _relaxed(session: DecodingSession, heads: Heads, k_h: int, rule: str) -> Iterator[DecodeEvent]:
    grid = session.grid
    length = grid.cols if grid.eol else grid.size
    h = session.prefill()  # [rows, 1, D]: predicts cell x
    for x in range(0, grid.size, grid.stride if grid.eol else grid.size):
        stop = x + length
        first = sample_first(rule, session.log_probs(h), _draws(session, x, 1, 0))
        yield _put(session, "commit" if x else "prefill", x, first, FINAL)
        h_next = session.forward(x, 1)  # predicts cell x + 1
        while x + 1 < stop:
            m = min(k_h, stop - 1 - x)
            e = session.embed(session.tokens[:, x : x + 1])
            h_hat = torch.cat([heads.draft_right(offset + 1, h, e) for offset in range(m)], 1)
            log_q = session.log_probs(h_hat, heads)
            yield _put(session, "draft", x + 1, draft(rule, log_q, _draws(session, x + 1, m, 0)), DRAFT)

            states = torch.cat((h_next, session.forward(x + 1, m)), 1)[:, :m]
            tokens = session.tokens[:, x + 1 : x + 1 + m]
            result = correct(rule, session.log_probs(states), log_q, tokens, _draws(session, x + 1, m, 1))
            details = dict(round=0, accepted=result.accepted)
            yield _put(session, "verify", x + 1, result.tokens, DRAFT, **details)

            states = torch.cat((h_next, session.forward(x + 1, m)), 1)
            h, h_next = states[:, m - 1 : m], states[:, m:]
            yield _put(session, "commit", x + 1, session.tokens[:, x + 1 : x + 1 + m], FINAL)
            x += m
        if grid.eol and stop + 1 < grid.size:
            h = session.forward(stop, 1)
            yield session.event("commit", range(stop // grid.stride, stop // grid.stride + 1), (stop + 1) / grid.size)


def _put(session: DecodingSession, phase: str, start: int, tokens: Tensor, status: int, **details) -> DecodeEvent:
    """Writes tokens [B, m] from raster cell `start` on, with their status; the event that says so."""
    grid, stop = session.grid, start + tokens.shape[1]
    session.tokens[:, start:stop] = tokens
    session.status[:, start:stop] = status
    rows = range(start // grid.stride, (stop - 1) // grid.stride + 1)
    done = stop + grid.eol if status == FINAL and stop + grid.eol == grid.size else stop if status == FINAL else start
    return session.event(phase, rows, done / grid.size, **details)


def _draws(session: DecodingSession, start: int, count: int, counter: int) -> Draws:
    """Random numbers [B, count, ...] for raster cells that may lie in two rows (then without end-of-line cells)."""
    grid = session.grid
    rows = range(start // grid.stride, (start + count - 1) // grid.stride + 1)
    first = start - rows.start * grid.stride
    draws = session.draws(rows, counter)

    def cut(make):
        return lambda: make().flatten(1, 2)[:, first : first + count]

    return Draws(cut(draws.uniform), cut(draws.fresh), cut(draws.shared))
