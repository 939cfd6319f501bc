"""The token grid of a picture and its raster order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenGrid:
    """rows x cols image tokens in raster order; with `eol`, a forced end-of-line token closes each row.

    The raster index of cell (y, x) counts the end-of-line cells. They are never drafted or sampled and
    travel inside the pass of their row.
    """

    rows: int
    cols: int
    eol: bool = False

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 2:
            raise ValueError(f"A token grid needs at least 1 row and 2 columns, got {self.rows} x {self.cols}.")

    @property
    def stride(self) -> int:
        """Raster cells per row, the end-of-line cell included."""
        return self.cols + self.eol

    @property
    def size(self) -> int:
        """Raster cells in all; the NFE of AR decoding (Table 1 counts end-of-line tokens)."""
        return self.rows * self.stride

    def index(self, y: int, x: int = 0) -> int:
        """Raster index of cell (y, x)."""
        return y * self.stride + x
