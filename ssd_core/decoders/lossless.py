"""Lossless decoding: AR's picture for the seed, cell for cell, in a fraction of its passes.

With one noise row per (seed, cell), AR's token is a function of its context: argmax(log p + noise). So
a window of guesses can be iterated like an equation. Each pass recomputes all its tokens at once; the
first one that differs from its guess is final too, because everything to its left was right. Drafts
decide how soon that happens, never what comes out.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..correction import GREEDY
from ..heads import Heads
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession


def lossless(session: DecodingSession, heads: Heads, window: int, rule: str) -> Iterator[DecodeEvent]:
    """Slides `window` raster cells over the grid; each image advances at its own pace.

    Needs a session with lookahead >= window. At least one cell a pass becomes final.
    """
    grid, batch, device = session.grid, session.batch, session.tokens.device
    span = torch.arange(window, device=device)
    h_cell = torch.zeros(session.rows, grid.size + window, session.backbone.hidden_size, dtype=session.backbone.dtype)
    h_cell = h_cell.to(device)  # the state that predicts each cell, as far as one was computed or drafted
    final = [0] * batch  # cells 0..final-1 of each image are AR's
    drafted = 0  # cells that have a guess in every image

    def choose(log_p: Tensor, starts: list[int]) -> Tensor:
        """log p [B, n, V] of the cells from `starts` on -> AR's choice there, int64 [B, n]."""
        if rule == GREEDY:
            return log_p.argmax(-1)
        return (log_p + _window_noise(session, starts, log_p.shape[1])).argmax(-1)

    def put(first: int, h: Tensor, starts: list[int]) -> None:
        """Writes states and the tokens they pick at the same cells of all images."""
        cells = slice(first, first + h.shape[1])
        h_cell[:, cells] = h
        free = session.status[:, cells] == 0
        session.tokens[:, cells] = torch.where(free, choose(session.log_probs(h), starts), session.tokens[:, cells])
        session.status[:, cells] = torch.where(free, DRAFT, session.status[:, cells])

    put(0, session.prefill(), [0] * batch)
    session.status[:, 0] = FINAL
    final, drafted = [1] * batch, 1
    yield session.event("prefill", range(1), 1 / grid.size)

    while min(final) < grid.size:
        wanted = min(max(final) + window, grid.size)
        while drafted < wanted:
            drafted += _draft_next(session, heads, h_cell, drafted, wanted, put)

        starts = torch.tensor(final, device=device)
        cells = starts[:, None] + span  # [B, window]; may run past the end, into the lookahead
        h = session.forward_at(starts - 1, window, max(final) - 1)
        rows = session.per_row(cells)[..., None].expand(-1, -1, h.shape[-1])
        h_cell.scatter_(1, rows, h)
        guesses = session.tokens.gather(1, cells)
        forced = _is_eol(session, cells) | (cells >= grid.size)
        tokens = torch.where(forced, guesses, choose(session.log_probs(h), final))
        session.tokens.scatter_(1, cells, tokens)

        same = tokens == guesses
        advance = (same.cumprod(1).sum(1) + 1).clamp(max=window)  # up to and with the first that differs
        reached = (starts + advance).clamp(max=grid.size)
        finished = torch.where(cells < reached[:, None], FINAL, session.status.gather(1, cells))
        session.status.scatter_(1, cells, finished)
        final = reached.tolist()  # the one wait for the device per pass
        rows_seen = range(min(final) // grid.stride, min(max(final) // grid.stride + 1, grid.rows))
        yield session.event("window", rows_seen, min(final) / grid.size, accepted=same)


def _draft_next(session: DecodingSession, heads: Heads, h_cell: Tensor, first: int, wanted: int, put) -> int:
    """Drafts some cells from `first` on (at most up to `wanted`); how many.

    In the first row the horizontal heads reach on from the last cell that has a state, below it the
    vertical head reads the cell above, final or still a guess.
    """
    grid = session.grid
    y, x = divmod(first, grid.stride)
    if x == grid.cols:  # an end-of-line cell is known
        return 1
    count = min(wanted - first, grid.cols - x)
    starts = [first] * session.batch
    if y == 0:
        count = min(count, heads.k_h)
        h, e = h_cell[:, first - 1 : first], session.embed(session.tokens[:, first - 1 : first])
        put(first, torch.cat([heads.draft_right(offset + 1, h, e) for offset in range(count)], 1), starts)
    else:
        above = slice(first - grid.stride, first - grid.stride + count)
        put(first, heads.draft_below(1, h_cell[:, above], session.embed(session.tokens[:, above])), starts)
    return count


def _is_eol(session: DecodingSession, cells: Tensor) -> Tensor:
    """Which raster cells are end-of-line cells; bool of the same shape."""
    grid = session.grid
    return cells % grid.stride >= grid.cols


def _window_noise(session: DecodingSession, starts: list[int], count: int) -> Tensor:
    """Shared noise [B, count, V] of `count` raster cells per image; zero on forced and on spare cells."""
    grid, windows = session.grid, []
    for image, start in enumerate(starts):
        first = min(start // grid.stride, grid.rows - 1)
        last = min((start + count - 1) // grid.stride, grid.rows - 1)
        rows = [session.noise.shared_row(image, y) for y in range(first, last + 1)]
        strip = torch.cat([F.pad(row, (0, 0, 0, int(grid.eol))) for row in rows])
        strip = strip[start - first * grid.stride :][:count]
        windows.append(F.pad(strip, (0, 0, 0, count - len(strip))))
    return torch.stack(windows)
