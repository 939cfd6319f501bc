"""The decoders, each a generator of DecodeEvents in a short file of its own, and `decode`, which runs one."""

from collections.abc import Generator, Iterator
from dataclasses import Field, dataclass, field, fields, replace

import torch

from ..correction import ACCEPT_REJECT, GREEDY, RULES
from ..heads import Heads, IdentityHeads
from ..schedule import PRESETS, Schedule
from ..session import DecodeEvent, DecodingSession
from .ar import ar
from .gsd import GSDOptions, gsd
from .lantern import LanternOptions, lantern
from .lossless import WindowOptions, lossless
from .mtp import MTPOptions, mtp
from .options import Options
from .pjd import PJDOptions, pjd
from .sjd import SJDOptions, sjd
from .ssd import ssd
from .zipar import ZipAROptions, zipar

DECODERS = {
    "ar": "token by token in raster order: the reference",
    "ssd": "Spatially Speculative Decoding: rows drafted at once, verified and corrected a fixed number of times",
    "lossless": "a sliding window of guesses, iterated until it is AR's picture for the seed, cell for cell",
    "window": "that window with some tolerance: fewer passes, not quite AR's picture",
    "mtp": "1D multi-token prediction: SSD's horizontal heads alone",
    "sjd": "speculative Jacobi decoding: the last pass's samples are the next one's drafts; exact, training-free",
    "gsd": "grouped speculative decoding: SJD that keeps a draft if its like would do",
    "lantern": "horizontal heads and a test that counts a draft's nearest codes as its own",
    "zipar": "rows side by side, each a few columns behind the one above; training-free",
    "pjd": "a Jacobi window in every row at once; training-free",
}
OPTIONS: dict[str, type[Options]] = {
    "window": WindowOptions,
    "mtp": MTPOptions,
    "sjd": SJDOptions,
    "gsd": GSDOptions,
    "lantern": LanternOptions,
    "zipar": ZipAROptions,
    "pjd": PJDOptions,
}
# The knobs of the schedule that a decoder has. Decoders that are not here draft without heads, the two windows apart.
SCHEDULED = {"ssd": ("b", "i", "k_v", "k_h", "commits", "settle"), "mtp": ("k_h",), "lantern": ("k_h",)}


def option_fields() -> dict[str, tuple[Field, list[str]]]:
    """Every knob in `OPTIONS`: its field, and the decoders that have it."""
    knobs: dict[str, tuple[Field, list[str]]] = {}
    for decoder, options in OPTIONS.items():
        for each in fields(options):
            knobs.setdefault(each.name, (each, []))[1].append(decoder)
    return knobs


