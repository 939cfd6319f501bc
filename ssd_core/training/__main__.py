"""Trains drafting heads for a backbone, on pictures that it draws itself or on yours; every stage is resumable.

    python -m ssd_core.training --pictures 1000 --corpus runs/corpus --out heads.safetensors
    python -m ssd_core.training --pictures-folder photos --out heads.safetensors     # cat.jpg and cat.txt, ...
    accelerate launch --num_processes 4 -m ssd_core.training ...           # several GPUs
    torchrun --nproc-per-node 2 -m ssd_core.training --device cpu ...      # several CPU processes

Note that `accelerate launch --cpu --num_processes 2` starts a single process, unless MPI runs it.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from tqdm import tqdm

from ..backbones import Backbone, load_backbone, load_builtin
from ..builtin import scenes
from ..decoders import DECODERS, DecodeConfig
from ..heads import SPACES, load_heads
from .captioned import captioned_pictures, encode_corpus
from .corpus import Corpus, CorpusError, draw_corpus, load_corpus
from .heads import HeadsConfig, train_heads

CAPTION_SEED = 3  # seed of the builtin backbone's training captions
BUILTIN_PICTURES = 1000
DRAWING = ("corpus", "prompts", "decoder", "heads", "cfg", "temperature", "top_k", "top_p")  # say how to draw


def scene_captions(count: int) -> list[str]:
    """Captions of scenes from the training combinations: the builtin backbone's default prompts."""
    generators = (np.random.default_rng((CAPTION_SEED, i)) for i in range(count))
    return [scenes.caption(scenes.sample_scene(rng), rng) for rng in generators]


