"""Small SVG charts without a plotting library: points with names and their frontier, and lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT, LEGEND = 860, 540, 64, 48, 40, 24, 20
INK, MUTED, GRID = "#24292f", "#57606a", "#d8dee4"
COLORS = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#9a6700", "#bf3989", "#57606a", "#0a7ea4", "#e16f24", "#116329")
LETTER, LINE = 6.3, 12  # px that a letter of a label takes, and a label

# Where a label may be from its point, the best first: to the right (1) or left (-1), below (1) or above (-1).
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))
_OFF_LINES = ((0, -1), (-1, -1), (0, 1), (-1, 1), (1, 0))
_OFF_FALLING_LINES = ((1, -1), *_OFF_LINES)


@dataclass(frozen=True)
class Series:
    """Points [(x, y), ...] of one name; labels: a text for each, or none; margins: half the length of a whisker.

    A point with an empty label has neither label nor whisker.
    """

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    margins: Sequence[float] = ()

    def extent(self) -> list[float]:
        """Where points and whiskers are, upwards."""
        margins = self.margins or [0.0] * len(self.points)
        return [y + sign * margin for (_, y), margin in zip(self.points, margins, strict=True) for sign in (-1, 1)]


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that none is better than in both x and y (more is better), by x."""
    best: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda point: (-point[0], -point[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best[::-1]


def chart(
    title: str,
    x_title: str,
    y_title: str,
    series: Sequence[Series],
    *,
    lines: bool = True,
    log_x: bool = False,
    with_frontier: bool = False,
) -> str:
    """An SVG document; `lines` joins the points of a series, `with_frontier` draws the frontier of all.

    Series without labels are named at their last point; where there are labels, a legend names the series.
    """
    every = [point for each in series for point in each.points]
    labelled = len(series) > 1 and any(each.labels for each in series)
    top_edge = TOP + (LEGEND if labelled else 0)
    x_axis = _Axis([x for x, _ in every], LEFT, WIDTH - RIGHT, log=log_x, beyond=0.2 if labelled else 0.06)
    y_axis = _Axis([y for each in series for y in each.extent()], HEIGHT - BOTTOM, top_edge)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="white"/>',
        _text(WIDTH / 2, 24, title, "middle", INK, 15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_title, "middle"),
        f'<g transform="rotate(-90 18 {HEIGHT / 2})">{_text(18, HEIGHT / 2, y_title, "middle")}</g>',
    ]
    for value in x_axis.ticks:
        x = x_axis.at(value)
        parts += [_line(x, top_edge, x, HEIGHT - BOTTOM), _text(x, HEIGHT - BOTTOM + 16, f"{value:g}", "middle")]
    for value in y_axis.ticks:
        y = y_axis.at(value)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 6, y + 4, f"{value:g}", "end")]
    if with_frontier:
        parts.append(_path(frontier(every), x_axis, y_axis, MUTED, "6 4"))
    if labelled:
        parts += _legend([each.name for each in series])
    dots, texts, labels = [], [], _Labels([(x_axis.at(x), y_axis.at(y)) for x, y in every], top_edge)
    for number, each in enumerate(series):
        color = _color(number)
        if lines and len(each.points) > 1:
            parts.append(_path(each.points, x_axis, y_axis, color))
        for i, (x, y) in enumerate(each.points):
            left, top = x_axis.at(x), y_axis.at(y)
            named = bool(each.labels and each.labels[i])
            if each.margins and (named or not each.labels):
                low, high = (y_axis.at(y + sign * each.margins[i]) for sign in (-1, 1))
                parts.append(_line(left, low, left, high, color, 0.35))
            dots.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{color}"/>')
            if named:
                texts += labels.place(left, top, each.labels[i], color, _OFF_FALLING_LINES if lines else _SIDES)
        if not each.labels and len(series) > 1:
            texts += labels.place(left, top, each.name, color, _OFF_LINES)
    return "\n".join([*parts, *texts, *dots, "</svg>\n"])


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _legend(names: Sequence[str]) -> list[str]:
    """Dots and names in one line below the title."""
    widths = [28 + LETTER * len(name) for name in names]
    parts, left, y = [], (LEFT + WIDTH - RIGHT - sum(widths)) / 2, TOP + 6
    for number, (name, width) in enumerate(zip(names, widths, strict=True)):
        parts += [
            f'<circle cx="{left + 6:.1f}" cy="{y - 4}" r="4" fill="{_color(number)}"/>',
            _text(left + 14, y, name, "start", INK, 11),
        ]
        left += width
    return parts


