"""GenEval for the builtin scenes: does a picture show what its prompt asks for?

GenEval (Ghosh et al. 2023) runs an object detector over generated pictures and checks presence, number
and place of the objects. Here the detector is `SceneScorer`, a small convolutional network that knows
the 48 objects and all backgrounds of `ssd_core.builtin.scenes`; its pooled features also give a Frechet
distance between two sets of pictures. `ssd_core.bench.train_scorer` trains it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..builtin import scenes
from ..builtin.tokenizer import ChannelNorm
from ..builtin.weights import load_module
from ..builtin.words import GROUND_PHRASES, OBJECTS, SKY_PHRASES, split_words

WEIGHTS = Path(__file__).parent / "scorer.safetensors"
PROMPT_SEED = 3  # the benchmark's prompts; the training and validation scenes use other seeds
NOTHING = len(OBJECTS)  # class of a cell without an object's centre
CHUNK = 64  # pictures per forward pass: bounds the memory, whatever the number of pictures


@dataclass(frozen=True)
class Background:
    """A colour, or a ground and a sky; None where it does not apply or is left unsaid."""

    color: str | None = None
    ground: str | None = None
    sky: str | None = None

    def __bool__(self) -> bool:
        """True if it names anything."""
        return self != Background()

    def agrees(self, seen: "Background") -> bool:
        """True if everything named here is so in `seen`."""
        return self.color in (None, seen.color) and self.ground in (None, seen.ground) and self.sky in (None, seen.sky)


BACKGROUNDS = (
    *(Background(color=color) for color in scenes.COLORS),
    *(Background(ground=ground, sky=sky) for ground in scenes.GROUNDS for sky in scenes.SKIES),
)


class Found(NamedTuple):
    """One object in a picture: centre (x, y) in cells (the picture is 24 x 24), probability of the name."""

    name: str
    x: float
    y: float
    probability: float


@dataclass(frozen=True)
class Detection:
    """What a picture shows: the objects, most probable first, and the background."""

    objects: tuple[Found, ...]
    background: Background

    def counts(self) -> Counter[str]:
        """How often each object appears."""
        return Counter(found.name for found in self.objects)


class Prediction(NamedTuple):
    """Raw output of `SceneScorer` for N pictures.

    objects [N, 49, 24, 24]: class logits of each cell (the 48 objects, then nothing); background [N, 18]:
    logits over `BACKGROUNDS`; presence [N, 48]: logit of each object being anywhere; features [N, 128].
    """

    objects: Tensor
    background: Tensor
    presence: Tensor
    features: Tensor


class _Block(nn.Module):
    """x + a dilated 3 x 3 and a 1 x 1 convolution."""

    def __init__(self, channels: int, dilation: int = 1):
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x))))


class SceneScorer(nn.Module):
    """Finds objects as points (CenterNet, Zhou et al. 2019) and names the background.

    A cell sees 120 x 120 px around it: enough for the largest sprite (96 px), too little to guess an object
    from the usual layout of the others. 0.44 M parameters, 0.30 GMAC per picture.
    """

    def __init__(self, width: int = 96, features: int = 128):
        super().__init__()
        stem = width // 2
        self.trunk = nn.Sequential(
            nn.AvgPool2d(2),  # sprites of 28 px are still easy to tell apart, at a quarter of the cost
            nn.PixelUnshuffle(2),
            nn.Conv2d(12, stem, 3, padding=1),
            _Block(stem),
            ChannelNorm(stem),
            nn.Conv2d(stem, width, 2, stride=2),
            *(_Block(width, dilation) for dilation in (1, 2, 2, 1)),
            ChannelNorm(width),
        )
        self.objects = nn.Conv2d(width, NOTHING + 1, 1)
        self.pool = nn.Conv2d(width, features, 1)
        self.background = nn.Linear(features, len(BACKGROUNDS))
        # Only training uses it: it makes the pooled features, hence the Frechet distance, see the objects.
        self.presence = nn.Linear(features, len(OBJECTS))
        # Start from the base rates, or the first steps go into learning that most cells are empty.
        nn.init.zeros_(self.objects.bias)
        nn.init.constant_(self.objects.bias[NOTHING:], 9.0)
        nn.init.constant_(self.presence.bias, -3.5)

    def forward(self, rgb: Tensor) -> Prediction:
        """rgb [N, 3, 192, 192] float in 0..1."""
        x = self.trunk(rgb * 2 - 1)
        pooled = F.silu(self.pool(x)).mean((2, 3))
        return Prediction(self.objects(x), self.background(pooled), self.presence(pooled), pooled)

    @torch.no_grad()
    def detect(self, images: Tensor, threshold: float = 0.5) -> list[Detection]:
        """What each picture shows. images: float RGB [N, 192, 192, 3] in 0..1, on the scorer's device.

        A cell counts if an object is there with at least `threshold` probability and more than anywhere
        in the 5 x 5 cells around it. Raises ValueError on another shape or dtype.
        """
        detections = []
        for chunk in _chunks(images):
            out = self(chunk)
            logits = out.objects.float()
            # The log-odds of an object, not its probability: they do not saturate, so peaks have no ties.
            odds = logits[:, :NOTHING].logsumexp(1) - logits[:, NOTHING]
            peaks = (odds == F.max_pool2d(odds[:, None], 5, 1, 2)[:, 0]) & (odds.sigmoid() >= threshold)
            probability, name = logits.softmax(1)[:, :NOTHING].max(1)
            background = out.background.argmax(1).tolist()
            objects = [[] for _ in background]
            for n, y, x in peaks.nonzero().tolist():
                found = Found(OBJECTS[name[n, y, x]], x + 0.5, y + 0.5, float(probability[n, y, x]))
                objects[n].append(found)
            for items, index in zip(objects, background, strict=True):
                items.sort(key=lambda found: -found.probability)
                detections.append(Detection(tuple(items), BACKGROUNDS[index]))
        return detections

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Pooled features [N, 128] float64 on the CPU, for `frechet_distance`. images: as for `detect`."""
        return torch.cat([self(chunk).features.cpu().double() for chunk in _chunks(images)])


