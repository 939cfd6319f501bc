"""The paper's decoder: pass counts, fixed points, batches, seeds."""

import pytest
import torch
from fakes import FakeBackbone, random_heads

from ssd_core.correction import RULES
from ssd_core.decoders import DecodeConfig, decode
from ssd_core.heads import HeadsError
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule
from ssd_core.session import FINAL, DecodingSession

SCHEDULES = [
    Schedule(b=0, k_h=3),
    Schedule(b=1, k_h=2),
    Schedule(b=2, k_h=1),
    Schedule(b=2, i=1, k_h=3, k_v=2),  # 6 rows below the first: whole blocks
    Schedule(b=1, i=3, k_h=2, k_v=3),
    Schedule(b=3, i=0, k_h=3, k_v=2),  # joint
]


def run(backbone, config, *, heads=None, sampling=None, prompts=("abc",), seeds=(0,)):
    """All events' (phase, nfe) and the last event of a decode."""
    session = DecodingSession(backbone, list(prompts), list(seeds), sampling)
    seen = []
    for event in decode(session, config, heads):
        seen.append((event.phase, event.nfe))
    return seen, event


@pytest.mark.parametrize("rows", [2, 5, 7])  # with k_v = 2, 3: short last blocks
@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_counted_passes_equal_planned_ones(rows, eol, schedule, monkeypatch):
    backbone = FakeBackbone(rows, eol=eol)
    passes = []
    forward = backbone.transformer.forward
    monkeypatch.setattr(backbone.transformer, "forward", lambda *args: passes.append(1) or forward(*args))
    _, last = run(backbone, DecodeConfig(schedule=schedule), heads=random_heads(backbone))
    assert len(passes) == last.nfe == schedule.planned_nfe(backbone.grid())
    assert last.progress == 1
    assert (last.status == FINAL).all()


@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("schedule", [Schedule(b=8, k_h=1), Schedule(b=14, i=8, k_h=1, k_v=2)], ids=str)
def test_greedy_rounds_reach_ar_from_any_draft(eol, schedule):
    """n verify rounds make the first n cells of a block exact, so enough rounds give AR's tokens."""
    backbone = FakeBackbone(eol=eol)
    sampling = SamplingConfig(cfg=2.0)
    _, expected = run(backbone, DecodeConfig("ar", rule="greedy"), sampling=sampling)
    for heads in (None, random_heads(backbone)):
        _, got = run(backbone, DecodeConfig(schedule=schedule, rule="greedy"), heads=heads, sampling=sampling)
        assert torch.equal(got.tokens, expected.tokens)


def test_shared_noise_rounds_reach_ar_of_the_same_seed():
    backbone = FakeBackbone()
    for seed in range(5):
        _, expected = run(backbone, DecodeConfig("ar"), seeds=[seed])
        config = DecodeConfig(schedule=Schedule(b=8, k_h=1), rule="shared-noise")
        _, got = run(backbone, config, seeds=[seed])
        assert torch.equal(got.tokens, expected.tokens)


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_equals_its_single_images(rule):
    backbone = FakeBackbone()
    heads = random_heads(backbone)
    config = DecodeConfig(schedule=Schedule(b=2, i=1, k_h=3, k_v=2), rule=rule)
    prompts, seeds = ["a", "a long one", "bc"], [3, 4, 5]
    sampling = SamplingConfig(cfg=2.0)
    _, together = run(backbone, config, heads=heads, sampling=sampling, prompts=prompts, seeds=seeds)
    for i in range(3):
        _, alone = run(backbone, config, heads=heads, sampling=sampling, prompts=[prompts[i]], seeds=[seeds[i]])
        assert torch.equal(together.tokens[i], alone.tokens[0])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "greedy"])
def test_same_seed_same_picture_other_seed_another(rule):
    backbone = FakeBackbone()
    config = DecodeConfig(rule=rule)
    pictures = [run(backbone, config, seeds=[seed])[1].tokens for seed in (7, 7, 8)]
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_ar_takes_one_pass_per_cell_end_of_line_included():
    backbone = FakeBackbone(4, 5, eol=True)
    _, last = run(backbone, DecodeConfig("ar"))
    assert last.nfe == backbone.grid().size == 4 * 6


def test_schedule_beyond_the_heads_is_refused():
    backbone = FakeBackbone()
    with pytest.raises(HeadsError, match="lower k_h or k_v"):
        run(backbone, DecodeConfig(schedule=Schedule(k_h=5)), heads=random_heads(backbone, k_h=3))


def test_listener_is_off_the_clock_and_out_of_inference_mode():
    session = DecodingSession(FakeBackbone(), ["a"], [0])
    before = None
    for event in decode(session, DecodeConfig()):
        if before is not None:
            assert event.seconds >= before
        before = event.seconds
        assert not torch.is_inference_mode_enabled()
        stopped = session.seconds
        assert session.seconds == stopped


def test_closing_the_iterator_ends_the_run():
    session = DecodingSession(FakeBackbone(), ["a"], [0])
    events = decode(session, DecodeConfig())
    next(events)
    passes = session.nfe
    events.close()
    assert session.nfe == passes
    assert list(events) == []
