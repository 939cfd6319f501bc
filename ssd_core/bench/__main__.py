"""Measures decoders on the builtin backbone: python -m ssd_core.bench speed | quality

The last line printed is JSON, for machines.
"""

import argparse
import json
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm

from ..backbones import load_backbone
from ..builtin import scenes
from ..correction import ACCEPT_REJECT, SHARED_NOISE
from ..decoders import DecodeConfig
from ..schedule import Schedule
from .compare import Contender, Row, measure_quality, measure_speed
from .scorer import PromptSpec, evaluate, frechet_distance, held_out_prompts, load_scorer

WINDOWS = (16, 24, 48, 96)
REAL_SEED = 5  # the scenes that the Frechet distance compares with


def contenders() -> list[Contender]:
    """AR; SSD with rules C and D, r = 0 to 4; lossless with four windows, with and without heads."""
    rows = [Contender(DecodeConfig("ar"))]
    for rule in (ACCEPT_REJECT, SHARED_NOISE):
        rows += [Contender(DecodeConfig(schedule=Schedule(b=r), rule=rule)) for r in range(5)]
    for trained in (True, False):
        rows += [Contender(DecodeConfig("lossless", window=window), trained) for window in WINDOWS]
    return rows


def speed(args: argparse.Namespace) -> list[Row]:
    """Passes, median seconds, acceptance and agreement with AR; one picture at a time, interleaved."""
    backbone = load_backbone(device=args.device, dtype=args.dtype)
    heads = backbone.shipped_heads()
    prompts = [text for text, _ in held_out_prompts(args.prompts)]
    chosen = contenders()
    with tqdm(total=len(chosen) * (1 + args.prompts * args.repetitions), disable=None) as bar:
        return measure_speed(
            backbone,
            heads,
            chosen,
            prompts,
            backbone.defaults,
            repetitions=args.repetitions,
            on_run=bar.update,
        )


def quality(args: argparse.Namespace) -> list[Row]:
    """The scorer's figures on held-out captions, Frechet distance to real scenes, agreement with AR."""
    backbone = load_backbone(device=args.device, dtype=args.dtype)
    heads, scorer = backbone.shipped_heads(), load_scorer()
    prompts = held_out_prompts(args.prompts)
    real = scorer.features(_real_scenes(512, REAL_SEED)[0])
    images, specs = _real_scenes(args.prompts, REAL_SEED + 1)
    floor = Row("real scenes", scores={name: value[0] for name, value in evaluate(scorer, images, specs).items()})
    floor.frechet = frechet_distance(scorer.features(images), real)
    chosen = [each for each in contenders() if each.config.decoder != "lossless"]  # its pictures are AR's
    rows, reference = [floor], None
    with tqdm(total=len(chosen) * -(-len(prompts) // args.batch), disable=None) as bar:
        for each in chosen:
            row, tokens = measure_quality(
                backbone,
                heads,
                each,
                prompts,
                scorer,
                real,
                backbone.defaults,
                batch=args.batch,
                on_run=bar.update,
            )
            reference = tokens if reference is None else reference
            row.agreement = float((tokens == reference).float().mean())
            rows.append(row)
    return rows


def _real_scenes(count: int, seed: int) -> tuple[torch.Tensor, list[PromptSpec]]:
    """Held-out scenes, equally many of each kind: RGB [N, 192, 192, 3] in 0..1, and what their captions demand."""
    kinds = scenes.KINDS
    drawn = [scenes.example(seed, i, held=True, kind=kinds[i % len(kinds)]) for i in range(count)]
    pictures = np.stack([picture for _, _, picture in drawn])
    specs = [PromptSpec.from_scene(scene, text) for scene, text, _ in drawn]
    return torch.from_numpy(pictures).float() / 255, specs


def table(rows: Sequence[Row]) -> str:
    """Markdown: the columns that any row fills."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    header = [
        "decoder",
        "passes",
        "seconds",
        "least-most",
        "speed-up",
        "kept per round",
        "equal to AR",
        *names,
        "Frechet",
    ]
    lines = []
    for row in rows:
        timed = row.seconds > 0
        lines.append(
            [
                row.name,
                f"{row.nfe:g}" if timed else "",
                f"{row.seconds:.2f}" if timed else "",
                f"{row.spread[0]:.2f}-{row.spread[1]:.2f}" if timed else "",
                f"{row.speedup:.2f}x" if timed else "",
                " ".join(f"{share:.0%}" for share in row.acceptance),
                "" if row.agreement is None else f"{row.agreement:.1%}",
                *(f"{row.scores[name]:.1%}" if name in row.scores else "" for name in names),
                "" if row.frechet is None else f"{row.frechet:.2f}",
            ]
        )
    keep = [i for i in range(len(header)) if any(line[i] for line in lines)]
    cells = [[line[i] for i in keep] for line in [header, ["---"] * len(header), *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m ssd_core.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("speed", "quality"), help=f"speed: {speed.__doc__} quality: {quality.__doc__}")
    parser.add_argument(
        "--prompts", type=int, help="held-out captions, a multiple of 4 (default: speed 8, quality 256)"
    )
    parser.add_argument("--repetitions", type=int, default=1, help="of the speed run (default: %(default)s)")
    parser.add_argument(
        "--batch", type=int, default=16, help="pictures at once in the quality run (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="a torch device (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    args = parser.parse_args(argv)
    args.prompts = args.prompts or {"speed": 8, "quality": 256}[args.what]
    rows = {"speed": speed, "quality": quality}[args.what](args)
    print(table(rows))
    print(json.dumps([row.as_dict() for row in rows]))


if __name__ == "__main__":
    main()
