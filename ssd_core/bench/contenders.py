"""Who takes part: decoders with their knobs, by name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from ..correction import SHARED_NOISE
from ..decoders import DECODERS, OPTIONS, SCHEDULED, DecodeConfig
from ..grid import TokenGrid
from ..schedule import Schedule


@dataclass(frozen=True)
class Contender:
    """A decoder with its knobs, and whether it drafts with the trained heads."""

    config: DecodeConfig
    trained: bool = True

    def __str__(self) -> str:
        return str(self.config) + ("" if self.trained or not self.config.drafts_with_heads else " no heads")

    @property
    def needs_heads(self) -> bool:
        """Whether it draws other pictures, or takes other passes, with other trained heads."""
        return self.trained and self.config.drafts_with_heads

    def short(self, base: DecodeConfig) -> str:
        """Its name without the knobs that are as the decoder has them by default; base: the family's preset."""
        first, *words = str(self).split()
        usual = {*str(DecodeConfig(first, base.schedule, base.rule)).split()}
        always = {"ssd": "b=", "lossless": "window=", "window": "tolerance="}.get(first, " ")
        return " ".join([first, *(word for word in words if word not in usual or word.startswith(always))])

    @property
    def is_exact(self) -> bool:
        """Whether its pictures are AR's, or distributed as AR's are: it need not be judged apart from AR."""
        config = self.config
        return config.decoder in ("lossless", "sjd") or (config.decoder == "mtp" and config.knobs.strict)


def parse(text: str, base: DecodeConfig) -> Contender:
    """A contender from a name and knobs, such as "ssd:b=5,i=4,k_v=2" or "lossless:window=48,heads=none".

    base: where the schedule and the rule come from that the text leaves out. Raises ValueError that says what
    can be written.
    """
    name, _, knobs = text.partition(":")
    if name not in DECODERS:
        raise ValueError(f'Unknown decoder "{name}": choose one of {", ".join(DECODERS)}.')
    given = {}
    for knob in filter(None, knobs.split(",")):
        key, equals, value = knob.partition("=")
        given[key.strip()] = value.strip() if equals else "true"
    heads = given.pop("heads", "trained")
    if heads not in ("trained", "none"):
        raise ValueError(f'heads={heads} in "{text}": write heads=trained or heads=none.')
    kinds = {field.name: field.type for field in fields(OPTIONS[name])} if name in OPTIONS else {}
    schedule = {key: type(getattr(base.schedule, key)) for key in SCHEDULED.get(name, ())}
    known = {"heads": str, "rule": str, **schedule, **kinds, **({"window": int} if name == "lossless" else {})}
    try:
        values = {key: _value(known[key], value) for key, value in given.items()}
    except KeyError as error:
        raise ValueError(f"{name} has no knob {error}: it has {', '.join(known)}.") from error
    except ValueError as error:
        raise ValueError(f'"{text}": {error}.') from error
    options = {key: values.pop(key) for key in kinds if key in values}
    schedule = replace(base.schedule, **{key: values.pop(key) for key in schedule if key in values})
    options = OPTIONS[name](**options) if name in OPTIONS else None
    return Contender(replace(base, decoder=name, schedule=schedule, options=options, **values), heads == "trained")


def _value(kind: type, text: str):
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text} is neither true nor false")
        return text == "true"
    return kind(text)


def everyone(base: DecodeConfig, grid: TokenGrid, scale: Iterable[DecodeConfig] = ()) -> list[Contender]:
    """The paper's field and ours, each once: AR first, then every peer, SSD at several speeds, the windows.

    base: the family's preset; scale: the stops of its speed scale. SJD's and GSD's window is 16 cells, with small
    grids 32 as in the published counts.
    """
    window = 32 if grid.cols <= 32 else 16
    names = ["ar", "mtp", "mtp:strict", f"sjd:window={window}", f"sjd:window={window},drafts=above,coupled"]
    names += [f"gsd:window={window}", "lantern", "lantern:neighbors=10,factor=5", "zipar", "pjd"]
    chosen = [parse(name, base) for name in names]
    chosen += [Contender(each) for each in ssd_speeds(base)]
    chosen.append(Contender(replace(base, decoder="ssd", rule=SHARED_NOISE)))
    windows = [f"window:tolerance={tolerance}" for tolerance in (1, 3, 6)]
    names = ["ssd:settle", "ssd:b=1,commits=early", "ssd:commits=early", "ssd:commits=early,settle"]
    chosen += [parse(name, base) for name in (*names, *windows)]
    chosen += [
        Contender(replace(base, decoder="lossless", window=window), trained)
        for window in (24, 48)
        for trained in (True, False)
    ]
    chosen += [Contender(config) for config in scale]
    return list({str(each): each for each in chosen}.values())


def ssd_speeds(base: DecodeConfig, rounds: Sequence[int] = range(5)) -> list[DecodeConfig]:
    """SSD with r rounds on single rows, and the family's schedule where that is another."""
    schedules = [Schedule(b=r, k_h=base.schedule.k_h) for r in rounds]
    if base.schedule not in schedules:
        schedules.append(base.schedule)
    return [replace(base, decoder="ssd", schedule=schedule) for schedule in schedules]