def read_prompts(path: Path) -> list[str]:
    """The non-empty lines of a UTF-8 file; ValueError if there are none."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    prompts = [line for line in lines if line]
    if not prompts:
        raise ValueError(f"{path} has no prompts: write one per line.")
    return prompts


def choose_prompts(args: argparse.Namespace) -> list[str]:
    """One prompt per picture; a file shorter than --pictures is gone through again, with other seeds."""
    if args.prompts is not None:
        prompts = read_prompts(args.prompts)
        count = args.pictures or len(prompts)
        return [prompts[i % len(prompts)] for i in range(count)]
    if args.backbone != "builtin":
        raise ValueError(f"The backbone {args.backbone} has no prompts of its own: name a file with --prompts.")
    return scene_captions(args.pictures or BUILTIN_PICTURES)


def choose_pictures(args: argparse.Namespace) -> list[tuple[Path, str]]:
    """The captioned pictures of --pictures-folder, the first --pictures of them."""
    drawing = [f"--{name.replace('_', '-')}" for name in DRAWING if getattr(args, name) is not None]
    if drawing:
        raise ValueError(f"With --pictures-folder nothing is drawn: leave out {' and '.join(drawing)}.")
    found = captioned_pictures(args.pictures_folder)
    if args.pictures is not None and not 0 < args.pictures <= len(found):
        raise CorpusError(
            f"{args.pictures_folder} has {len(found)} pictures with captions, --pictures asks for {args.pictures}."
        )
    return found[: args.pictures]


def build_accelerator(device: str) -> Accelerator:
    """Accelerator for "auto", "cpu" or a type of device; ValueError if it is not there."""
    # Processes wait for each other while one draws its last shard or validates: that may take hours.
    patience = InitProcessGroupKwargs(timeout=timedelta(days=1))
    accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=[patience])
    if device not in ("auto", accelerator.device.type):
        raise ValueError(f"There is no device {device} here; accelerate found {accelerator.device}.")
    if "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > accelerator.num_processes:
        raise ValueError("Several processes were launched, but there is no GPU to share: add --device cpu.")
    return accelerator


def build_parser() -> argparse.ArgumentParser:
    """The command line; its defaults are the paper's (Table 6)."""
    d = HeadsConfig()
    parser = argparse.ArgumentParser(
        prog="python -m ssd_core.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backbone", default="builtin", help="model to train heads for (default: builtin)")
    parser.add_argument(
        "--weights", type=Path, help="folder with the builtin model's weights (default: the shipped ones)"
    )
    parser.add_argument("--vq", type=Path, help="the backbone's image tokenizer, for checkpoints that come without")
    parser.add_argument("--download", action="store_true", help="allow downloading a Hub id (gigabytes)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, xpu (default: auto)")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16"),
        help="the backbone's: auto, float32, bfloat16 (default: auto)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("heads.safetensors"), help="file to write (default: %(default)s)"
    )
    work = Path("runs") / "heads"
    parser.add_argument("--work", type=Path, default=work, help="folder for checkpoint and log (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of pictures, order and dropped prompts (default: 0)")

    corpus = parser.add_argument_group("corpus", "pictures that the backbone draws; drawn as far as they are missing")
    corpus.add_argument(
        "--pictures-folder",
        type=Path,
        metavar="DIR",
        help="learn from the pictures in this folder instead, each cut to the middle, "
        "with a UTF-8 caption beside it (cat.jpg, cat.txt): nothing has to be drawn",
    )
    corpus.add_argument("--corpus", type=Path, help="folder of the corpus (default: corpus in --work)")
    corpus.add_argument(
        "--prompts", type=Path, help="UTF-8 file, one prompt per line (default: builtin's scene captions)"
    )
    corpus.add_argument("--width", type=int, help="of the pictures, in pixels (default: the backbone's)")
    corpus.add_argument("--height", type=int, help="likewise")
    corpus.add_argument(
        "--pictures", type=int, help="how many (default: one per prompt; builtin: 1000; all in the folder)"
    )
    choices = ", ".join(DECODERS)
    corpus.add_argument("--decoder", choices=DECODERS, help=f"how to draw: {choices} (default: ar)")
    corpus.add_argument("--heads", type=Path, help="heads file for ssd and lossless (default: training-free drafts)")
    corpus.add_argument("--draw-batch", type=int, default=16, help="pictures drawn together (default: %(default)s)")
    corpus.add_argument("--cfg", type=float, help="guidance weight (default: the backbone's)")
    corpus.add_argument("--temperature", type=float, help="sampling temperature (default: the backbone's)")
    corpus.add_argument("--top-k", type=int, help="keep the k likeliest codes, 0 for all (default: the backbone's)")
    corpus.add_argument("--top-p", type=float, help="keep this much probability, 1 for all (default: the backbone's)")

    train = parser.add_argument_group("training")
    train.add_argument("--k-h", type=int, default=d.k_h, help="columns that heads reach (default: %(default)s)")
    train.add_argument("--k-v", type=int, default=d.k_v, help="rows that heads reach (default: %(default)s)")
    train.add_argument(
        "--expansion", type=float, default=d.expansion, help="inner width of a head (default: %(default)s)"
    )
    spaces = "; ".join(f"{name}: {value}" for name, value in SPACES.items())
    train.add_argument(
        "--space",
        choices=SPACES,
        default=d.space,
        help=f"what a head reads; it predicts the first of these (paper, Table 19): {spaces} (default: %(default)s)",
    )
    train.add_argument(
        "--scaled",
        action=argparse.BooleanOptionalAction,
        default=d.scaled,
        help="bring states and embeddings to about unit size for the heads, by factors that the heads file keeps",
    )
    train.add_argument("--epochs", type=float, default=d.epochs, help="passes over the pictures (default: %(default)s)")
    train.add_argument("--steps", type=int, help="optimizer steps, instead of --epochs")
    train.add_argument(
        "--batch", type=int, default=d.batch, help="pictures per step and process (default: %(default)s)"
    )
    train.add_argument("--accumulate", type=int, default=d.accumulate, help="batches per step (default: %(default)s)")
    train.add_argument(
        "--lr", type=float, default=d.lr, help="peak learning rate; falls to a tenth (default: %(default)s)"
    )
    train.add_argument(
        "--caption-drop", type=float, default=d.caption_drop, help="share of prompts left out (default: %(default)s)"
    )
    train.add_argument(
        "--ce-weight", type=float, default=d.ce_weight, help="weight of a cross-entropy term (default: %(default)s)"
    )
    train.add_argument(
        "--save-every", type=int, default=d.save_every, help="steps per checkpoint (default: %(default)s)"
    )
    train.add_argument("--log-every", type=int, default=d.log_every, help="steps per log line (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Draws the corpus as far as it is missing or reads a folder, trains, validates and writes the heads."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        run(args)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def run(args: argparse.Namespace) -> None:
    """`main` with parsed arguments; raises what goes wrong (ValueError and its subclasses, OSError)."""
    settings = {f.name: getattr(args, f.name) for f in fields(HeadsConfig) if hasattr(args, f.name)}
    config = HeadsConfig(**settings)
    chosen = choose_pictures(args) if args.pictures_folder is not None else choose_prompts(args)
    accelerator = build_accelerator(args.device)
    device = str(accelerator.device)
    if args.weights is not None and args.backbone == "builtin":
        backbone = load_builtin(device=device, dtype=args.dtype, folder=args.weights)
    else:
        backbone = load_backbone(args.backbone, device=device, dtype=args.dtype, download=args.download, vq=args.vq)
    if args.pictures_folder is not None:
        corpus = encode(chosen, backbone, args)
    else:
        corpus = draw(chosen, backbone, args, accelerator)
    train_heads(backbone, corpus, config, accelerator=accelerator, work=args.work, out=args.out)
    accelerator.end_training()


def draw(prompts: list[str], backbone: Backbone, args: argparse.Namespace, accelerator: Accelerator) -> Corpus:
    """The backbone's own pictures of some prompts."""
    sampling = backbone.defaults.updated(cfg=args.cfg, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    device = str(accelerator.device)
    drafts = args.heads and load_heads(args.heads, backbone.fingerprint, device=device, dtype=backbone.dtype)
    folder = args.corpus or args.work / "corpus"
    draw_corpus(
        backbone,
        prompts,
        folder,
        accelerator=accelerator,
        config=replace(DecodeConfig.preset(backbone.family), decoder=args.decoder or "ar"),
        sampling=sampling,
        heads=drafts,
        grid=backbone.grid(args.width, args.height),
        batch=args.draw_batch,
        seed=args.seed,
    )
    return load_corpus(folder, backbone.fingerprint, len(prompts))


def encode(pictures: list[tuple[Path, str]], backbone: Backbone, args: argparse.Namespace) -> Corpus:
    """The codes of some pictures with captions; every process encodes all of them."""
    with tqdm(desc="Encoding the pictures", total=len(pictures), disable=None, dynamic_ncols=True) as bar:
        return encode_corpus(
            backbone,
            pictures,
            backbone.grid(args.width, args.height),
            on_progress=lambda share: bar.update(round(share * len(pictures)) - bar.n),
        )


if __name__ == "__main__":
    main()
