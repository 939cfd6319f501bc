"""The decoders, each a generator of DecodeEvents in a short file of its own, and `decode`, which runs one."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import torch

from ..correction import ACCEPT_REJECT, RULES
from ..heads import Heads, IdentityHeads
from ..schedule import Schedule
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

    def planned_nfe(self, session: DecodingSession) -> int | None:
        """Passes the run will take, or None where they depend on the picture."""
        if self.decoder == "ssd":
            return self.schedule.planned_nfe(session.grid)
        return session.grid.size if self.decoder == "ar" else None

    def __str__(self) -> str:
        if self.decoder == "ssd":
            return f"ssd {self.schedule} rule={self.rule}"
        return self.decoder + (f" window={self.window}" if self.decoder == "lossless" else "")


def decode(session: DecodingSession, config: DecodeConfig, heads: Heads | None = None) -> Iterator[DecodeEvent]:
    """Runs a decoder on a fresh session and yields its events; without heads, drafts are training-free.

    The last event's tokens are the picture. Closing the iterator ends the run. Only the decoder runs in
    inference mode and on the clock, never the listener.
    """
    heads = heads or IdentityHeads()
    if config.decoder == "ar":
        events = ar(session, config.rule)
    elif config.decoder == "ssd":
        events = ssd(session, heads, config.schedule, config.rule)
    else:
        events = lossless(session, heads, config.window, config.rule)
    return _clocked(session, events)


def _clocked(session: DecodingSession, events: Generator[DecodeEvent]) -> Iterator[DecodeEvent]:
    while True:
        session.start_clock()
        try:
            with torch.inference_mode():
                event = next(events, None)
        finally:
            session.stop_clock()
        if event is None:
            return
        yield event
