"""Measures decoders: python -m ssd_core.bench speed | cost | quality | ablations | report | pictures | fid

Every command prints tables and, last, one line of JSON; with --out it also writes JSON and CSV files.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm import tqdm

from ..__main__ import add_model_options, load
from ..backbones import Backbone
from ..decoders import DECODERS, DecodeConfig
from ..generate import generate
from ..heads import Heads, load_heads
from ..pictures import to_pil
from ..sampling import SamplingConfig
from ..speeds import stops
from . import ablations
from .contenders import Contender, everyone, parse
from .fid import fid_of_folders
from .figures import save, table
from .meter import bandwidth, device_name, fastest_dtype
from .passes import block_sizes, measure_passes
from .prompt_sets import BENCHMARKS, read_prompts
from .quality import Quality, draw, judge_drawn, judge_real, real_scenes
from .report import write_page
from .scorer import held_out_prompts, load_scorer
from .speed import measure_speed
from .store import Store
from .suite import REAL, REAL_SEED, Clock, Model, run_suite


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0, or 2 after one sentence about what is wrong with the request."""
    parser = argparse.ArgumentParser(prog="python -m ssd_core.bench", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in COMMANDS.items():
        command = commands.add_parser(name, help=run.__doc__.split("\n\n")[0], description=run.__doc__)
        command.set_defaults(run=run)
        _add_options(command, name)
    args = parser.parse_args(argv)
    try:
        facts, rows = args.run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({**facts, "rows": rows}))
    return 0


