"""What a picture costs, from a configuration alone: parameters, FLOPs, memory and the bandwidth floor.

The counts are those of Table 12 of the paper: 2 FLOPs per weight and token, both guidance halves; causal
attention; heads on both halves. No weights are read, the models are built on the meta device.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .backbones.base import Backbone
from .backbones.checkpoint import CheckpointError, read_json
from .decoders import DecodeConfig
from .grid import TokenGrid
from .heads import SpatialHead
from .schedule import PRESETS, Schedule

ROWS = 2  # guidance: a conditional and an unconditional half
PROMPT_SLOTS = 512  # room for the prompt in the KV cache, where its length is not known yet
GPUS = {  # TB/s
    "RTX 3060": 0.36,
    "RTX 4090": 1.008,
    "RTX 5090, PRO 6000": 1.792,
    "A100 80 GB": 2.04,
    "H100 SXM": 3.35,
    "H200": 4.8,
    "B200": 8.0,
}


def _janus(hidden: int, inner: int, layers: int, heads: int) -> dict:
    text = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": 102400}
    text |= {"num_attention_heads": heads, "num_key_value_heads": heads, "model_type": "llama"}
    vq = {"projection_dim": hidden, "image_token_embed_dim": hidden}
    return {"model_type": "janus", "text_config": text, "vq_config": vq, "vision_config": {"projection_dim": hidden}}


KNOWN = {  # the part of their config.json that differs from what transformers assumes
    "janus-pro-1b": _janus(2048, 5632, 24, 16),
    "janus-pro-7b": _janus(4096, 11008, 30, 32),
    "lumina-mgpt-7b-768": {"model_type": "chameleon"},
    "emu3-gen": {"model_type": "emu3", "vocabulary_map": {}},
}


@dataclass(frozen=True)
class ModelSize:
    """Parameters and widths of a backbone.

    layers, embedding, head (over the codes), vq: parameters that are loaded; text_head: those of the
    whole-vocabulary head (Janus' head has codes only); unused: parameters of the checkpoint that are
    not kept, less those made while loading. attention: width of the queries, kv: of keys and values
    together, in all layers.
    """

    name: str
    family: str
    grid: TokenGrid
    hidden_size: int
    layers: int
    embedding: int
    head: int
    text_head: int
    vq: int
    unused: int
    attention: int
    kv: int

    @property
    def loaded(self) -> int:
        """Bytes in memory: bf16, the VQ model fp32."""
        return 2 * (self.layers + self.embedding + self.head) + 4 * self.vq

    @property
    def published(self) -> int:
        """Bytes of the whole checkpoint, as the paper counts them."""
        return self.loaded + 2 * self.unused

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values per token and row, bf16."""
        return 2 * self.kv


def model_size(name: str) -> ModelSize:
    """Sizes of a known model, or of the checkpoint in a folder, of which only config.json is read."""
    if name in KNOWN:
        return size_of(KNOWN[name], name)
    folder = Path(name)
    if not folder.is_dir():
        raise ValueError(f'"{name}" is neither a folder nor one of {", ".join(KNOWN)}.')
    return size_of(read_json(folder / "config.json"), folder.name)


def size_of(config: dict, name: str) -> ModelSize:
    """Sizes of the model that a config.json describes."""
    kind = config.get("model_type")
    if kind in ("janus", "multi_modality"):
        from transformers import JanusVisionConfig  # transformers takes seconds to import
        from transformers.models.janus.modeling_janus import JanusVisionAlignerMLP, JanusVisionModel

        from .backbones import janus
        from .backbones.hf import build_parts

        text, vq = janus.settings(config)
        parts = janus.build(text, vq)
        given = config.get("vision_config", {}) if kind == "janus" else {"projection_dim": text.hidden_size}
        vision = JanusVisionConfig(**given)
        tower = build_parts(
            vision=lambda: JanusVisionModel._from_config(vision), aligner=lambda: JanusVisionAlignerMLP(vision)
        )
        family, grid, text_head = "janus-pro", TokenGrid(vq.num_patches, vq.num_patches), _count(parts["head"])
        embedding = vq.num_embeddings * text.hidden_size  # the table of codes, made while loading
        unused = text.vocab_size * text.hidden_size + sum(map(_count, (tower, parts["table"], parts["aligner"])))
        unused -= embedding
    elif kind in ("emu3", "Emu3"):
        from .backbones import emu3

        text, vq = emu3.settings(config, {})
        parts = emu3.build(text, vq)
        family, grid, text_head, embedding = "emu3", TokenGrid(90, 90, eol=True), text.vocab_size * text.hidden_size, 0
        unused = text_head - _count(parts["head"])
    elif kind == "chameleon":
        from .backbones import lumina

        text = lumina.settings(config)
        parts = lumina.build(text)
        text_head, embedding = text.vocab_size * text.hidden_size, 0
        family, grid = "lumina-mgpt", TokenGrid(48, 48, eol=True)
        unused = text_head - _count(parts["head"])
    else:
        raise CheckpointError(f'config.json says model_type "{kind}", which is none of the models known here.')
    decoder = parts["decoder"]
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelSize(
        name=name,
        family=family,
        grid=grid,
        hidden_size=text.hidden_size,
        layers=_count(decoder.layers) + _count(decoder.norm),
        embedding=_count(decoder.embed_tokens) + embedding,
        head=_count(parts["head"]),
        text_head=text_head,
        vq=_count(parts["vq"]),
        unused=unused,
        attention=text.num_attention_heads * head_dim * text.num_hidden_layers,
        kv=2 * text.num_key_value_heads * head_dim * text.num_hidden_layers,
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def ssd_passes(schedule: Schedule, grid: TokenGrid) -> Iterator[tuple[int, int]]:
    """(first raster cell, cells) of each pass of `decoders.ssd` after the prefill."""
    cached = x = 0
    while x + 1 < grid.cols:
        end = x + 1 + min(schedule.k_h, grid.cols - 1 - x)
        yield cached, end - cached
        cached = end if end < grid.cols else grid.stride
        yield x + 1, cached - (x + 1)
        x = end - 1
    owed = 0
    for y, n in schedule.blocks(grid):
        rows = range(y, y + n)
        for row in rows:
            for _ in range(schedule.b if row == y else schedule.i):
                yield grid.index(row - owed), (owed + rows.stop - row) * grid.stride
                owed = 0
            owed += 1
            if not schedule.postpones(row, rows, grid):
                yield grid.index(row + 1 - owed), owed * grid.stride
                owed = 0


def ar_passes(grid: TokenGrid) -> Iterator[tuple[int, int]]:
    """(first raster cell, cells) of each pass of `decoders.ar` after the prefill."""
    return ((cell, 1) for cell in range(grid.size - 1))


@dataclass(frozen=True)
class Cost:
    """One picture, guided. FLOPs of the backbone's weights, of attention and of the heads; bytes; passes."""

    passes: int
    backbone: float
    attention: float
    horizontal: float
    vertical: float
    heads_bytes: int
    cache_bytes: int
    bytes_read: float

    @property
    def flops(self) -> float:
        """All of them."""
        return self.backbone + self.attention + self.horizontal + self.vertical


def cost(size: ModelSize, schedule: Schedule | None, prompt: int, *, text_head: bool = False) -> Cost:
    """The cost of a picture by SSD with trained heads, or (None) by AR, for prompts of some length in tokens.

    text_head: count the head over the whole vocabulary in every pass, as the paper does.
    """
    grid = size.grid
    passes = [(-prompt, prompt), *(ar_passes(grid) if schedule is None else ssd_passes(schedule, grid))]
    tokens = sum(count for _, count in passes)
    # Token number n of a pass that starts behind `before` others attends to before + n + 1 of them.
    pairs = sum(count * (prompt + first) + count * (count + 1) // 2 for first, count in passes)
    weights = size.layers + (size.text_head if text_head else size.head)
    context = sum(prompt + first + count for first, count in passes)
    with torch.device("meta"):
        head = _count(SpatialHead(size.hidden_size)) if schedule else 0
    each = 2 * ROWS * head
    return Cost(
        passes=len(passes),
        backbone=2 * ROWS * weights * tokens,
        attention=4 * ROWS * size.attention * pairs,
        horizontal=each * (grid.cols - 1),
        vertical=each * (grid.rows - 1) * grid.cols,
        heads_bytes=2 * head * (schedule.k_h + schedule.k_v if schedule else 0),
        cache_bytes=ROWS * size.kv_bytes * (prompt + grid.size),
        bytes_read=2 * weights * len(passes) + ROWS * size.kv_bytes * context,
    )


def memory_required(backbone: Backbone, rows: int, grid: TokenGrid, config: DecodeConfig) -> int:
    """Bytes that a run of `rows` rows, both guidance halves counted, takes besides the weights.

    The KV cache, the logits of its largest pass a few times, and what the decoder keeps of its own.
    """
    slot = backbone.new_cache(1, 1)
    cache = sum(t.numel() * t.element_size() for t in (*slot.keys, *slot.values))
    slots = PROMPT_SLOTS + grid.size + config.lookahead
    cells = max(config.schedule.k_v * grid.stride, config.lookahead, 1)
    codes = backbone.codebook_size
    return rows * (slots * cache + 6 * cells * codes * 4) + config.knobs.memory(codes)


def report(size: ModelSize, schedules: list[Schedule], prompt: int) -> str:
    """Table 12 for one model: AR, and SSD with each schedule."""
    costs = [cost(size, schedule, prompt) for schedule in (None, *schedules)]
    grid = size.grid

    def row(title: str, values, digits: str = "{:.3g}") -> str:
        return title.ljust(34) + "".join(digits.format(value).rjust(26) for value in values)

    def in_gb(values) -> list[float]:
        return [value / 1e9 for value in values]

    lines = [
        f"{size.name}: {(size.layers + size.embedding + size.head + size.vq) / 1e9:.2f} B parameters are loaded "
        f"(the checkpoint is {size.published / 1e9:.1f} GB as bf16 with an fp32 VQ model)",
        f"{grid.rows} x {grid.cols} codes, a prompt of {prompt} tokens, guided",
        "",
        row("", ["AR", *(f"SSD {schedule}" for schedule in schedules)], "{}"),
        row("Passes", [c.passes for c in costs], "{}"),
        "Compute per image (TFLOPs)",
        row("  Backbone, all forward passes", [c.backbone / 1e12 for c in costs]),
        row("  Attention", [c.attention / 1e12 for c in costs]),
        row("  Drafting heads, horizontal", [c.horizontal / 1e12 for c in costs]),
        row("  Drafting heads, vertical", [c.vertical / 1e12 for c in costs]),
        row("  End-to-end", [c.flops / 1e12 for c in costs]),
        "Memory (GB)",
        row("  Model weights", in_gb(size.loaded + c.heads_bytes for c in costs), "{:.2f}"),
        row("    of which drafting heads", in_gb(c.heads_bytes for c in costs), "{:.2f}"),
        row("  KV cache", in_gb(c.cache_bytes for c in costs), "{:.2f}"),
        "Least time: reading weights and cache once per pass (ms per pass, s per image)",
    ]
    for gpu, bandwidth in GPUS.items():
        seconds = [c.bytes_read / bandwidth / 1e12 for c in costs]
        floors = [f"{1e3 * s / c.passes:.1f} ms {s:.2f} s" for s, c in zip(seconds, costs, strict=True)]
        lines.append(row(f"  {gpu} ({bandwidth:.2f} TB/s)", floors, "{}"))
    return "\n".join(lines)


def add_command(commands) -> None:
    """Adds `cost` to the command line."""
    parser = commands.add_parser("cost", help="what a picture costs on paper", description=__doc__)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "--backbone", default="janus-pro-7b", help=f"{', '.join(KNOWN)}, or a folder (default: %(default)s)"
    )
    parser.add_argument("--prompt-tokens", type=int, default=90, help="length of the prompt (default: %(default)s)")
    for name in ("b", "i", "k-h", "k-v"):
        parser.add_argument(f"--{name}", type=int, help="of the schedule (default: the model's preset)")


def _run(args: argparse.Namespace) -> None:
    size = model_size(args.backbone)
    preset = PRESETS[size.family].schedule
    knobs = {name: getattr(args, name) for name in ("b", "i", "k_h", "k_v") if getattr(args, name) is not None}
    schedules = [Schedule(**{**vars(preset), **knobs})] if knobs else [Schedule(b=0), preset]
    print(report(size, schedules, args.prompt_tokens))