@dataclass(frozen=True)
class DecodeConfig:
    """Which decoder, and its knobs: schedule and rule for "ssd", window (cells) for "lossless".

    With rule "greedy" every decoder is greedy. options: knobs of one of the other decoders, of the class that
    `OPTIONS` has for it; None: its defaults. "mtp" and "lantern" draft schedule.k_h cells at once.
    """

    decoder: str = "ssd"
    schedule: Schedule = field(default_factory=Schedule)
    rule: str = ACCEPT_REJECT
    window: int = 24
    options: Options | None = None

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f'Unknown decoder "{self.decoder}": choose one of {", ".join(DECODERS)}.')
        if self.rule not in RULES:
            raise ValueError(f'Unknown update rule "{self.rule}": choose one of {", ".join(RULES)}.')
        if self.window < 1:
            raise ValueError(f"window must be at least 1 cell, got {self.window}.")
        if self.options is not None and type(self.options) is not OPTIONS.get(self.decoder):
            raise ValueError(f"{type(self.options).__name__} are not knobs of decoder {self.decoder}: leave them out.")

    @property
    def knobs(self) -> Options:
        """The options, or the decoder's defaults."""
        return self.options or OPTIONS.get(self.decoder, Options)()

    @property
    def lookahead(self) -> int:
        """Spare cells that the session has to allocate."""
        return self.window if self.decoder == "lossless" else self.knobs.lookahead(self.schedule)

    @property
    def drafts_with_heads(self) -> bool:
        """Whether trained heads make a difference."""
        return self.decoder in (*SCHEDULED, "lossless", "window")

    @classmethod
    def preset(cls, family: str) -> "DecodeConfig":
        """SSD with the schedule of a backbone family's preset."""
        return cls(schedule=PRESETS[family].schedule)

    def planned_nfe(self, session: DecodingSession) -> int | None:
        """Passes the run will take, or None where they depend on the picture."""
        if self.decoder == "ssd":
            return None if self.schedule.settle else self.schedule.planned_nfe(session.grid)
        if self.decoder == "ar":
            return session.grid.size
        return self.knobs.planned_nfe(self.schedule, session.grid)

    def __str__(self) -> str:
        if self.decoder == "ssd":
            return f"ssd {self.schedule} rule={self.rule}"
        parts = [self.decoder, str(self.knobs)]
        if self.decoder == "lossless":
            parts.append(f"window={self.window}")
        if self.decoder in SCHEDULED:
            parts.append(f"k_h={self.schedule.k_h}")
        if self.rule == GREEDY or (self.decoder == "mtp" and not self.knobs.strict):
            parts.append(f"rule={self.rule}")
        return " ".join(filter(None, parts))


def decode(
    session: DecodingSession, config: DecodeConfig, heads: Heads | None = None, *, synchronize: bool = False
) -> Iterator[DecodeEvent]:
    """Runs a decoder on a fresh session and yields its events; without heads, drafts are training-free.

    The last event's tokens are the picture. Closing the iterator ends the run. Only the decoder runs in
    inference mode and on the clock, never the listener. On a GPU, passes are still running when their
    event arrives: with `synchronize` each is waited for first, so that `event.seconds` is right for a
    listener who looks at the tokens; `session.seconds` is right after the last event in any case.

    Raises HeadsError for heads of another backbone or too few offsets, ValueError for a used session or
    one without the lookahead that the config asks for.
    """
    if session.nfe:
        raise ValueError("This session has decoded already: make a new DecodingSession for every run.")
    if session.lookahead < config.lookahead:
        raise ValueError(f"This decoder needs DecodingSession(..., lookahead={config.lookahead}).")
    heads, knobs, rule = heads or IdentityHeads(), config.knobs, config.rule
    k_h, k_v = config.schedule.k_h, config.schedule.k_v
    if config.drafts_with_heads:
        offsets = {"ssd": (k_h, k_v), "lossless": (1, 1), "window": (1, 1)}.get(config.decoder, (k_h, 0))
        heads.require(session.backbone.fingerprint, session.backbone.dtype, *offsets)
    runs = {
        "ar": lambda: ar(session, rule),
        "ssd": lambda: ssd(session, heads, config.schedule, rule),
        "lossless": lambda: lossless(session, heads, config.window, rule),
        "window": lambda: lossless(session, heads, knobs.window, rule, knobs.tolerance),
        "mtp": lambda: mtp(session, heads, k_h, knobs, rule),
        "sjd": lambda: sjd(session, knobs, rule),
        "gsd": lambda: gsd(session, knobs, rule),
        "lantern": lambda: lantern(session, heads, k_h, knobs, rule),
        "zipar": lambda: zipar(session, knobs, rule),
        "pjd": lambda: pjd(session, knobs, rule),
    }
    events = runs[config.decoder]()
    return _clocked(session, events, synchronize)


def _clocked(session: DecodingSession, events: Generator[DecodeEvent], synchronize: bool) -> Iterator[DecodeEvent]:
    while True:
        session.start_clock()
        try:
            with torch.inference_mode():
                following = next(events, None)
            if synchronize or following is None:
                session.synchronize()
        finally:
            session.stop_clock()
        if following is None:
            return
        yield replace(following, seconds=session.seconds)