class _Axis:
    """Values to pixels, with some room at both ends, and round ticks. beyond: the room behind the largest value."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool = False, beyond: float = 0.06):
        self.log, self.start, self.end = log, start, end
        low, high = min(map(self._scaled, values)), max(map(self._scaled, values))
        span = high - low or 8.0
        self.low, self.high = low - 0.06 * span, high + beyond * span
        if log:
            powers = range(math.floor(self.low / math.log(2)), math.ceil(self.high / math.log(2)) + 1)
            between = (1, 1.5) if len(powers) < 5 else (1,)
            candidates = [factor * 2.0**power for power in powers for factor in between]
        else:
            raw = (self.high - self.low) / 6
            step = min(
                (factor * 10 ** math.floor(math.log10(raw)) for factor in (1, 2, 5, 10)), key=lambda s: abs(s - raw)
            )
            if all(float(value).is_integer() for value in values):
                step = max(step, 1)
            first = math.ceil(self.low / step)
            candidates = [round(step * n, 10) for n in range(first, math.floor(self.high / step) + 1)]
        self.ticks = [value for value in candidates if self.low <= self._scaled(value) <= self.high]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value

    def at(self, value: float) -> float:
        share = (self._scaled(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: "_Box") -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0.0) * max(height, 0.0)


class _Labels:
    """Places names near their points, off other points and names as far as that goes."""

    def __init__(self, points: Sequence[tuple[float, float]], top: float):
        self._top = top
        self._taken = [_Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]

    def place(self, x: float, y: float, text: str, color: str, sides: Sequence[tuple[int, int]] = _SIDES) -> list[str]:
        """The name, and a line to it if it is not next to the point."""
        width = LETTER * len(text)
        best, best_cost, anchor = None, math.inf, "start"
        for distance, (right, down) in product((0, 13, 26, 39, 52, 65), sides):
            if distance and not down:
                continue
            left = x + (8 if right > 0 else -8 - width if right < 0 else -width / 2)
            top = y - LINE / 2 + down * (LINE + (0 if right else 2) + distance)
            box = _Box(left, top, left + width, top + LINE)
            outside = (
                box.left < LEFT or box.right > WIDTH - RIGHT or box.top < self._top or box.bottom > HEIGHT - BOTTOM
            )
            cost = sum(map(box.overlap, self._taken)) + distance / 2 + (1e6 if outside else 0)
            if cost < best_cost:
                best, best_cost, anchor = box, cost, ("middle", "start", "end")[right]
        self._taken.append(best)
        at = {"start": best.left, "middle": x, "end": best.right}[anchor]
        parts = [_text(at, best.bottom - 3, text, anchor, color, 11)]
        middle = (best.top + best.bottom) / 2
        if abs(middle - y) > 1.5 * LINE:
            near = min(max(x, best.left), best.right)
            parts.append(_line(x, y, near, best.bottom if middle < y else best.top, color, 0.5))
        return parts


def _path(points, x_axis: _Axis, y_axis: _Axis, color: str, dash: str = "") -> str:
    where = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
    return f'<polyline points="{where}" fill="none" stroke="{color}" stroke-width="1.6" stroke-dasharray="{dash}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str = GRID, opacity: float = 1) -> str:
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {where} stroke="{color}" stroke-opacity="{opacity:g}"/>'


def _text(x: float, y: float, text: str, anchor: str, color: str = MUTED, size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    halo = 'stroke="white" stroke-width="3" paint-order="stroke"'  # lines behind a text do not cross it out
    return f'<text {place} fill="{color}" {halo} font-size="{size}">{escape(text)}</text>'
