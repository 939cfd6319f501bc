"""SSDCompare and SSDSweep: several runs of one prompt and seed on one sheet."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from comfy_api.latest import io

from ..ssd_core.correction import SHARED_NOISE
from ..ssd_core.decoders import DecodeConfig
from ..ssd_core.generate import caption
from ..ssd_core.pictures import sheet, to_pil
from ..ssd_core.schedule import Schedule
from . import schema as s
from . import settings
from .host import Drawing, Viewer
from .managed import ManagedBackbone, ManagedHeads
from .text import NodeText

SHIFT = "Pictures resemble each other most with shared-noise; try it."


class SSDCompare(io.ComfyNode):
    """AR, SSD and lossless from one prompt and seed."""

    @classmethod
    def define_schema(cls):
        text = NodeText("SSDCompare")
        return s.schema(
            text,
            [
                s.backbone(text),
                s.prompt(text, "two cats on snow"),
                s.seed(text),
                s.rounds(text),
                s.rule(text, SHARED_NOISE, SHIFT),
                io.Boolean.Input("lossless", default=True, **text.input("lossless")),
                *s.sampling(text),
                s.heads(text),
                s.schedule(text),
            ],
            [
                io.Image.Output("ar_image", **text.output(0)),
                io.Image.Output("ssd_image", **text.output(1)),
                io.Image.Output("comparison", **text.output(2)),
                io.String.Output("statistics", **text.output(3)),
            ],
            hidden=[io.Hidden.unique_id],
            aliases=["benchmark", "race"],
        )

    @classmethod
    def validate_inputs(cls, rule=None):
        return s.refusal(cls, rule=rule) or True

    @classmethod
    def execute(
        cls,
        backbone: ManagedBackbone,
        prompt,
        seed,
        r,
        rule,
        lossless,
        cfg,
        temperature,
        top_k,
        top_p,
        heads: ManagedHeads | None = None,
        schedule: DecodeConfig | None = None,
    ) -> io.NodeOutput:
        ssd = settings.decode_config(schedule, schedule=Schedule(b=r), rule=rule)
        ar, exact = (replace(ssd, decoder=name, options=None) for name in ("ar", "lossless"))
        configs = [ar, ssd, exact] if lossless else [ar, ssd]
        sampling = partial(settings.sampling_config, cfg=cfg, temperature=temperature, top_k=top_k, top_p=top_p)
        drawings = _draw_all(cls.hidden.unique_id, backbone, heads, prompt, seed, configs, sampling)
        captions = [caption(drawing.result, drawings[0].result) for drawing in drawings]
        words = "\n\n".join(captions)
        comparison = _sheet(drawings, captions, len(drawings))
        return io.NodeOutput(drawings[0].image, drawings[1].image, comparison, words, ui={"ssd": [words]})


class SSDSweep(io.ComfyNode):
    """SSD over r and k_v on a contact sheet."""

    @classmethod
    def define_schema(cls):
        text = NodeText("SSDSweep")
        return s.schema(
            text,
            [
                s.backbone(text),
                s.prompt(text, "a lemon on grass at sunset"),
                s.seed(text, 5),
                io.String.Input("rounds", default="0, 1, 2, 4", **text.input("rounds")),
                io.String.Input("rows", default="1, 2", **text.input("rows")),
                s.rule(text, SHARED_NOISE, SHIFT),
                io.Boolean.Input("reference", default=True, **text.input("reference")),
                *s.sampling(text),
                s.heads(text),
            ],
            [
                io.Image.Output("sheet", **text.output(0)),
                io.Image.Output("images", **text.output(1)),
                io.String.Output("statistics", **text.output(2)),
            ],
            hidden=[io.Hidden.unique_id],
            aliases=["grid", "contact sheet", "xy plot"],
        )

    @classmethod
    def validate_inputs(cls, rounds=None, rows=None, rule=None):
        try:
            _numbers("1" if rounds is None else rounds, "1" if rows is None else rows)
        except ValueError as error:
            return str(error)
        return s.refusal(cls, rule=rule) or True

    @classmethod
    def execute(
        cls,
        backbone: ManagedBackbone,
        prompt,
        seed,
        rounds,
        rows,
        rule,
        reference,
        cfg,
        temperature,
        top_k,
        top_p,
        heads: ManagedHeads | None = None,
    ) -> io.NodeOutput:
        rounds, rows = _numbers(rounds, rows)
        configs = settings.sweep(rounds, rows, DecodeConfig(rule=rule), reference)
        sampling = partial(settings.sampling_config, cfg=cfg, temperature=temperature, top_k=top_k, top_p=top_p)
        drawings = _draw_all(cls.hidden.unique_id, backbone, heads, prompt, seed, configs, sampling)
        first = drawings[0].result if reference else None
        captions = [caption(drawing.result, first) for drawing in drawings]
        columns = len(rounds) if not reference else min(4, len(drawings))
        words = "\n\n".join(captions)
        images = torch.cat([drawing.image for drawing in drawings])
        return io.NodeOutput(_sheet(drawings, captions, columns), images, words, ui={"ssd": [words]})


def _numbers(rounds: str, rows: str) -> tuple[list[int], list[int]]:
    return (
        settings.numbers(rounds, "r", 0, settings.MAX_ROUNDS),
        settings.numbers(rows, "k_v", 1, settings.MAX_ROWS),
    )


def _draw_all(node_id, backbone, heads, prompt, seed, configs: list[DecodeConfig], sampling) -> list[Drawing]:
    """A run per config, after one that nobody sees: the first of a process takes longer than it should."""
    last = configs[-1]
    quick = replace(last, decoder="ssd", schedule=replace(last.schedule, b=0, i=0), options=None)
    configs = [quick, *configs]
    viewer = Viewer(node_id, backbone, heads, runs=len(configs))
    return [viewer.draw(prompt, [seed], config, sampling) for config in configs][1:]


def _sheet(drawings: list[Drawing], captions: list[str], columns: int) -> torch.Tensor:
    """A captioned sheet as IMAGE, float [1, H, W, 3]."""
    picture = sheet([to_pil(drawing.image[0]) for drawing in drawings], captions, columns=columns, side=320)
    return torch.from_numpy(np.array(picture)).float()[None] / 255


NODES = [SSDCompare, SSDSweep]
