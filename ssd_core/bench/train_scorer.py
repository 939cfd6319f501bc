"""Trains the scorer of the benchmarks on scenes whose content is known (stage "scorer" of `ssd_core.builtin.train`).

Half of the scenes have free layouts: none to four objects, equal or not, of any size, anywhere. The
captioned layouts alone would teach it that three small objects are always equal, and it would be too
kind to pictures where they are not. Half of all pictures pass through the image tokenizer, because the
pictures to judge come out of its decoder.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..builtin import scenes
from ..builtin.tokenizer import ImageTokenizer
from ..builtin.weights import load_module, save_weights
from ..builtin.words import OBJECTS
from ..training.loop import LoopConfig, fit
from .scorer import BACKGROUNDS, NOTHING, WEIGHTS, Background, Detection, PromptSpec, SceneScorer, evaluate

FREE_SEED = 4  # seed of the free layouts
EVALUATION_PICTURES = 512


def free_scene(rng: np.random.Generator, *, held: bool = False) -> scenes.Scene:
    """A scene with none to four objects anywhere, none of them much covered; kind and position mean nothing."""
    while True:
        scene = scenes.sample_scene(rng, held=held)
        number = int(rng.integers(0, 5))
        one_name = rng.random() < 0.4
        names = rng.choice(OBJECTS, 1).repeat(4) if one_name else rng.choice(OBJECTS, 4)
        objects: list[scenes.Placed] = []
        for _ in range(20):  # a fourth object may find no room
            if len(objects) == number:
                break
            size = int(rng.integers(7, 13))
            x, y = (int(value) for value in rng.integers(0, scenes.GRID - size + 1, 2))
            placed = scenes.Placed(str(names[len(objects)]), x, y, size)
            if all(_apart(placed, other) for other in objects):
                objects.append(placed)
        scene = dataclasses.replace(scene, objects=tuple(objects), position=None)
        if scenes.held_out(scene) == held:
            return scene


def _apart(a: scenes.Placed, b: scenes.Placed) -> bool:
    """True if two sprites overlap by a fifth of their side at most."""
    distance = max(abs(a.center[0] - b.center[0]), abs(a.center[1] - b.center[1]))
    return distance >= 0.4 * (a.size + b.size)


def target_map(scene: scenes.Scene) -> np.ndarray:
    """Class of each cell, int64 [24, 24]: that of the object whose centre lies in it, else `NOTHING`."""
    cells = np.full((scenes.GRID, scenes.GRID), NOTHING, np.int64)
    for placed in scene.objects:
        x, y = placed.center
        cells[int(y), int(x)] = OBJECTS.index(placed.name)
    return cells


def background_of(scene: scenes.Scene) -> Background:
    """The whole background of a scene."""
    return Background(scene.color, scene.ground, scene.sky)


def center_loss(logits: Tensor, cells: Tensor) -> Tensor:
    """Focal loss per object (CenterNet). logits [N, 49, H, W]; cells [N, H, W] int64 classes.

    The neighbours of a centre count a tenth: in a generated picture it may lie between two cells, and
    the peak search merges them anyway.
    """
    negative_log = F.cross_entropy(logits.float(), cells, reduction="none")
    centers = (cells != NOTHING).float()
    near = F.max_pool2d(centers[:, None], 3, 1, 1)[:, 0] - centers
    weight = 1 - 0.9 * near
    focal = (1 - torch.exp(-negative_log)).square()
    # Centres get the plain cross-entropy: the focal factor would leave the class of easy ones uncertain.
    factor = torch.where(centers > 0, torch.ones_like(focal), focal)
    return (weight * factor * negative_log).sum() / centers.sum().clamp_min(1)


def distort(rgb: Tensor, generator: torch.Generator) -> Tensor:
    """Slight random changes of brightness, contrast (5 %), sharpness and noise (sigma up to 0.03); [N, 3, H, W]."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(len(rgb), 1, 1, 1, generator=generator).mul_(high - low).add_(low).to(rgb.device)

    brightness, contrast, sigma = uniform(0.95, 1.05), uniform(0.95, 1.05), uniform(0, 0.03)
    blur = uniform(-1, 1).clamp_min(0)  # half of the pictures stay sharp
    noise = torch.randn(rgb.shape, generator=generator).to(rgb.device)
    soft = F.avg_pool2d(rgb, 3, 1, 1, count_include_pad=False)
    mean = rgb.mean((1, 2, 3), keepdim=True)
    rgb = torch.lerp(rgb, soft, blur)
    return (((rgb - mean) * contrast + mean) * brightness + sigma * noise).clamp(0, 1)


def located(scene: scenes.Scene, seen: Detection) -> bool:
    """True if `seen` has exactly the scene's objects, each within one cell of its place."""
    left = list(seen.objects)
    for placed in scene.objects:
        x, y = placed.center
        match = [f for f in left if f.name == placed.name and abs(f.x - x) <= 1 and abs(f.y - y) <= 1]
        if not match:
            return False
        left.remove(match[0])
    return not left


def exactness(shown: Sequence[scenes.Scene], detections: Sequence[Detection]) -> dict[str, float]:
    """Shares of pictures with the right background, and with exactly the right objects at their places."""
    pairs = list(zip(shown, detections, strict=True))
    return {
        "background": float(np.mean([background_of(scene) == seen.background for scene, seen in pairs])),
        "objects": float(np.mean([located(scene, seen) for scene, seen in pairs])),
    }


def load_tokenizer(folder: Path) -> ImageTokenizer | None:
    """The image tokenizer in fp32 from `folder`/tokenizer.safetensors, or None if that is missing."""
    path = folder / "tokenizer.safetensors"
    return load_module(ImageTokenizer(), path).requires_grad_(False) if path.is_file() else None


