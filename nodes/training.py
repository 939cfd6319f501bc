"""TrainSSDHeads: heads for the loaded backbone, from pictures it draws itself or from a folder."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import comfy.model_management as mm
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from comfy.utils import ProgressBar
from comfy_api.latest import io
from safetensors import safe_open

from ..ssd_core.decoders import DecodeConfig
from ..ssd_core.training.__main__ import scene_captions
from ..ssd_core.training.captioned import captioned_pictures, encode_corpus
from ..ssd_core.training.corpus import Corpus, draw_corpus, load_corpus
from ..ssd_core.training.heads import HeadsConfig, format_report, train_heads
from . import curves, folders
from . import schema as s
from .host import stop_if_cancelled
from .managed import ManagedBackbone, ManagedHeads
from .text import NodeText

OWN, FOLDER = "own pictures", "captioned folder"
PREVIEW_INTERVAL = 0.5  # seconds
HALF = 1000  # of the progress bar: the pictures, then the steps


class TrainSSDHeads(io.ComfyNode):
    """Trains drafting heads; resumes a run of the same name and settings."""

    @classmethod
    def define_schema(cls):
        text = NodeText("TrainSSDHeads")
        number, default = io.Int.Input, HeadsConfig()
        return s.schema(
            text,
            [
                s.backbone(text),
                io.Combo.Input("source", options=[OWN, FOLDER], default=OWN, **text.input("source")),
                io.String.Input("prompts", multiline=True, default="", **text.input("prompts")),
                io.String.Input("folder", default="", **text.input("folder")),
                number("pictures", default=100, min=2, max=1_000_000, **text.input("pictures")),
                s.decoder(
                    text,
                    "draw_with",
                    "How the backbone draws its pictures.",
                    "lossless",
                    "Try lossless: ar's pictures in fewer passes.",
                ),
                number("steps", default=0, min=0, max=1_000_000, **text.input("steps")),
                number("batch_size", default=default.batch, min=1, max=256, **text.input("batch_size")),
                s.advanced(number("k_h", default=default.k_h, min=1, max=16, **text.input("k_h"))),
                s.advanced(number("k_v", default=default.k_v, min=1, max=8, **text.input("k_v"))),
                io.Float.Input(
                    "learning_rate",
                    default=default.lr,
                    min=1e-6,
                    max=0.1,
                    step=1e-5,
                    round=1e-7,
                    **text.input("learning_rate"),
                ),
                s.seed(text, 0),
                io.String.Input("run", default="first run", **text.input("run")),
            ],
            [
                s.HeadsType.Output("heads", **text.output(0)),
                io.Image.Output("loss_curve", **text.output(1)),
                io.String.Output("report", **text.output(2)),
            ],
            aliases=["finetune", "drafting heads"],
        )

    @classmethod
    def validate_inputs(cls, source=None, folder=None, draw_with=None, run=None):
        try:
            if run is not None:
                folders.run_folder(run)
        except ValueError as error:
            return str(error)
        if source == FOLDER and folder is not None and not folder.strip():
            return "Name the folder with the pictures and their captions."
        return s.refusal(cls, source=source, draw_with=draw_with) or True

    @classmethod
    def fingerprint_inputs(cls, source, folder, **_):
        path = folders.input_folder(folder)
        return folders.stamp(path) if source == FOLDER and path.is_dir() else ""

    @classmethod
    def execute(
        cls,
        backbone: ManagedBackbone,
        source,
        prompts,
        folder,
        pictures,
        draw_with,
        steps,
        batch_size,
        k_h,
        k_v,
        learning_rate,
        seed,
        run,
    ) -> io.NodeOutput:
        config = HeadsConfig(
            k_h=k_h, k_v=k_v, steps=steps or None, batch=batch_size, lr=learning_rate, seed=seed, log_every=1
        )
        work, bar = folders.run_folder(run), ProgressBar(2 * HALF)
        with torch.inference_mode(False), torch.enable_grad(), _accelerator(backbone) as accelerator:
            loaded = backbone.load()
            drawing = DecodeConfig(draw_with)
            loaded = backbone.ready(None, 2 * batch_size, loaded.grid(), drawing)

            def drawn(share: float) -> None:
                stop_if_cancelled()
                bar.update_absolute(round(HALF * share))

            if source == OWN:
                corpus = _own(loaded, _prompts(prompts, pictures, loaded), work, accelerator, drawing, config, drawn)
            else:
                chosen = captioned_pictures(folders.input_folder(folder))
                corpus = encode_corpus(loaded, chosen, on_progress=drawn)
            held_out = 1  # at least; the bar only has to be about right
            planned = config.planned_steps(len(corpus) - held_out, accelerator.num_processes)
            learning = _Learning(bar, planned)
            out = work / "heads.safetensors"
            try:
                heads = train_heads(
                    loaded, corpus, config, accelerator=accelerator, work=work, out=out, on_step=learning
                )
            except SystemExit:  # the trainer has saved its checkpoint
                raise learning.cancelled or mm.InterruptProcessingException() from None
        with safe_open(out, framework="pt") as file:
            story = json.loads(file.metadata()["training"])
        report = format_report(story["heads"])
        curve = np.array(curves.loss_curve(curves.read_log(work / "log.jsonl")))
        image = torch.from_numpy(curve).float()[None] / 255
        return io.NodeOutput(ManagedHeads(heads, backbone, story), image, report, ui={"text": [report]})


class _Learning:
    """Shows each step; a Cancel becomes the interruption at which the trainer saves its checkpoint."""

    def __init__(self, bar: ProgressBar, planned: int):
        self._bar, self._planned, self._shown = bar, planned, 0.0
        self._points: list[tuple[int, float]] = []
        self.cancelled: BaseException | None = None

    def __call__(self, step: int, loss: float) -> None:
        self._points.append((step, loss))
        preview = None
        if time.monotonic() - self._shown >= PREVIEW_INTERVAL:
            self._shown = time.monotonic()
            preview = ("JPEG", curves.loss_curve(self._points), None)
        try:
            stop_if_cancelled()
            self._bar.update_absolute(HALF + min(HALF, round(HALF * step / self._planned)), None, preview)
        except mm.InterruptProcessingException as error:
            self.cancelled = error
            raise KeyboardInterrupt from error


@contextmanager
def _accelerator(backbone: ManagedBackbone) -> Iterator[Accelerator]:
    """An Accelerator on the backbone's kind of device; its process-wide state goes again if it was not there."""
    was_there = bool(AcceleratorState._shared_state)
    try:
        yield Accelerator(cpu=mm.is_device_cpu(backbone.load_device))
    finally:
        if not was_there:
            AcceleratorState._reset_state(reset_partial_state=True)


def _prompts(text: str, pictures: int, backbone) -> list[str]:
    """One prompt per picture."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines:
        return [lines[number % len(lines)] for number in range(pictures)]
    if backbone.family != "builtin":
        raise ValueError(f"Write some prompts, one per line: {backbone.name} has none of its own.")
    return scene_captions(pictures)


def _own(
    backbone, prompts: list[str], work: Path, accelerator, drawing: DecodeConfig, config: HeadsConfig, on_progress
) -> Corpus:
    folder = work / "corpus"
    draw_corpus(
        backbone,
        prompts,
        folder,
        accelerator=accelerator,
        config=drawing,
        batch=config.batch,
        seed=config.seed,
        on_progress=on_progress,
    )
    return load_corpus(folder, backbone.fingerprint, len(prompts))


NODES = [TrainSSDHeads]
