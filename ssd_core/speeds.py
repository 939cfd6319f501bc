"""The speed scale: named stops from AR's own picture to the least time, and what each of them decodes with.

`MEASURED` is for families whose decoders were measured side by side. Its stops are chosen from the page that
`python -m ssd_core.bench report` writes: each is meant to be on a frontier there, which is to say that no other decoder
takes as few passes (or as few seconds) and draws better. The page lists the stops and says whether that holds; where it
does not, change the table. All other families have the paper's schedule with more or fewer verify rounds.
"""

import math
from dataclasses import replace

from .decoders import DecodeConfig
from .decoders.lossless import WindowOptions
from .schedule import PRESETS, Schedule

SPEEDS = ("lossless", "quality", "balanced", "fast", "fastest")
MEASURED = {
    "builtin": {
        "lossless": DecodeConfig("lossless"),
        "quality": DecodeConfig("window", options=WindowOptions(tolerance=1)),
        "balanced": DecodeConfig("window", options=WindowOptions(tolerance=2)),
        "fast": DecodeConfig("window", options=WindowOptions(tolerance=3)),
        "fastest": DecodeConfig(schedule=Schedule(b=0)),
    },
}


def stops(family: str) -> dict[str, DecodeConfig]:
    """What every stop of a backbone family decodes with, in the order of `SPEEDS`. ValueError for an unknown family."""
    if family not in PRESETS:
        raise ValueError(f'Unknown backbone family "{family}": there are {", ".join(PRESETS)}.')
    return MEASURED.get(family) or _by_rounds(DecodeConfig.preset(family))


def at_speed(name: str, family: str) -> DecodeConfig:
    """What one stop decodes with. Raises ValueError that lists the names, or the families."""
    if name not in SPEEDS:
        raise ValueError(f'Unknown speed "{name}": choose one of {", ".join(SPEEDS)}.')
    return stops(family)[name]


def _by_rounds(preset: DecodeConfig) -> dict[str, DecodeConfig]:
    """Stops that differ in verify rounds: the preset is "balanced", "fastest" never verifies."""
    balanced = preset.schedule
    schedules = {
        "quality": replace(balanced, b=2 * balanced.b, i=2 * balanced.i),
        "balanced": balanced,
        "fast": replace(balanced, b=math.ceil(balanced.b / 2), i=balanced.i // 4),
        "fastest": Schedule(b=0),
    }
    lossless = {"lossless": replace(preset, decoder="lossless")}
    return lossless | {name: replace(preset, schedule=schedule) for name, schedule in schedules.items()}
