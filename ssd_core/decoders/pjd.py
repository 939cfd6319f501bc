"""Parallel Jacobi decoding (Liao et al., CVPR 2026): a Jacobi window in every row at once. Not exact.

Training-free, written from the paper's description. A row starts when the one above has some tokens, as in
ZipAR, and never overtakes it; its drafts are tested as in SJD, and see the final tokens before them and
the drafts before them in their own row, but no drafts of other rows. Only the first draft of the topmost row
is replaced when rejected; other rejected drafts are sampled again and wait for the next pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..correction import residual, sample_first, target
from ..grid import TokenGrid
from ..schedule import Schedule
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession
from .options import Options, at_least
from .sjd import DRAFTS, RANDOM, certain, first_guess, shifted
from .speculative import exact


@dataclass(frozen=True)
class PJDOptions(Options):
    """window: drafts per row and pass. context: final tokens of the row above that a row needs to start; 0: a
    quarter of the columns, between the published 16 of 48 and 6 of 32. drafts: as in SJD."""

    window: int = field(default=16, metadata={"help": "drafts per row"})
    context: int = field(default=0, metadata={"help": "tokens of the row above that a row needs to start"})
    drafts: str = field(default=RANDOM, metadata={"help": "first guess of a cell", "choices": DRAFTS})

    def __post_init__(self) -> None:
        at_least(1, window=self.window)
        at_least(0, context=self.context)
        if self.drafts not in DRAFTS:
            raise ValueError(f'Unknown drafts "{self.drafts}": choose one of {", ".join(DRAFTS)}.')

    def needed(self, grid: TokenGrid) -> int:
        """The context on a grid."""
        return min(self.context or -(-grid.cols // 4), grid.cols)

    def lookahead(self, schedule: Schedule) -> int:
        return 2


def pjd(session: DecodingSession, options: PJDOptions, rule: str) -> Iterator[DecodeEvent]:
    """All rows that have started advance together, each image and row at its own pace.

    A pass works on tensors [B, R, window, ...]; R are the rows from the first one with something to do to the
    last one that has started, in any image. What an image has no use for goes to spare cells nobody sees.
    """
    grid, batch, noise, device = session.grid, session.batch, session.noise, session.tokens.device
    needed, cols, window = options.needed(grid), grid.cols, min(options.window, grid.cols)
    order = torch.arange(window, device=device)
    h = session.prefill()
    log_q = target(rule, session.log_probs(h))
    session.tokens[:, :1] = sample_first(rule, log_q[:, None], session.draws(range(1), 0, slice(1)))[:, 0]
    session.status[:, 0] = FINAL
    yield session.event("prefill", range(1), 1 / grid.size)

    count = torch.zeros(batch, grid.rows, dtype=torch.long, device=device)  # final cells of each row
    count[:, 0] = 1
    fed = torch.zeros_like(count, dtype=torch.bool)  # finished rows whose last token has keys and values
    log_q = log_q[:, :, None].expand(-1, -1, window, -1)  # [B, R, window, V]: what drafts were sampled from ...
    sampled = torch.zeros(batch, 1, window, dtype=torch.bool, device=device)  # ... where they were
    rows, final, number = range(1), 0, 0
    while final < grid.rows * cols:
        number += 1
        span = slice(rows.start, rows.stop)
        above = F.pad(count[:, :-1], (1, 0), value=cols)[:, span]
        here = count[:, span]
        active = (above >= needed) & ~fed[:, span]
        fits = (above - here).clamp(max=window) * active  # [B, R]: drafts under test
        tested = order < fits[..., None]
        first = torch.tensor([grid.index(y) for y in rows], device=device)[:, None]
        cells = first + here[..., None] + order  # [B, R, window]: to be predicted

        last = cells[..., :1] - 1 + sampled.sum(-1, keepdim=True)
        uniform = noise.uniform(rows, 2 * number, window)
        guess = first_guess(session, options.drafts, cells, last.clamp(min=0), uniform)
        drafts = torch.where(sampled, session.tokens_at(cells), guess).clamp(max=session.backbone.codebook_size - 1)
        log_q = torch.where(sampled[..., None], log_q, certain(drafts, log_q))
        _write(session, cells, drafts, tested)

        states = _forward(session, count, rows, first, cells - 1, active[..., None] & ((order == 0) | tested))
        log_p = target(rule, session.log_probs(states)).unflatten(1, cells.shape[1:])
        uniform, gumbel = noise.uniform(rows, 2 * number + 1, window), noise.fresh(rows, number, window)
        kept = (tested & (uniform.log() < exact(log_p, log_q, drafts))).long().cumprod(-1).sum(-1)  # [B, R]
        unfinished = here < cols
        topmost = unfinished & (unfinished.long().cumsum(1) == 1)
        replaced = topmost & (kept == 0)
        weights = log_p.clone()
        weights[:, :, 0] = torch.where(replaced[..., None], residual(log_p[:, :, 0], log_q[:, :, 0]), log_p[:, :, 0])
        _write(session, cells, (weights + gumbel).argmax(-1), tested & (order >= kept[..., None]))

        fed[:, span] |= active & ~unfinished
        advance = kept + replaced.long()
        count[:, span] += advance
        status = session.row_status(rows)
        status.copy_(torch.where(torch.arange(cols, device=device) < count[:, span, None], FINAL, status))
        started = F.pad(count[:, :-1], (1, 0), value=cols) >= needed
        bounds = fed.long().cumprod(1).sum(1).min(), started.long().sum(1).max(), count.sum(1).min()
        begin, end, final = torch.stack(bounds).tolist()  # the one wait for the device per pass
        yield session.event("window", rows, final / (grid.rows * cols), accepted=(order < kept[..., None]).flatten(1))

        log_q, _ = shifted(log_p, advance, window)
        sampled = order + advance[..., None] < fits[..., None]
        log_q = F.pad(log_q[:, begin - rows.start :], (0, 0, 0, 0, 0, end - rows.stop))
        sampled = F.pad(sampled[:, begin - rows.start :], (0, 0, 0, end - rows.stop))
        rows = range(begin, end)


def _forward(
    session: DecodingSession, count: Tensor, rows: range, first: Tensor, cells: Tensor, used: Tensor
) -> Tensor:
    """Feeds the tokens of raster cells [B, R, window] as far as they are `used`: states [rows, R * window, D].

    count [B, rows]: final cells of each row; first [R, 1]: raster index of each row of the pass. The cell before
    a row's first is an end-of-line cell, or else the last one above: as long as the row is empty, its own copy
    of that token, which is the one of a finished row, or the latest of the first row, while it is unknown.
    """
    grid, size = session.grid, session.grid.index(rows.stop)
    tokens = session.tokens_at(cells.clamp(min=0))
    stores = torch.where(used, cells, size + 1)
    if not grid.eol:
        copies = cells < first
        finished = (count == grid.cols).sum(1)
        example = torch.where(finished > 0, finished * grid.cols, count[:, 0]) - 1
        known = F.pad(count[:, :-1] == grid.cols, (1, 0))[:, rows.start : rows.stop, None]
        tokens = torch.where(copies & ~known, session.tokens_at(example[:, None, None]), tokens)
        stores = torch.where(copies & used, size, stores)
    known = torch.arange(grid.cols, device=cells.device) < count[..., None]  # [B, rows, cols]
    if grid.eol:  # fed when the next row got its first token
        known = torch.cat((known, F.pad(count[:, 1:] > 0, (0, 1))[..., None]), -1)
    known = F.pad(known.flatten(1)[:, :size], (0, 2))
    raster = torch.arange(size + 2, device=cells.device)
    own = raster >= first[..., None]  # final or a draft
    seen = (raster < cells[..., None]) & (known[:, None, None] | own) | (raster == stores[..., None])
    return session.forward_cells(
        tokens.flatten(1), cells.clamp(min=0).flatten(1), seen.flatten(1, 2), stores.flatten(1)
    )


def _write(session: DecodingSession, cells: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Writes drafts to those raster cells that `where` says; the others go to a spare cell."""
    cells = torch.where(where, cells, session.grid.size + 1).flatten(1)
    session.tokens.scatter_(1, cells, tokens.flatten(1))
    session.status.scatter_(1, cells, DRAFT)
