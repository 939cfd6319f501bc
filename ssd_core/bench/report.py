"""One page about one run of the builtin suite: tables, charts, and which findings of the paper hold on this model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..files import write_atomically
from .ablations import ABLATIONS, Direction
from .charts import Series, chart, frontier
from .figures import table
from .passes import PassCost
from .quality import Quality
from .speed import Speed

REPOSITORY_COMMAND = "python -m ssd_core.bench report"


@dataclass(frozen=True)
class Suite:
    """Everything that a page is about. facts: of the run; ablations: by name; quality: the first row is the floor."""

    facts: dict
    speed: list[Speed]
    cost: list[PassCost]
    quality: list[Quality]
    ablations: dict[str, list[Quality]]
    directions: list[Direction]


@dataclass(frozen=True)
class Point:
    """One decoder on the chart: how many times faster than AR, and the overall score."""

    name: str
    speedup: float
    fewer_passes: float
    score: float


def points(suite: Suite) -> list[Point]:
    """The decoders with both a speed and a score; lossless ones draw AR's pictures, so they have AR's."""
    scores = {row.name: row.scores["overall"].mean for row in suite.quality}
    reference = suite.speed[0]
    found = []
    for row in suite.speed:
        score = scores.get(reference.name if row.name.startswith("lossless") else row.name)
        if score is not None:
            found.append(Point(row.name, row.speedup, reference.nfe / row.nfe, score))
    return found


def findings(suite: Suite) -> list[str]:
    """What the paper found, and whether this run agrees. Scores closer than chance explains leave it undecided."""
    lines = []

    def check(claim: str, holds: bool | None, figures: str) -> None:
        verdict = {True: "holds here", False: "does not hold here", None: "undecided, within the noise"}[holds]
        lines.append(f"- {claim}: **{verdict}** ({figures}).")

    def best(rows: Sequence[Quality]) -> Quality:
        return max(rows, key=lambda row: row.scores["overall"].mean)

    def better(one: Quality, other: Quality) -> bool | None:
        gain = one.scores["overall"].mean - other.scores["overall"].mean
        noise = max(_noise(row, suite.facts["prompts"]) for row in (one, other))
        return None if abs(gain) <= noise else gain > 0

    if rounds := suite.ablations.get("rounds"):
        gains = [after - before for before, after in pairwise(row.scores["overall"].mean for row in rounds)]
        helps = better(rounds[-1], rounds[0])
        holds = helps and gains[0] == max(gains)
        check("Verification helps, the first round most (Table 4)", holds, f"r = 0 to 4: {_shares(rounds)}")
    if rules := suite.ablations.get("rules"):
        figures = f"greedy, sample, accept-reject, shared-noise: {_shares(rules)}"
        check("Accept-reject beats greedy and sampling (Table 3)", better(rules[2], best(rules[:2])), figures)
    if staged := suite.ablations.get("staged"):
        figures = f"joint, staged: {_shares([staged[0], staged[-1]])}"
        claim = "Staged verification beats joint at the same budget (Table 21)"
        check(claim, better(staged[-1], staged[0]), figures)
    if depths := suite.ablations.get("lookahead"):
        claim = "Two rows at once are the best lookahead (Table 20)"
        check(claim, better(depths[1], best([depths[0], depths[2]])), f"1 to 3: {_shares(depths)}")
    both = [each for each in suite.directions if each.horizontal is not None and each.vertical is not None]
    if both:
        pairs = "; ".join(f"{each.distance}: {each.horizontal:.1%} and {each.vertical:.1%}" for each in both)
        close = all(abs(each.horizontal - each.vertical) < 0.05 for each in both)
        check("Cells below are as predictable as those to the right, within 5 points (Figure 1)", close, pairs)
    costs = {each.tokens: each for each in suite.cost}
    most = suite.cost[-1]
    check(
        "Drafting is cheap next to a pass, under 0.1 AR steps (Figure 4)",
        most.draft_steps < 0.1,
        f"{most.tokens} tokens: {most.draft_steps:.2f} AR steps",
    )
    row = costs.get(suite.facts["cols"])
    if row:
        figures = f"{row.tokens} tokens: {row.verify_steps:.2f} AR steps"
        check("Verifying a row costs little more than one token (Figure 5)", row.verify_steps < 1.5, figures)
    ssd = [point for point in points(suite) if point.name.startswith("ssd")]
    if ssd:
        for axis, title in (("speedup", "in seconds"), ("fewer_passes", "in passes")):
            edge = frontier([(getattr(point, axis), point.score) for point in points(suite)])
            inside = [point.name for point in ssd if (getattr(point, axis), point.score) not in edge]
            check(f"SSD is the frontier of speed {title} and score (Figure 6)", not inside, _behind(inside, len(ssd)))
    return lines


def _shares(rows: Sequence[Quality]) -> str:
    return ", ".join(f"{row.scores['overall'].text(100)}%" for row in rows)


def _noise(row: Quality, pictures: int) -> float:
    """Half a 95 % interval of the overall score: over the sets of seeds, or of one set's share of pictures."""
    score = row.scores["overall"]
    return 1.96 * math.sqrt(score.mean * (1 - score.mean) / pictures) if score.margin is None else score.margin


