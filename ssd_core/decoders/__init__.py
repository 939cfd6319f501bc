"""The decoders, each a generator of DecodeEvents in a short file of its own, and `decode`, which runs one."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import torch

from ..correction import ACCEPT_REJECT, GREEDY, RULES
from ..heads import Heads, IdentityHeads
from ..schedule import PRESETS, Schedule, speed_schedule
from ..session import DecodeEvent, DecodingSession
from .ar import ar
from .lossless import lossless
from .ssd import ssd

DECODERS = {
    "ar": "token by token in raster order: the reference",
    "ssd": "Spatially Speculative Decoding: rows drafted at once, verified and corrected a fixed number of times",
    "lossless": "a sliding window of guesses, iterated until it is AR's picture for the seed, cell for cell",
}


@dataclass(frozen=True)
class DecodeConfig:
    """Which decoder, and its knobs: schedule and rule for "ssd", window (cells) for "lossless".

    With rule "greedy", "ar" and "lossless" are greedy as well.
    """

    decoder: str = "ssd"
    schedule: Schedule = field(default_factory=Schedule)
    rule: str = ACCEPT_REJECT
    window: int = 24

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f'Unknown decoder "{self.decoder}": choose one of {", ".join(DECODERS)}.')
        if self.rule not in RULES:
            raise ValueError(f'Unknown update rule "{self.rule}": choose one of {", ".join(RULES)}.')
        if self.window < 1:
            raise ValueError(f"window must be at least 1 cell, got {self.window}.")

    @property
    def lookahead(self) -> int:
        """Spare cells that the session has to allocate."""
        return self.window if self.decoder == "lossless" else 0

    @classmethod
    def preset(cls, family: str) -> "DecodeConfig":
        """SSD with the schedule of a backbone family's preset."""
        return cls(schedule=PRESETS[family].schedule)

    def at_speed(self, name: str, family: str) -> "DecodeConfig":
        """This config at a named stop of the speed scale: "lossless", or SSD with that stop's schedule."""
        schedule = speed_schedule(name, family)
        if schedule is None:
            return replace(self, decoder="lossless")
        return replace(self, decoder="ssd", schedule=schedule)

    def planned_nfe(self, session: DecodingSession) -> int | None:
        """Passes the run will take, or None where they depend on the picture."""
        if self.decoder == "ssd":
            return self.schedule.planned_nfe(session.grid)
        return session.grid.size if self.decoder == "ar" else None

    def __str__(self) -> str:
        if self.decoder == "ssd":
            return f"ssd {self.schedule} rule={self.rule}"
        window = f" window={self.window}" if self.decoder == "lossless" else ""
        return self.decoder + window + (" rule=greedy" if self.rule == GREEDY else "")


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
    heads = heads or IdentityHeads()
    schedule = config.schedule
    if config.decoder == "ssd":
        heads.require(session.backbone.fingerprint, session.backbone.dtype, schedule.k_h, schedule.k_v)
        events = ssd(session, heads, schedule, config.rule)
    elif config.decoder == "lossless":
        heads.require(session.backbone.fingerprint, session.backbone.dtype)
        events = lossless(session, heads, config.window, config.rule)
    else:
        events = ar(session, config.rule)
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
