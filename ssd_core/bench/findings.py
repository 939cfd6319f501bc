"""Which findings of the paper one run of the builtin suite confirms."""

from collections.abc import Sequence
from itertools import pairwise

from .points import AXES, Point, better, points
from .quality import Quality, gain
from .suite import Suite

VERDICTS = {True: "holds here", False: "does not hold here", None: "undecided here, within the noise"}


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