def _chunks(images: Tensor) -> list[Tensor]:
    """Checks pictures [N, 192, 192, 3] and splits them into float32 [<= CHUNK, 3, 192, 192]."""
    shape = (scenes.SIZE, scenes.SIZE, 3)
    if images.ndim != 4 or tuple(images.shape[1:]) != shape or not images.is_floating_point():
        raise ValueError(
            f"The scorer reads float RGB pictures [N, {scenes.SIZE}, {scenes.SIZE}, 3] in 0..1, "
            f"got {images.dtype} {list(images.shape)}."
        )
    return [chunk.permute(0, 3, 1, 2).float() for chunk in images.split(CHUNK) if len(chunk)]


def load_scorer(path: str | Path = WEIGHTS, device: str | torch.device = "cpu") -> SceneScorer:
    """The trained scorer in fp32. Raises FileNotFoundError or ValueError that says how to get good weights."""
    return load_module(SceneScorer(), Path(path)).to(device).requires_grad_(False)


# -------------------------------------------------------------------------------------------- judging


@dataclass(frozen=True)
class PromptSpec:
    """What a picture has to show to match its prompt.

    kind: one of `scenes.KINDS`. counts: object name -> how many, in the order of the prompt. position:
    where the first object stands of the second ("position" prompts only). background: only what the
    prompt says of it.
    """

    kind: str
    counts: dict[str, int]
    position: str | None = None
    background: Background = field(default_factory=Background)

    @classmethod
    def from_scene(cls, scene: scenes.Scene, caption: str) -> "PromptSpec":
        """The demands of a scene's caption."""
        words = split_words(caption)
        text = f" {' '.join(words)} "

        def said(name: str | None, phrases: dict[str, tuple[str, ...]]) -> str | None:
            return name if name and any(f" {phrase} " in text for phrase in phrases[name]) else None

        background = Background(
            color=scene.color if scene.color in words else None,
            ground=said(scene.ground, GROUND_PHRASES),
            sky=said(scene.sky, SKY_PHRASES),
        )
        counts = dict(Counter(placed.name for placed in scene.objects))
        return cls(scene.kind, counts, scene.position, background)


def judge(spec: PromptSpec, detection: Detection) -> dict[str, bool]:
    """Whether a picture passes, for the category of its prompt and, if the prompt names any, "background".

    single, counting: exactly the objects asked for, and no others. two: each of the two once.
    position: both there, and the first more to the asked side of the second than to any other; the most
    probable one counts where an object appears twice.
    """
    counts = detection.counts()
    if spec.kind in ("single", "counting"):
        passed = counts == spec.counts
    elif spec.kind == "two":
        passed = all(counts[name] == number for name, number in spec.counts.items())
    elif spec.kind == "position":
        first, second = (_most_probable(detection, name) for name in spec.counts)
        passed = first is not None and second is not None and _stands(first, second) == spec.position
    else:
        raise ValueError(f'Unknown kind of prompt "{spec.kind}"; there are {", ".join(scenes.KINDS)}.')
    verdict = {spec.kind: passed}
    if spec.background:
        verdict["background"] = spec.background.agrees(detection.background)
    return verdict


