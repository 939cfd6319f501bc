"""What a run is asked to do, as a form of plain values: the fields of the page and the parameters of a link."""

from dataclasses import asdict, dataclass, fields
from urllib.parse import urlencode

from ..decoders import DecodeConfig
from ..decoders.lossless import WindowOptions
from ..sampling import SamplingConfig
from ..schedule import Schedule
from ..speeds import SPEEDS, at_speed

CUSTOM = "custom"  # the speed when the right decoder was set by hand
SAMPLING = tuple(field.name for field in fields(SamplingConfig))
SCHEDULE = {field.name: field.default for field in fields(Schedule)}
NUMBERS = {"window": DecodeConfig.window, "tolerance": WindowOptions.tolerance}  # of "lossless" and "window"
INTEGERS = tuple(name for name, default in SCHEDULE.items() if type(default) is int)
KNOBS = ("decoder", *SCHEDULE, "rule", *NUMBERS)
BATCHES = (1, 4, 9)


def knobs_of(config: DecodeConfig) -> dict:
    """A config as plain values, in the order of KNOBS."""
    values = {"decoder": config.decoder, "rule": config.rule} | asdict(config.schedule)
    values |= NUMBERS | {"window": config.window} | (asdict(config.knobs) if config.decoder == "window" else {})
    return {name: values[name] for name in KNOBS}


def config_of(knobs: dict) -> DecodeConfig:
    """The config that such values describe. Raises ValueError for one out of its range."""
    knobs = knobs | {name: _number(knobs[name], name) for name in (*INTEGERS, *NUMBERS)}
    schedule = Schedule(**{name: knobs[name] for name in SCHEDULE})
    numbers = {name: knobs[name] for name in NUMBERS}
    own = {"options": WindowOptions(**numbers)} if knobs["decoder"] == "window" else {"window": knobs["window"]}
    return DecodeConfig(knobs["decoder"], schedule, knobs["rule"], **own)


@dataclass(frozen=True)
class Settings:
    """A race: one prompt, one seed, two decoders."""

    prompt: str
    seed: int
    speed: str
    left: DecodeConfig
    right: DecodeConfig
    sampling: SamplingConfig
    negative: str = ""
    images: int = 1

    @property
    def seeds(self) -> list[int]:
        """One seed per picture, consecutive."""
        return list(range(self.seed, self.seed + self.images))


def default_form(family: str, sampling: SamplingConfig) -> dict:
    """The values of an untouched page: AR against the balanced stop of the family's speed scale."""
    left = knobs_of(DecodeConfig.preset(family)) | {"decoder": "ar"}
    right = knobs_of(at_speed("balanced", family))
    form = {"prompt": "", "seed": 7, "speed": "balanced", "negative": "", "images": 1} | asdict(sampling)
    sides = {"left": left, "right": right}
    return form | {f"{side}_{name}": value for side, knobs in sides.items() for name, value in knobs.items()}


def settings_of(form: dict, family: str) -> Settings:
    """The run that a form asks for. Raises ValueError with one sentence for the first value that is wrong.

    A named speed decides the right decoder with all its knobs, whatever their fields say.
    """
    prompt = str(form["prompt"] or "").strip()
    if not prompt:
        raise ValueError('There is no prompt yet: write what to draw, such as "a fox on snow".')
    left, right = ({name: form[f"{side}_{name}"] for name in KNOBS} for side in ("left", "right"))
    left = config_of(left)
    right = config_of(right) if form["speed"] == CUSTOM else at_speed(form["speed"], family)
    images = _number(form["images"], "images")
    if images not in BATCHES:
        raise ValueError(f"A race draws {', '.join(map(str, BATCHES[:-1]))} or {BATCHES[-1]} pictures, got {images}.")
    sampling = SamplingConfig(
        **{name: _number(form[name], name, type(getattr(SamplingConfig, name))) for name in SAMPLING}
    )
    seed = _number(form["seed"], "seed")
    return Settings(prompt, seed, form["speed"], left, right, sampling, str(form["negative"] or "").strip(), images)


def to_query(form: dict, defaults: dict) -> str:
    """The part of a link after "?": prompt, seed and speed, and whatever differs from the defaults.

    What a named speed decides is left out.
    """
    decided = set() if form["speed"] == CUSTOM else {f"right_{name}" for name in KNOBS}
    always = ("prompt", "seed", "speed")
    kept = {name: form[name] for name in always} | {
        name: form[name]
        for name, value in defaults.items()
        if name not in decided and name not in always and form[name] != value
    }
    return urlencode(kept)


def from_query(parameters: dict[str, str], defaults: dict) -> dict:
    """A form from the parameters of a link; what they do not name or cannot mean keeps its default."""
    form = dict(defaults)
    for name in form.keys() & parameters.keys():
        kind, text = type(defaults[name]), parameters[name]
        try:
            form[name] = text == "True" if kind is bool else kind(text)
        except ValueError:
            continue
    if form["speed"] not in (*SPEEDS, CUSTOM):
        form["speed"] = defaults["speed"]
    return form


def _number(value, name: str, kind: type = int) -> int | float:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name.replace('_', '-')} must be a number, got {value!r}.") from None
    if number != value:
        raise ValueError(f"{name.replace('_', '-')} must be a whole number, got {value}.")
    return number
