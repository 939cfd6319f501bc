"""The builtin suite in one go: speed, cost, pictures in rounds of captions while there is time, ablations."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from ..backbones.base import Backbone
from ..decoders import DecodeConfig
from ..heads import HeadSet
from ..sampling import SamplingConfig
from ..speeds import stops
from .ablations import Direction, contenders, measure_directions
from .contenders import Contender, everyone
from .meter import device_name
from .passes import PassCost, measure_passes
from .quality import Drawn, Quality, draw, judge_drawn, judge_real, real_scenes
from .scorer import SceneScorer, held_out_prompts
from .speed import Speed, measure_speed
from .store import Store, weights_of

ABLATED = ("rules", "rounds", "lookahead", "staged")
FEWER_CAPTIONS = {
    "lookahead": 32,
    "staged": 32,
}  # at most: five or more rounds each, which would be a third of the time
REAL, REAL_SEED = 512, 5  # the scenes that the Frechet distance compares with
JUDGING = 0.1  # of the time, for what comes after the last round
SETS = 3  # pictures per caption that the deviation from AR is measured on


class Model(NamedTuple):
    """A backbone with its heads, if it has any."""

    backbone: Backbone
    heads: HeadSet | None


@dataclass
class Suite:
    """Everything that a page is about; rows have the short names of their contenders.

    facts: of the run, among them captions and speed_captions (how many) and cols (of the grid). quality: the first
    row is the floor, the second one AR. ablations: by name. exact: names of the decoders that need no judging, as they
    draw AR's pictures or from AR's distribution. deviation: the preset's, over some sets of seeds. preset: its name.
    scale: the stops of the speed scale, and the names of their decoders.
    """

    facts: dict
    speed: list[Speed]
    cost: list[PassCost]
    quality: list[Quality]
    ablations: dict[str, list[Quality]] = field(default_factory=dict)
    directions: list[Direction] = field(default_factory=list)
    deviation: Quality | None = None
    exact: Sequence[str] = ()
    preset: str = ""
    scale: dict[str, str] = field(default_factory=dict)


class Clock:
    """Minutes since it was made, and lines about what is going on."""

    def __init__(self, minutes: float):
        self.minutes, self._began = minutes, time.monotonic()

    def left(self) -> float:
        """Seconds."""
        return 60 * self.minutes - (time.monotonic() - self._began)

    def say(self, text: str) -> None:
        """Prints a line with the time."""
        print(f"[{self.minutes - self.left() / 60:4.1f} min] {text}", file=sys.stderr, flush=True)


def run_suite(
    timed: Model,
    drawn: Model,
    sampling: SamplingConfig,
    scorer: SceneScorer,
    store: Store,
    clock: Clock,
    *,
    captions: int,
    batch: int,
    speed_captions: int,
) -> Suite:
    """Measures all of it: speed and cost with the model `timed`, pictures with `drawn` (they may be one).

    captions: at most, in rounds of `batch`; a round that is unlikely to end in time is not begun. Finished runs
    are taken from the store.
    """
    grid, base = timed.backbone.grid(), DecodeConfig.preset(timed.backbone.family)
    scale = stops(timed.backbone.family)
    chosen = {each.short(base): each for each in everyone(base, grid, scale.values())}
    ablations = {name: {each.short(base): each for each in _ends(name, contenders(name, base))} for name in ABLATED}
    drawing = {name: each for name, each in chosen.items() if not each.is_exact}
    for some in ablations.values():
        drawing |= some
    full = {*chosen, *(each for name, some in ablations.items() if name not in FEWER_CAPTIONS for each in some)}
    fewer = {
        each: max(count for name, count in FEWER_CAPTIONS.items() if each in ablations[name])
        for each in drawing
        if each not in full
    }
    preset = Contender(base).short(base)
    prompts = held_out_prompts(captions)
    texts, specs = [text for text, _ in prompts], [spec for _, spec in prompts]

    speed = _timed(timed, chosen, texts[:speed_captions], sampling, store, clock)
    cost = _costs(timed, sampling, store, clock)
    pictures, several = _drawn(drawn, drawing, fewer, preset, texts, sampling, batch, store, clock)
    done = pictures["ar"].tokens.shape[1]

    clock.say("judging")
    real = scorer.features(real_scenes(REAL, REAL_SEED)[0])

    @cache
    def judged(name: str, count: int) -> Quality:
        own, reference = (_first(pictures[each], count) for each in (name, "ar"))
        return judge_drawn(drawn.backbone, name, own, specs[:count], scorer, real, reference)

    suite = Suite(
        {"captions": done, "speed_captions": min(speed_captions, captions), "cols": grid.cols},
        speed,
        cost,
        [judge_real(scorer, real, done, REAL_SEED + 1), *(judged(name, done) for name in chosen if name in pictures)],
        {
            name: [judged(each, min(done, FEWER_CAPTIONS.get(name, done))) for each in some]
            for name, some in ablations.items()
        },
        _directions(drawn, texts[:batch], several["ar"], sampling, store) if drawn.heads else [],
        judge_drawn(drawn.backbone, preset, several[preset], specs[:batch], scorer, real, several["ar"]),
        [name for name, each in chosen.items() if each.is_exact],
        preset,
        {stop: Contender(config).short(base) for stop, config in scale.items()},
    )
    return suite


def _drawn(
    model: Model,
    drawing: dict[str, Contender],
    fewer: dict[str, int],
    preset: str,
    texts: Sequence[str],
    sampling: SamplingConfig,
    batch: int,
    store: Store,
    clock: Clock,
) -> tuple[dict[str, Drawn], dict[str, Drawn]]:
    """Pictures of as many captions as there is time for by everyone (but of at most so many by those in `fewer`), and
    of the first ones over several sets of seeds by AR and the preset."""

    def pictures(name: str, count: int, sets: int = 1) -> Drawn:
        began = time.monotonic()
        found = draw(*model, drawing[name], texts[:count], sampling, sets=sets, batch=batch, store=store)
        if time.monotonic() - began > 1:
            clock.say(f"{name}: {sets * count} pictures")
        return found

    rounds = range(batch, len(texts) + batch, batch)
    for number, count in enumerate(rounds, 1):
        clock.say(f"pictures for {min(count, len(texts))} captions by {len(drawing)} decoders")
        kept = {name: pictures(name, min(count, fewer.get(name, count))) for name in drawing}
        several = {name: pictures(name, batch, SETS) for name in ("ar", preset)}
        expected = sum(kept[name].seconds for name in drawing if fewer.get(name, len(texts)) > count) / number
        if number < len(rounds) and clock.left() < 1.15 * expected + JUDGING * 60 * clock.minutes:
            clock.say(f"another round would take {expected / 60:.1f} min: raise --minutes for more captions")
            break
    return kept, several


def _first(drawn: Drawn, count: int) -> Drawn:
    return replace(drawn, tokens=drawn.tokens[:, :count], nll=drawn.nll[:, :count])


def _ends(name: str, some: Sequence[Contender]) -> Sequence[Contender]:
    """Of joint against staged, only the pair at the same budget: the others take minutes and decide nothing."""
    return [some[0], some[-1]] if name == "staged" else some


def _timed(
    model: Model,
    chosen: dict[str, Contender],
    texts: Sequence[str],
    sampling: SamplingConfig,
    store: Store,
    clock: Clock,
) -> list[Speed]:
    clock.say(f"speed of {len(chosen)} decoders: {len(texts)} captions each, and one to warm up")
    runs, total = 0, len(chosen) * (1 + len(texts))

    def on_run() -> None:
        nonlocal runs
        runs += 1
        if runs % len(chosen) == 0:
            clock.say(f"speed: {runs} of {total} runs")

    def run() -> list[dict]:
        rows = measure_speed(*model, list(chosen.values()), texts, sampling, on_run=on_run)
        return [{**row.as_dict(), "name": name} for row, name in zip(rows, chosen, strict=True)]

    key = {"what": "speed", "decoders": [str(each) for each in chosen.values()], "prompts": texts}
    key["machine"] = device_name(model.backbone.device)
    return [Speed(**row) for row in store.recall({**key, **_common(model, sampling)}, run)]


def _costs(model: Model, sampling: SamplingConfig, store: Store, clock: Clock) -> list[PassCost]:
    def run() -> list[dict]:
        clock.say("cost of passes")
        return [row.as_dict() for row in measure_passes(*model, "a cat", sampling, repetitions=9)]

    key = {"what": "cost", "machine": device_name(model.backbone.device), **_common(model, sampling)}
    return [PassCost(**row) for row in store.recall(key, run)]


def _directions(
    model: Model, texts: Sequence[str], pictures: Drawn, sampling: SamplingConfig, store: Store
) -> list[Direction]:
    def run() -> list[dict]:
        rows = measure_directions(*model, texts, pictures.tokens[0], sampling)
        return [row.as_dict() for row in rows]

    key = {"what": "directions", "prompts": texts, **_common(model, sampling)}
    return [Direction(**row) for row in store.recall(key, run)]


def _common(model: Model, sampling: SamplingConfig) -> dict:
    return {"sampling": vars(sampling), **weights_of(*model)}
