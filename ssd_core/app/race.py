"""Two decoders, one prompt, one seed: a race on their own clocks, and a record of what a viewer saw and when.

The decoder whose clock is behind is always the one that moves. So at every moment both have had the same
time, on one device: the matched wall-clock comparison of the paper's Figure 3, live.
"""

import base64
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

from ..backbones import Backbone
from ..decoders import DECODERS, DecodeConfig, decode
from ..decoders.lossless import WindowOptions
from ..generate import Result, summarize
from ..heads import Heads
from ..pictures import to_pil
from ..sampling import SamplingConfig
from ..schedule import OWN
from ..session import DRAFT, FINAL, UNKNOWN, DecodeEvent, DecodingSession

DRAFTED = 1 << 15  # in `Lane.corrections`: the cell was drafted, not sampled straight away
LAST_ROUND = 15  # later rounds count as this one


def title(config: DecodeConfig) -> str:
    """The name of a decoder on the page: "AR", "SSD r=2", "SSD b=5 i=4 k_v=2", "Lossless", "Window, tolerance 3"."""
    name = config.decoder.upper() if len(config.decoder) < 4 else config.decoder.capitalize()
    if config.decoder == "window":
        cells = "" if config.knobs.window == WindowOptions.window else f" of {config.knobs.window}"
        return f"{name}{cells}, tolerance {config.knobs.tolerance}"
    if config.decoder != "ssd":
        return name
    schedule = config.schedule
    rounds = f"r={schedule.b}" if schedule.k_v == 1 else f"b={schedule.b} i={schedule.i} k_v={schedule.k_v}"
    ours = [f"{schedule.commits} commits"] if schedule.commits != OWN else []
    return ", ".join([f"{name} {rounds}", *ours, *(["settling"] if schedule.settle else [])])


def detail(config: DecodeConfig) -> str:
    """Its knobs, or what it is if it has none."""
    return str(config).removeprefix(config.decoder).strip() or DECODERS[config.decoder].partition(":")[0]


def percent(share: float) -> str:
    """0.184 -> "18 %"."""
    return f"{100 * share:.0f} %"


@dataclass(frozen=True)
class Snapshot:
    """One moment of a lane: tokens int32 and status uint8, [images * rows * cols], and what it took so far."""

    tokens: np.ndarray
    status: np.ndarray
    passes: int
    seconds: float

    @property
    def final(self) -> int:
        """Cells that will not change any more."""
        return int((self.status == FINAL).sum())


