"""The strongest test of the whole engine: lossless decoding is AR's picture, whatever the drafts."""

import pytest
import torch
from fakes import FakeBackbone, random_heads, run

from ssd_core.decoders import DecodeConfig, decode
from ssd_core.decoders.lossless import WindowOptions
from ssd_core.sampling import SamplingConfig
from ssd_core.session import FINAL, DecodingSession

SAMPLINGS = {
    "plain": SamplingConfig(),
    "guided": SamplingConfig(cfg=3.0),
    "top-k": SamplingConfig(cfg=2.0, temperature=0.8, top_k=9),
    "top-p": SamplingConfig(cfg=1.5, temperature=1.3, top_p=0.8),
}


@pytest.mark.parametrize("eol", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("window", [1, 4, 9, 400])
def test_equals_ar_for_every_seed(eol, sampling, window):
    backbone = FakeBackbone(eol=eol)
    for seed in range(8):
        expected, ar_session = run(backbone, DecodeConfig("ar"), sampling=sampling, seeds=[seed])
        for heads in (None, random_heads(backbone)):
            config = DecodeConfig("lossless", window=window)
            got, session = run(backbone, config, heads=heads, sampling=sampling, seeds=[seed])
            assert torch.equal(got.tokens, expected.tokens)
            assert (got.status == FINAL).all()
            assert session.nfe <= ar_session.nfe


def test_each_image_of_a_batch_advances_at_its_own_pace():
    backbone = FakeBackbone()
    sampling = SamplingConfig(cfg=2.0)
    prompts, seeds = ["a", "a long one", "bc"], [3, 4, 5]
    config = DecodeConfig("lossless", window=7)
    together, batch = run(backbone, config, sampling=sampling, prompts=prompts, seeds=seeds)
    passes = []
    for i in range(3):
        alone = dict(sampling=sampling, prompts=[prompts[i]], seeds=[seeds[i]])
        expected, _ = run(backbone, DecodeConfig("ar"), **alone)
        assert torch.equal(together.tokens[i], expected.tokens[0])
        passes.append(run(backbone, config, **alone)[1].nfe)
    assert batch.nfe == max(passes)  # nobody waits for a slower image's drafts


def test_greedy_lossless_equals_greedy_ar():
    backbone = FakeBackbone()
    expected, _ = run(backbone, DecodeConfig("ar", rule="greedy"))
    got, session = run(backbone, DecodeConfig("lossless", rule="greedy", window=6))
    assert torch.equal(got.tokens, expected.tokens)
    assert session.nfe < session.grid.size


@pytest.mark.parametrize("eol", [False, True])
def test_tolerance_trades_equality_for_passes(eol):
    """0 is lossless; so much tolerance that nothing is ever wrong takes one pass per window."""
    backbone = FakeBackbone(eol=eol)
    prompts, seeds = ["a", "a long one"], [3, 4]
    expected, _ = run(backbone, DecodeConfig("lossless", window=7), prompts=prompts, seeds=seeds)
    passes = []
    for tolerance in (0, 1, 3, 99):
        config = DecodeConfig("window", options=WindowOptions(window=7, tolerance=tolerance))
        got, session = run(backbone, config, prompts=prompts, seeds=seeds)
        assert (got.status == FINAL).all()
        assert torch.equal(got.tokens, expected.tokens) == (tolerance == 0)
        passes.append(session.nfe)
    assert passes == sorted(passes, reverse=True)
    assert passes[-1] == 1 + -(-(backbone.grid().size - 1) // 7)


def test_events_name_every_row_that_changed():
    backbone = FakeBackbone(eol=False)
    config = DecodeConfig("lossless", window=9)
    session = DecodingSession(backbone, ["a"], [0], lookahead=config.lookahead)
    before = torch.full_like(session.cells(range(5)), -1)
    for event in decode(session, config):
        changed = (event.tokens != before).any(-1)[0].nonzero().flatten().tolist()
        if event.phase == "window":
            assert set(changed) <= set(event.rows)
            assert event.rows
        before = event.tokens.clone()


def test_a_session_is_checked_before_it_runs():
    backbone = FakeBackbone()
    session = DecodingSession(backbone, ["a"], [0])
    with pytest.raises(ValueError, match="lookahead=12"):
        decode(session, DecodeConfig("lossless", window=12))
    list(decode(session, DecodeConfig("ar")))
    with pytest.raises(ValueError, match="make a new DecodingSession"):
        decode(session, DecodeConfig("ar"))