def _most_probable(detection: Detection, name: str) -> Found | None:
    candidates = [found for found in detection.objects if found.name == name]
    return max(candidates, key=lambda found: found.probability, default=None)


def _stands(first: Found, second: Found) -> str | None:
    """On which side of `second` the first stands; None on a diagonal."""
    dx, dy = first.x - second.x, first.y - second.y
    if abs(dx) == abs(dy):
        return None
    if abs(dx) > abs(dy):
        return "left" if dx < 0 else "right"
    return "above" if dy < 0 else "below"


def evaluate(scorer: SceneScorer, images: Tensor, specs: Sequence[PromptSpec]) -> dict[str, tuple[float, int]]:
    """Category -> (share of pictures that pass, number of pictures judged); "overall" is the mean of the shares.

    images: float RGB [N, 192, 192, 3] in 0..1, one for each of the N specs (N >= 1), else ValueError.
    """
    if len(images) != len(specs) or not len(specs):
        raise ValueError(f"One picture for each prompt is needed, got {len(images)} pictures and {len(specs)} prompts.")
    verdicts = [judge(spec, seen) for spec, seen in zip(specs, scorer.detect(images), strict=True)]
    scores = {}
    for category in (*scenes.KINDS, "background"):
        passed = [verdict[category] for verdict in verdicts if category in verdict]
        if passed:
            scores[category] = (sum(passed) / len(passed), len(passed))
    return {**scores, "overall": (sum(share for share, _ in scores.values()) / len(scores), len(specs))}


def frechet_distance(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Squared Frechet distance of two Gaussians fitted to features a [N, D] and b [M, D]; computed in float64.

    |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^(1/2)) for covariances A and B; 0 for equal sets. Like the FID,
    it is biased upwards for few pictures, so compare sets of one size only. Raises ValueError unless both
    are finite matrices of one width with at least two rows.
    """
    a, b = (torch.as_tensor(x).detach().to("cpu", torch.float64) for x in (a, b))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(
            f"Two feature matrices of one width and 2 or more rows are needed, got {a.shape} and {b.shape}."
        )
    if not (a.isfinite().all() and b.isfinite().all()):
        raise ValueError("The features hold NaN or infinity.")
    cov_a, cov_b = torch.atleast_2d(a.T.cov()), torch.atleast_2d(b.T.cov())
    # tr (A B)^(1/2) is the sum of the singular values of A^(1/2) B^(1/2); taking the roots first keeps the
    # many eigenvalues near zero from turning rounding errors of 1e-16 into 1e-8.
    cross = torch.linalg.svdvals(_symmetric_root(cov_a) @ _symmetric_root(cov_b)).sum()
    distance = (a.mean(0) - b.mean(0)).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(0.0, float(distance))


def _symmetric_root(matrix: Tensor) -> Tensor:
    """Square root of a symmetric positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).sqrt() @ vectors.T


def held_out_prompts(n: int, seed: int = PROMPT_SEED) -> list[tuple[str, PromptSpec]]:
    """The first n prompts of the benchmark, n / 4 of each kind in turn: (caption, what it demands).

    Objects and background of a prompt are a combination that training never saw. Only captions that name
    the whole combination are taken: "a cat" alone is a caption that training did see. Raises ValueError
    unless n is a positive multiple of 4.
    """
    if n < 1 or n % len(scenes.KINDS):
        raise ValueError(f"The number of prompts must be a positive multiple of {len(scenes.KINDS)}, got {n}.")
    prompts = []
    for i in range(n):
        rng = np.random.default_rng((seed, i))
        scene = scenes.sample_scene(rng, held=True, kind=scenes.KINDS[i % len(scenes.KINDS)])
        whole = Background(scene.color, scene.ground, scene.sky)
        while True:
            caption = scenes.caption(scene, rng)
            spec = PromptSpec.from_scene(scene, caption)
            if spec.background == whole:
                break
        prompts.append((caption, spec))
    return prompts
