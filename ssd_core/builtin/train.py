"""Trains the builtin model from nothing, one stage a command, each resumable:

    python -m ssd_core.builtin.train tokenizer      # pixels <-> codes
    python -m ssd_core.builtin.train scorer         # the judge of the benchmarks
    python -m ssd_core.builtin.train transformer    # words -> codes
    python -m ssd_core.builtin.train heads          # spatial drafting heads, by ssd_core.training

Checkpoints and logs go to `runs/<stage>`, finished weights to where the package loads them from.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from ..training.loop import LoopConfig, fit
from . import scenes, words
from .tokenizer import ImageTokenizer
from .transformer import BuiltinTransformer, RMSNorm, training_inputs
from .weights import WEIGHTS, load_module, save_weights

KINDS = ("two", "single", "position", "counting", "two", "single", "position", "single")  # of training scenes, in turn
TRAIN_SEED, HELD_SEED = 1, 2  # seeds of the scene data sets
PLACES = 2 * len(words.OBJECTS) + 1  # each object in two sizes, and none
AHEAD = 6  # rows
LONGEST_CAPTION = 17  # words in the longest caption that scenes.caption makes


def pictures(seed: int, indices: range, *, held: bool = False) -> Tensor:
    """Scenes of a data set as float RGB [N, 3, 192, 192] in 0..1."""
    return to_floats([scenes.example(seed, i, held=held)[2] for i in indices])


def to_floats(images: list[np.ndarray]) -> Tensor:
    """uint8 pictures [192, 192, 3] -> float [N, 3, 192, 192] in 0..1."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def psnr(a: Tensor, b: Tensor) -> float:
    """Mean over pictures of the peak signal-to-noise ratio in dB; inputs in 0..1, pictures first."""
    return float((-10 * torch.log10((a - b).float().square().flatten(1).mean(1))).mean())


def build_accelerator() -> Accelerator:
    """bf16 on whatever device there is; the builtin stages are small and train in one process."""
    accelerator = Accelerator(mixed_precision="bf16")
    if accelerator.num_processes > 1:
        raise SystemExit("The builtin stages train in one process: start them without a launcher.")
    return accelerator


