"""ZipAR (He et al., ICML 2025): rows decoded side by side, each a window of columns behind the one above. Not exact.

Training-free: a token does not wait for the right part of the row above, and never sees it. Unlike in the
reference code, cells that nobody has decoded are masked instead of taking part as zeros, keys and values go
straight to their place instead of being copied for every token, and grids need not be square. The adaptive
window of the paper, which the reference code lacks, lets a row wait until its first token has settled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..correction import GREEDY
from ..grid import TokenGrid
from ..schedule import Schedule
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession
from .options import Options, at_least

Cell = tuple[int, int]  # (y, x); column -1 is the cell before a row


@dataclass(frozen=True)
class ZipAROptions(Options):
    """window: columns by which a row is behind the one above; 0: the paper's, 8 for up to 32 columns, else 16.

    As many as there are columns: AR. adaptive: at least so many; a row waits as long as another column above changes
    its first token.
    """

    window: int = field(default=0, metadata={"help": "columns by which a row is behind the one above"})
    adaptive: bool = field(default=False, metadata={"help": "rows wait until their first token has settled"})

    def __post_init__(self) -> None:
        at_least(0, window=self.window)

    def lag(self, grid: TokenGrid) -> int:
        """The window on a grid."""
        return min(self.window or (8 if grid.cols <= 32 else 16), grid.cols)

    def planned_nfe(self, schedule: Schedule, grid: TokenGrid) -> int | None:
        """The published counts: one prefill, and the passes from the first cell's to the last one's."""
        return None if self.adaptive else 1 + grid.cols + (grid.rows - 1) * self.lag(grid)


def zipar(session: DecodingSession, options: ZipAROptions, rule: str) -> Iterator[DecodeEvent]:
    """Every pass feeds the latest token of every unfinished row; each image advances at its own pace.

    The cell before a row is its predecessor's end-of-line cell; where there is none and the row above is not
    finished, the token of `stand_in`, whose keys and values nobody else sees. Every token is drawn with the
    shared noise of its seed and cell, and fed, the last one too. Adaptive rows test their first token with that
    noise as well: they start when one more column does not change it. (The paper keeps it with probability
    p'(x) / p(x) and replaces it from the residual: another coupling of the same two distributions.)
    """
    grid, device, noise = session.grid, session.tokens.device, session.noise
    lag, cols, images = options.lag(grid), grid.cols, range(session.batch)
    noise.rows_in_flight = max(noise.rows_in_flight, cols // lag + 2)
    planned = options.planned_nfe(Schedule(), grid)
    raster = torch.arange(grid.size, device=device)
    fed = torch.zeros(session.batch, grid.size, dtype=torch.bool, device=device)  # cells with keys and values

    def choose(log_p: Tensor, targets: list[tuple[int, int, Cell]]) -> None:
        """Picks tokens, given log p [B, n, V]; targets: image, which of the n predicts it, cell."""
        where = torch.tensor([(image, slot, grid.index(*cell)) for image, slot, cell in targets], device=device)
        scores = log_p[where[:, 0], where[:, 1]]
        if rule != GREEDY:
            scores = scores + torch.stack([noise.shared_row(image, y)[x] for image, _, (y, x) in targets])
        session.tokens[where[:, 0], where[:, 2]] = scores.argmax(-1)
        session.status[where[:, 0], where[:, 2]] = FINAL

    choose(session.log_probs(session.prefill()), [(image, 0, (0, 0)) for image in images])
    yield session.event("prefill", range(1), 1 / (planned or grid.size))
    latest = [following([(0, -1)], grid, lag) for _ in images]  # what an image feeds next, from its top row on
    first: list[int | None] = [None for _ in images]  # adaptive: the token that may start the row that waits
    while any(latest):
        tops, newest = zip(*((cells[0][0], cells[-1][0]) for cells in latest if cells), strict=True)
        end, width = grid.index(max(newest) + 1), max(map(len, latest))
        padded = [[*cells, *[(cells or [(0, 0)])[-1]] * (width - len(cells))] for cells in latest]
        index, source, stores = torch.tensor(
            [[_fed(cell, cells, grid) for cell in cells] for cells in padded], device=device
        ).unbind(-1)
        fed.scatter_(1, stores, True)
        seen = fed[:, None, :end] & (raster[:end] < index[..., None]) | (raster[:end] == stores[..., None])
        log_p = session.log_probs(session.forward_cells(session.tokens.gather(1, source), index, seen, stores))

        targets = [(i, slot, (y, x + 1)) for i in images for slot, (y, x) in enumerate(latest[i]) if x + 1 < cols]
        if targets:
            choose(log_p, targets)
        for i, cells in enumerate(latest):
            settled = True
            if options.adaptive and cells and cells[-1][1] < 0 and cells[-2][1] + 1 < cols:
                start = grid.index(cells[-1][0])
                before, first[i] = first[i], int(session.tokens[i, start])
                settled = first[i] == before
                session.status[i, start] = FINAL if settled else DRAFT
            first[i] = None if settled else first[i]
            latest[i] = following(cells, grid, lag, settled)
        chosen = min(_chosen(cells, grid) for cells in latest)
        progress = session.nfe / planned if planned else chosen / (grid.rows * cols)
        yield session.event("commit", range(min(tops), max(newest) + 1), progress)


def following(cells: list[Cell], grid: TokenGrid, lag: int, settled: bool = True) -> list[Cell]:
    """What an image feeds after `cells`: the tokens that they brought, and the cell before a row that may start.

    settled: whether a row that is about to start, the last one, does so.
    """
    ahead = [(y, x + 1) for y, x in cells if x + 1 < grid.cols and (x >= 0 or settled)]
    if not settled:
        return [*ahead, cells[-1]]
    if ahead and ahead[-1][1] + 1 >= lag and ahead[-1][0] + 1 < grid.rows and ahead[-1][0] == cells[-1][0]:
        ahead.append((ahead[-1][0] + 1, -1))
    return ahead


def stand_in(cell: Cell, cells: list[Cell], grid: TokenGrid) -> Cell:
    """The cell whose token is fed as `cell`: itself, if that is known.

    For the unknown one before a row, the last of the nearest finished row above, or else the latest of the first row.
    cells: what is fed, from the top row on.
    """
    (y, x), (top, reached) = cell, cells[0]
    if x >= 0 or grid.eol:
        return cell
    finished = min(y - 1, top if reached + 1 == grid.cols else top - 1)
    return (finished, grid.cols - 1) if finished >= 0 else (0, reached)


def _fed(cell: Cell, cells: list[Cell], grid: TokenGrid) -> tuple[int, int, int]:
    """Raster cells: whose position `cell` has, whose token, and whose place its keys and values take.

    Without end-of-line cells, what is fed before a row takes the place of its first token, which overwrites it.
    """
    y, x = cell
    store = (y, 0) if x < 0 and not grid.eol else cell
    return grid.index(*cell), grid.index(*stand_in(cell, cells, grid)), grid.index(*store)


def _chosen(cells: list[Cell], grid: TokenGrid) -> int:
    """How many cells of an image have tokens that stay, given what it feeds next."""
    return cells[0][0] * grid.cols + sum(x + 1 for _, x in cells) if cells else grid.rows * grid.cols