def _as_floats(pictures: Sequence[np.ndarray]) -> Tensor:
    """uint8 pictures -> float32 [N, 192, 192, 3] in 0..1."""
    return torch.from_numpy(np.stack(pictures)).float() / 255


def round_trip(tokenizer: ImageTokenizer, images: Tensor) -> Tensor:
    """Pictures [N, 192, 192, 3] in 0..1 after encoding and decoding, 16 at a time to bound the memory."""
    return torch.cat([tokenizer.decode(tokenizer.encode(chunk)) for chunk in images.split(16)])


def train_scorer(args: argparse.Namespace) -> None:
    """Trains `SceneScorer` and writes its weights.

    args: steps, batch (pictures per step), out (folder for runs), weights (folder of tokenizer.safetensors),
    compile, and optionally scorer_weights (file to write, default `ssd_core/bench/scorer.safetensors`).
    """
    from ..builtin.train import HELD_SEED, TRAIN_SEED, build_accelerator  # it imports this module in turn

    torch.manual_seed(0)
    accelerator = build_accelerator()
    device = accelerator.device
    model = SceneScorer().to(memory_format=torch.channels_last)
    tokenizer = load_tokenizer(args.weights)
    if tokenizer is None:
        warnings.warn(
            f"There is no tokenizer.safetensors in {args.weights}: the scorer learns from rendered pictures only, "
            "and may misjudge decoded ones. Train the tokenizer first.",
            stacklevel=2,
        )
    else:
        tokenizer = tokenizer.to(device, memory_format=torch.channels_last)
    decoded = 0 if tokenizer is None else args.batch // 2  # pictures of a batch that pass the tokenizer
    reconstruct = tokenizer and tokenizer.reconstruct
    if args.compile:
        model.compile()
        reconstruct = tokenizer and torch.compile(tokenizer.reconstruct)

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor, int]:
        samples = []
        for i in range(step * args.batch, (step + 1) * args.batch):
            # The tokenizer takes the first half of a batch: alternate, so that both kinds of layout pass it.
            if i % 2:
                samples.append(free_scene(np.random.default_rng((FREE_SEED, i))))
            else:
                samples.append(scenes.sample_scene(np.random.default_rng((TRAIN_SEED, i))))
        rgb = torch.from_numpy(np.stack([scenes.render(scene) for scene in samples]))
        cells = torch.from_numpy(np.stack([target_map(scene) for scene in samples]))
        background = torch.tensor([BACKGROUNDS.index(background_of(scene)) for scene in samples])
        return rgb, cells, background, step

    def loss(net: nn.Module, drawn: tuple[Tensor, Tensor, Tensor, int]) -> tuple[Tensor, dict[str, Tensor]]:
        rgb, cells, background = (part.to(device) for part in drawn[:3])
        rgb = rgb.permute(0, 3, 1, 2).float() / 255  # NHWC in memory: channels last
        with torch.no_grad():
            if decoded:
                rgb = torch.cat([reconstruct(rgb[:decoded]).float().clamp(0, 1), rgb[decoded:]])
            rgb = distort(rgb, torch.Generator().manual_seed(drawn[3]))
        out = net(rgb.contiguous(memory_format=torch.channels_last))
        present = F.one_hot(cells.flatten(1), NOTHING + 1).amax(1)[:, :NOTHING].float()
        terms = {
            "center": center_loss(out.objects, cells),
            "background": F.cross_entropy(out.background.float(), background),
            "presence": F.binary_cross_entropy_with_logits(out.presence.float(), present) * len(OBJECTS),
        }
        total = terms["center"] + 0.5 * terms["background"] + 0.2 * terms["presence"]
        return total, {name: term.detach() for name, term in terms.items()}

    def report(trained: SceneScorer) -> dict[str, float]:
        # Measure what is shipped: bf16 weights, float32 arithmetic.
        scorer = SceneScorer()
        scorer.load_state_dict({name: value.cpu().bfloat16().float() for name, value in trained.state_dict().items()})
        scorer.eval()
        held, captions, rendered = zip(
            *(
                scenes.example(HELD_SEED, i, held=True, kind=scenes.KINDS[i % len(scenes.KINDS)])
                for i in range(EVALUATION_PICTURES)
            ),
            strict=True,
        )
        specs = [PromptSpec.from_scene(scene, caption) for scene, caption in zip(held, captions, strict=True)]
        free = [free_scene(np.random.default_rng((HELD_SEED, i)), held=True) for i in range(EVALUATION_PICTURES // 2)]
        sets = {"real": (_as_floats(rendered), _as_floats([scenes.render(scene) for scene in free]))}
        if tokenizer is not None:
            tokenizer.cpu()
            sets["decoded"] = tuple(round_trip(tokenizer, images) for images in sets["real"])
        scores = {}
        for name, (usual, unusual) in sets.items():
            judged = evaluate(scorer, usual, specs)
            scores |= {f"{name}_{kind}": judged[kind][0] for kind in scenes.KINDS}
            scores |= {f"{name}_exact_{what}": share for what, share in exactness(held, scorer.detect(usual)).items()}
            scores |= {f"{name}_free_{what}": share for what, share in exactness(free, scorer.detect(unusual)).items()}
        return scores

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.02)
    config = LoopConfig(steps=args.steps, warmup=100, final_lr=0.01, ema=0.995, clip=5.0, log_every=50)
    fit(
        model,
        loss,
        batch,
        [optimizer],
        config,
        args.out / "scorer",
        accelerator=accelerator,
        evaluate=report,
        identity=f"scorer steps={args.steps} batch={args.batch} decoded={decoded}",
    )
    if accelerator.is_main_process:
        save_weights(model, getattr(args, "scorer_weights", WEIGHTS))
