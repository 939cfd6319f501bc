"""How good the pictures are: the scorer's figures, distance to real scenes, and how far a decoder is from AR."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..builtin import scenes
from ..generate import generate
from ..heads import Heads
from ..sampling import SamplingConfig
from ..session import DecodingSession
from .contenders import Contender
from .figures import Estimate
from .scorer import PromptSpec, SceneScorer, evaluate, frechet_distance


@dataclass
class Quality:
    """One contender's figures, each over several sets of seeds.

    scores: category -> share of pictures that the scorer finds right; frechet: distance to real scenes in its
    features; nll: nats per cell under AR at temperature 1 and without filters; agreement: share of cells equal
    to AR's of the same seed. shift: distance of the mean features of a prompt's pictures from AR's, as a share
    of AR's own spread (the root of the summed variances); spread: the summed variances, over AR's less 1
    (Table 11). Those two need two sets.
    """

    name: str
    nfe: float | None = None
    scores: dict[str, Estimate] = field(default_factory=dict)
    frechet: Estimate | None = None
    nll: Estimate | None = None
    agreement: Estimate | None = None
    shift: float | None = None
    spread: float | None = None

    def as_dict(self) -> dict:
        """For files."""
        return asdict(self)

    def as_texts(self) -> dict[str, str]:
        """For tables."""
        return {
            "decoder": self.name,
            "passes": "" if self.nfe is None else f"{self.nfe:g}",
            **{f"{name} %": value.text(100) for name, value in self.scores.items()},
            "Frechet": self.frechet.text(digits=2) if self.frechet else "",
            "nats per cell": self.nll.text(digits=3) if self.nll else "",
            "equal to AR %": self.agreement.text(100) if self.agreement else "",
            "shift": "" if self.shift is None else f"{self.shift:.2f}",
            "spread": "" if self.spread is None else f"{self.spread:+.0%}",
        }


@dataclass(frozen=True)
class Drawn:
    """What a contender drew: tokens [S, N, rows, cols] for S sets of seeds and N prompts; mean passes."""

    tokens: Tensor
    nfe: float


def draw(
    backbone: Backbone,
    heads: Heads | None,
    contender: Contender,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    *,
    sets: int = 1,
    batch: int = 16,
    on_run: Callable[[], None] = lambda: None,
) -> Drawn:
    """One picture per prompt and set; the seed of prompt i in set s is s * N + i. Passes are a batch's."""
    tokens, passes = [], []
    chosen = heads if contender.trained else None
    for s in range(sets):
        for start in range(0, len(prompts), batch):
            texts = list(prompts[start : start + batch])
            seeds = [s * len(prompts) + start + i for i in range(len(texts))]
            result = generate(backbone, texts, seeds, contender.config, sampling, heads=chosen)
            tokens.append(result.tokens)
            passes.append(result.nfe)
            on_run()
    return Drawn(torch.cat(tokens).unflatten(0, (sets, len(prompts))), sum(passes) / len(passes))


def judge_drawn(
    backbone: Backbone,
    name: str,
    drawn: Drawn,
    prompts: Sequence[tuple[str, PromptSpec]],
    scorer: SceneScorer,
    real: Tensor,
    sampling: SamplingConfig,
    reference: Drawn | None = None,
    *,
    batch: int = 16,
) -> Quality:
    """The figures of some pictures; real: features of real scenes; reference: AR's pictures of the same seeds."""
    specs = [spec for _, spec in prompts]
    texts = [text for text, _ in prompts]
    scores, distances, likelihoods = [], [], []
    for tokens in drawn.tokens:
        images = torch.cat([backbone.decode_image(chunk).cpu() for chunk in tokens.split(batch)])
        scores.append(evaluate(scorer, images, specs))
        distances.append(frechet_distance(scorer.features(images), real))
        likelihoods.append(mean_nll(backbone, texts, tokens, sampling, batch=batch))
    quality = Quality(
        name,
        nfe=drawn.nfe,
        scores={category: Estimate.of([each[category][0] for each in scores]) for category in scores[0]},
        frechet=Estimate.of(distances),
        nll=Estimate.of(likelihoods),
    )
    if reference is not None:
        same = (drawn.tokens == reference.tokens).float().flatten(1).mean(1)
        quality.agreement = Estimate.of(same.tolist())
        if len(drawn.tokens) > 1:
            quality.shift, quality.spread = deviation(
                *(_features(backbone, scorer, each.tokens, batch) for each in (drawn, reference))
            )
    return quality


def judge_real(scorer: SceneScorer, real: Tensor, count: int, seed: int) -> Quality:
    """The figures of real scenes: the best that pictures can be expected to reach."""
    images, specs = real_scenes(count, seed)
    scores = {category: Estimate(share) for category, (share, _) in evaluate(scorer, images, specs).items()}
    return Quality("real scenes", scores=scores, frechet=Estimate(frechet_distance(scorer.features(images), real)))


def deviation(features: Tensor, reference: Tensor) -> tuple[float, float]:
    """(shift, spread) of features [S, N, F] of S pictures for each of N prompts, against reference [S, N, F].

    Means of S pictures differ by chance alone: that part, the variance of the differences over S, is taken off the
    squared distance of the means, which may leave nothing of it.
    """
    own, other = features.double(), reference.double()
    variance, base, chance = (each.var(0).sum(-1).mean() for each in (own, other, own - other))
    squared = (own.mean(0) - other.mean(0)).square().sum(-1).mean() - chance / len(own)
    return float(squared.clamp(min=0).sqrt() / base.sqrt()), float(variance / base - 1)


def _features(backbone: Backbone, scorer: SceneScorer, tokens: Tensor, batch: int) -> Tensor:
    """[S, N, F]"""
    images = (backbone.decode_image(chunk).cpu() for chunk in tokens.flatten(0, 1).split(batch))
    features = torch.cat([torch.as_tensor(scorer.features(chunk)) for chunk in images])
    return features.unflatten(0, tokens.shape[:2])


@torch.inference_mode()
def mean_nll(
    backbone: Backbone, prompts: Sequence[str], tokens: Tensor, sampling: SamplingConfig, *, batch: int = 16
) -> float:
    """Nats per cell of pictures [N, rows, cols] under AR: guided as in `sampling`, temperature 1, no filters."""
    plain = SamplingConfig(cfg=sampling.cfg)
    total = 0.0
    for start in range(0, len(tokens), batch):
        some = tokens[start : start + batch]
        session = DecodingSession(backbone, list(prompts[start : start + batch]), [0] * len(some), plain)
        grid = session.grid
        session.cells(range(grid.rows)).copy_(some)
        states = torch.cat((session.prefill(), session.forward(0, grid.size - 1)), 1)
        states = states.unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
        for y in range(grid.rows):  # the distributions of a whole picture would be gigabytes
            log_p = session.log_probs(states[:, y])
            total -= float(log_p.gather(-1, session.cells(range(y, y + 1))[:, 0, :, None]).sum())
    return total / tokens.numel()


def real_scenes(count: int, seed: int) -> tuple[Tensor, list[PromptSpec]]:
    """Held-out scenes, equally many of each kind: RGB [N, 192, 192, 3] in 0..1, and what their captions demand."""
    kinds = scenes.KINDS
    drawn = [scenes.example(seed, i, held=True, kind=kinds[i % len(kinds)]) for i in range(count)]
    pictures = np.stack([picture for _, _, picture in drawn])
    specs = [PromptSpec.from_scene(scene, text) for scene, text, _ in drawn]
    return torch.from_numpy(pictures).float() / 255, specs
