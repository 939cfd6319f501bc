"""One page about one run of the builtin suite: tables, charts, and which findings of the paper hold on this model."""

import math
import re
from pathlib import Path

from ..decoders import DECODERS
from ..files import write_atomically
from .ablations import ABLATIONS
from .charts import Series, chart
from .figures import Estimate, table
from .findings import VERDICTS, findings
from .points import AXES, Point, better, on_frontier, points, unbeaten
from .quality import gain
from .speed import Speed
from .suite import Suite

COMMAND = "python -m ssd_core.bench report"
PAPERS = re.compile(r"ssd b=\d+( i=\d+)?( k_v=\d+)?")  # names of settings that the paper has
HOW_TO_READ = """\
*Passes* are runs of the network, what a large model on a GPU pays for; *seconds* are this machine's, which pays for
every token that a pass looks at. *Score* is the share of pictures that show what their caption asks for (objects,
numbers, places, background: the mean of these categories), as the small detector in `ssd_core/bench/scorer.py` sees it.
*Nats per cell* is how unlikely AR finds a picture, *Frechet* the distance to real scenes in the detector's features (so
few pictures are never near: the last table has that of other real scenes); *equal to AR* counts cells that agree with
AR's picture of the same seed. `ssd b=2` is the paper's method with r = 2 verify rounds per row; knobs that are not
named are the defaults (on the command line: `ssd:b=2,commits=early`)."""


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
        "95 % confidence intervals. Named are the decoders on that line, the best one of each kind, the stops of the "
        f"speed scale and the paper's setting. {_exact(suite)}".strip(),
        HOW_TO_READ,
        table(_overview(suite)),
        _frontiers(suite),
        *_scale(suite),
        *_ours(suite, pictures),
        "## The decoders",
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
        count = len(rows[0].passed)
        parts += [f"### {name}: {ABLATIONS[name]}, {count} captions", table([row.as_texts() for row in rows])]
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
        f"```sh\n{COMMAND} {facts['options']}\n```",
        "\n".join(lines),
    ]


def _exact(suite: Suite) -> str:
    if not suite.exact:
        return ""
    names = ", ".join(f"`{name}`" for name in suite.exact)
    return f"These draw AR's pictures, or from AR's distribution, so AR's score is theirs: {names}."


def _frontiers(suite: Suite) -> str:
    """Who is on the frontiers, and which settings of SSD are not."""
    edges = {title: on_frontier(suite, axis) for axis, title in AXES.items()}
    lines = [f"On the frontier in {title}: {', '.join(names)}." for title, names in edges.items()]
    leading = {name for names in edges.values() for name in names}
    behind = [point.name for point in points(suite) if point.name.startswith("ssd") and point.name not in leading]
    if behind:
        lines.append(f"SSD's settings on neither: {', '.join(behind)}.")
    return " ".join(lines)


def _scale(suite: Suite) -> list[str]:
    """The stops of the speed scale, and whether each is on a frontier."""
    every = points(suite)
    speed, named = {row.name: row for row in suite.speed}, {point.name: point for point in every}
    rows, standings = [], {}
    for stop, name in suite.scale.items():
        row, point = speed[name], named[name]
        standing = {title: unbeaten(point, every, axis) for axis, title in AXES.items()}
        standings[stop] = True if True in standing.values() else None if None in standing.values() else False
        words = {True: "{}", None: "perhaps {}"}
        on = [words[holds].format(title) for title, holds in standing.items() if holds is not False]
        rows.append({"stop": stop, **_taken(row, suite, point), "on the frontier of": ", ".join(on) or "none"})
    if not rows:
        return []
    off = [stop for stop, holds in standings.items() if not holds]
    verdict = False if False in standings.values() else None if off else True
    figures = f"not for sure: {', '.join(off)}" if off else f"{len(rows)} of {len(rows)}"
    return [
        "## The speed scale",
        "What the stops of the sliders and of `--speed` decode with (`ssd_core/speeds.py`). *Perhaps*: another decoder "
        "is as fast and scores better, but chance would explain it.",
        table(rows),
        f"- Every stop is on a frontier: **{VERDICTS[verdict]}** ({figures}).",
    ]