class Lane:
    """One decoder of a race. `snapshot` is replaced as a whole, so that other threads may look at any time.

    final_at float [cells]: seconds on the lane's clock at which each cell became final (inf: not yet).
    corrections uint16 [cells]: bit r - 1 is set if the r-th test of the cell's draft replaced its token;
    DRAFTED is set if there was a draft. Cells count image by image in raster order, without end-of-line
    cells. changes: per event, the cells that looked different after it.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: DecodeConfig,
        prompt: str,
        seeds: list[int],
        *,
        heads: Heads | None = None,
        sampling: SamplingConfig | None = None,
        negative: str = "",
    ):
        self.config, self.heads, self.title = config, heads, title(config)
        self.prompts, self.negatives = [prompt] * len(seeds), [negative] * len(seeds)
        self.session = DecodingSession(
            backbone, self.prompts, seeds, sampling, negatives=self.negatives, lookahead=config.lookahead
        )
        self._events = decode(self.session, config, heads, synchronize=True)
        grid = self.session.grid
        cells = len(seeds) * grid.rows * grid.cols
        self.snapshot = Snapshot(np.zeros(cells, np.int32), np.full(cells, UNKNOWN, np.uint8), 0, 0.0)
        self.times: list[float] = []
        self.passes: list[int] = []
        self.changes: list[np.ndarray] = []
        self.frames: list[tuple[np.ndarray, np.ndarray]] = []  # tokens and status of those cells
        self.final_at = np.full(cells, np.inf)
        self.corrections = np.zeros(cells, np.uint16)
        self._tests = np.zeros(cells, np.uint16)
        self._kept: dict[int, list[Tensor]] = defaultdict(list)
        self.finished = False

    @property
    def seconds(self) -> float:
        """The decoder's own time so far."""
        return self.snapshot.seconds

    def step(self) -> None:
        """Runs the decoder up to its next event, or to its end."""
        event = next(self._events, None)
        if event is None:
            self.finished = True
            before = self.snapshot
            self.snapshot = Snapshot(before.tokens, before.status, self.session.nfe, self.session.seconds)
            return
        tokens = event.tokens.flatten().to("cpu").numpy().astype(np.int32)
        status = event.status.flatten().to("cpu").numpy().copy()
        before, self.snapshot = self.snapshot, Snapshot(tokens, status, event.nfe, event.seconds)
        self._remember(event, before)

    def close(self) -> None:
        """Ends the run where it is."""
        self._events.close()

    def drawn_at(self, seconds: float) -> float:
        """Share of the cells that were final at a time on the lane's clock, 0..1."""
        return float((self.final_at <= seconds).mean())

    def result(self) -> Result:
        """The finished run, as `generate` reports it."""
        return summarize(self.session, self.config, self.heads, self.prompts, self.negatives, self._kept)

    def pictures(self) -> tuple[list[Image.Image], float]:
        """The pixels of what is there, and the seconds that decoding them took; they are not on the clock."""
        began = time.perf_counter()
        tokens = self.session.cells(range(self.session.grid.rows))
        images = [to_pil(rgb) for rgb in self.session.backbone.decode_image(tokens)]
        return images, time.perf_counter() - began

    def _remember(self, event: DecodeEvent, before: Snapshot) -> None:
        now = self.snapshot
        changed = np.flatnonzero(
            (now.status != before.status) | ((now.tokens != before.tokens) & (now.status != UNKNOWN))
        )
        self.times.append(now.seconds)
        self.passes.append(now.passes)
        self.changes.append(changed)
        self.frames.append((now.tokens[changed], now.status[changed]))
        self.final_at[(now.status == FINAL) & (before.status != FINAL)] = now.seconds
        self.corrections[now.status == DRAFT] |= DRAFTED
        if event.accepted is not None:
            self._count_test(event, before)
        if event.round is not None and event.rows.start > 0:
            self._kept[event.round].append(event.accepted.flatten())

    def _count_test(self, event: DecodeEvent, before: Snapshot) -> None:
        """Notes which drafts a pass tested and which of them it replaced."""
        grid = self.session.grid
        if event.cells is not None:
            y, x = (event.cells // grid.stride).cpu().numpy(), (event.cells % grid.stride).cpu().numpy()
            real = (y < grid.rows) & (x < grid.cols)
            image = np.arange(len(y))[:, None]
            index = ((image * grid.rows + y) * grid.cols + x)[real]
            replaced = ~event.accepted.cpu().numpy()[real]
            open_ = before.status[index] != FINAL
            tested, replaced = index[open_], index[open_ & replaced]
        else:
            tested = before.status.reshape(-1, grid.rows, grid.cols) == DRAFT
            tested[:, : event.rows.start] = tested[:, event.rows.stop :] = False
            tested = np.flatnonzero(tested)
            replaced = tested[self.snapshot.tokens[tested] != before.tokens[tested]]
        self._tests[tested] += 1
        self.corrections[tested] |= DRAFTED
        rounds = np.minimum(self._tests[replaced], LAST_ROUND)
        self.corrections[replaced] |= (1 << (rounds - 1)).astype(np.uint16)


class Race:
    """Two lanes. One step of `advance` moves the one whose clock is behind."""

    def __init__(self, left: Lane, right: Lane):
        self.lanes = left, right

    def advance(self) -> bool:
        """Moves one decoder by one event; False once both have finished."""
        running = [lane for lane in self.lanes if not lane.finished]
        if running:
            min(running, key=lambda lane: lane.seconds).step()
        return any(not lane.finished for lane in self.lanes)

    def close(self) -> None:
        """Ends both runs where they are."""
        for lane in self.lanes:
            lane.close()

    @property
    def finished(self) -> bool:
        """Whether both pictures are complete."""
        return all(lane.finished for lane in self.lanes)

    @property
    def equal(self) -> float:
        """Share of cells with the same token on both sides, 0..1."""
        left, right = (lane.snapshot for lane in self.lanes)
        return float((left.tokens == right.tokens).mean())

    def verdict(self) -> str:
        """One line: who needed what, how far the slower one was when the faster one finished, how equal they are."""
        fast, slow = sorted(self.lanes, key=lambda lane: lane.seconds)
        if not self.finished:
            return "Stopped: " + ", ".join(
                f"{lane.title} had drawn {percent(lane.drawn_at(lane.seconds))} in {lane.seconds:.1f} s"
                for lane in self.lanes
            )
        return (
            f"{fast.title} {fast.seconds:.1f} s, {slow.title} {slow.seconds:.1f} s: "
            f"{slow.seconds / fast.seconds:.1f}x; when {fast.title} finished, {slow.title} had drawn "
            f"{percent(slow.drawn_at(fast.seconds))}; {percent(self.equal)} of cells equal"
        )


# ------------------------------------------------------------------------------------------ for the browser


def palette(backbone: Backbone) -> np.ndarray:
    """The colour of each code in previews, uint8 [V, 3]."""
    return (backbone.preview_colors() * 255).round().clamp(0, 255).byte().cpu().numpy()


def mosaic(images: int, rows: int, cols: int) -> np.ndarray:
    """Where each cell goes when the images of a batch are laid out as a square: int [images * rows * cols]."""
    side = math.isqrt(images)
    if side * side != images:
        raise ValueError(f"A race draws 1, 4 or 9 pictures at once, got {images}.")
    image, y, x = np.indices((images, rows, cols)).reshape(3, -1)
    return ((image // side) * rows + y) * (side * cols) + (image % side) * cols + x


def layout(race: Race) -> dict:
    """The size of the canvases in cells."""
    session = race.lanes[0].session
    side = math.isqrt(session.batch)
    return {"rows": side * session.grid.rows, "cols": side * session.grid.cols, "images": session.batch}


def live(race: Race, colors: np.ndarray) -> dict:
    """What is on the canvases now; about 6 kB for 24 x 24 cells on either side."""
    return layout(race) | {"mode": "live", "lanes": [_live_lane(lane, colors) for lane in race.lanes]}


def _live_lane(lane: Lane, colors: np.ndarray) -> dict:
    now, order = lane.snapshot, _order(lane)
    rgb, status = np.empty((len(order), 3), np.uint8), np.empty(len(order), np.uint8)
    rgb[order], status[order] = colors[now.tokens.clip(0, len(colors) - 1)], now.status
    return _heading(lane) | {"rgb": _base64(rgb), "state": _base64(status)}


def recording(race: Race, colors: np.ndarray) -> dict:
    """All that a replay needs: for every event of either side its time, its pass and the cells that changed."""
    return layout(race) | {
        "mode": "final" if race.finished else "stopped",
        "verdict": race.verdict(),
        "lanes": [_recorded_lane(lane, colors) for lane in race.lanes],
    }


def _recorded_lane(lane: Lane, colors: np.ndarray) -> dict:
    order = _order(lane)
    corrections = np.empty(len(order), "<u2")
    corrections[order] = lane.corrections
    tokens, status = (np.concatenate(parts) for parts in zip(*lane.frames, strict=True)) if lane.frames else ([], [])
    tokens, status = np.asarray(tokens, np.int32), np.asarray(status, np.uint8)
    changed = order[np.concatenate(lane.changes)] if lane.changes else np.zeros(0, int)
    return _heading(lane) | {
        "times": [round(seconds, 4) for seconds in lane.times],
        "nfe": lane.passes,
        "counts": [len(cells) for cells in lane.changes],
        "cell": _base64(changed.astype("<u4")),
        "rgb": _base64(colors[tokens]),
        "state": _base64(status),
        "corrections": _base64(corrections),
    }


def _heading(lane: Lane) -> dict:
    now = lane.snapshot
    return {
        "title": lane.title,
        "detail": detail(lane.config),
        "passes": now.passes,
        "seconds": round(now.seconds, 4),
        "drawn": now.final,
        "cells": len(now.status),
        "finished": lane.finished,
    }


def _order(lane: Lane) -> np.ndarray:
    grid = lane.session.grid
    return mosaic(lane.session.batch, grid.rows, grid.cols)


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def replay(lane: dict) -> Iterator[tuple[float, int, np.ndarray, np.ndarray]]:
    """Plays one lane of a recording: (seconds, passes, colours uint8 [cells, 3], status uint8 [cells]) per event."""
    cells = _bytes(lane["cell"], "<u4")
    rgb, status = _bytes(lane["rgb"]).reshape(-1, 3), _bytes(lane["state"])
    shown, state = np.zeros((lane["cells"], 3), np.uint8), np.zeros(lane["cells"], np.uint8)
    first = 0
    for seconds, passes, count in zip(lane["times"], lane["nfe"], lane["counts"], strict=True):
        now = slice(first, first + count)
        shown[cells[now]], state[cells[now]] = rgb[now], status[now]
        first += count
        yield seconds, passes, shown, state


def _bytes(text: str, dtype: str = "u1") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)
