"""The lossless window that suits a device."""

import pytest
from fakes import FakeBackbone

from ssd_core.sampling import SamplingConfig
from ssd_core.tuning import WINDOWS, fastest_window, window_costs


def test_passes_of_equal_cost_want_the_longest_window():
    assert fastest_window(dict.fromkeys(WINDOWS, 0.02)) == max(WINDOWS)


def test_passes_that_cost_by_the_cell_want_the_shortest():
    assert fastest_window({window: 0.001 * window for window in WINDOWS}) == min(WINDOWS)


def test_a_cost_per_pass_and_one_per_cell_are_traded():
    # (a + c L) (L + 24) / L is least at L = sqrt(24 a / c): here 24
    assert fastest_window({window: 0.0024 + 0.0001 * window for window in WINDOWS}) == 24


@pytest.mark.parametrize("prompts", [["a"], ["a", "bc"]])
def test_costs_are_measured_on_real_passes(prompts):
    backbone = FakeBackbone()
    costs = window_costs(backbone, prompts, sampling=SamplingConfig(cfg=2.0), passes=2)
    assert set(costs) == set(WINDOWS)
    assert min(costs.values()) > 0