def pictures(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Draws the pictures of GenEval or DPG-Bench as their official evaluators read them.

    Resumes where it stopped; `accelerate launch -m ssd_core.bench pictures ...` splits it over GPUs.
    """
    state = PartialState(cpu=args.device == "cpu")
    if args.device == "auto":
        args.device = str(state.device)
    prompts = read_prompts(args.benchmark, args.source)
    backbone, heads = _backbone(args)
    contender = parse(args.decoder, DecodeConfig.preset(backbone.family))
    heads, sampling = heads if contender.trained else None, _sampling(args, backbone)
    mine = prompts[state.process_index :: state.num_processes]
    missing = [prompt for prompt in mine if not prompt.is_drawn(args.out, args.samples)]
    with tqdm(total=len(mine), initial=len(mine) - len(missing), disable=None) as bar:
        for prompt in missing:
            seeds = [prompt.number * args.samples + i for i in range(args.samples)]
            texts = [prompt.text] * args.samples
            result = generate(backbone, texts, seeds, contender.config, sampling, heads=heads)
            prompt.write(args.out, [to_pil(rgb) for rgb in backbone.decode_image(result.tokens)])
            bar.update()
    facts = {"what": args.benchmark, "backbone": backbone.name, "decoder": str(contender), "prompts": len(prompts)}
    return facts | {"drawn": len(missing)}, []


def fid(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Frechet inception distance between two folders of pictures: real ones, and a decoder's.

    Needs pip install "torchmetrics[image]", and Inception's weights: a file, or --download.
    """
    distance, counts = fid_of_folders(args.real, args.drawn, args.weights, download=args.download, device=args.device)
    print(f"FID {distance:.2f}: {counts[1]} pictures against {counts[0]} real ones")
    return {"what": "fid", "fid": distance, "real": counts[0], "drawn": counts[1]}, []


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "fid":
        parser.add_argument("real", type=Path, help="folder of real pictures (PNG, JPEG or WebP, in any subfolder)")
        parser.add_argument("drawn", type=Path, help="folder of a decoder's pictures, as from `pictures geneval`")
        parser.add_argument("--weights", type=Path, help="pt_inception-2015-12-05-6726825d.pth of torch-fidelity")
        parser.add_argument("--download", action="store_true", help="allow torch-fidelity to download them (91 MB)")
        parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
        return
    add_model_options(parser)
    defaults = {"speed": 8, "quality": 256, "ablations": 64, "report": 96}
    if name in ("speed", "cost"):
        parser.add_argument(
            "--random-weights",
            metavar="MODEL",
            help="measure a model of the paper without its checkpoint: janus-pro-7b, lumina-mgpt-7b-768, emu3-gen, ...",
        )
        default = 1 if name == "speed" else 7
        parser.add_argument("--repetitions", type=int, default=default, help="(default: %(default)s)")
    if name in defaults:
        most = "at most so many " if name == "report" else ""
        parser.add_argument(
            "--captions",
            "--prompts",
            type=int,
            default=defaults[name],
            dest="captions",
            help=f"{most}held-out captions, a multiple of 4 (default: %(default)s)",
        )
    if name in ("speed", "quality"):
        names = ", ".join(DECODERS)
        parser.add_argument(
            "--decoders",
            nargs="+",
            metavar="DECODER[:KNOB=VALUE,...]",
            help=f"such as ar ssd:b=3 lossless:window=48,heads=none (default: a choice of all; {names})",
        )
    if name in ("quality", "ablations", "report"):
        parser.add_argument("--batch", type=int, default=16, help="pictures at once (default: %(default)s)")
        parser.add_argument(
            "--runs", type=Path, help="folder that keeps finished runs, so that the command goes on where it stopped"
        )
    if name in ("quality", "ablations"):
        parser.add_argument("--sets", type=int, default=1, help="pictures per caption, by seeds (default: %(default)s)")
    if name == "ablations":
        text = "; ".join(f"{key}: {value}" for key, value in ablations.ABLATIONS.items())
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"{text}; directions: Figure 1 (default: all)")
        parser.add_argument("--heads", nargs="+", type=Path, default=[], help='heads files for the ablation "heads"')
        trained = " and ".join(ablations.TRAINED)
        parser.add_argument(
            "--train-pictures", type=int, default=32, help=f"drawn for {trained} to train on (default: %(default)s)"
        )
        parser.add_argument("--train-steps", type=int, default=50, help="of each training there (default: %(default)s)")
    if name != "ablations":
        parser.add_argument("--heads", type=Path, help="a heads file (default: the shipped ones, if there are any)")
    if name == "pictures":
        parser.add_argument("benchmark", choices=BENCHMARKS, help="; ".join(f"{k}: {v}" for k, v in BENCHMARKS.items()))
        parser.add_argument("source", type=Path, help="the benchmark's own prompts: that file or folder")
        parser.add_argument("--decoder", default="ssd", help="as in speed --decoders (default: %(default)s)")
        parser.add_argument("--samples", type=int, default=4, help="pictures per prompt (default: %(default)s)")
    if name == "report":
        parser.set_defaults(runs=Path("out/bench"))
        parser.add_argument(
            "--minutes",
            type=float,
            default=30,
            help="about how long the whole may take, on machines that need less for 16 captions (default: %(default)s)",
        )
        parser.add_argument(
            "--speed-captions", type=int, default=3, help="captions of its speed run (default: %(default)s)"
        )
        parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"), help="(default: %(default)s)")
    parser.add_argument("--cfg", type=float, help="guidance weight (default: the backbone's own)")
    what = "the pictures" if name == "pictures" else "JSON and CSV files"
    parser.add_argument("--out", type=Path, required=name == "pictures", help=f"folder for {what}")


