"""From the values of widgets to what ssd_core understands, and from results to words. Needs no ComfyUI."""

from dataclasses import fields, replace
from types import SimpleNamespace

from ..ssd_core.correction import ACCEPT_REJECT
from ..ssd_core.decoders import OPTIONS, DecodeConfig
from ..ssd_core.generate import Result
from ..ssd_core.grid import TokenGrid
from ..ssd_core.sampling import MAX_SEED, SamplingConfig
from ..ssd_core.schedule import OWN, Schedule
from ..ssd_core.speeds import SPEEDS, at_speed
from .text import ENGLISH, say

SLIDER = "speed slider"
MAX_ROUNDS, MAX_ROWS, MAX_COLUMNS, MAX_WINDOW, MAX_BATCH = 64, 16, 32, 512, 64
# Least and largest value of the peers' numbers; a window of 0 stands for the decoder's own.
PEER_RANGES = {
    "window": (0, MAX_WINDOW),
    "tolerance": (0, 64),
    "group": (1, 1000),
    "gap": (0.0, 1.0),
    "distance": (0.0, 10.0),
    "neighbors": (1, 100_000),
    "delta": (0.0, 1.0),
    "factor": (0.0, 100.0),
    "context": (0, MAX_WINDOW),
}


def schedule_of(r: int, k_v: int, b: int, i: int, k_h: int, commits: str = OWN, settle: bool = False) -> Schedule:
    """The schedule of the sampler's knobs: r rounds where rows come one at a time, b and i where they do not."""
    rounds = {"b": r, "i": 0} if k_v == 1 else {"b": b, "i": i}
    return Schedule(**rounds, k_h=k_h, k_v=k_v, commits=commits, settle=settle)


def peer_config(decoder: str, k_h: int = Schedule.k_h, **knobs: float | bool | str) -> DecodeConfig:
    """The config of a decoder that has options, from the knobs of all of them; ValueError for one out of range."""
    if decoder not in OPTIONS:
        raise ValueError(f'"{decoder}" has no knobs of its own: choose one of {", ".join(OPTIONS)}.')
    if not knobs.get("window"):
        knobs.pop("window", None)
    options = OPTIONS[decoder]
    own = {field.name: knobs[field.name] for field in fields(options) if field.name in knobs}
    return DecodeConfig(decoder, Schedule(k_h=k_h), options=options(**own))


def scheduled(preset: str, speed: int, family: str) -> DecodeConfig:
    """What SSD Schedule stands for: a stop of the slider for this family, or a family's own settings."""
    if preset == SLIDER:
        return at_speed(SPEEDS[speed], family)
    return DecodeConfig.preset(preset)


def decode_config(
    scheduled: DecodeConfig | None,
    *,
    decoder: str = "ssd",
    schedule: Schedule | None = None,
    rule: str = ACCEPT_REJECT,
    window: int | None = None,
) -> DecodeConfig:
    """The sampler's config: a connected schedule overrules its own decoder and schedule, not rule and window."""
    base = scheduled or replace(DecodeConfig(decoder), schedule=schedule or Schedule())
    return replace(base, rule=rule, window=base.window if window is None else window)


def sampling_config(own: SamplingConfig, cfg: float, temperature: float, top_k: int, top_p: float) -> SamplingConfig:
    """Sampling settings in which 0 stands for the model's own value."""
    return own.updated(cfg=cfg or None, temperature=temperature or None, top_k=top_k or None, top_p=top_p or None)


def consecutive(seed: int, count: int) -> list[int]:
    """Seeds of a batch; after the largest one comes 0."""
    return [(seed + number) % (MAX_SEED + 1) for number in range(count)]


def numbers(text: str, name: str, low: int, high: int) -> list[int]:
    """Whole numbers with commas between them; ValueError that says what is wrong with them."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and low <= int(part) <= high for part in parts):
        raise ValueError(f'{name} is a list of whole numbers from {low} to {high}, such as "{low}, 2"; got "{text}".')
    return list(dict.fromkeys(int(part) for part in parts))


def sweep(rounds: list[int], rows: list[int], base: DecodeConfig, reference: bool) -> list[DecodeConfig]:
    """The configs of a contact sheet: AR if wanted, then r from left to right for every k_v."""
    schedules = [schedule_of(r, k_v, r, max(0, r - 1), base.schedule.k_h) for k_v in rows for r in rounds]
    first = [replace(base, decoder="ar")] if reference else []
    return first + [replace(base, decoder="ssd", schedule=schedule) for schedule in schedules]


def planned_passes(config: DecodeConfig, grid: TokenGrid) -> int | None:
    """Passes of a picture, or None where they depend on it."""
    return config.planned_nfe(SimpleNamespace(grid=grid))  # all that it asks a session for


def most_passes(config: DecodeConfig, grid: TokenGrid) -> int:
    """Passes that a picture takes at most."""
    if config.decoder == "ssd":
        return config.schedule.planned_nfe(grid)
    return planned_passes(config, grid) or grid.size


def plan(config: DecodeConfig, grid: TokenGrid, language: str = ENGLISH) -> str:
    """One sentence on what a config will take on a grid."""
    most = most_passes(config, grid)
    if config.decoder == "ar":
        kind = "ar"
    elif planned_passes(config, grid) is not None:
        kind = "fixed"
    else:
        kind = "most" if config.decoder == "ssd" else "open"
    return say(f"plan.{kind}", language, most=most, ar=grid.size, ratio=f"{grid.size / most:.1f}")


def statistics(result: Result, grid: TokenGrid, kept_guesses: float | None = None, language: str = ENGLISH) -> str:
    """What a run did and took, in a few lines."""

    def words(name: str, **values: object) -> str:
        return say(f"statistics.{name}", language, **values)

    config, count, facts = result.config, len(result.seeds), result.metadata(0)
    slow = config.decoder == "ar"
    plan = ""
    if result.planned_nfe is not None:
        plan = words("planned", most=result.planned_nfe)
    elif config.decoder == "ssd":
        plan = words("most", most=most_passes(config, grid))
    ratio = f"{grid.size / result.nfe:.1f}"
    seconds, each = f"{result.seconds:.2f}", f"{result.seconds / count:.2f}"
    lines = [
        str(config),
        words("ar" if slow else "passes", passes=result.nfe, plan=plan, ar=grid.size, ratio=ratio),
        words("several" if count > 1 else "one", seconds=seconds, each=each),
    ]
    if result.acceptance:
        lines.append(words("rounds", shares=" ".join(f"{share:.0%}" for share in result.acceptance.values())))
    if kept_guesses is not None and not slow:
        lines.append(words("kept", share=f"{kept_guesses:.0%}"))
    seeds = words("seeds" if count > 1 else "seed", first=result.seeds[0], last=result.seeds[-1])
    heads = "" if slow else words("heads", heads=facts["heads"])
    return "\n".join([*lines, f"{facts['sampling']}, {seeds}", f"{facts['backbone']}{heads}"])
