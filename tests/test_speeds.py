"""The speed scale: what its stops decode with."""

import pytest
from fakes import FakeBackbone, random_heads, run

from ssd_core import speeds
from ssd_core.__main__ import main
from ssd_core.correction import ACCEPT_REJECT
from ssd_core.decoders import DecodeConfig
from ssd_core.grid import TokenGrid
from ssd_core.schedule import PRESETS
from ssd_core.speeds import MEASURED, SPEEDS, at_speed, stops

LUMINA = TokenGrid(48, 48, eol=True)


@pytest.mark.parametrize("family", PRESETS)
def test_every_family_has_every_stop_once_and_the_first_is_lossless(family):
    scale = stops(family)
    assert tuple(scale) == SPEEDS
    assert len({str(config) for config in scale.values()}) == len(SPEEDS)
    assert scale["lossless"].decoder == "lossless"
    # The nodes' samplers have a rule of their own, which a connected stop does not overrule.
    assert {config.rule for config in scale.values()} == {ACCEPT_REJECT}


@pytest.mark.parametrize("family", sorted(set(PRESETS) - set(MEASURED)))
def test_stops_that_nobody_measured_are_the_preset_with_more_or_fewer_rounds(family):
    assert at_speed("balanced", family) == DecodeConfig.preset(family)
    passes = [at_speed(name, family).schedule.planned_nfe(LUMINA) for name in SPEEDS[1:]]
    assert passes == sorted(set(passes), reverse=True)


def test_measured_stops_draw_whole_pictures():
    backbone = FakeBackbone(4, 5)
    for config in stops("builtin").values():
        last, session = run(backbone, config, heads=random_heads(backbone, k_h=5))
        assert last.progress == 1
        assert session.nfe <= backbone.grid().size


def test_unknown_speeds_and_families_are_refused():
    with pytest.raises(ValueError, match="lossless, quality, balanced, fast, fastest"):
        at_speed("warp", "builtin")
    with pytest.raises(ValueError, match="janus-pro"):
        at_speed("fast", "llama")


def test_a_speed_on_the_command_line_is_the_stop_and_refuses_what_would_change_it(monkeypatch, tmp_path, capsys):
    backbone = FakeBackbone(3, 4)
    backbone.shipped_heads = lambda: random_heads(backbone, k_h=5)
    monkeypatch.setattr("ssd_core.__main__.load", lambda args: backbone)
    scale = {"lossless": DecodeConfig("lossless", window=5), "fast": DecodeConfig("window")}
    monkeypatch.setitem(speeds.MEASURED, "builtin", scale)

    def said(*options: str) -> str:
        code = main(["generate", "abc", "--seed", "1", "--out", str(tmp_path / "a.png"), *options])
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    assert said("--speed", "fast").startswith("window window=24 tolerance=2: ")
    assert said("--speed", "fast", "--rule", "greedy").startswith("window window=24 tolerance=2 rule=greedy: ")
    assert said("--speed", "lossless").startswith("lossless window=5: ")
    assert said("--speed", "lossless", "--window", "3").startswith("lossless window=3: ")
    assert "--window is not for --speed fast" in said("--speed", "fast", "--window", "3")
    assert "leave out the other options" in said("--speed", "fast", "--r", "2")
    lines = said("--speed", "fast", "--compare").splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["ar:", "window", "lossless"]
