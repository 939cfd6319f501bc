"""Small SVG charts without a plotting library: points with names and their frontier, and lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 860, 460, 64, 48, 40, 104
INK, MUTED, GRID = "#24292f", "#57606a", "#d8dee4"
COLORS = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#9a6700", "#bf3989", "#57606a", "#0a7ea4", "#e16f24")


@dataclass(frozen=True)
class Series:
    """Points [(x, y), ...] of one name; labels: a text for each, or none."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()


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
    """An SVG document; `lines` joins the points of a series, `with_frontier` draws the frontier of all."""
    every = [point for each in series for point in each.points]
    x_axis = _Axis([x for x, _ in every], LEFT, WIDTH - RIGHT, log=log_x)
    y_axis = _Axis([y for _, y in every], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, title, "middle", INK, 15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_title, "middle"),
        f'<g transform="rotate(-90 16 {HEIGHT / 2})">{_text(16, HEIGHT / 2, y_title, "middle")}</g>',
    ]
    for value in x_axis.ticks:
        x = x_axis.at(value)
        parts += [_line(x, TOP, x, HEIGHT - BOTTOM), _text(x, HEIGHT - BOTTOM + 16, f"{value:g}", "middle")]
    for value in y_axis.ticks:
        y = y_axis.at(value)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 6, y + 4, f"{value:g}", "end")]
    if with_frontier:
        parts.append(_path(frontier(every), x_axis, y_axis, MUTED, "6 4"))
    labels = _Labels()
    for number, each in enumerate(series):
        color = COLORS[number % len(COLORS)]
        if lines and len(each.points) > 1:
            parts.append(_path(each.points, x_axis, y_axis, color))
        for i, (x, y) in enumerate(each.points):
            left, top = x_axis.at(x), y_axis.at(y)
            parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{color}"/>')
            if each.labels:
                parts.append(labels.place(left, top, each.labels[i]))
        if len(series) > 1:
            parts.append(_text(WIDTH - RIGHT + 12, TOP + 14 + 16 * number, each.name, "start", color))
    return "\n".join([*parts, "</svg>\n"])


class _Axis:
    """Values to pixels, with some room at both ends, and round ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool = False):
        self.log, self.start, self.end = log, start, end
        low, high = min(map(self._scaled, values)), max(map(self._scaled, values))
        room = 0.06 * (high - low) or 0.5
        self.low, self.high = low - room, high + room
        if log:
            powers = range(math.floor(self.low / math.log(2)), math.ceil(self.high / math.log(2)) + 1)
            candidates = [2.0**power for power in powers]
        else:
            raw = (self.high - self.low) / 6
            step = min(
                (factor * 10 ** math.floor(math.log10(raw)) for factor in (1, 2, 5, 10)), key=lambda s: abs(s - raw)
            )
            first = math.ceil(self.low / step)
            candidates = [round(step * n, 10) for n in range(first, math.floor(self.high / step) + 1)]
        self.ticks = [value for value in candidates if self.low <= self._scaled(value) <= self.high]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value

    def at(self, value: float) -> float:
        share = (self._scaled(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


class _Labels:
    """Places names beside points where no other name is yet, as far as a few tries go."""

    def __init__(self):
        self._boxes: list[tuple[float, float, float]] = []  # left, right, baseline

    def place(self, x: float, y: float, text: str) -> str:
        width = 5.6 * len(text)
        for shift in (-5, 14, -17, 26, -29, 38, -41):
            left = x + 7 if x + 7 + width < WIDTH - RIGHT else x - 7 - width
            box = left, left + width, y + shift
            if not any(box[0] < b[1] and b[0] < box[1] and abs(box[2] - b[2]) < 11 for b in self._boxes):
                break
        self._boxes.append(box)
        return _text(box[0], box[2], text, "start", INK, 10)


def _path(points, x_axis: _Axis, y_axis: _Axis, color: str, dash: str = "") -> str:
    where = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
    return f'<polyline points="{where}" fill="none" stroke="{color}" stroke-width="1.6" stroke-dasharray="{dash}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _text(x: float, y: float, text: str, anchor: str, color: str = MUTED, size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}" font-size="{size}">{escape(text)}</text>'
