"""LANTERN (Jang et al., ICLR 2025) and LANTERN++ (Park et al. 2025): a relaxed test for drafts. Not exact.

A draft may count the probabilities of its nearest codes as its own, up to a bound, since they paint nearly
the same. The published drafter is a trained EAGLE layer with a tree; here a chain from the horizontal heads
takes its place. Unlike in the reference code, a rejected draft's residual is max(p - q, 0) alone: zeroing
all its neighbours as well, counted or not, biases what is drawn instead (Li et al. 2026).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..heads import Heads
from ..schedule import Schedule
from ..session import DecodeEvent, DecodingSession
from .options import Options, at_least
from .speculative import Ratio, at, chain, speculate

CHUNK = 1024  # codes whose distances to all others are computed at once: those of all would be gigabytes
_tables: WeakKeyDictionary[Backbone, Tensor] = WeakKeyDictionary()


@dataclass(frozen=True)
class LanternOptions(Options):
    """neighbors: codes that a draft may count as its own, the nearest first. delta: their probability at most.

    factor: LANTERN++ in delta's place; a draft counts at most `factor` times its own probability (the paper's
    lambda; it takes 10 neighbors and 5). 0: LANTERN.
    """

    neighbors: int = field(default=1000, metadata={"help": "nearest codes that may count for a draft"})
    delta: float = field(default=0.1, metadata={"help": "probability they may add"})
    factor: float = field(default=0.0, metadata={"help": "LANTERN++: they may multiply a draft's by this, above 1"})

    def __post_init__(self) -> None:
        at_least(1, neighbors=self.neighbors)
        at_least(0, delta=self.delta)
        if self.factor and self.factor <= 1:
            raise ValueError(f"factor must be above 1 (LANTERN++), or 0 (LANTERN, by delta), got {self.factor}.")

    def lookahead(self, schedule: Schedule) -> int:
        return schedule.k_h + 1

    def memory(self, codes: int) -> int:
        """The table of `nearest_codes`, int32, and while it is made a chunk of fp32 distances and the int64 and fp32
        of its nearest."""
        count = min(self.neighbors, codes - 1)
        return 4 * codes * count + min(CHUNK, codes) * (4 * codes + 12 * (count + 1))


def lantern(
    session: DecodingSession, heads: Heads, k_h: int, options: LanternOptions, rule: str
) -> Iterator[DecodeEvent]:
    """A chain of k_h drafts a pass, tested with the relaxed ratio."""
    neighbors = nearest_codes(session.backbone, options.neighbors)
    return speculate(session, k_h + 1, chain(session, heads, k_h, rule), relaxed(neighbors, options), rule)


def relaxed(neighbors: Tensor, options: LanternOptions) -> Ratio:
    """log of (p(x) + what the nearest codes add) / q(x); neighbors int [V, k], nearest first."""

    def ratio(log_p: Tensor, log_q: Tensor, tokens: Tensor) -> Tensor:
        p = log_p.exp()
        own = at(p, tokens)
        added = p.gather(-1, neighbors[tokens].long()).cumsum(-1)  # [..., k]
        bound = (options.factor - 1) * own[..., None] if options.factor else options.delta
        return (own + torch.where(added <= bound, added, 0).amax(-1)).log() - at(log_q, tokens)

    return ratio


def nearest_codes(backbone: Backbone, count: int) -> Tensor:
    """The `count` nearest other codes of each code (all of them if there are fewer), int32 [V, count].

    Computed once per backbone, and again only for more.
    """
    count = min(count, backbone.codebook_size - 1)
    table = _tables.get(backbone)
    if table is None or table.shape[1] < count:
        vectors = backbone.code_vectors()
        table = torch.empty(len(vectors), count, dtype=torch.int32, device=vectors.device)
        for first in range(0, len(vectors), CHUNK):
            distance = torch.cdist(vectors[first : first + CHUNK], vectors)
            distance.diagonal(first).fill_(-1)
            table[first : first + CHUNK] = distance.topk(count + 1, largest=False).indices[:, 1:]
        _tables[backbone] = table
    return table[:, :count]