def _behind(inside: Sequence[str], count: int) -> str:
    return f"behind it: {', '.join(inside)}" if inside else f"all {count} of its settings are on it"


def write_page(page: Path, suite: Suite) -> None:
    """Writes the page and, beside it, its charts as SVG."""
    facts = suite.facts
    charts = _charts(suite)
    for name, text in charts.items():
        write_atomically(
            page.parent / f"{page.stem}-{name}.svg", lambda path, text=text: path.write_text(text, "utf-8")
        )
    pictures = {name: f"![{name}]({page.stem}-{name}.svg)" for name in charts}
    parts = [
        "# Benchmarks",
        f"`{REPOSITORY_COMMAND}` wrote this page: {facts['backbone']}, weights {facts['fingerprint']}, "
        f"{facts['dtype']}, {facts['device']} ({facts['bandwidth'] / 1e9:.0f} GB/s), torch {facts['torch']}. "
        f"Speed: one picture at a time, {facts['speed_prompts']} captions, medians. Quality: {facts['prompts']} "
        f"held-out captions, {facts['sets']} set{'s' if facts['sets'] > 1 else ''} of seeds"
        + ("; ± is half a 95 % confidence interval over the sets." if facts["sets"] > 1 else "."),
        "## Speed against quality",
        pictures["frontier"],
        "The dashed line joins what nothing beats in both. Lossless decoders draw AR's pictures, cell for cell.",
        table([row.as_texts() for row in suite.speed]),
        table([row.as_texts() for row in suite.quality]),
        "## What the paper found",
        "\n".join(findings(suite)),
        "## Cost of a pass",
        pictures["cost"],
        table([row.as_texts() for row in suite.cost]),
        "## Ablations",
    ]
    for name, rows in suite.ablations.items():
        parts += [f"### {name}: {ABLATIONS[name]}", table([row.as_texts() for row in rows])]
        if name == "rounds":
            parts.append(pictures["rounds"])
    if suite.directions:
        title = "### directions: drafts that a first round keeps, by direction and distance (Figure 1)"
        parts += [title, pictures["directions"], table([row.as_texts() for row in suite.directions])]
    write_atomically(page, lambda path: path.write_text("\n\n".join(parts) + "\n", encoding="utf-8"))


def _labels(names: Sequence[str]) -> list[str]:
    """What tells decoders of one family apart."""
    words = [name.split() for name in names]
    common = set.intersection(*map(set, words)) if len(words) > 1 else {*words[0]}
    return [" ".join(word for word in each if word not in common) for each in words]


def _charts(suite: Suite) -> dict[str, str]:
    families: dict[str, list[Point]] = {}
    for point in points(suite):
        families.setdefault(point.name.split()[0], []).append(point)
    groups = [
        Series(
            family,
            [(each.speedup, 100 * each.score) for each in some],
            _labels([each.name for each in some]),
        )
        for family, some in families.items()
    ]
    charts = {
        "frontier": chart(
            "Speed and quality of every decoder",
            "times as fast as AR, in seconds",
            "overall score, %",
            groups,
            lines=False,
            log_x=True,
            with_frontier=True,
        ),
        "cost": chart(
            "Cost of a block",
            "tokens at once",
            "AR steps",
            [
                Series("verify", [(each.tokens, each.verify_steps) for each in suite.cost]),
                Series("draft", [(each.tokens, each.draft_steps) for each in suite.cost]),
            ],
            log_x=True,
        ),
    }
    if "rounds" in suite.ablations:
        rounds = suite.ablations["rounds"]
        scored = [(float(r), 100 * row.scores["overall"].mean) for r, row in enumerate(rounds)]
        charts["rounds"] = chart("Verify rounds", "r", "overall score, %", [Series("ssd", scored)])
    if suite.directions:
        series = [
            Series(
                title, [(d.distance, 100 * getattr(d, axis)) for d in suite.directions if getattr(d, axis) is not None]
            )
            for title, axis in (("to the right", "horizontal"), ("below", "vertical"))
        ]
        charts["directions"] = chart(
            "First-round acceptance of drafts", "distance in cells", "kept, %", [each for each in series if each.points]
        )
    return charts
