"""Measures decoders: python -m ssd_core.bench speed | cost | quality | ablations | report | pictures

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
from ..correction import GREEDY
from ..decoders import DECODERS, DecodeConfig
from ..generate import generate
from ..heads import Heads, load_heads
from ..pictures import to_pil
from ..sampling import SamplingConfig
from . import ablations
from .contenders import Contender, everyone, parse
from .figures import save, table
from .meter import bandwidth, device_name
from .passes import block_sizes, measure_passes
from .prompt_sets import BENCHMARKS, read_prompts
from .quality import Drawn, Quality, draw, judge_drawn, judge_real, real_scenes
from .report import Suite, write_page
from .scorer import held_out_prompts, load_scorer
from .speed import measure_speed

REAL_SEED = 5  # the scenes that the Frechet distance compares with


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


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    add_model_options(parser)
    defaults = {"speed": 8, "quality": 256, "ablations": 64, "report": 64}
    if name in ("speed", "cost"):
        parser.add_argument(
            "--random-weights",
            metavar="MODEL",
            help="measure a model of the paper without its checkpoint: janus-pro-7b, lumina-mgpt-7b-768, emu3-gen, ...",
        )
        default = 1 if name == "speed" else 7
        parser.add_argument("--repetitions", type=int, default=default, help="(default: %(default)s)")
    if name in defaults:
        parser.add_argument(
            "--prompts",
            type=int,
            default=defaults[name],
            help="held-out captions, a multiple of 4 (default: %(default)s)",
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
        parser.add_argument("--sets", type=int, default=1, help="pictures per caption, by seeds (default: %(default)s)")
        parser.add_argument("--batch", type=int, default=16, help="pictures at once (default: %(default)s)")
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
        parser.add_argument(
            "--speed-prompts", type=int, default=4, help="captions of its speed run (default: %(default)s)"
        )
        parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"), help="(default: %(default)s)")
    parser.add_argument("--cfg", type=float, help="guidance weight (default: the backbone's own)")
    what = "the pictures" if name == "pictures" else "JSON and CSV files"
    parser.add_argument("--out", type=Path, required=name == "pictures", help=f"folder for {what}")


def speed(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Passes, seconds, cost of a pass and agreement with AR; one picture at a time, interleaved."""
    backbone, heads = _backbone(args)
    prompts = [text for text, _ in held_out_prompts(args.prompts)]
    chosen = _contenders(args, backbone)
    with tqdm(total=len(chosen) * (1 + args.prompts * args.repetitions), disable=None) as bar:
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
    backbone, heads = _backbone(args)
    chosen = _contenders(args, backbone)
    if not args.decoders:
        chosen = [each for each in chosen if each.config.decoder != "lossless"]  # its pictures are AR's
    rows, _ = qualities(args, backbone, [(str(each), each, heads) for each in chosen], floor=True)
    return _finish(args, "quality", backbone, rows)


