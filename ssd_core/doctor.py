"""Checks a checkpoint on this machine, step by step, and says how to mend the first thing that is wrong."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from .backbones import KINDS, Backbone, load_backbone
from .backbones.checkpoint import find_folder, read_json, weight_files
from .backbones.devices import free_memory, main_device, main_dtype
from .cost import ModelSize, cost, size_of
from .decoders import DecodeConfig, decode
from .grid import TokenGrid
from .heads import load_heads
from .schedule import PRESETS, Schedule
from .session import FINAL, DecodingSession

PROMPT = "A portrait of young girl. masterpiece, film grained, best quality."
# Janus-Pro-1B on CUDA, greedy, guided with 5, the prompt without a chat template: from the slow tests of
# transformers. Other devices and precisions part from it sooner or later.
JANUS_1B_TOKENS = [4484, 4015, 15750, 506, 3758, 11651, 8597, 5739, 4861, 971, 14985, 14834]
ENOUGH = 4  # first tokens that have to agree where rounding may part two runs


class DoctorError(ValueError):
    """A check that failed; the message says what to do."""


def examine(
    name: str,
    *,
    heads: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    download: bool = False,
    vq: Path | None = None,
    bits: int | None = None,
    width: int | None = None,
    height: int | None = None,
) -> Iterator[str]:
    """Yields a line per passed check; raises ValueError (or what the system raises) at the first failed one.

    In order: configuration, files, memory for weights and one guided picture by the family's preset,
    loading, the heads file, a prefill, known greedy tokens (Janus-Pro-1B), and SSD against AR in the
    first row.
    """
    folder = find_folder(name, download=download)
    config = read_json(folder / "config.json")
    size = size_of(config, Path(name).name)
    yield f"configuration: {KINDS[config['model_type']]}, hidden size {size.hidden_size}"
    files = weight_files(folder)
    gigabytes = sum(file.stat().st_size for file in files) / 1e9
    yield f"files: {len(files)} with weights, {gigabytes:.2f} GB, in {folder}"
    yield _memory(size, device, dtype, bits)

    backbone = load_backbone(name, device=device, dtype=dtype, download=download, vq=vq, bits=bits)
    yield f"loading: {backbone.fingerprint} as {backbone.dtype} on {backbone.device}"
    if heads is not None:
        loaded = load_heads(heads, backbone.fingerprint, device=backbone.device, dtype=backbone.dtype)
        yield f"heads: {loaded.k_h} horizontal, {loaded.k_v} vertical"

    grid = backbone.grid(width, height)
    session = DecodingSession(backbone, [PROMPT], [0], grid=grid)
    with torch.inference_mode():
        logits = backbone.logits(session.prefill())
    if not logits.isfinite().all():
        raise DoctorError(
            f"The model computes no numbers in {backbone.dtype} on {backbone.device}: use --dtype float32 or bfloat16."
        )
    yield f"prefill: {session.prompt.length} tokens, logits from {logits.min():.1f} to {logits.max():.1f}"

    if backbone.family == "janus-pro" and backbone.hidden_size == 2048:
        yield _known_tokens(backbone)
    yield _agreement(backbone, grid)


def _memory(size: ModelSize, device: str, dtype: str, bits: int | None) -> str:
    home, wider = main_device(device), main_dtype(device, dtype).itemsize // 2  # than the bf16 of `cost`
    schedule = PRESETS[size.family].schedule
    picture = cost(size, schedule, prompt=100)
    weights = (size.loaded - 4 * size.vq) * wider + 4 * size.vq
    if bits is not None:
        weights += size.layers * bits // 8 - size.layers * 2 * wider
    extra = (picture.cache_bytes + picture.heads_bytes) * wider
    free = free_memory(home)
    facts = (
        f"{weights / 1e9:.2f} GB for the weights and {extra / 1e9:.2f} GB for the cache and heads of a picture by "
        f"SSD {schedule}; {home} has {free / 1e9:.1f} GB free"
    )
    if weights + extra > free and device != "auto":
        raise DoctorError(
            f"Not enough memory: {facts}. Use --device auto, --dtype bfloat16, --bits 8 or 4, or a smaller model."
        )
    return f"memory: {facts}"


def _known_tokens(backbone: Backbone) -> str:
    template, backbone.template = backbone.template, "{prompt}"
    try:
        session = DecodingSession(backbone, [PROMPT], [0])
        events = decode(session, DecodeConfig("ar", rule="greedy"))
        *_, last = islice(events, len(JANUS_1B_TOKENS))
        events.close()
    finally:
        backbone.template = template
    tokens = last.tokens.flatten().tolist()
    same = [got == known for got, known in zip(tokens, JANUS_1B_TOKENS, strict=False)]
    agreed = [*same, False].index(False)
    if agreed == 0:
        raise DoctorError(
            f"The first tokens are {tokens[: len(same)]}, known ones are {JANUS_1B_TOKENS}: if this is Janus-Pro-1B "
            "itself and no fine-tune, its files or this device's arithmetic are broken; compare with --device cpu."
        )
    return f"known tokens: the first {agreed} of {len(same)} agree" + (
        "" if agreed == len(same) else " (rounding of this device and precision parts them then)"
    )


def _agreement(backbone: Backbone, grid: TokenGrid) -> str:
    """Greedy SSD with one column per draft is AR: compares the first row of the two."""
    rows = []
    for config in (DecodeConfig("ar", rule="greedy"), DecodeConfig(schedule=Schedule(b=0, k_h=1), rule="greedy")):
        session = DecodingSession(backbone, [PROMPT], [0], grid=grid)
        events = decode(session, config)
        for event in events:
            if (event.status[:, 0] == FINAL).all():
                break
        events.close()
        rows.append(event.tokens[0, 0].clone())
    same = (rows[0] == rows[1]).tolist()
    agreed = [*same, False].index(False)
    if agreed < (grid.cols if backbone.dtype == torch.float32 else min(ENOUGH, grid.cols)):
        raise DoctorError(
            f"AR and SSD part after {agreed} of {grid.cols} tokens of the first row: please report this with the "
            "versions of torch and transformers; until then use --device cpu --dtype float32."
        )
    return f"AR and SSD: the first {agreed} of {grid.cols} tokens of the first row agree"


def add_command(commands) -> None:
    """Adds `doctor` to the command line."""
    parser = commands.add_parser("doctor", help="check a checkpoint on this machine", description=__doc__)
    parser.set_defaults(run=_run)
    parser.add_argument("path", help="folder or Hub id")
    parser.add_argument("--heads", type=Path, help="a heads file that should fit it")
    parser.add_argument("--vq", type=Path, help="its image tokenizer, for checkpoints that come without")
    parser.add_argument("--download", action="store_true", help="allow downloading a Hub id (gigabytes)")
    parser.add_argument("--width", type=int, help="of the picture to try, in pixels (default: the model's)")
    parser.add_argument("--height", type=int, help="likewise")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps or auto (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--bits", type=int, choices=(8, 4), help="pack the weights (needs bitsandbytes)")


def _run(args: argparse.Namespace) -> None:
    names = ("heads", "device", "dtype", "download", "vq", "bits", "width", "height")
    for line in examine(args.path, **{name: getattr(args, name) for name in names}):
        print(f"ok  {line}")
        sys.stdout.flush()
    print(f"{args.path} works on this machine.")
