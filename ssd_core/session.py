"""One decoding run: prompt, KV cache, tokens and noise. The only place that runs the network and counts NFE."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from .backbones.base import Backbone
from .cache import causal_mask
from .correction import Draws
from .grid import TokenGrid
from .heads import Heads
from .sampling import Noise, SamplingConfig, log_probs

UNKNOWN, DRAFT, FINAL = 0, 1, 2  # status of a cell


@dataclass(frozen=True)
class DecodeEvent:
    """What a viewer can see after a pass. tokens and status are live views: clone them to keep them.

    phase: "prefill", "draft", "verify", "commit" or "window". rows: the rows it concerned. round: number
    of the verify pass since the block was drafted (None for other phases). accepted: bool [B, cells of
    the pass], the tokens that the pass kept (None without a verify); cells: int64 [B, cells of the pass],
    their raster cells where those are not the open ones of `rows`. nfe: passes so far; progress: 0..1;
    seconds: the decoder's own time, without the listener's. tokens int64 and status uint8 are
    [B, rows, cols]; status is UNKNOWN, DRAFT or FINAL.
    """

    phase: str
    rows: range
    nfe: int
    progress: float
    seconds: float
    tokens: Tensor
    status: Tensor
    round: int | None = None
    accepted: Tensor | None = None
    cells: Tensor | None = None


class DecodingSession:
    """State of B images decoded together, one prompt and one seed each.

    Slots: the left-padded prompt, then the raster cells. Feeding the token of raster cell c writes slot
    length + c and yields the state that predicts cell c + 1. `lookahead` adds spare cells at the end
    for a window that runs past the last one.
    """

    def __init__(
        self,
        backbone: Backbone,
        prompts: list[str],
        seeds: list[int],
        sampling: SamplingConfig | None = None,
        *,
        grid: TokenGrid | None = None,
        negatives: list[str] | None = None,
        lookahead: int = 0,
    ):
        if not prompts or len(prompts) != len(seeds):
            raise ValueError(f"One seed per prompt, please: got {len(prompts)} prompts and {len(seeds)} seeds.")
        if negatives is not None and len(negatives) != len(prompts):
            raise ValueError(f"One negative per prompt, please: got {len(negatives)} for {len(prompts)} prompts.")
        self.backbone, self.sampling = backbone, sampling or backbone.defaults
        self.grid = grid or backbone.grid()
        self.batch, self.lookahead = len(prompts), lookahead
        if self.sampling.guided:
            negatives = negatives or [""] * self.batch
        elif negatives is not None and any(negatives):
            raise ValueError("A negative prompt works through guidance: set cfg above 1, or leave it empty.")
        else:
            negatives = None
        self.prompt = backbone.encode_prompts(prompts, negatives, self.grid)
        self.rows = self.prompt.ids.shape[0]  # B, or 2B with guidance
        device = backbone.device
        cells = self.grid.size + lookahead
        self.cache = backbone.new_cache(self.rows, self.prompt.length + cells)
        in_flight = 4 + lookahead // self.grid.stride
        self.noise = Noise(seeds, self.grid, backbone.codebook_size, device, in_flight)
        self._slots = torch.arange(self.prompt.length + cells, device=device)
        generated = torch.ones(self.rows, cells, dtype=torch.bool, device=device)
        self._valid = torch.cat((self.prompt.mask, generated), 1)
        self.tokens = torch.zeros(self.batch, cells, dtype=torch.long, device=device)
        self.status = torch.full((self.batch, cells), UNKNOWN, dtype=torch.uint8, device=device)
        if self.grid.eol:
            ends = slice(self.grid.cols, self.grid.size, self.grid.stride)
            self.tokens[:, ends], self.status[:, ends] = backbone.codebook_size, FINAL
        self.nfe = 0
        self._began = self._spent = 0.0

    # ------------------------------------------------------------------------------------- the network

    def prefill(self) -> Tensor:
        """Runs the prompt; the state [rows, 1, D] that predicts cell 0."""
        length = self.prompt.length
        x = self.backbone.embed_text(self.prompt.ids)
        return self._pass(x, slice(0, length), causal_mask(self.prompt.mask))[:, -1:]

    def forward(self, start: int, count: int) -> Tensor:
        """Feeds the present tokens of raster cells start..start+count-1; the states [rows, count, D] that
        predict the cells one further each."""
        first = self.prompt.length + start
        slots = slice(first, first + count)
        mask = self._valid[:, None, None, : slots.stop]
        if count > 1:
            mask = mask & (self._slots[: slots.stop] <= self._slots[slots, None])
        return self._pass(self.embed(self.tokens[:, start : start + count]), slots, mask)

    def forward_at(self, starts: Tensor, count: int, furthest: int) -> Tensor:
        """Like `forward`, but each image starts at its own cell: starts int64 [B], all at most `furthest`."""
        cells = starts[:, None] + torch.arange(count, device=starts.device)
        x = self.embed(self.tokens.gather(1, cells))
        slots = self.per_row(cells + self.prompt.length)
        length = self.prompt.length + furthest + count
        mask = self._valid[:, None, None, :length] & (self._slots[:length] <= slots[:, None, :, None])
        return self._pass(x, slots, mask)

    def forward_cells(self, tokens: Tensor, cells: Tensor, seen: Tensor, stores: Tensor) -> Tensor:
        """Feeds any tokens as any raster cells: int64 [B, n] each; the states [rows, n, D] that predict the
        cells one further each.

        seen bool [B, n, length]: which of the first `length` cells each of them attends to, its own keys and
        values included, which go to cell `stores` [B, n] and have the position of `cells`.
        """
        length = self.prompt.length
        prompt = self.prompt.mask[:, None].expand(-1, seen.shape[1], -1)
        mask = torch.cat((prompt, self.per_row(seen)), -1)[:, None]
        x, cells, stores = self.embed(tokens), self.per_row(cells), self.per_row(stores)
        return self._pass(x, stores + length, mask, cells + length)

    def _pass(self, x: Tensor, slots: slice | Tensor, mask: Tensor, places: Tensor | None = None) -> Tensor:
        self.nfe += 1
        if places is None:
            places = self._slots[slots].expand(self.rows, -1) if isinstance(slots, slice) else slots
        positions = places - self.prompt.offset[:, None]
        return self.backbone.forward(x, positions, mask, self.cache, slots)

    # ------------------------------------------------------------------------- states, tokens, randomness

    def per_row(self, per_image: Tensor) -> Tensor:
        """[B, ...] -> [rows, ...]: both guidance halves see the same tokens."""
        return torch.cat((per_image, per_image)) if self.sampling.guided else per_image

    def embed(self, codes: Tensor) -> Tensor:
        """Codes [B, n] -> embeddings [rows, n, D]."""
        return self.per_row(self.backbone.embed_codes(codes))

    def log_probs(self, h: Tensor, heads: Heads | None = None) -> Tensor:
        """States [rows, ..., D] -> processed log-probabilities fp32 [B, ..., V]; heads: those that drafted them."""
        logits = heads.logits(self.backbone, h) if heads else self.backbone.logits(h)
        return log_probs(logits, self.sampling)

    def draws(self, rows: range, counter: int, columns: slice = slice(None)) -> Draws:
        """Random numbers for some rows (or columns of them) in pass number `counter`."""
        return Draws(
            uniform=lambda: self.noise.uniform(rows, counter)[:, :, columns],
            fresh=lambda: self.noise.fresh(rows, counter)[:, :, columns],
            shared=lambda: self.noise.shared(rows, columns),
        )

    def tokens_at(self, cells: Tensor) -> Tensor:
        """Tokens of raster cells [B, ...], each image's own; behind the spare cells, the last one's."""
        return self.tokens.gather(1, cells.clamp(max=self.tokens.shape[1] - 1).flatten(1)).view_as(cells)

    def cells(self, rows: range) -> Tensor:
        """Tokens of some rows, [B, rows, cols]; a view that can be assigned to."""
        return self._view(self.tokens)[:, rows.start : rows.stop]

    def row_status(self, rows: range) -> Tensor:
        """Status of some rows, likewise."""
        return self._view(self.status)[:, rows.start : rows.stop]

    def mark(self, rows: range, status: int) -> None:
        """Sets the status of some rows."""
        self.row_status(rows).fill_(status)

    def _view(self, raster: Tensor) -> Tensor:
        grid = self.grid
        return raster[:, : grid.size].view(self.batch, grid.rows, grid.stride)[:, :, : grid.cols]

    # ------------------------------------------------------------------------------------------- events

    def event(self, phase: str, rows: range, progress: float, **details) -> DecodeEvent:
        """An event of the present state; free until somebody looks at its tensors."""
        return DecodeEvent(
            phase, rows, self.nfe, progress, self.seconds, self._view(self.tokens), self._view(self.status), **details
        )

    @property
    def seconds(self) -> float:
        """The decoder's own time so far: the clock stops while a listener handles an event."""
        return self._spent + (time.perf_counter() - self._began if self._began else 0.0)

    def synchronize(self) -> None:
        """Waits until the device has done all passes, so that `seconds` counts them."""
        if self.backbone.device.type != "cpu":
            getattr(torch, self.backbone.device.type).synchronize()

    def start_clock(self) -> None:
        """Called by `decode` when the decoder runs on."""
        self._began = time.perf_counter()

    def stop_clock(self) -> None:
        """Called by `decode` when the listener takes over."""
        self._spent, self._began = self.seconds, 0.0
