"""How many rows SSD drafts at once and how often it verifies them: schedules and presets."""

import math
from dataclasses import dataclass

from .grid import TokenGrid
from .sampling import SamplingConfig

OWN, MERGED, EARLY = "own", "merged", "early"
COMMITS = {
    OWN: "every row has a commit pass of its own, as in the paper",
    MERGED: "a later pass carries a commit wherever that changes nothing: the same picture in fewer passes",
    EARLY: "the next rows' first verify pass carries it as well: they are drafted from states a round old",
}


@dataclass(frozen=True)
class Schedule:
    """The knobs of SSD (paper Sec. 3.3, A.6, A.10).

    b: verify rounds on a freshly drafted block of rows (the paper's r when k_v = 1).
    i: incremental rounds on the trailing rows of a block after each commit (staged); 0 is the joint
    schedule, where all rows of a block get the same b rounds. k_h: columns drafted at once in the
    first row. k_v: rows drafted at once below it. commits: one of `COMMITS`; all but "own" are ours.
    settle: a round that keeps every token of a block is its last, and a row whose last round kept it
    whole needs no commit; ours as well. With the rules "greedy" and "shared-noise" the picture stays the
    same; "accept-reject" would have tested tokens again that it had kept, "sample" drawn them anew.
    """

    b: int = 2
    i: int = 0
    k_h: int = 5
    k_v: int = 1
    commits: str = OWN
    settle: bool = False

    def __post_init__(self) -> None:
        if self.commits not in COMMITS:
            raise ValueError(f'Unknown commits "{self.commits}": choose one of {", ".join(COMMITS)}.')
        for name, low in (("b", 0), ("i", 0), ("k_h", 1), ("k_v", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")

    def blocks(self, grid: TokenGrid) -> list[tuple[int, int]]:
        """(first row, number of rows) of each drafted block below the first row; the last may be shorter."""
        return [(y, min(self.k_v, grid.rows - y)) for y in range(1, grid.rows, self.k_v)]

    def planned_nfe(self, grid: TokenGrid) -> int:
        """Backbone passes of a whole picture; equals all 53 counts of the paper (Tables 7, 14-16, 21).

        One prefill; per k_h columns of the first row a verify and a commit pass; per block of n rows b
        base rounds, n commits, and i incremental rounds between them. Commits that other passes carry
        are none. With `settle` it is the most that a picture can take.
        """
        passes = 1 + 2 * math.ceil((grid.cols - 1) / self.k_h)
        for y, n in self.blocks(grid):
            rows, rounds = range(y, y + n), self.b + (n - 1) * self.i
            passes += rounds + sum(not self.postpones(row, rows, grid) for row in rows)
        return passes

    def postpones(self, row: int, rows: range, grid: TokenGrid) -> bool:
        """Whether the commit of `row`, one of a block of `rows`, is left to a later pass, or to none.

        "early" needs a verify pass by then: the next draft starts from its states.
        """
        if self.commits == OWN:
            return False
        if row + 1 < rows.stop or rows.stop == grid.rows:
            return True
        return self.commits == EARLY and self.b + (row - rows.start) * self.i > 0

    def __str__(self) -> str:
        commits = "" if self.commits == OWN else f" commits={self.commits}"
        settle = " settle" if self.settle else ""
        return f"b={self.b} i={self.i} k_h={self.k_h} k_v={self.k_v}{commits}{settle}"


@dataclass(frozen=True)
class Preset:
    """How a backbone family is decoded unless somebody says otherwise."""

    schedule: Schedule
    sampling: SamplingConfig


# The inference half of the paper's Table 6, and top-k, which it leaves out, as upstream has it; "builtin" is ours.
PRESETS = {
    "builtin": Preset(Schedule(b=2), SamplingConfig(cfg=2.5, temperature=0.7, top_k=50)),
    "janus-pro": Preset(Schedule(b=2), SamplingConfig(cfg=5.0)),
    "lumina-mgpt": Preset(Schedule(b=5, i=4, k_v=2), SamplingConfig(cfg=4.0, top_k=2000)),
    "emu3": Preset(Schedule(b=5), SamplingConfig(cfg=3.0, top_k=2048)),
}
