"""What a pass and a draft cost against the number of tokens, in AR steps (paper Figures 4 and 5, Table 13)."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..heads import Heads, IdentityHeads
from ..sampling import SamplingConfig
from ..session import DecodingSession
from .meter import synchronize


@dataclass(frozen=True)
class PassCost:
    """tokens at once; milliseconds to verify (one backbone pass and its distributions) and to draft as many with a
    head (and their distributions); the same in AR steps, which are passes of one token."""

    tokens: int
    verify_ms: float
    draft_ms: float
    verify_steps: float
    draft_steps: float

    def as_dict(self) -> dict:
        """For files."""
        return asdict(self)

    def as_texts(self) -> dict[str, str]:
        """For tables."""
        return {
            "tokens": str(self.tokens),
            "verify, ms": f"{self.verify_ms:.2f}",
            "draft, ms": f"{self.draft_ms:.2f}",
            "verify, AR steps": f"{self.verify_steps:.2f}",
            "draft, AR steps": f"{self.draft_steps:.2f}",
        }


def block_sizes(cols: int, cells: int) -> list[int]:
    """A token, some, a row, and several rows, as far as half a picture has them."""
    sizes = {1, 2, 5, cols // 2, cols, 2 * cols, 3 * cols, 5 * cols}
    return sorted(size for size in sizes if 1 <= size <= cells // 2)


@torch.inference_mode()
def measure_passes(
    backbone: Backbone,
    heads: Heads | None,
    prompt: str,
    sampling: SamplingConfig,
    sizes: Sequence[int] | None = None,
    *,
    repetitions: int = 7,
    on_run: Callable[[], None] = lambda: None,
) -> list[PassCost]:
    """Medians, for one picture of which half is in the cache; sizes interleaved, the first round warms up."""
    session = DecodingSession(backbone, [prompt], [0], sampling)
    grid, heads = session.grid, heads or IdentityHeads()
    middle = grid.size // 2
    session.prefill()
    states = session.forward(0, middle)
    e = session.embed(session.tokens[:, :middle])

    def drafted(size: int) -> Tensor:
        return session.log_probs(heads.draft_below(1, states[:, :size], e[:, :size]), heads)

    sizes = list(sizes or block_sizes(grid.cols, grid.size))
    verify: dict[int, list[float]] = {size: [] for size in sizes}
    draft: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(1 + repetitions):
        for size in sizes:
            seconds = (
                _seconds(backbone, lambda size=size: session.log_probs(session.forward(middle, size))),
                _seconds(backbone, lambda size=size: drafted(size)),
            )
            if number:
                verify[size].append(seconds[0])
                draft[size].append(seconds[1])
            on_run()
    step = statistics.median(verify[sizes[0]])
    rows = []
    for size in sizes:
        times = statistics.median(verify[size]), statistics.median(draft[size])
        rows.append(PassCost(size, *(1e3 * each for each in times), *(each / step for each in times)))
    return rows


def _seconds(backbone: Backbone, run: Callable[[], Tensor]) -> float:
    synchronize(backbone.device)
    began = time.perf_counter()
    run()
    synchronize(backbone.device)
    return time.perf_counter() - began
