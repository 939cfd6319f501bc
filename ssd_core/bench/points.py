"""Decoders as points of speed and quality: who is beaten, and by chance or for sure."""

from collections.abc import Sequence
from dataclasses import dataclass

from .charts import frontier
from .quality import Quality, gain
from .suite import Suite

AXES = {"fewer_passes": "passes", "speedup": "seconds"}


@dataclass(frozen=True)
class Point:
    """One decoder on the chart: how many times fewer seconds and passes than AR, and its quality."""

    name: str
    speedup: float
    fewer_passes: float
    quality: Quality

    @property
    def score(self) -> float:
        """The overall score."""
        return self.quality.overall.mean


def points(suite: Suite) -> list[Point]:
    """The decoders with both a speed and a score; exact ones have AR's."""
    judged = {row.name: row for row in suite.quality}
    reference, found = suite.speed[0], []
    for row in suite.speed:
        quality = judged.get(reference.name if row.name in suite.exact else row.name)
        if quality is not None:
            found.append(Point(row.name, row.speedup, reference.nfe / row.nfe, quality))
    return found


def unbeaten(own: Point, every: Sequence[Point], axis: str) -> bool | None:
    """Whether no other point is as fast and better; None where chance may have put one there.

    Of two that draw the same pictures the one with fewer passes beats the other; seconds are the clock's chance.
    """
    verdict: bool | None = True
    for other in every:
        lead = getattr(other, axis) - getattr(own, axis)
        if other.quality is own.quality:
            if lead > 0 and axis == "fewer_passes":
                return False
            beats = None if lead > 0 else False
        else:
            beats = lead >= 0 and other.score >= own.score and (better(other.quality, own.quality) or None)
        if beats:
            return False
        if beats is None:
            verdict = None
    return verdict


def better(one: Quality, other: Quality) -> bool | None:
    """Whether the first scores better overall; None where chance would explain the difference."""
    by = gain(one, other)
    return None if by.margin is None or abs(by.mean) <= by.margin else by.mean > 0


def on_frontier(suite: Suite, axis: str) -> list[str]:
    """The names of the decoders that no other beats in both, the fastest last."""
    every = points(suite)
    edge = frontier([(getattr(point, axis), point.score) for point in every])
    return [point.name for corner in edge for point in every if (getattr(point, axis), point.score) == corner]
