"""The command line: python -m ssd_core generate "a fox left of a rocket" --out fox.png"""

import argparse
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields, replace
from pathlib import Path

import torch
from PIL import Image
from tqdm import tqdm

from . import cost, doctor
from .backbones import Backbone, load_backbone
from .correction import RULES
from .decoders import DECODERS, OPTIONS, SCHEDULED, DecodeConfig, option_fields
from .decoders.options import Options
from .generate import Result, caption, generate
from .heads import Heads, load_heads
from .pictures import require_png, save_png, sheet, to_pil
from .sampling import MAX_SEED, SamplingConfig
from .schedule import COMMITS, Schedule
from .session import DecodeEvent
from .speeds import MEASURED, SPEEDS, at_speed
from .tuning import fastest_window, window_costs

AUTO = "auto"  # of --window


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0, or 2 after one sentence about what is wrong with the request."""
    parser = argparse.ArgumentParser(prog="python -m ssd_core", description="Autoregressive image models, fast.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_generate(commands)
    cost.add_command(commands)
    doctor.add_command(commands)
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except torch.cuda.OutOfMemoryError as error:
        print(
            f"error: out of memory ({error}): lower --batch, or try --dtype bfloat16 or --device auto.", file=sys.stderr
        )
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    return 0


def _add_generate(commands) -> None:
    parser = commands.add_parser("generate", help="draw pictures from a sentence", description=_generate.__doc__)
    parser.set_defaults(run=_generate)
    parser.add_argument("prompt", help='what to draw, such as "a fox left of a rocket, at night"')
    parser.add_argument("--out", type=Path, default=Path("out.png"), help="PNG file to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, help=f"0 to {MAX_SEED}; the default is a new one, which is printed")
    parser.add_argument("--batch", type=int, default=1, help="pictures, with consecutive seeds (default: %(default)s)")
    parser.add_argument("--negative", default="", help="negative prompt, for backbones that have one")
    parser.add_argument("--width", type=int, help="in pixels, for backbones that draw several sizes")
    parser.add_argument("--height", type=int, help="likewise; of one side alone the other follows")

    what = parser.add_argument_group("what to write")
    what = what.add_mutually_exclusive_group()
    what.add_argument("--compare", action="store_true", help="AR, SSD and lossless side by side, with time and passes")
    what.add_argument("--sheet", action="store_true", help="a contact sheet: AR and SSD with r = 0 to 4 rounds")

    how = parser.add_argument_group("how to decode")
    how.add_argument(
        "--decoder",
        choices=DECODERS,
        help="; ".join(f"{k}: {v}" for k, v in DECODERS.items())
        + " (default: lossless with the builtin model, else ssd)",
    )
    how.add_argument("--lossless", action="store_true", help="short for --decoder lossless")
    how.add_argument(
        "--window",
        type=_window,
        metavar="CELLS|auto",
        help=f"cells in the window of lossless ({DecodeConfig.window}; auto: what is fastest on this device), window, "
        "sjd and gsd; drafts per row of pjd; columns that a row of zipar is behind",
    )
    how.add_argument("--speed", choices=SPEEDS, help="a named stop from AR's own picture to the least time")
    how.add_argument("--r", type=int, help="verify rounds per row: short for --b with --k-v 1")
    how.add_argument("--b", type=int, help="verify rounds on a freshly drafted block of rows")
    how.add_argument("--i", type=int, help="incremental rounds on its trailing rows after each commit")
    how.add_argument("--k-v", type=int, help="rows drafted at once")
    how.add_argument("--commits", choices=COMMITS, help="; ".join(f"{k}: {v}" for k, v in COMMITS.items()))
    how.add_argument(
        "--settle",
        action="store_true",
        default=None,
        help="a round that keeps a whole block is its last, and a row that its last round kept needs no commit",
    )
    how.add_argument("--k-h", type=int, help="columns drafted at once in the first row (mtp, lantern: everywhere)")
    how.add_argument("--rule", choices=RULES, help="; ".join(f"{k}: {v}" for k, v in RULES.items()))

    peers = parser.add_argument_group("knobs of the other decoders")
    for name, (field, decoders) in _peer_knobs().items():
        kind = {"action": "store_true", "default": None} if field.type is bool else {"type": field.type}
        choices = field.metadata.get("choices")
        default = "" if field.type is bool or not field.default else f"; default: {field.default}"
        described = f" ({'; '.join(f'{k}: {v}' for k, v in choices.items())}{default})" if choices else default
        text = f"{', '.join(decoders)}: {field.metadata['help']}{described}"
        peers.add_argument(f"--{name}", **kind, **({"choices": choices} if choices else {}), help=text)

    sampling = parser.add_argument_group("sampling (defaults: the backbone's own)")
    sampling.add_argument("--cfg", type=float, help="guidance weight; 1 turns guidance off")
    sampling.add_argument("--temperature", type=float, help="above 0")
    sampling.add_argument("--top-k", type=int, help="keep the k likeliest codes; 0 keeps all")
    sampling.add_argument(
        "--top-p", type=float, help="keep the smallest set of codes with this probability; 1 keeps all"
    )

    model = parser.add_argument_group("model")
    add_model_options(model)
    model.add_argument(
        "--heads", default="auto", help='a heads file, "auto" (the shipped ones), or "none": training-free drafts'
    )


def _window(text: str) -> int | str:
    """The argument of --window."""
    if text == AUTO or text.isdigit():
        return text if text == AUTO else int(text)
    raise argparse.ArgumentTypeError(f'"{text}" is neither a number of cells nor "{AUTO}"')


def _peer_knobs() -> dict[str, tuple[Field, list[str]]]:
    """The knobs in `OPTIONS`, but for the window, which lossless shares."""
    return {name: knob for name, knob in option_fields().items() if name != "window"}


def add_model_options(parser) -> None:
    """The options that choose and place a backbone."""
    parser.add_argument(
        "--backbone",
        default="builtin",
        help='"builtin", a folder with a Janus-Pro, Emu3 or Lumina-mGPT checkpoint, or a Hub id (default: %(default)s)',
    )
    parser.add_argument("--vq", type=Path, help="its image tokenizer, for checkpoints that come without")
    parser.add_argument("--download", action="store_true", help="allow downloading a Hub id (gigabytes)")
    parser.add_argument(
        "--device",
        default="cpu",
        help="cpu, cuda, mps, or auto: the best one, several where the model is large (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"), help="of the weights"
    )
    parser.add_argument("--bits", type=int, choices=(8, 4), help="pack the weights (needs bitsandbytes)")


def load(args: argparse.Namespace) -> Backbone:
    """The backbone that those options choose."""
    names = ("device", "dtype", "download", "vq", "bits")
    return load_backbone(args.backbone, **{name: getattr(args, name) for name in names})


def _generate(args: argparse.Namespace) -> None:
    """Draws pictures from one sentence and writes them as PNG, with the settings in the file's text fields."""
    if args.batch < 1:
        raise ValueError(f"--batch must be at least 1, got {args.batch}.")
    require_png(args.out)
    backbone = load(args)
    sampling = backbone.defaults.updated(cfg=args.cfg, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    fitting = args.window == AUTO
    if fitting:
        args.window = None
    heads, config = _heads(args, backbone), _config(args, backbone)
    if fitting:
        config = _with_fitting_window(args, backbone, heads, config, sampling)
    seed = random.randint(0, MAX_SEED - args.batch) if args.seed is None else args.seed
    seeds = list(range(seed, seed + args.batch))

    if args.compare or args.sheet:
        if args.batch > 1:
            raise ValueError("--compare and --sheet draw one picture per decoder: leave --batch at 1.")
        _generate_sheet(args, backbone, heads, config, sampling, seeds)
        return
    result = _run(args, backbone, heads, config, sampling, seeds)
    for i, rgb in enumerate(backbone.decode_image(result.tokens)):
        path = args.out if args.batch == 1 else args.out.with_stem(f"{args.out.stem}-{seeds[i]}")
        _write(to_pil(rgb), path, result.metadata(i))


def _with_fitting_window(args, backbone: Backbone, heads: Heads | None, config: DecodeConfig, sampling) -> DecodeConfig:
    """The config with the window that is fastest on this device."""
    if config.decoder != "lossless" and not args.compare:
        raise ValueError(f"--window {AUTO} is for lossless, not for {config.decoder}: add --lossless, or leave it out.")
    grid = backbone.grid(args.width, args.height)
    costs = window_costs(backbone, [args.prompt] * args.batch, config, sampling, heads=heads, grid=grid)
    config = replace(config, window=fastest_window(costs))
    print(f"a window of {config.window} cells is the fastest here")
    return config


def _generate_sheet(args, backbone: Backbone, heads: Heads | None, config, sampling, seeds: list[int]) -> None:
    """Several decoders on one prompt and seed, on one sheet."""
    ar, ssd, lossless = (replace(config, decoder=name, options=None) for name in ("ar", "ssd", "lossless"))
    if args.compare:
        configs = list(dict.fromkeys([ar, config, lossless]))
    else:
        schedule = replace(config.schedule, k_v=1, i=0)
        configs = [ar] + [replace(ssd, schedule=replace(schedule, b=rounds)) for rounds in range(5)]
    warm_up = replace(ssd, schedule=Schedule(b=0))  # so that the first one's time is fair
    generate(backbone, [args.prompt], seeds, warm_up, sampling, grid=backbone.grid(args.width, args.height))
    results = [_run(args, backbone, heads, each, sampling, seeds) for each in configs]
    images = [to_pil(backbone.decode_image(result.tokens)[0]) for result in results]
    captions = [caption(result, results[0]) for result in results]
    facts = results[0].metadata(0) | {"decoder": "\n\n".join(captions)}
    del facts["nfe"], facts["seconds"]
    _write(sheet(images, captions, columns=3), args.out, facts)


def _write(image: Image.Image, path: Path, facts: dict[str, str]) -> None:
    save_png(image, path, facts)
    print(f"wrote {path}")


def _heads(args: argparse.Namespace, backbone: Backbone) -> Heads | None:
    if args.heads == "none":
        return None
    if args.heads == "auto":
        return backbone.shipped_heads()
    return load_heads(args.heads, backbone.fingerprint, device=backbone.device, dtype=backbone.dtype)


def _config(args: argparse.Namespace, backbone: Backbone) -> DecodeConfig:
    config = at_speed(args.speed, backbone.family) if args.speed else DecodeConfig.preset(backbone.family)
    if args.rule:
        config = replace(config, rule=args.rule)
    knobs = _given(args, SCHEDULED["ssd"])
    if args.r is not None:
        if knobs.keys() & {"b", "i"} or knobs.get("k_v", 1) != 1:
            raise ValueError("--r is the number of rounds for k_v = 1: give either --r, or --b, --i and --k-v.")
        knobs |= {"b": args.r, "i": 0, "k_v": 1}
    if args.lossless and args.decoder not in (None, "lossless"):
        raise ValueError(f"--lossless and --decoder {args.decoder} contradict each other: give one of them.")
    decoder = "lossless" if args.lossless else args.decoder
    if args.speed and (knobs or decoder):
        raise ValueError("--speed chooses the decoder and its rounds: leave out the other options that do.")
    several = args.compare or args.sheet
    if backbone.family in MEASURED and not (decoder or knobs or several or args.rule or args.speed):
        decoder = "lossless"  # as fast as SSD there, and AR's own picture
    excess = [name for name in knobs if name not in SCHEDULED.get(decoder or "ssd", ())]
    if excess and not several:
        given = ", ".join("--" + name.replace("_", "-") for name in excess)
        raise ValueError(f"The schedule ({given}) is SSD's; {decoder} has none: leave it out, or use --decoder ssd.")
    options = _given(args, ("window", *_peer_knobs()))
    for_lossless = config.decoder == "lossless" if args.speed else decoder in (None, "lossless")
    if "window" in options and (several or for_lossless):
        config = replace(config, window=options.pop("window"))
    kind = None if several or args.speed else OPTIONS.get(decoder)
    foreign = options.keys() - {field.name for field in fields(kind or Options)}
    if foreign:
        given = ", ".join(f"--{name}" for name in sorted(foreign))
        what = "this" if several else f"--speed {args.speed}" if args.speed else decoder or "ssd"
        raise ValueError(f"{given} is not for {what}: leave it out.")
    if args.speed:
        return config
    schedule = replace(config.schedule, **knobs)
    if several:
        return replace(config, schedule=schedule)
    return replace(config, decoder=decoder or "ssd", schedule=schedule, options=kind and kind(**options))


def _given(args: argparse.Namespace, names: Iterable[str]) -> dict:
    """Those options that are on the command line."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _run(args, backbone, heads, config: DecodeConfig, sampling: SamplingConfig, seeds: list[int]) -> Result:
    """One decode with a progress bar (on terminals only) and a line of statistics."""
    with tqdm(
        total=1000,
        desc=config.decoder,
        disable=None,
        leave=False,
        bar_format="{desc} {bar} {percentage:3.0f}% {elapsed}",
    ) as bar:

        def show(event: DecodeEvent) -> None:
            bar.update(round(1000 * event.progress) - bar.n)

        prompts, negatives = [args.prompt] * len(seeds), [args.negative] * len(seeds)
        result = generate(
            backbone,
            prompts,
            seeds,
            config,
            sampling,
            heads=heads,
            negatives=negatives,
            grid=backbone.grid(args.width, args.height),
            on_event=show,
        )
    kept = " ".join(f"{share:.0%}" for share in result.acceptance.values())
    print(
        f"{result.config}: {result.nfe} passes, {result.seconds:.2f} s, seeds {seeds}"
        + (f", kept per round {kept}" if kept else "")
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