def speed(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Passes, seconds, cost of a pass and agreement with AR; one picture at a time, interleaved."""
    backbone, heads = _backbone(args)
    prompts = [text for text, _ in held_out_prompts(args.captions)]
    chosen = _contenders(args, backbone)
    with tqdm(total=len(chosen) * (1 + args.captions * args.repetitions), disable=None) as bar:
        rows = measure_speed(
            backbone, heads, chosen, prompts, _sampling(args, backbone), repetitions=args.repetitions, on_run=bar.update
        )
    return _finish(args, "speed", backbone, rows)


def cost(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Verifying and drafting against the number of tokens, in AR steps (Figures 4 and 5, Table 13)."""
    backbone, heads = _backbone(args)
    grid = backbone.grid()
    sizes = block_sizes(grid.cols, grid.size)
    with tqdm(total=len(sizes) * (1 + args.repetitions), disable=None) as bar:
        rows = measure_passes(
            backbone,
            heads,
            "a cat",
            _sampling(args, backbone),
            sizes,
            repetitions=args.repetitions,
            on_run=bar.update,
        )
    return _finish(args, "cost", backbone, rows)


def quality(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """The scorer's figures on held-out captions, Frechet distance, likelihood under AR and distance from it."""
    backbone, heads = _builtin(args)
    chosen = _contenders(args, backbone)
    if not args.decoders:
        chosen = [each for each in chosen if each.config.decoder != "lossless"]  # its pictures are AR's
    rows = qualities(args, backbone, [(str(each), each, heads) for each in chosen], Store(args.runs), floor=True)
    return _finish(args, "quality", backbone, rows)


def ablate(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """The paper's ablations on the builtin model, by name."""
    backbone, heads = _builtin(args)
    base, store = DecodeConfig.preset(backbone.family), Store(args.runs)
    every = [*ablations.ABLATIONS, "directions"]
    names = args.names or [name for name in every if name != "heads" or args.heads]
    if unknown := set(names) - set(every):
        raise ValueError(f'Unknown ablation "{min(unknown)}": choose one of {", ".join(every)}.')
    if "heads" in names and not args.heads:
        raise ValueError('The ablation "heads" compares heads files: name them with --heads.')
    facts, rows = {}, []
    for name in names:
        print(f"\n{name}: {ablations.ABLATIONS.get(name, 'first-round acceptance by direction (Figure 1)')}\n")
        if name == "directions":
            measured = directions(args, backbone, heads, store)
        else:
            measured = qualities(args, backbone, _variants(args, backbone, heads, name, base), store)
        facts, some = _finish(args, f"ablation-{name}", backbone, measured)
        rows += [{"ablation": name, **row} for row in some]
    return facts, rows


def report(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Runs the builtin suite (speed, cost, quality, ablations) and writes a page with tables and charts.

    Takes at most half an hour on two cores of a server CPU: first the speed of all decoders, one picture at a time (4
    minutes), then pictures by all of them, for one round of --batch captions after another while the next one fits
    into --minutes (for at most 32 captions by the slow ones that only an ablation has). Interrupted, it goes on where
    it stopped (--runs); run again, it adds captions that did not fit, up to --captions. For a first look: --captions 4
    --speed-captions 1.
    """
    clock, store = Clock(args.minutes), Store(args.runs)
    timed = drawn = Model(*_builtin(args))
    if args.dtype == "auto":
        args.dtype = fastest_dtype(timed.backbone.device)
        drawn = Model(*_builtin(args))
    size = {name: getattr(args, name) for name in ("captions", "batch", "speed_captions")}
    suite = run_suite(timed, drawn, _sampling(args, timed.backbone), load_scorer(), store, clock, **size)
    drawn_dtype = str(drawn.backbone.dtype).removeprefix("torch.")
    shown = size | {"captions": suite.facts["captions"]}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in shown.items())
    facts = _facts(args, "report", timed.backbone) | suite.facts | {"drawn_dtype": drawn_dtype, "options": options}
    suite.facts = facts
    write_page(args.page, suite)
    clock.say(f"wrote {args.page}")
    parts = {"speed": suite.speed, "cost": suite.cost, "quality": suite.quality, **suite.ablations}
    parts |= {"directions": suite.directions, "deviation": [suite.deviation]}
    dicts = [{"part": part, **row.as_dict()} for part, some in parts.items() for row in some]
    if args.out:
        save(args.out, "report", facts, dicts)
    return facts, dicts


def qualities(
    args: argparse.Namespace,
    backbone: Backbone,
    entries: Sequence[tuple[str, Contender, Heads | None]],
    store: Store,
    *,
    floor: bool = False,
) -> list[Quality]:
    """Draws and judges (name, contender, heads), and AR for comparison; floor: begin with real scenes."""
    sampling, prompts = _sampling(args, backbone), held_out_prompts(args.captions)
    texts, specs, scorer = [text for text, _ in prompts], [spec for _, spec in prompts], load_scorer()
    real = scorer.features(real_scenes(REAL, REAL_SEED)[0])
    rows = [judge_real(scorer, real, args.captions, REAL_SEED + 1)] if floor else []
    runs = args.sets * -(-args.captions // args.batch)
    with tqdm(total=(1 + len(entries)) * runs, disable=None) as bar:
        options = dict(sets=args.sets, batch=args.batch, store=store, on_run=bar.update)
        reference = draw(backbone, None, Contender(DecodeConfig("ar")), texts, sampling, **options)
        for name, contender, heads in entries:
            pictures = draw(backbone, heads, contender, texts, sampling, **options)
            rows.append(judge_drawn(backbone, name, pictures, specs, scorer, real, reference))
    return rows


def directions(
    args: argparse.Namespace, backbone: Backbone, heads: Heads | None, store: Store
) -> list[ablations.Direction]:
    """Figure 1 on AR's pictures of the first captions."""
    if heads is None:
        raise ValueError(f"Figure 1 compares trained heads, and {backbone.name} has none: name a file with --heads.")
    texts, sampling = [text for text, _ in held_out_prompts(args.captions)][: args.batch], _sampling(args, backbone)
    options = dict(batch=args.batch, store=store)
    pictures = draw(backbone, None, Contender(DecodeConfig("ar")), texts, sampling, **options)
    return ablations.measure_directions(backbone, heads, texts, pictures.tokens[0], sampling)


def _variants(args, backbone: Backbone, heads: Heads | None, name: str, base: DecodeConfig):
    chosen = ablations.contenders(name, base)
    if name in ablations.TRAINED:
        size = dict(pictures=args.train_pictures, steps=args.train_steps)
        trained = ablations.train_variants(name, backbone, base, **size)
        return [(str(each), chosen[0], each.heads) for each in trained]
    if name != "heads":
        return [(str(each), each, heads) for each in chosen]
    loaded = [
        load_heads(path, backbone.fingerprint, device=backbone.device, dtype=backbone.dtype) for path in args.heads
    ]
    return [(path.stem, chosen[0], each) for path, each in zip(args.heads, loaded, strict=True)]


def _backbone(args: argparse.Namespace) -> tuple[Backbone, Heads | None]:
    if getattr(args, "random_weights", None):
        from .random_weights import RandomBackbone  # transformers takes seconds to import

        backbone = RandomBackbone(args.random_weights, device=args.device, dtype=args.dtype)
    else:
        backbone = load(args)
    if isinstance(getattr(args, "heads", None), Path):
        return backbone, load_heads(args.heads, backbone.fingerprint, device=backbone.device, dtype=backbone.dtype)
    return backbone, backbone.shipped_heads()


def _builtin(args: argparse.Namespace) -> tuple[Backbone, Heads | None]:
    """For what the scorer judges, which knows the scenes of the builtin model."""
    if args.backbone != "builtin":
        raise ValueError(
            "The scorer knows only the builtin model's scenes. For other backbones there are speed, cost, and pictures "
            "for the official evaluators and fid."
        )
    return _backbone(args)


def _contenders(args: argparse.Namespace, backbone: Backbone) -> list[Contender]:
    base = DecodeConfig.preset(backbone.family)
    if not args.decoders:
        return everyone(base, backbone.grid(), stops(backbone.family).values())
    return [parse(text, base) for text in args.decoders]


def _sampling(args: argparse.Namespace, backbone: Backbone) -> SamplingConfig:
    return backbone.defaults.updated(cfg=args.cfg)


def _finish(args: argparse.Namespace, name: str, backbone: Backbone, rows: Sequence) -> tuple[dict, list[dict]]:
    """Prints a table, writes files if asked to; facts about the run, and the rows for JSON."""
    facts, dicts = _facts(args, name, backbone), [row.as_dict() for row in rows]
    print(table([row.as_texts() for row in rows]))
    if args.out:
        save(args.out, name, facts, dicts)
    return facts, dicts


def _facts(args: argparse.Namespace, name: str, backbone: Backbone) -> dict:
    return {
        "what": name,
        "backbone": backbone.name,
        "fingerprint": backbone.fingerprint,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "device": device_name(backbone.device),
        "bandwidth": bandwidth(backbone.device),
        "torch": torch.__version__,
        "sampling": vars(_sampling(args, backbone)),
        **{key: getattr(args, key) for key in ("captions", "sets", "repetitions", "batch") if hasattr(args, key)},
    }


COMMANDS = {
    "speed": speed,
    "cost": cost,
    "quality": quality,
    "ablations": ablate,
    "report": report,
    "pictures": pictures,
    "fid": fid,
}

if __name__ == "__main__":
    sys.exit(main())