def _ours(suite: Suite, pictures: dict[str, str]) -> list[str]:
    """What this repository adds to the paper, against the paper's setting at the most similar number of passes."""
    every, speed = points(suite), {row.name: row for row in suite.speed}
    papers = [point for point in every if PAPERS.fullmatch(point.name)]
    ours = [point for point in every if _is_ours(point.name)]
    if not papers or not ours:
        return []

    def row(own: Point) -> dict[str, str]:
        near = min(papers, key=lambda paper: abs(math.log(paper.fewer_passes / own.fewer_passes)))
        theirs, by = _taken(speed[near.name], suite, near), gain(own.quality, near.quality)
        verdict = {True: "better", False: "worse", None: ""}[better(own.quality, near.quality)]
        paper = {"the paper's": near.name} | {f"its {key}": theirs[key] for key in ("passes", "seconds", "score %")}
        return _taken(speed[own.name], suite, own) | paper | {"gain": by.text(100), "for sure": verdict}

    return [
        "## Ours against the paper's schedule",
        pictures["ours"],
        "Each option that this repository adds, beside the paper's own setting with the most similar number of passes. "
        "*Gain* is the difference of their scores in points, caption by caption; where chance would explain it, the "
        "last column is empty. Rule D is `rule=shared-noise`; a window without tolerance is `lossless`. With `settle` "
        "a block ends early when all pictures of a batch have settled: often in the speed run, one picture at a time, "
        "and hardly ever in the batches that scores come from, which are of pictures with all rounds.",
        table([row(own) for own in ours]),
    ]


def _is_ours(name: str) -> bool:
    """Whether it is a decoder, or a setting of SSD, that the paper does not have, with the trained heads."""
    ssd = name.startswith("ssd ") and not PAPERS.fullmatch(name)
    return ssd or (name.startswith(("window", "lossless")) and not name.endswith("no heads"))


def _options(suite: Suite) -> list[Series]:
    """The paper's settings and ours, by what ours add to them, over fewer passes."""
    groups: dict[str, list[Point]] = {"the paper's": []}
    for point in sorted(points(suite), key=lambda point: point.fewer_passes):
        if PAPERS.fullmatch(point.name):
            groups["the paper's"].append(point)
        elif _is_ours(point.name):
            decoder, _, *added = point.name.split()
            added = " ".join(added) if decoder == "ssd" else decoder
            groups.setdefault(added, []).append(point)
    return [
        Series(
            name,
            [(point.fewer_passes, 100 * point.score) for point in some],
            [point.name.removeprefix("ssd ") for point in some],
        )
        for name, some in groups.items()
        if some
    ]


def _taken(row: Speed, suite: Suite, point: Point) -> dict[str, str]:
    """A decoder and what it takes and scores, for tables."""
    score = "as AR" if point.name in suite.exact else point.quality.overall.text(100)
    return {
        "decoder": point.name,
        "passes": f"{row.nfe:g}",
        "seconds": f"{row.seconds:.2f}",
        "faster": f"{point.speedup:.2f}x",
        "score %": score,
    }


def _overview(suite: Suite) -> list[dict[str, str]]:
    """A row per decoder: what it takes and what it draws."""
    edges = {title: on_frontier(suite, axis) for axis, title in AXES.items()}
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
    stops = {name: f" ({stop})" for stop, name in suite.scale.items()}
    labels = {point.name: point.name + stops.get(point.name, "") for some in families.values() for point in some}

    def against(axis: str, title: str, x_title: str) -> str:
        best = [max(some, key=lambda point: (point.score, getattr(point, axis))).name for some in families.values()]
        named = {*best, *on_frontier(suite, axis), *suite.scale.values(), suite.preset}
        groups = [
            Series(
                family,
                [(getattr(each, axis), 100 * each.score) for each in some],
                [labels[each.name] if each.name in named else "" for each in some],
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
    if options := _options(suite):
        title = "What this repository adds to the paper's schedule"
        charts["ours"] = chart(title, "times fewer passes than AR", "score, %", options, log_x=True)
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
