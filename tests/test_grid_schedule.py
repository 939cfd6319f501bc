"""Grids, schedules, and all step counts that the paper publishes."""

import pytest

from ssd_core.grid import TokenGrid
from ssd_core.schedule import PRESETS, Schedule

JANUS, LUMINA, EMU3 = TokenGrid(24, 24), TokenGrid(48, 48, eol=True), TokenGrid(90, 90, eol=True)

# (k_v, b, i) -> NFE, k_h = 5 everywhere: Table 14; Table 15 and the joint row of Table 21; Table 16 and Table 7.
PUBLISHED = {
    JANUS: {
        **{(1, r, 0): nfe for r, nfe in enumerate((34, 57, 80, 103, 126, 149))},
        **{(2, 2, 1): 69, (2, 2, 2): 80, (3, 2, 1): 65, (3, 2, 2): 80},
    },
    LUMINA: {
        **{(1, r, 0): nfe for r, nfe in enumerate((68, 115, 162, 209, 256, 303, 350, 397, 444))},
        **{(2, 5, i): nfe for i, nfe in enumerate((211, 234, 257, 280, 303), start=1)},
        **{(3, 5, i): nfe for i, nfe in enumerate((179, 210, 241, 272, 303), start=1)},
        (2, 9, 0): 284,
    },
    EMU3: {
        **{(1, r, 0): nfe for r, nfe in enumerate((126, 215, 304, 393, 482, 571, 660, 749, 838))},
        **{(1, 10, 0): 1016, (1, 12, 0): 1194},
        **{(2, 6, i): nfe for i, nfe in enumerate((440, 484, 528, 572, 616, 660), start=1)},
        **{(3, 6, i): nfe for i, nfe in enumerate((365, 424, 483, 542, 601, 660), start=1)},
    },
}
COUNTS = [(grid, *knobs, nfe) for grid, rows in PUBLISHED.items() for knobs, nfe in rows.items()]


def test_there_are_53_published_counts():
    assert len(COUNTS) == 53


@pytest.mark.parametrize(("grid", "k_v", "b", "i", "nfe"), COUNTS)
def test_planned_nfe_equals_the_paper(grid, k_v, b, i, nfe):
    assert Schedule(b=b, i=i, k_h=5, k_v=k_v).planned_nfe(grid) == nfe


def test_ar_counts_of_table_1():
    assert [grid.size for grid in (JANUS, LUMINA, EMU3)] == [576, 2352, 8190]


def test_presets_are_table_6():
    for family, grid, nfe, cfg in (
        ("janus-pro", JANUS, 80, 5),
        ("lumina-mgpt", LUMINA, 280, 4),
        ("emu3", EMU3, 571, 3),
    ):
        assert PRESETS[family].schedule.planned_nfe(grid) == nfe
        assert (PRESETS[family].sampling.cfg, PRESETS[family].sampling.temperature) == (cfg, 1)


def test_blocks_cover_every_row_once():
    blocks = Schedule(k_v=3).blocks(TokenGrid(9, 4))
    assert blocks == [(1, 3), (4, 3), (7, 2)]


@pytest.mark.parametrize("bad", [{"b": -1}, {"i": -1}, {"k_h": 0}, {"k_v": 0}])
def test_bad_knobs_are_named(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} must be"):
        Schedule(**bad)
