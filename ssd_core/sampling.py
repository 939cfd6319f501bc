"""From logits to distributions to tokens, over the visual codebook only, in fp32.

Every random number is a function of (image seed, row, purpose, round): a batch of seeds gives the same
pictures as one at a time, whatever the decoder.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .grid import TokenGrid

MAX_SEED = 2**31 - 1  # larger seeds lose digits in browsers


@dataclass(frozen=True)
class SamplingConfig:
    """cfg: guidance weight w in l = l_u + w (l_c - l_u); 1 turns guidance, and its second half batch, off.

    temperature > 0; top_k: keep the k likeliest codes and what ties with the last (0: all); top_p: keep
    the smallest set of codes with at least this probability (1: all).
    """

    cfg: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.cfg < 0:
            raise ValueError(f"cfg must not be negative, got {self.cfg}.")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}; for greedy decoding use rule=greedy."
            )
        if self.top_k < 0:
            raise ValueError(f"top_k must not be negative (0 keeps every code), got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}.")

    def updated(self, **values: float | None) -> "SamplingConfig":
        """A copy with other values; None keeps the present one."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    @property
    def guided(self) -> bool:
        """Whether an unconditional half batch is needed."""
        return self.cfg != 1


def log_probs(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Raw logits fp32 [rows, ..., V] -> processed log-probabilities fp32 [B, ..., V].

    rows is 2B (conditional ones first) if config.guided, else B. Order: guidance, temperature, top-k,
    top-p, softmax (`decoders`' p and q are both processed so).
    """
    if config.guided:
        conditional, unconditional = logits.chunk(2)
        logits = unconditional + config.cfg * (conditional - unconditional)
    if config.temperature != 1:
        logits = logits / config.temperature
    if 0 < config.top_k < logits.shape[-1]:
        least = logits.topk(config.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if config.top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= config.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    return logits.log_softmax(-1)


_SHARED, _FRESH, _UNIFORM = 0, 1, 2


class Noise:
    """Random numbers for B images, by row of the grid.

    seeds: one per image, 0..2**31 - 1. Shared rows are kept for the `rows_in_flight` of each image only:
    a row of Emu3 is 90 x 32,768 numbers, the whole picture would be a gigabyte.
    """

    def __init__(
        self, seeds: list[int], grid: TokenGrid, codebook_size: int, device: torch.device, rows_in_flight: int = 4
    ):
        for seed in seeds:
            if not 0 <= seed <= MAX_SEED:
                raise ValueError(f"Seeds run from 0 to {MAX_SEED}, got {seed}.")
        self.seeds, self.grid, self.codebook_size, self.device = seeds, grid, codebook_size, device
        self.rows_in_flight = rows_in_flight
        self._generator = torch.Generator(device)
        self._kept: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def _draw(self, image: int, row: int, purpose: int, counter: int, shape: tuple[int, ...]) -> Tensor:
        self._generator.manual_seed(_mix(self.seeds[image], row, purpose, counter))
        if purpose == _UNIFORM:
            return torch.rand(shape, generator=self._generator, device=self.device)
        exponential = torch.empty(shape, device=self.device).exponential_(generator=self._generator)
        return exponential.clamp_(min=1e-10).log_().neg_()  # Gumbel

    def shared_row(self, image: int, row: int) -> Tensor:
        """The Gumbel noise of one image's row, [cols, V]: the same for AR, drafts and every pass."""
        key = (image, row)
        if key not in self._kept:
            self._kept[key] = self._draw(image, row, _SHARED, 0, (self.grid.cols, self.codebook_size))
            while len(self._kept) > self.rows_in_flight * len(self.seeds):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def shared(self, rows: range, columns: slice = slice(None)) -> Tensor:
        """Shared Gumbel noise of some rows (or columns of them), [B, rows, cols, V]."""
        images = range(len(self.seeds))
        return torch.stack([torch.stack([self.shared_row(b, y)[columns] for y in rows]) for b in images])

    def shared_window(self, images: Sequence[int], starts: Sequence[int], count: int) -> Tensor:
        """Shared Gumbel noise [len(images), count, V] of raster cells from each image's own start on; zero on
        end-of-line cells and behind the picture."""
        grid, windows = self.grid, []
        for image, start in zip(images, starts, strict=True):
            first = min(start // grid.stride, grid.rows - 1)
            last = min((start + count - 1) // grid.stride, grid.rows - 1)
            rows = [self.shared_row(image, y) for y in range(first, last + 1)]
            strip = torch.cat([F.pad(row, (0, 0, 0, int(grid.eol))) for row in rows])
            strip = strip[start - first * grid.stride :][:count]
            windows.append(F.pad(strip, (0, 0, 0, count - len(strip))))
        return torch.stack(windows)

    def fresh(self, rows: range, counter: int, cells: int | None = None) -> Tensor:
        """Gumbel noise [B, rows, cells (default: cols), V] that is new for every `counter`."""
        return self._stack(rows, _FRESH, counter, (cells or self.grid.cols, self.codebook_size))

    def uniform(self, rows: range, counter: int, cells: int | None = None) -> Tensor:
        """Uniform numbers [B, rows, cells (default: cols)] in [0, 1) that are new for every `counter`."""
        return self._stack(rows, _UNIFORM, counter, (cells or self.grid.cols,))

    def _stack(self, rows: range, purpose: int, counter: int, shape: tuple[int, ...]) -> Tensor:
        images = range(len(self.seeds))
        return torch.stack([torch.stack([self._draw(b, y, purpose, counter, shape) for y in rows]) for b in images])


def _mix(*numbers: int) -> int:
    """A generator seed from small integers (splitmix64's finaliser after each)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1
