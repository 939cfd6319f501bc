"""Fits the lossless window to the device: what a pass costs there against what it brings."""

from dataclasses import replace
from itertools import islice, pairwise
from statistics import median

from .backbones import Backbone
from .decoders import DecodeConfig, decode
from .grid import TokenGrid
from .heads import Heads
from .sampling import SamplingConfig
from .session import DecodingSession

WINDOWS = (8, 12, 16, 24, 32, 48, 64, 96)
HALF_GAIN = 24  # cells; L of them bring about L / (L + HALF_GAIN) of what endless ones would (builtin, L = 16 to 96)


def window_costs(
    backbone: Backbone,
    prompts: list[str],
    config: DecodeConfig | None = None,
    sampling: SamplingConfig | None = None,
    *,
    heads: Heads | None = None,
    grid: TokenGrid | None = None,
    passes: int = 5,
) -> dict[int, float]:
    """Seconds per lossless pass on this device, by window: the median of a few real ones, after one to warm up."""
    costs = {}
    for window in WINDOWS:
        config = replace(config or DecodeConfig(), decoder="lossless", window=window, options=None)
        seeds = list(range(len(prompts)))
        session = DecodingSession(backbone, prompts, seeds, sampling, grid=grid, lookahead=window)
        events = decode(session, config, heads, synchronize=True)
        ends = [event.seconds for event in islice(events, passes + 2)][1:]  # from the end of the first pass
        events.close()
        costs[window] = median(after - before for before, after in pairwise(ends))
    return costs


def fastest_window(costs: dict[int, float]) -> int:
    """The window with the least expected time per picture, given seconds per pass by window.

    A pass that costs the same whatever it looks at (a GPU) takes the longest window, a CPU a short one.
    The picture does not depend on it.
    """
    return min(costs, key=lambda window: costs[window] * (window + HALF_GAIN) / window)
