"""The cost model against Table 12 of the paper, and its passes against the decoders'."""

from dataclasses import replace

import pytest
from fakes import FakeBackbone, run

from ssd_core.__main__ import main
from ssd_core.cost import KNOWN, ar_passes, cost, memory_required, model_size, ssd_passes
from ssd_core.decoders import DecodeConfig
from ssd_core.decoders.lantern import CHUNK, LanternOptions, nearest_codes
from ssd_core.grid import TokenGrid
from ssd_core.schedule import COMMITS, PRESETS, Schedule

# Table 12: prompt (implied), weights and heads in GB, then TFLOPs (backbone, attention) of AR and SSD, and
# (horizontal, vertical) of the heads. Lumina's vertical heads are counted twice per cell there.
TABLE_12 = {
    "janus-pro-7b": (99, 14.86, 1.61, (16.6, 0.224), (43.8, 0.646), (0.012, 0.296)),
    "lumina-mgpt-7b-768": (72, 14.37, 1.88, (65.5, 3.08), (499, 24.3), (0.025, 2.42 / 2)),
    "emu3-gen": (85, 18.23, 1.61, (255, 35.9), (1521, 216), (0.048, 4.30)),
}


@pytest.mark.parametrize("name", TABLE_12)
def test_totals_are_those_of_the_paper(name):
    prompt, weights, heads, ar, ssd, drafting = TABLE_12[name]
    size = model_size(name)
    assert size.published / 1e9 == pytest.approx(weights, rel=0.03)
    assert size.loaded < size.published
    schedule = PRESETS[size.family].schedule
    for published, computed in (
        (ar, cost(size, None, prompt, text_head=True)),
        (ssd, cost(size, schedule, prompt, text_head=True)),
    ):
        assert computed.backbone / 1e12 == pytest.approx(published[0], rel=0.03)
        assert computed.attention / 1e12 == pytest.approx(published[1], rel=0.03)
    assert computed.heads_bytes / 1e9 == pytest.approx(heads, rel=0.01)
    assert computed.horizontal / 1e12 == pytest.approx(drafting[0], rel=0.03)
    assert computed.vertical / 1e12 == pytest.approx(drafting[1], rel=0.03)
    assert computed.passes == schedule.planned_nfe(size.grid)


@pytest.mark.parametrize(("name", "floor", "image"), [("janus-pro-7b", 12.6, 7.23), ("emu3-gen", 16.4, 134.6)])
def test_the_bandwidth_floor_of_an_rtx_4090(name, floor, image):
    """`bytes_read` counts weights once per pass and the cache of both halves."""
    computed = cost(model_size(name), None, 90, text_head=True)
    seconds = computed.bytes_read / 1.008e12
    assert 1e3 * seconds / computed.passes == pytest.approx(floor, rel=0.02)
    assert seconds == pytest.approx(image, rel=0.02)


@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", [Schedule(b=2, k_h=3), Schedule(b=1, i=2, k_h=2, k_v=3), Schedule(b=0)], ids=str)
@pytest.mark.parametrize("commits", COMMITS)
@pytest.mark.parametrize("rows", [1, 5, 6])
def test_passes_are_those_of_the_decoders(schedule, commits, eol, rows, monkeypatch):
    schedule = replace(schedule, commits=commits)
    backbone, seen = FakeBackbone(rows, 6, eol=eol), []
    forward = backbone.transformer.forward

    def record(x, positions, mask, cache, slots):
        seen.append((slots.start, x.shape[1]))
        return forward(x, positions, mask, cache, slots)

    monkeypatch.setattr(backbone.transformer, "forward", record)
    for config, expected in (
        (DecodeConfig("ar"), ar_passes(backbone.grid())),
        (DecodeConfig(schedule=schedule), ssd_passes(schedule, backbone.grid())),
    ):
        seen.clear()
        _, session = run(backbone, config)
        length = session.prompt.length
        assert [(start - length, count) for start, count in seen[1:]] == list(expected)


def test_command(capsys, tmp_path):
    assert main(["cost", "--backbone", "emu3-gen", "--b", "12"]) == 0
    out = capsys.readouterr().out
    assert "90 x 90 codes" in out
    assert "SSD b=12 i=0" in out
    assert main(["cost", "--backbone", "nothing"]) == 2
    assert ", ".join(KNOWN) in capsys.readouterr().err
    assert main(["cost", "--backbone", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_any_folder_needs_its_config_only(janus, emu3, lumina, tmp_path):
    for name in (janus, emu3, lumina):
        size = model_size(str(name.folder))
        parts = name.backbone.parts
        assert size.head == sum(p.numel() for p in parts["head"].parameters())
        assert size.vq == sum(p.numel() for p in parts["vq"].parameters())
        assert size.hidden_size == name.backbone.hidden_size
    assert model_size(str(janus.folder)).grid == TokenGrid(4, 4)


def test_the_memory_of_a_run_has_room_for_its_cache_and_grows_with_rows_and_lookahead():
    backbone = FakeBackbone()
    grid = backbone.grid()
    one, two = (memory_required(backbone, rows, grid, DecodeConfig()) for rows in (1, 2))
    assert two == 2 * one
    cache = backbone.new_cache(1, grid.size)
    assert one > sum(tensor.numel() * tensor.element_size() for tensor in (*cache.keys, *cache.values))
    narrow, wide = (memory_required(backbone, 1, grid, DecodeConfig("lossless", window=n)) for n in (1, 64))
    assert wide > narrow


@pytest.mark.parametrize("neighbors", [4, 1000])
def test_lanterns_table_of_neighbours_is_counted(neighbors):
    backbone, grid = FakeBackbone(codes=3000), FakeBackbone().grid()
    config = DecodeConfig("lantern", options=LanternOptions(neighbors=neighbors))
    table = nearest_codes(backbone, neighbors)
    size = table.numel() * table.element_size()
    distances = 4 * CHUNK * backbone.codebook_size
    without = replace(config, options=LanternOptions(neighbors=1))
    counted = memory_required(backbone, 1, grid, config) - memory_required(backbone, 1, grid, without)
    assert counted >= size - 4 * backbone.codebook_size
    assert size + distances <= config.knobs.memory(backbone.codebook_size) <= 2 * (size + distances)
