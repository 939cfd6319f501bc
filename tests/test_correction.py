"""The update rules on hand-made distributions over a few codes."""

import math

import pytest
import torch

from ssd_core.correction import Draws, correct, draft, sample_first
from ssd_core.grid import TokenGrid
from ssd_core.sampling import Noise, SamplingConfig, log_probs


def draws(shape, seed=0):
    """Random numbers for cells of `shape` = (..., V)."""
    generator = torch.Generator().manual_seed(seed)

    def gumbel():
        return -torch.empty(shape).exponential_(generator=generator).log()

    return Draws(lambda: torch.rand(shape[:-1], generator=generator), gumbel, gumbel)


def never(shape):
    """Draws that fail the test when a rule asks for them."""

    def fail():
        pytest.fail("this rule must not draw random numbers")

    return Draws(fail, fail, fail)


def log(*probabilities, cells=1):
    return torch.tensor(probabilities).log().expand(1, cells, -1)


def test_a_draft_likelier_under_p_is_always_kept_and_keeps_its_reference():
    p, q = log(0.2, 0.7, 0.1, cells=500), log(0.3, 0.5, 0.2, cells=500)
    tokens = torch.full((1, 500), 1)
    result = correct("accept-reject", p, q, tokens, draws(p.shape))
    assert result.accepted.all()
    assert torch.equal(result.tokens, tokens)
    assert torch.equal(result.log_q, q)


def test_a_draft_impossible_under_p_is_never_kept_and_p_becomes_its_reference():
    p, q = log(0.5, 0.0, 0.5, cells=500), log(0.1, 0.8, 0.1, cells=500)
    result = correct("accept-reject", p, q, torch.full((1, 500), 1), draws(p.shape))
    assert not result.accepted.any()
    assert (result.tokens != 1).all()
    assert torch.equal(result.log_q, p)


def test_sometimes_accepting_follows_p_over_q_and_the_residual():
    """20,000 independent cells; each frequency lies within 5 standard deviations of its probability, so a
    correct rule fails with a probability below 1e-5 over the whole test."""
    n = 20_000
    p, q = log(0.3, 0.2, 0.1, 0.4, cells=n), log(0.1, 0.5, 0.3, 0.1, cells=n)
    result = correct("accept-reject", p, q, torch.full((1, n), 1), draws(p.shape, seed=5))
    keep = 0.2 / 0.5
    residual = {0: 0.2 / 0.5, 3: 0.3 / 0.5}  # [p - q]+ is 0.2 at code 0 and 0.3 at code 3
    expected = {1: keep, 2: 0.0} | {code: (1 - keep) * share for code, share in residual.items()}
    for code, probability in expected.items():
        frequency = (result.tokens == code).float().mean().item()
        assert abs(frequency - probability) <= 5 * math.sqrt(probability * (1 - probability) / n)
    assert torch.equal(result.accepted, result.tokens == 1)
    mixed = torch.where(result.accepted[..., None], q, p)
    assert torch.equal(result.log_q, mixed)


def test_an_empty_residual_falls_back_to_p():
    """A token whose p is 0 is rejected while p - q is nowhere above rounding: sample p, no NaN."""
    p = log(0.5, 0.5, 0.0, cells=200)
    result = correct("accept-reject", p, p, torch.full((1, 200), 2), draws(p.shape))
    assert not result.accepted.any()
    assert set(result.tokens.flatten().tolist()) == {0, 1}


def test_greedy_takes_the_mode_without_random_numbers():
    p, q = log(0.2, 0.7, 0.1), log(0.8, 0.1, 0.1)
    assert draft("greedy", q, never(q.shape)).item() == 0
    assert sample_first("greedy", p, never(p.shape)).item() == 1
    result = correct("greedy", p, q, torch.tensor([[0]]), never(p.shape))
    assert (result.tokens.item(), result.accepted.item()) == (1, False)


@pytest.mark.parametrize("rule", ["sample", "shared-noise"])
def test_sampling_rules_follow_p(rule):
    """20,000 cells, 5 standard deviations: a correct rule fails with a probability below 1e-5."""
    n = 20_000
    p, q = log(0.6, 0.3, 0.1, cells=n), log(0.1, 0.1, 0.8, cells=n)
    tokens = correct(rule, p, q, torch.zeros(1, n, dtype=torch.long), draws(p.shape, seed=9)).tokens
    for code, probability in enumerate((0.6, 0.3, 0.1)):
        assert abs((tokens == code).float().mean().item() - probability) <= 5 * math.sqrt(0.25 / n)


def test_unknown_rule_lists_the_known_ones():
    with pytest.raises(ValueError, match="accept-reject"):
        correct("magic", log(0.5, 0.5), log(0.5, 0.5), torch.tensor([[0]]), draws((1, 1, 2)))


# ------------------------------------------------------------------------------------------- sampling


def test_guidance_then_temperature_then_top_k_then_top_p():
    conditional, unconditional = torch.tensor([[4.0, 3.0, 2.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    config = SamplingConfig(cfg=2.0, temperature=2.0, top_k=3, top_p=0.9)
    mixed = (unconditional + 2 * (conditional - unconditional)) / 2  # 3.5, 2.5, 1.5, -0.5
    kept = mixed[:, :2].softmax(-1)  # of the best three the first two hold 0.91
    got = log_probs(torch.cat((conditional, unconditional)), config).exp()
    assert torch.allclose(got, torch.cat((kept, torch.zeros(1, 2)), 1), atol=1e-6)


def test_top_p_always_keeps_the_likeliest_code():
    got = log_probs(torch.tensor([[5.0, 1.0, 0.0]]), SamplingConfig(top_p=0.01)).exp()
    assert torch.equal(got, torch.tensor([[1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("bad", [{"cfg": -1}, {"temperature": 0}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}])
def test_bad_sampling_values_are_named(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        SamplingConfig(**bad)


def test_noise_depends_on_seed_row_purpose_and_round_only():
    grid = TokenGrid(4, 3)
    one = Noise([11], grid, 7, torch.device("cpu"))
    two = Noise([5, 11], grid, 7, torch.device("cpu"))
    two.fresh(range(0, 4), 3)  # earlier draws change nothing
    assert torch.equal(one.shared(range(1, 3))[0], two.shared(range(1, 3))[1])
    assert torch.equal(one.fresh(range(2, 3), 6)[0], two.fresh(range(1, 3), 6)[1, 1:])
    assert not torch.equal(one.fresh(range(1), 0), one.fresh(range(1), 1))
    assert not torch.equal(one.shared(range(1)), one.shared(range(1, 2)))
    assert not torch.equal(one.shared(range(1)), one.fresh(range(1), 0))  # resampling is independent of AR's noise
    assert not torch.equal(two.uniform(range(1), 0)[0], two.uniform(range(1), 0)[1])
    with pytest.raises(ValueError, match="Seeds run from 0"):
        Noise([-1], grid, 7, torch.device("cpu"))
