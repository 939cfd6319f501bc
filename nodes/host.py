"""Runs under ComfyUI: progress bar, previews, Cancel, and messages to the browser."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import comfy.model_management as mm
import torch
from comfy.utils import ProgressBar
from server import PromptServer

from ..ssd_core.decoders import DecodeConfig
from ..ssd_core.generate import Result, generate
from ..ssd_core.grid import TokenGrid
from ..ssd_core.sampling import SamplingConfig
from ..ssd_core.session import DecodeEvent
from . import settings, watching
from .managed import ManagedBackbone, ManagedHeads
from .text import ENGLISH, LANGUAGES

EVENT = "ssd.run"  # message to the browser
EVENT_INTERVAL = 0.1  # seconds


def stop_if_cancelled() -> None:
    """Raises ComfyUI's exception if the user pressed Cancel."""
    mm.throw_exception_if_processing_interrupted()


@dataclass
class Drawing:
    """A finished run: result, pictures float [B, H, W, 3] on the CPU, which first guesses stayed, its statistics."""

    result: Result
    image: torch.Tensor
    kept: torch.Tensor
    statistics: str

    @property
    def mask(self) -> torch.Tensor:
        """The first guesses that stayed, float [B, H, W]."""
        return watching.mask(self.kept, *self.image.shape[1:3])


@dataclass
class Viewer:
    """Shows the runs of one node: `draw` is to be called `runs` times."""

    node_id: str
    backbone: ManagedBackbone
    heads: ManagedHeads | None = None
    preview: str = watching.COLOURS
    preview_every: int = 1
    runs: int = 1
    _done: int = field(default=0, init=False)
    _bar: ProgressBar | None = field(default=None, init=False)

    def draw(
        self,
        prompt: str,
        seeds: list[int],
        config: DecodeConfig,
        make_sampling: Callable[[SamplingConfig], SamplingConfig],
        negative: str = "",
        width: int = 0,
        height: int = 0,
    ) -> Drawing:
        """Draws a picture per seed; make_sampling gets the model's own settings."""
        stop_if_cancelled()
        loaded = self.backbone.load()
        grid, sampling = loaded.grid(width or None, height or None), make_sampling(loaded.defaults)
        stop_if_cancelled()
        rows = len(seeds) * (2 if sampling.guided else 1)
        backbone = self.backbone.ready(self.heads, rows, grid, config)
        self._start(config, grid)
        guesses = watching.FirstGuesses()
        watch = _Watch(self, backbone, guesses, grid, config)
        result = generate(
            backbone,
            [prompt] * len(seeds),
            seeds,
            config,
            sampling,
            heads=self.heads.heads if self.heads else None,
            negatives=[negative] * len(seeds) if negative.strip() else None,
            grid=grid,
            on_event=watch,
        )
        kept = guesses.tokens == result.tokens
        image = backbone.decode_image(result.tokens).float().clamp(0, 1).to(mm.intermediate_device())
        share = kept.float().mean().item()
        words = {language: settings.statistics(result, grid, share, language) for language in LANGUAGES}
        watch.report(watch.last, statistics=words)
        self._done += 1
        return Drawing(result, image, kept, words[ENGLISH])

    def _start(self, config: DecodeConfig, grid: TokenGrid) -> None:
        """Progress counts passes; cells where nobody knows their number, and thousandths of several runs."""
        self.total = settings.planned_passes(config, grid) or grid.size
        if self.runs > 1:
            self.total = 1000
        self._bar = self._bar or ProgressBar(self.total * self.runs)

    def progress(self, share: float, picture=None) -> None:
        """Moves the bar to a share of the present run, with a preview picture if there is one."""
        value = self.total * self._done + min(self.total, round(share * self.total))
        preview = ("JPEG", picture, None) if picture is not None else None
        self._bar.update_absolute(value, self.total * self.runs, preview)


class _Watch:
    """Listens to the events of one run."""

    def __init__(
        self, viewer: Viewer, backbone, guesses: watching.FirstGuesses, grid: TokenGrid, config: DecodeConfig
    ) -> None:
        self._viewer, self._backbone, self._guesses, self._grid = viewer, backbone, guesses, grid
        self._planned, self._most = settings.planned_passes(config, grid), settings.most_passes(config, grid)
        self._shown, self._sent = -1, 0.0
        self._title = str(config)

    def __call__(self, event: DecodeEvent) -> None:
        stop_if_cancelled()
        self.last = event
        self._guesses.see(event)
        self._viewer.progress(event.progress, self._picture(event))
        if time.monotonic() - self._sent >= EVENT_INTERVAL:
            self._sent = time.monotonic()
            self.report(event)

    def _picture(self, event: DecodeEvent):
        """A preview when enough rows were finished since the last one, and at the end."""
        viewer, row = self._viewer, event.rows.start
        if viewer.preview == watching.OFF:
            return None
        if event.progress < 1 and (row < self._shown + viewer.preview_every or row == 0):
            return None
        self._shown = row
        return watching.picture(self._backbone, event, viewer.preview)

    def report(self, event: DecodeEvent, **more: dict[str, str]) -> None:
        """Sends the state of the run to the tab that started it; more: statistics by language, at the end."""
        server = PromptServer.instance
        message = {
            "node": self._viewer.node_id,
            "title": self._title,
            "rows": self._grid.rows,
            "cols": self._grid.cols,
            "cells": self._guesses.cells(event),
            "passes": event.nfe,
            "planned": self._planned,
            "most": self._most,
            "ar": self._grid.size,
            "seconds": round(event.seconds, 3),
            "progress": event.progress,
        }
        server.send_sync(EVENT, message | more, server.client_id)
