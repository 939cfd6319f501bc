"""Lossless decoding: AR's picture for the seed, cell for cell, in a fraction of its passes.

With one noise row per (seed, cell), AR's token is a function of its context: argmax(log p + noise). So
a window of guesses can be iterated like an equation. Each pass recomputes all its tokens at once; the
first one that differs from its guess is final too, because everything to its left was right. Drafts
decide how soon that happens, never what comes out. With a tolerance the window also keeps tokens behind
the first changes of a pass, whose context has just changed: fewer passes, no longer AR's picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..correction import GREEDY
from ..heads import Heads
from ..schedule import Schedule
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession
from .options import Options, at_least


@dataclass(frozen=True)
class WindowOptions(Options):
    """window: cells a pass looks at. tolerance: changes behind which a pass still keeps what it has; 0: lossless."""

    window: int = field(default=24, metadata={"help": "cells a pass looks at"})
    tolerance: int = field(default=2, metadata={"help": "changes behind which a pass still keeps what it has"})

    def __post_init__(self) -> None:
        at_least(1, window=self.window)
        at_least(0, tolerance=self.tolerance)

    def lookahead(self, schedule: Schedule) -> int:
        return self.window


def lossless(
    session: DecodingSession, heads: Heads, window: int, rule: str, tolerance: int = 0
) -> Iterator[DecodeEvent]:
    """Slides `window` raster cells over the grid; each image advances at its own pace.

    Needs a session with lookahead >= window. At least one cell a pass becomes final.
    """
    grid, batch, device = session.grid, session.batch, session.tokens.device
    width, dtype = session.backbone.hidden_size, session.backbone.dtype
    # The state that predicts each cell, as far as one was computed or drafted.
    h_cell = torch.zeros(session.rows, grid.size + window, width, dtype=dtype, device=device)
    h_cell[:, :1] = session.prefill()
    session.tokens[:, :1] = _choose(session, session.log_probs(h_cell[:, :1]), [0] * batch, rule)
    session.status[:, 0] = FINAL
    final, drafted = [1] * batch, [1] * batch  # per image: cells that are AR's, cells that have a guess
    yield session.event("prefill", range(1), 1 / grid.size)

    while min(final) < grid.size:
        for image in range(batch):
            while drafted[image] < min(final[image] + window, grid.size):
                wanted = min(final[image] + window, grid.size)
                drafted[image] += _draft(session, heads, h_cell, image, drafted[image], wanted, rule)

        count = min(window, grid.size - min(final))
        starts = torch.tensor(final, device=device)
        cells = starts[:, None] + torch.arange(count, device=device)  # [B, count]; may run on into the lookahead
        h = session.forward_at(starts - 1, count, max(final) - 1)
        h_cell.scatter_(1, session.per_row(cells)[..., None].expand_as(h), h)
        guesses = session.tokens.gather(1, cells)
        forced = (cells % grid.stride >= grid.cols) | (cells >= grid.size)  # end-of-line and spare cells
        tokens = torch.where(forced, guesses, _choose(session, session.log_probs(h), final, rule))
        session.tokens.scatter_(1, cells, tokens)

        same = tokens == guesses
        changes = (~same).long()
        advance = (changes.cumsum(1) - changes <= tolerance).sum(1)  # up to and with the first that differs, or more
        reached = (starts + advance).clamp(max=grid.size)
        finished = torch.where(cells < reached[:, None], FINAL, session.status.gather(1, cells))
        session.status.scatter_(1, cells, finished)
        first, last = min(final), max(final) + count - 1
        final = reached.tolist()  # the one wait for the device per pass
        rows = range(first // grid.stride, min(last // grid.stride + 1, grid.rows))
        yield session.event("window", rows, min(final) / grid.size, accepted=same, cells=cells)


def _draft(
    session: DecodingSession, heads: Heads, h_cell: Tensor, image: int, first: int, wanted: int, rule: str
) -> int:
    """Guesses some cells of one image from `first` on, at most up to `wanted`; how many.

    In the first row the horizontal heads reach on from the last cell that has a state, below it the
    vertical head reads the cell above, final or still a guess.
    """
    grid = session.grid
    y, x = divmod(first, grid.stride)
    if x == grid.cols:  # an end-of-line cell is known
        return 1
    count = min(wanted - first, grid.cols - x, heads.k_h if y == 0 else grid.cols)
    source = slice(first - 1, first) if y == 0 else slice(first - grid.stride, first - grid.stride + count)
    rows = slice(image, None, session.batch)  # the image's conditional row, then its unconditional one
    h = h_cell[rows, source]
    e = session.embed(session.tokens[image : image + 1, source])
    if y == 0:
        h_hat = torch.cat([heads.draft_right(offset + 1, h, e) for offset in range(count)], 1)
    else:
        h_hat = heads.draft_below(1, h, e)
    target = slice(first, first + count)
    h_cell[rows, target] = h_hat
    log_q = session.log_probs(h_hat, heads)
    session.tokens[image, target] = _choose(session, log_q, [first], rule, [image])[0]
    session.status[image, target] = DRAFT
    return count


def _choose(
    session: DecodingSession, log_p: Tensor, starts: list[int], rule: str, images: list[int] | None = None
) -> Tensor:
    """AR's choice at the cells from `starts` on, given log p [B, n, V] there; int64 [B, n]."""
    if rule == GREEDY:
        return log_p.argmax(-1)
    noise = session.noise.shared_window(images or range(len(starts)), starts, log_p.shape[1])
    return (log_p + noise).argmax(-1)