def ablate(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """The paper's ablations on the builtin model, by name."""
    backbone, heads = _backbone(args)
    base, kept = DecodeConfig.preset(backbone.family), {}
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
            measured = directions(args, backbone, heads)
        else:
            measured, kept = qualities(args, backbone, _variants(args, backbone, heads, name, base), reference=kept)
        facts, some = _finish(args, f"ablation-{name}", backbone, measured)
        rows += [{"ablation": name, **row} for row in some]
    return facts, rows


def report(args: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Runs the builtin suite (speed, cost, quality, ablations) and writes a page with tables and charts."""
    backbone, heads = _backbone(args)
    base, chosen = DecodeConfig.preset(backbone.family), everyone(DecodeConfig.preset(backbone.family), backbone.grid())
    sampling, prompts = _sampling(args, backbone), held_out_prompts(args.prompts)
    texts = [text for text, _ in prompts][: args.speed_prompts]
    fast = measure_speed(backbone, heads, chosen, texts, sampling)
    costs = measure_passes(backbone, heads, "a cat", sampling)
    drawing = [(str(each), each, heads) for each in chosen if each.config.decoder != "lossless"]
    judged, kept = qualities(args, backbone, drawing, floor=True)
    ablated = {}
    for name in ablations.ABLATIONS:
        if name not in ablations.OF_HEADS:
            ablated[name], _ = qualities(args, backbone, _variants(args, backbone, heads, name, base), reference=kept)
    below = directions(args, backbone, heads) if heads else []
    facts = _facts(args, "report", backbone) | {"cols": backbone.grid().cols, "speed_prompts": len(texts)}
    suite = Suite(facts, fast, costs, judged, ablated, below)
    write_page(args.page, suite)
    print(f"wrote {args.page}")
    rows = {"speed": fast, "cost": costs, "quality": judged, **ablated, "directions": below}
    dicts = [{"part": part, **row.as_dict()} for part, some in rows.items() for row in some]
    if args.out:
        save(args.out, "report", facts, dicts)
    return facts, dicts


def qualities(
    args: argparse.Namespace,
    backbone: Backbone,
    entries: Sequence[tuple[str, Contender, Heads | None]],
    *,
    floor: bool = False,
    reference: dict | None = None,
) -> tuple[list[Quality], dict]:
    """Draws and judges (name, contender, heads); AR's pictures are drawn unless `reference` has them ("drawn").

    floor: begin with real scenes. Returns what the next call can take as `reference`, too.
    """
    sampling, prompts = _sampling(args, backbone), held_out_prompts(args.prompts)
    texts, scorer = [text for text, _ in prompts], load_scorer()
    real = scorer.features(real_scenes(512, REAL_SEED)[0])
    rows: list[Quality] = []
    runs = args.sets * -(-args.prompts // args.batch)
    with tqdm(total=(len(entries) + (not reference)) * runs, disable=None) as bar:

        def drawn(contender: Contender, heads: Heads | None) -> Drawn:
            options = dict(sets=args.sets, batch=args.batch, on_run=bar.update)
            return draw(backbone, heads, contender, texts, sampling, **options)

        reference = reference or {"drawn": drawn(Contender(DecodeConfig("ar")), None)}
        if floor:
            rows.append(judge_real(scorer, real, args.prompts, REAL_SEED + 1))
        for name, contender, heads in entries:
            known = contender.config.decoder == "ar" and contender.config.rule != GREEDY
            pictures = reference["drawn"] if known else drawn(contender, heads)
            rows.append(
                judge_drawn(
                    backbone, name, pictures, prompts, scorer, real, sampling, reference["drawn"], batch=args.batch
                )
            )
    return rows, reference


def directions(args: argparse.Namespace, backbone: Backbone, heads: Heads | None) -> list[ablations.Direction]:
    """Figure 1 on AR's pictures of the first captions."""
    if heads is None:
        raise ValueError(f"Figure 1 compares trained heads, and {backbone.name} has none: name a file with --heads.")
    texts = [text for text, _ in held_out_prompts(args.prompts)][: args.batch]
    pictures = draw(backbone, None, Contender(DecodeConfig("ar")), texts, _sampling(args, backbone), batch=args.batch)
    return ablations.measure_directions(backbone, heads, texts, pictures.tokens[0], _sampling(args, backbone))


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


def _contenders(args: argparse.Namespace, backbone: Backbone) -> list[Contender]:
    base = DecodeConfig.preset(backbone.family)
    if not args.decoders:
        return everyone(base, backbone.grid())
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
        **{key: getattr(args, key) for key in ("prompts", "sets", "repetitions", "batch") if hasattr(args, key)},
    }


COMMANDS = {
    "speed": speed,
    "cost": cost,
    "quality": quality,
    "ablations": ablate,
    "report": report,
    "pictures": pictures,
}

if __name__ == "__main__":
    sys.exit(main())
