"""One page about one run of the builtin suite: tables, charts, and which findings of the paper hold on this model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..decoders import DECODERS
from ..files import write_atomically
from .ablations import ABLATIONS
from .charts import Series, chart, frontier
from .figures import Estimate, table
from .quality import Quality, gain
from .suite import Suite

REPOSITORY_COMMAND = "python -m ssd_core.bench report"
AXES = {"fewer_passes": "passes", "speedup": "seconds"}
VERDICTS = {True: "holds here", False: "does not hold here", None: "undecided here, within the noise"}
HOW_TO_READ = """\
*Passes* are runs of the network, what a large model on a GPU pays for; *seconds* are this machine's, which pays for
every token that a pass looks at. *Score* is the share of pictures that show what their caption asks for (objects,
numbers, places, background: the mean of these categories), as the small detector in `ssd_core/bench/scorer.py` sees it.
*Nats per cell* is how unlikely AR finds a picture, *Frechet* the distance to real scenes in the detector's features (so
few pictures are never near: the last table has that of other real scenes); *equal to AR* counts cells that agree with
AR's picture of the same seed. `ssd b=2` is the paper's method with r = 2 verify rounds per row; knobs that are not
named are the defaults (on the command line: `ssd:b=2,commits=early`)."""


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


def better(one: Quality, other: Quality) -> bool | None:
    """Whether the first scores better overall; None where chance would explain the difference."""
    by = gain(one, other)
    return None if by.margin is None or abs(by.mean) <= by.margin else by.mean > 0


def findings(suite: Suite) -> list[str]:
    """What the paper found, and whether this run agrees."""
    lines = []

    def check(claim: str, holds: bool | None, figures: str) -> None:
        lines.append(f"- {claim}: **{VERDICTS[holds]}** ({figures}).")

    def best(rows: Sequence[Quality]) -> Quality:
        return max(rows, key=lambda row: row.overall.mean)

    every, judged = points(suite), {row.name: row for row in suite.quality}
    named = {point.name: point for point in every}
    if suite.preset in named:
        preset = named[suite.preset]
        loss = gain(judged["ar"], preset.quality)
        small = None if loss.margin is None or abs(loss.mean - 0.03) <= loss.margin else loss.mean < 0.03
        figures = f"{suite.preset} loses {loss.text(100)} points of AR's {judged['ar'].overall.text(100)} %"
        check("SSD costs at most 3 points of the score (Table 1)", small, figures)
        share = preset.speedup / preset.fewer_passes
        figures = f"{preset.fewer_passes:.1f} times fewer passes, {preset.speedup:.1f} times fewer seconds"
        claim = "SSD's saved passes are saved seconds, at least three quarters of them (Table 1)"
        check(claim, share >= 0.75, figures)
    peers = [point for point in every if point.name.split()[0] not in ("ssd", "ar", "lossless", "window")]
    ours = [point for point in every if point.name.startswith("ssd")]
    if ours and peers:
        for axis, title in AXES.items():
            holds, figures = _ahead(ours, peers, axis)
            check(f"No peer is both faster than an SSD setting, in {title}, and better (Table 1)", holds, figures)
    if suite.deviation and suite.deviation.shift is not None:
        shift, spread = suite.deviation.shift, suite.deviation.spread
        figures = f"shift {shift:.2f} of AR's spread, spread {spread:+.0%}; the paper: 0.70 and +25 %"
        claim = "SSD moves the mean of a caption's pictures by less than AR's pictures differ among seeds (Table 11)"
        check(claim, shift < 1, figures)
    if rounds := suite.ablations.get("rounds"):
        gains = [after - before for before, after in pairwise(row.overall.mean for row in rounds)]
        helps = better(rounds[-1], rounds[0])
        figures = f"r = 0 to {len(rounds) - 1}: {_scores(rounds)}"
        check("Verification helps, the first round most (Table 4)", helps and gains[0] == max(gains), figures)
    if rules := suite.ablations.get("rules"):
        figures = f"greedy, sample, accept-reject, shared-noise: {_scores(rules)}"
        check("Accept-reject beats greedy and sampling (Table 3)", better(rules[2], best(rules[:2])), figures)
    if staged := suite.ablations.get("staged"):
        claim = "Staged verification beats joint at the same budget (Table 21)"
        figures = f"joint, staged: {_scores([staged[0], staged[-1]])}"
        check(claim, better(staged[-1], staged[0]), figures)
    if depths := suite.ablations.get("lookahead"):
        claim = "Two rows at once are the best lookahead (Table 20)"
        check(claim, better(depths[1], best([depths[0], depths[2]])), f"1 to 3 rows: {_scores(depths)}")
    both = [each for each in suite.directions if each.horizontal is not None and each.vertical is not None]
    if both:
        figures = "; ".join(f"{each.distance}: {each.horizontal:.1%} and {each.vertical:.1%}" for each in both)
        close = all(each.vertical > each.horizontal - 0.05 for each in both)
        claim = "Cells below are as predictable as cells to the right, within 5 points (Figure 1)"
        check(claim, close, f"kept by distance, right and below, {figures}")
    if row := {each.tokens: each for each in suite.cost}.get(suite.facts["cols"]):
        claim = "Drafting a row is cheap, at most 0.1 AR steps (Table 13)"
        check(claim, row.draft_steps <= 0.1, f"{row.tokens} tokens: {row.draft_steps:.3f}")
        claim = "Verifying a row costs little more than one token, at most 1.3 AR steps (Table 13)"
        check(claim, row.verify_steps <= 1.3, f"{row.tokens} tokens: {row.verify_steps:.2f}")
    return lines


def _ahead(ours: Sequence[Point], peers: Sequence[Point], axis: str) -> tuple[bool | None, str]:
    """Whether every one of our points is unbeaten by any peer, for sure or perhaps, and by whom it is not."""
    beaten, perhaps = [], []
    for own in ours:
        faster = [peer for peer in peers if getattr(peer, axis) >= getattr(own, axis) and peer.score > own.score]
        surely = [peer.name for peer in faster if better(peer.quality, own.quality)]
        if surely:
            beaten.append(f"{own.name} by {', '.join(surely)}")
        elif faster:
            perhaps.append(f"{own.name} by {', '.join(peer.name for peer in faster)}")
    if beaten:
        return False, "beaten: " + "; ".join(beaten)
    if perhaps:
        return None, "perhaps beaten: " + "; ".join(perhaps)
    return True, f"none of {len(ours)} settings is beaten"


def _scores(rows: Sequence[Quality]) -> str:
    return ", ".join(f"{row.overall.text(100)} %" for row in rows)


def write_page(page: Path, suite: Suite) -> None:
    """Writes the page and, beside it, its charts as SVG."""
    charts = _charts(suite)
    for name, text in charts.items():
        write_atomically(
            page.parent / f"{page.stem}-{name}.svg", lambda path, text=text: path.write_text(text, "utf-8")
        )
    pictures = {name: f"![{name}]({page.stem}-{name}.svg)" for name in charts}
    parts = [
        "# Benchmarks",
        *_introduction(suite.facts),
        "## Speed against quality",
        pictures["passes"],
        pictures["seconds"],
        "Up and to the right is better; the dashed line joins the decoders that no other beats in both. Whiskers are "
        f"95 % confidence intervals. {_exact(suite)}".strip(),
        HOW_TO_READ,
        table(_overview(suite)),
        _frontiers(suite),
        "\n".join(f"- **{name}**: {text}" for name, text in DECODERS.items()),
        "## Which findings of the paper hold on this model",
        "The paper's models are several hundred times larger and run on a GPU; each line below is decided by this "
        "page's numbers alone. Scores are compared caption by caption (paired bootstrap, 95 %).",
        "\n".join(findings(suite)),
        "## Cost of a pass",
        pictures["cost"],
        "An AR step is a pass of one token at the same place, half a picture in. *Verify* is one pass over so many "
        "tokens, *draft* one head and its distributions.",
        table([row.as_texts() for row in suite.cost]),
        "## Ablations",
    ]
    for name, rows in suite.ablations.items():
        parts += [f"### {name}: {ABLATIONS[name]}", table([row.as_texts() for row in rows])]
        if name == "rounds":
            parts.append(pictures["rounds"])
    if suite.directions:
        title = "### directions: drafts that a first round keeps, by direction and distance"
        parts += [title, pictures["directions"], table([row.as_texts() for row in suite.directions])]
    parts += [
        "## Everything measured",
        "Speed: *least-most* are the runs' seconds; *fed* are tokens that a pass looks at; *kept per round* is the "
        "share of tokens that each verify round kept; *of bandwidth* is the share of the memory bandwidth that reading "
        "weights and cache takes.",
        table([row.as_texts() for row in suite.speed]),
        f"Quality by category, {suite.facts['captions']} pictures each; *overall* is the score:",
        table([row.as_texts() for row in suite.quality]),
    ]
    write_atomically(page, lambda path: path.write_text("\n\n".join(parts) + "\n", encoding="utf-8"))


def _introduction(facts: dict) -> list[str]:
    sampling, bandwidth = facts["sampling"], facts["bandwidth"] / 1e9
    lines = [
        f"- **Machine:** {facts['device']}; {bandwidth:.0f} GB/s of memory bandwidth; torch {facts['torch']}",
        f"- **Model:** {facts['backbone']}, weights {facts['fingerprint']}, cfg {sampling['cfg']:g}, "
        f"temperature {sampling['temperature']:g}, top-k {sampling['top_k']}",
        f"- **Speed:** one picture at a time, {facts['dtype']}, medians over {facts['speed_captions']} captions, "
        "decoders taking turns",
        f"- **Quality:** one picture for each of {facts['captions']} held-out captions, {facts['drawn_dtype']}; "
        "± is half a 95 % confidence interval over the captions",
    ]
    return [
        "Every decoder of this repository on the builtin model, in one run on one machine. This page was written by",
        f"```sh\n{REPOSITORY_COMMAND}\n```",
        "\n".join(lines),
    ]


def _exact(suite: Suite) -> str:
    if not suite.exact:
        return ""
    names = ", ".join(f"`{name}`" for name in suite.exact)
    return f"These draw AR's pictures, or from AR's distribution, so AR's score is theirs: {names}."


def _on_frontier(suite: Suite, axis: str) -> list[str]:
    """The names of the decoders that no other beats in both, the fastest last."""
    every = points(suite)
    edge = frontier([(getattr(point, axis), point.score) for point in every])
    return [point.name for corner in edge for point in every if (getattr(point, axis), point.score) == corner]


def _frontiers(suite: Suite) -> str:
    """Who is on the frontiers, and which settings of SSD are not."""
    edges = {title: _on_frontier(suite, axis) for axis, title in AXES.items()}
    lines = [f"On the frontier in {title}: {', '.join(names)}." for title, names in edges.items()]
    leading = {name for names in edges.values() for name in names}
    behind = [point.name for point in points(suite) if point.name.startswith("ssd") and point.name not in leading]
    if behind:
        lines.append(f"SSD's settings on neither: {', '.join(behind)}.")
    return " ".join(lines)


def _overview(suite: Suite) -> list[dict[str, str]]:
    """A row per decoder: what it takes and what it draws."""
    edges = {title: _on_frontier(suite, axis) for axis, title in AXES.items()}
    speed, rows = {row.name: row for row in suite.speed}, []
    for point in points(suite):
        row, quality, exact = speed[point.name], point.quality, point.name in suite.exact
        rows.append(
            {
                "decoder": point.name,
                "passes": f"{row.nfe:g}",
                "fewer passes": f"{point.fewer_passes:.2f}x",
                "seconds": f"{row.seconds:.2f}",
                "faster": f"{point.speedup:.2f}x",
                "score %": "as AR" if exact else quality.overall.text(100),
                "nats per cell": "as AR" if exact else _text(quality.nll, digits=3),
                "Frechet": "as AR" if exact else _text(quality.frechet, digits=2),
                "equal to AR %": f"{100 * (row.agreement if exact else quality.agreement.mean):.1f}",
                "on the frontier of": " and ".join(title for title, names in edges.items() if point.name in names),
            }
        )
    return rows


def _text(estimate: Estimate | None, digits: int) -> str:
    return estimate.text(digits=digits) if estimate else ""


def _charts(suite: Suite) -> dict[str, str]:
    families: dict[str, list[Point]] = {}
    for point in points(suite):
        families.setdefault(point.name.split()[0], []).append(point)

    def against(axis: str, title: str, x_title: str) -> str:
        groups = [
            Series(
                family,
                [(getattr(each, axis), 100 * each.score) for each in some],
                [each.name for each in some],
                [100 * (each.quality.overall.margin or 0) for each in some],
            )
            for family, some in families.items()
        ]
        return chart(title, x_title, "score, %", groups, lines=False, log_x=True, with_frontier=True)

    charts = {
        "passes": against("fewer_passes", "Passes and quality of every decoder", "times fewer passes than AR"),
        "seconds": against("speedup", "Speed and quality of every decoder", "times as fast as AR, in seconds"),
        "cost": chart(
            "What a pass costs",
            "tokens at once",
            "AR steps",
            [
                Series("verify: one pass", [(each.tokens, each.verify_steps) for each in suite.cost]),
                Series("draft: one head", [(each.tokens, each.draft_steps) for each in suite.cost]),
            ],
            log_x=True,
        ),
    }
    if rounds := suite.ablations.get("rounds"):
        scored = [(r, 100 * row.overall.mean) for r, row in enumerate(rounds)]
        margins = [100 * (row.overall.margin or 0) for row in rounds]
        ar = 100 * suite.quality[1].overall.mean
        lines = [Series("ssd", scored, margins=margins), Series("ar", [(r, ar) for r, _ in enumerate(rounds)])]
        charts["rounds"] = chart("Verify rounds", "verify rounds per row, r", "score, %", lines)
    if suite.directions:
        series = [
            Series(
                title, [(d.distance, 100 * getattr(d, axis)) for d in suite.directions if getattr(d, axis) is not None]
            )
            for title, axis in (("to the right", "horizontal"), ("below", "vertical"))
        ]
        charts["directions"] = chart(
            "Drafts that a first round keeps", "distance in cells", "kept, %", [each for each in series if each.points]
        )
    return charts
