"""ZipAR (He et al., ICML 2025): rows decoded side by side, each a window of columns behind the one above. Not exact.

Training-free: a token does not wait for the right part of the row above, and never sees it. Unlike in the
reference code, cells that nobody has decoded are masked instead of taking part as zeros, keys and values go
straight to their place instead of being copied for every token, and grids need not be square.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..correction import GREEDY
from ..grid import TokenGrid
from ..schedule import Schedule
from ..session import FINAL, DecodeEvent, DecodingSession
from .options import Options, at_least


@dataclass(frozen=True)
class ZipAROptions(Options):
    """window: columns by which a row is behind the one above; 0: the paper's, 8 for up to 32 columns, else 16.

    As many as there are columns: AR.
    """

    window: int = field(default=0, metadata={"help": "columns by which a row is behind the one above"})

    def __post_init__(self) -> None:
        at_least(0, window=self.window)

    def lag(self, grid: TokenGrid) -> int:
        """The window on a grid."""
        return min(self.window or (8 if grid.cols <= 32 else 16), grid.cols)

    def planned_nfe(self, schedule: Schedule, grid: TokenGrid) -> int:
        """The published counts: one prefill, and the passes from the first cell's to the last one's."""
        return 1 + grid.cols + (grid.rows - 1) * self.lag(grid)


def zipar(session: DecodingSession, options: ZipAROptions, rule: str) -> Iterator[DecodeEvent]:
    """Every pass feeds the latest token of every unfinished row; every image takes the same passes.

    The cell before a row is its predecessor's end-of-line cell; where there is none and the row above is not
    finished, the token of `stand_in`, whose keys and values nobody else sees. Every token is drawn with the
    shared noise of its seed and cell, and fed, the last one too.
    """
    grid, device, noise = session.grid, session.tokens.device, session.noise
    lag, cols = options.lag(grid), grid.cols
    noise.rows_in_flight = max(noise.rows_in_flight, cols // lag + 2)
    planned = options.planned_nfe(Schedule(), grid)
    raster = torch.arange(grid.size, device=device)
    fed = torch.zeros(grid.size, dtype=torch.bool, device=device)  # cells with keys and values

    def choose(h: Tensor, cells: list[tuple[int, int]]) -> None:
        """Tokens of cells (y, x), given the states [rows, n, D] that predict them."""
        scores = session.log_probs(h)
        if rule != GREEDY:
            drawn = [torch.stack([noise.shared_row(image, y)[x] for y, x in cells]) for image in range(session.batch)]
            scores = scores + torch.stack(drawn)
        where = torch.tensor([grid.index(y, x) for y, x in cells], device=device)
        session.tokens[:, where] = scores.argmax(-1)
        session.status[:, where] = FINAL

    choose(session.prefill(), [(0, 0)])
    yield session.event("prefill", range(1), 1 / planned)
    for step in range(1, planned):
        # Row y is fed the cell before it (column -1) at step y * lag, then its own.
        latest = [(y, step - 1 - y * lag) for y in range(grid.rows)]
        latest = [(y, x) for y, x in latest if -(y > 0) <= x < cols]
        newest, x = latest[-1]
        cells = torch.tensor([grid.index(*cell) for cell in latest], device=device)
        tokens, stores, known = session.tokens[:, cells], cells.clone(), cells
        if x < 0 and not grid.eol:
            tokens[:, -1] = session.tokens[:, grid.index(*stand_in(newest, step, lag, cols))]
            stores[-1], known = grid.index(newest), cells[:-1]  # overwritten when the row's first token is fed
        fed[known] = True
        end = grid.index(newest + 1)
        seen = fed[:end] & (raster[:end] < cells[:, None]) | (raster[:end] == stores[:, None])
        cells, seen, stores = (each.expand(session.batch, *each.shape) for each in (cells, seen, stores))
        h = session.forward_cells(tokens, cells, seen, stores)
        ahead = [i for i, (_, x) in enumerate(latest) if x + 1 < cols]
        if ahead:
            choose(h[:, ahead], [(latest[i][0], latest[i][1] + 1) for i in ahead])
        yield session.event("commit", range(latest[0][0], newest + 1), (step + 1) / planned)


def stand_in(row: int, step: int, lag: int, cols: int) -> tuple[int, int]:
    """(y, x) of the token that is fed for the last one above `row` while it is unknown (when it is not: that one).

    The last of the nearest finished row above, or else the latest of the first row.
    """
    finished = min(row - 1, (step - cols) // lag)
    return (finished, cols - 1) if finished >= 0 else (0, step - 1)
