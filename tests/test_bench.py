"""The benchmark's bookkeeping, on a fake backbone; the scorer has tests of its own."""

import json

from fakes import FakeBackbone, random_heads

from ssd_core.bench.__main__ import contenders, table
from ssd_core.bench.compare import Contender, measure_speed
from ssd_core.decoders import DecodeConfig
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule


def test_speed_rows_hold_what_was_measured():
    backbone = FakeBackbone(6, 6, eol=False)
    chosen = [
        Contender(DecodeConfig("ar")),
        Contender(DecodeConfig(schedule=Schedule(b=2, k_h=3), rule="shared-noise")),
        Contender(DecodeConfig("lossless", window=8), trained=False),
    ]
    runs = []
    rows = measure_speed(
        backbone,
        random_heads(backbone),
        chosen,
        ["a", "b"],
        SamplingConfig(cfg=2.0),
        repetitions=2,
        on_run=lambda: runs.append(1),
    )
    assert len(runs) == 3 * (1 + 2 * 2)  # a warm-up round, then two of two prompts
    ar, ssd, lossless = rows
    assert (ar.nfe, ar.agreement, ar.speedup) == (36, 1, 1)
    assert ssd.nfe == chosen[1].config.schedule.planned_nfe(backbone.grid())
    assert len(ssd.acceptance) == 2
    assert 0 < ssd.agreement < 1
    assert lossless.agreement == 1
    assert lossless.nfe < ar.nfe
    assert lossless.name == "lossless window=8 no heads"
    for row in rows:
        assert row.spread[0] <= row.seconds <= row.spread[1]
    json.dumps([row.as_dict() for row in rows])


def test_the_table_shows_only_columns_with_figures():
    backbone = FakeBackbone(3, 4)
    rows = measure_speed(backbone, None, [Contender(DecodeConfig("ar"))], ["a"], SamplingConfig())
    header, rule, line = table(rows).splitlines()
    assert "passes" in header
    assert "Frechet" not in header
    assert header.count("|") == rule.count("|") == line.count("|")


def test_the_report_compares_every_decoder():
    names = [str(each) for each in contenders()]
    assert len(names) == len(set(names)) == 1 + 2 * 5 + 2 * 4
    assert names[0] == "ar"