def train_tokenizer(args: argparse.Namespace) -> None:
    """FSQ autoencoder on training scenes: L1 + squared error + error of the pixel gradients.

    A later sitting teaches the decoder alone: the codes, and what was trained on them, stay as they are.
    """
    torch.manual_seed(0)
    accelerator = build_accelerator()
    model, seed = ImageTokenizer().to(memory_format=torch.channels_last), _scene_seed(args.sitting)
    if args.sitting > 1:
        load_module(model, args.weights / "tokenizer.safetensors")
        model.encoder.requires_grad_(False)
    reconstruct = torch.compile(model.reconstruct) if args.compile else model.reconstruct

    def batch(i: int) -> Tensor:
        indices = range(i * args.batch, (i + 1) * args.batch)
        crowded = indices[: args.batch * 3 // 4]  # objects are harder than backgrounds
        images = [scenes.crowded_example(seed, j)[2] for j in crowded]
        rgb = torch.cat((to_floats(images), pictures(seed, indices[len(crowded) :])))
        return rgb.to(accelerator.device, memory_format=torch.channels_last)

    def loss(_: nn.Module, rgb: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        out = reconstruct(rgb).float()
        l1, l2 = F.l1_loss(out, rgb), F.mse_loss(out, rgb)
        gradient = F.l1_loss(out.diff(dim=2), rgb.diff(dim=2)) + F.l1_loss(out.diff(dim=3), rgb.diff(dim=3))
        return 0.5 * l1 + 5 * l2 + 0.5 * gradient, {"l1": l1.detach(), "psnr": -10 * torch.log10(l2.detach())}

    def evaluate(model: ImageTokenizer) -> dict[str, float]:
        rgb = pictures(HELD_SEED, range(64), held=True).to(accelerator.device)
        codes = model.encode(rgb.permute(0, 2, 3, 1))
        out = model.decode(codes).permute(0, 3, 1, 2)
        return {"held_out_psnr": psnr(out, rgb), "codes_used": float(codes.unique().numel())}

    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        learning, lr=2e-3 if args.sitting == 1 else 1e-3, betas=(0.9, 0.95), weight_decay=0.01
    )
    config = LoopConfig(steps=args.steps, warmup=200, final_lr=0.01, ema=0.998, clip=1.0, log_every=100)
    _fit("tokenizer", args, accelerator, model, loss, batch, [optimizer], config, evaluate)
    save_weights(model, args.weights / "tokenizer.safetensors")


class Grounding(nn.Module):
    """The transformer with two extra tasks for training, which tie the caption's words to the picture's cells.

    An object's name matters for the first of its cells only; the rest follow from those. So next-code
    prediction alone is slow to find out that names matter at all. Here every cell also has to say which
    objects the caption names (recall), which of them, how large, covers the cell that comes next (place)
    and the one `AHEAD` rows below that (ahead: no code has told yet, the caption has to), and which row and
    column of that object's square the next cell is (part): what tells its code, once known.
    All read the states after `depth` layers: the layers above use what the ones below were made to remember.
    """

    losses = ("loss", "recall", "place", "ahead", "part")
    depth = 4
    recall_weight = 0.1  # of the binary cross-entropy summed over the objects
    place_weight = 0.3  # of the cross-entropy over `PLACES`
    ahead_weight = 0.15  # of the same some rows further down
    part_weight = 0.15  # of each of the two cross-entropies, over rows and over columns

    def __init__(self, transformer: BuiltinTransformer):
        super().__init__()
        self.transformer = transformer
        self.norm = RMSNorm(transformer.config.hidden_size)
        self.recall = nn.Linear(transformer.config.hidden_size, len(words.OBJECTS))
        self.place = nn.Linear(transformer.config.hidden_size, PLACES)
        self.ahead = nn.Linear(transformer.config.hidden_size, PLACES)
        self.row = nn.Linear(transformer.config.hidden_size, scenes.LARGE + 1)
        self.column = nn.Linear(transformer.config.hidden_size, scenes.LARGE + 1)
        nn.init.zeros_(self.recall.weight)
        nn.init.constant_(self.recall.bias, -3.0)  # few of the objects are named
        for task in (self.place, self.ahead, self.row, self.column):
            nn.init.zeros_(task.weight)

    def forward(
        self, ids: Tensor, mask: Tensor, seen: Tensor, codes: Tensor, named: Tensor, placed: Tensor, positions: Tensor
    ) -> tuple[Tensor, ...]:
        """ids [N, P], mask [N, 1, T, T], codes [N, cells] to predict after the codes `seen`, named float [N, objects],
        placed int64 [N, 4, cells] of `covering_objects` -> the losses of next code, recall, place, ahead and part.
        """
        model, image = self.transformer, slice(ids.shape[1] - 1, None)
        x = torch.cat((model.text_embedding(ids), model.code_embedding(seen[:, :-1])), 1)
        x, rope = model.prepare(x, positions)
        for depth, layer in enumerate(model.layers, start=1):
            x = layer(x, rope, mask, None, None)
            if depth == self.depth:
                read = self.norm(x[:, image])
                recalled = self.recall(read).float()
                tasks = (self.place, self.ahead, self.row, self.column)
                where = [task(read).float().flatten(0, 1) for task in tasks]
        target = named[:, None].expand_as(recalled)
        recall = F.binary_cross_entropy_with_logits(recalled, target, reduction="none").sum(-1).mean()
        truth = placed.transpose(0, 1).flatten(1)
        place, ahead, row, column = (F.cross_entropy(part, true) for part, true in zip(where, truth, strict=True))
        code = F.cross_entropy(model.logits(x[:, image]).flatten(0, 1), codes.flatten())
        return code, recall, place, ahead, row + column


def covering_objects(scene: scenes.Scene) -> Tensor:
    """What covers each cell, int64 [4, cells]: an object in one of its two sizes; what covers the cell `AHEAD` rows
    below; the row and the column of the object's square.

    Cells that no object covers have the last value of each: PLACES - 1, PLACES - 1, LARGE, LARGE.
    """
    none = torch.tensor([PLACES - 1, PLACES - 1, scenes.LARGE, scenes.LARGE])
    covering = none[:, None, None].expand(4, scenes.GRID, scenes.GRID).clone()
    for placed in sorted(scene.objects, key=lambda placed: placed.y):  # painted in this order
        square = covering[:, placed.y : placed.y + placed.size, placed.x : placed.x + placed.size]
        square[0] = 2 * words.OBJECTS.index(placed.name) + (placed.size == scenes.LARGE)
        square[2] = torch.arange(placed.size)[:, None]
        square[3] = torch.arange(placed.size)
    covering[1, :-AHEAD] = covering[0, AHEAD:]
    return covering.flatten(1)


def with_mistakes(codes: Tensor, rng: np.random.Generator, most: float = 0.1) -> Tensor:
    """Codes [N, cells] of which up to a share of `most`, another one in each picture, are codes from elsewhere.

    A model that has only seen perfect pictures is lost after its first mistake, and with it every decoder
    that goes on from a guess.
    """
    wrong = rng.random(codes.shape) < rng.uniform(0, most, (len(codes), 1))
    other = rng.integers(0, codes.numel(), codes.shape)
    return torch.where(torch.from_numpy(wrong), codes.flatten()[torch.from_numpy(other)], codes)


def train_transformer(args: argparse.Namespace) -> None:
    """Next-code prediction on fresh training scenes, 10 % of the captions dropped for guidance."""
    torch.manual_seed(0)
    accelerator = build_accelerator()
    tokenizer = load_module(ImageTokenizer(), args.weights / "tokenizer.safetensors").to(accelerator.device)
    transformer = BuiltinTransformer()
    if args.sitting > 1:
        load_module(transformer, args.weights / "transformer.safetensors")
    model = Grounding(transformer)
    seed = _scene_seed(args.sitting)
    cells = scenes.GRID**2
    positions = torch.arange(LONGEST_CAPTION + cells - 1) + words.MAX_WORDS - LONGEST_CAPTION
    positions = positions.expand(args.batch, -1).contiguous().to(accelerator.device)

    def examples(seed: int, indices: range, crowded: int = 0, held: bool = False) -> tuple[Tensor, ...]:
        rows = [scenes.crowded_example(seed, i) for i in indices[:crowded]]
        turns = (None,) if held else KINDS
        kinds = [turns[(i + i // args.batch) % len(turns)] for i in indices]  # whatever is left beside crowded scenes
        rows += [scenes.example(seed, i, held=held, kind=kinds[i - indices[0]]) for i in indices[crowded:]]
        rgb = to_floats([picture for _, _, picture in rows]).to(accelerator.device)
        dropped = [np.random.default_rng((seed, i, 7)).random() < 0.1 and not held for i in indices]
        texts = ["" if drop else text for (_, text, _), drop in zip(rows, dropped, strict=True)]
        ids, mask = training_inputs([words.encode(text) for text in texts], LONGEST_CAPTION, cells)
        codes = tokenizer.encode(rgb.permute(0, 2, 3, 1)).flatten(1).cpu()
        seen = codes if held else with_mistakes(codes, np.random.default_rng((seed, indices[0], 11)))
        named = torch.zeros(len(texts), len(words.OBJECTS))
        for row, (scene, _, _), text in zip(named, rows, texts, strict=True):
            if text:
                row[[words.OBJECTS.index(placed.name) for placed in scene.objects]] = 1
        placed = torch.stack([covering_objects(scene) for scene, _, _ in rows])
        return tuple(part.to(accelerator.device) for part in (ids, mask, seen, codes, named, placed))

    compiled = torch.compile(model) if args.compile else model

    def batch(i: int) -> tuple[Tensor, ...]:
        # Crowded scenes show more objects; the end of the run has only what is asked for.
        crowded = args.batch * 3 // 4 if i < args.crowded * args.steps else 0
        return examples(seed, range(i * args.batch, (i + 1) * args.batch), crowded)

    def loss(_: nn.Module, batch: tuple) -> tuple[Tensor, dict[str, Tensor]]:
        code, *tasks = compiled(*batch, positions)
        weights = (model.recall_weight, model.place_weight, model.ahead_weight, model.part_weight)
        total = code + sum(weight * task for weight, task in zip(weights, tasks, strict=True))
        return total, {name: value.detach() for name, value in zip(Grounding.losses, (code, *tasks), strict=True)}

    @torch.no_grad()
    def evaluate(model: Grounding) -> dict[str, float]:
        held = [range(i, i + args.batch) for i in range(0, 128, args.batch)]
        losses = torch.tensor([model(*examples(HELD_SEED, indices, held=True), positions) for indices in held])
        return {
            f"held_out_{name}": value for name, value in zip(Grounding.losses, losses.mean(0).tolist(), strict=True)
        }

    hidden = [parameter for parameter in transformer.layers.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers = [
        torch.optim.Muon(hidden, lr=4e-3 * args.lr_scale, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=3e-3 * args.lr_scale, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    config = LoopConfig(steps=args.steps, warmup=100, final_lr=0.02, ema=0.998, clip=1.0, log_every=20)
    _fit("transformer", args, accelerator, model, loss, batch, optimizers, config, evaluate)
    save_weights(transformer, args.weights / "transformer.safetensors")


def _scene_seed(sitting: int) -> int:
    """Every sitting has training scenes of its own."""
    return TRAIN_SEED + 1000 * (sitting - 1)


def _fit(
    name: str, args: argparse.Namespace, accelerator: Accelerator, model, loss, batch, optimizers, config, evaluate
):
    identity = f"{name} steps={args.steps} batch={args.batch}"
    folder = args.out / name
    if args.sitting > 1:
        identity, folder = f"{identity} sitting={args.sitting}", args.out / f"{name}-{args.sitting}"
    fit(
        model,
        loss,
        batch,
        optimizers,
        config,
        folder,
        accelerator=accelerator,
        evaluate=evaluate,
        identity=identity,
    )


def _train_scorer(args: argparse.Namespace) -> None:
    from ..bench.train_scorer import train_scorer

    train_scorer(args)


def _train_heads(args: argparse.Namespace) -> None:
    from ..training.__main__ import main as train_heads

    options = {
        "--weights": args.weights,
        "--out": args.weights / "heads.safetensors",
        "--work": args.out / "heads",
        "--pictures": 192,
        "--draw-batch": 24,
        "--dtype": "bfloat16",
        "--steps": args.steps,
        "--batch": args.batch,
        "--expansion": 1.0,  # the model is small: so are its heads, and the learning rate is larger
        "--lr": 3e-3,
    }
    train_heads([str(part) for option in options.items() for part in option])


STAGES = {
    "tokenizer": (train_tokenizer, 6000, 8),
    "transformer": (train_transformer, 3900, 8),
    "scorer": (_train_scorer, 1500, 16),
    "heads": (_train_heads, 600, 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ssd_core.builtin.train", description=__doc__.split("\n\n")[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--steps", type=int, help="optimizer steps (default: what the shipped weights took)")
    parser.add_argument("--batch", type=int, help="pictures per step")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for checkpoints and logs")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder for the finished weights")
    parser.add_argument(
        "--sitting",
        type=int,
        default=1,
        help="2, 3, ... goes on from finished weights, on fresh scenes: of the transformer, or the tokenizer's decoder",
    )
    parser.add_argument(
        "--crowded", type=float, default=0.6, help="transformer: share of the run with crowded scenes (default: 0.6)"
    )
    parser.add_argument(
        "--lr-scale", type=float, default=1.0, help="transformer: of the learning rates, smaller in later sittings"
    )
    parser.add_argument("--compile", action="store_true", help="twice as fast; needs a C++ compiler")
    args = parser.parse_args()
    run, steps, batch = STAGES[args.stage]
    args.steps, args.batch = args.steps or steps, args.batch or batch
    if args.sitting != 1 and args.stage not in ("tokenizer", "transformer"):
        parser.error("--sitting is for the tokenizer and the transformer.")
    run(args)


if __name__ == "__main__":
    main()
