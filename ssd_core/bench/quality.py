"""How good the pictures are: the scorer's figures, distance to real scenes, and how far a decoder is from AR."""

import time
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
from .scorer import PromptSpec, SceneScorer, frechet_distance, judge
from .store import Store, weights_of

CATEGORIES = (*scenes.KINDS, "background")
CHUNK = 16  # pictures painted at once
RESAMPLES = 2000  # of the captions, for a confidence interval


@dataclass
class Quality:
    """One contender's figures, each over several sets of seeds.

    scores: category -> share of pictures that the scorer finds right, "overall" the mean of the categories; its
    interval is over the captions. frechet: distance to real scenes in the scorer's features; nll: nats per cell
    under AR at temperature 1 and without filters; agreement: share of cells equal to AR's of the same seed.
    shift: distance of the mean features of a prompt's pictures from AR's, as a share of AR's own spread (the root
    of the summed variances); spread: the summed variances, over AR's less 1 (Table 11). Those two need two sets.
    passed fp64 [N, categories]: share of each caption's pictures that pass, NaN where a category does not apply.
    """

    name: str
    nfe: float | None = None
    scores: dict[str, Estimate] = field(default_factory=dict)
    frechet: Estimate | None = None
    nll: Estimate | None = None
    agreement: Estimate | None = None
    shift: float | None = None
    spread: float | None = None
    passed: np.ndarray | None = field(default=None, repr=False)

    @property
    def overall(self) -> Estimate:
        """The mean of the categories."""
        return self.scores["overall"]

    def as_dict(self) -> dict:
        """For files."""
        return {name: value for name, value in asdict(self).items() if name != "passed"}

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


def gain(one: Quality, other: Quality) -> Estimate:
    """By how much the first scores better overall; paired by caption, so that easy captions cancel out."""
    return _estimate(np.stack((one.passed, other.passed)), lambda scores: scores[0] - scores[1])


def _estimate(passed: np.ndarray, combine: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """Of overall scores [K, ...] of `passed` [K, N, categories]: bootstrap over captions, kind by kind.

    A single caption of a kind says nothing of chance: no margin then.
    """
    kinds, count = len(scenes.KINDS), passed.shape[1]
    groups = [np.arange(first, count, kinds) for first in range(min(kinds, count))]  # captions take turns in kinds
    rng = np.random.default_rng(0)
    picks = np.concatenate([rng.choice(group, (RESAMPLES, len(group))) for group in groups], 1)
    scores = np.stack([np.nanmean(np.nanmean(each[picks], 1), -1) for each in passed])
    mean = float(combine(np.nanmean(np.nanmean(passed, 1), -1)))
    fewest = min(map(len, groups))
    if fewest < 2:
        return Estimate(mean)
    unbiased = (fewest / (fewest - 1)) ** 0.5  # samples of n from n vary too little
    return Estimate(mean, 1.96 * unbiased * float(combine(scores).std()), count)


@dataclass(frozen=True)
class Drawn:
    """What a contender drew: tokens [S, N, rows, cols] for S sets of seeds and N prompts; mean passes.

    nll [S, N]: nats per cell under AR. seconds: what it took, when it was not taken from a store.
    """

    tokens: Tensor
    nfe: float
    nll: Tensor
    seconds: float


def draw(
    backbone: Backbone,
    heads: Heads | None,
    contender: Contender,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    *,
    sets: int = 1,
    batch: int = 24,
    store: Store | None = None,
    on_run: Callable[[], None] = lambda: None,
) -> Drawn:
    """One picture per prompt and set; the seed of prompt i in set s is 10000 s + i. Passes are a batch's.

    Batches that `store` has are not drawn again.
    """
    store, chosen = store or Store(), heads if contender.needs_heads else None
    common = {"what": "pictures", "decoder": str(contender), "sampling": vars(sampling), **weights_of(backbone, chosen)}
    runs = []
    for s in range(sets):
        for start in range(0, len(prompts), batch):
            texts = list(prompts[start : start + batch])
            seeds = [10000 * s + start + i for i in range(len(texts))]

            def run(texts=texts, seeds=seeds) -> dict:
                began = time.monotonic()
                result = generate(backbone, texts, seeds, contender.config, sampling, heads=chosen)
                nll = negative_log_likelihood(backbone, texts, result.tokens, sampling)
                facts = {"nfe": result.nfe, "seconds": time.monotonic() - began}
                return {"tokens": result.tokens.tolist(), "nll": nll.tolist(), **facts}

            runs.append(store.recall({**common, "prompts": texts, "seeds": seeds}, run))
            on_run()
    tokens, nll = (torch.cat([torch.tensor(each[name]) for each in runs]) for name in ("tokens", "nll"))
    shape = sets, len(prompts)
    nfe, seconds = (sum(each[name] for each in runs) for name in ("nfe", "seconds"))
    return Drawn(tokens.to(backbone.device).unflatten(0, shape), nfe / len(runs), nll.unflatten(0, shape), seconds)


def judge_drawn(
    backbone: Backbone,
    name: str,
    drawn: Drawn,
    specs: Sequence[PromptSpec],
    scorer: SceneScorer,
    real: Tensor,
    reference: Drawn | None = None,
) -> Quality:
    """The figures of some pictures; real: features of real scenes; reference: AR's pictures of the same seeds."""
    verdicts, features = [], []
    for tokens in drawn.tokens:
        images = torch.cat([backbone.decode_image(chunk).cpu() for chunk in tokens.split(CHUNK)])
        verdicts.append(verdicts_of(scorer, images, specs))
        features.append(torch.as_tensor(scorer.features(images)))
    quality = Quality(
        name,
        nfe=drawn.nfe,
        frechet=Estimate.of([frechet_distance(each, real) for each in features]),
        nll=Estimate.of(drawn.nll.mean(1).tolist()),
    )
    _score(quality, verdicts)
    if reference is not None:
        same = (drawn.tokens == reference.tokens).float().flatten(1).mean(1)
        quality.agreement = Estimate.of(same.tolist())
        if len(drawn.tokens) > 1:
            quality.shift, quality.spread = deviation(
                torch.stack(features), _features(backbone, scorer, reference.tokens)
            )
    return quality


def verdicts_of(scorer: SceneScorer, images: Tensor, specs: Sequence[PromptSpec]) -> np.ndarray:
    """fp64 [N, categories]: 1 for a picture that passes, 0 for one that does not, NaN where nothing is asked."""
    judged = [judge(spec, seen) for spec, seen in zip(specs, scorer.detect(images), strict=True)]
    return np.array([[float(each.get(category, "nan")) for category in CATEGORIES] for each in judged])


def _score(quality: Quality, verdicts: Sequence[np.ndarray]) -> None:
    """Fills in `passed` and `scores`, for the verdicts of each set."""
    quality.passed = np.mean(verdicts, 0)
    for number, category in enumerate(CATEGORIES):
        shares = [np.nanmean(each[:, number]) for each in verdicts if not np.isnan(each[:, number]).all()]
        if shares:
            quality.scores[category] = Estimate(float(np.mean(shares)))
    quality.scores["overall"] = _estimate(quality.passed[None], lambda scores: scores[0])


def judge_real(scorer: SceneScorer, real: Tensor, count: int, seed: int) -> Quality:
    """The figures of real scenes: the best that pictures can be expected to reach."""
    images, specs = real_scenes(count, seed)
    quality = Quality("real scenes", frechet=Estimate(frechet_distance(scorer.features(images), real)))
    _score(quality, [verdicts_of(scorer, images, specs)])
    return quality


def deviation(features: Tensor, reference: Tensor) -> tuple[float, float]:
    """(shift, spread) of features [S, N, F] of S pictures for each of N prompts, against reference [S, N, F].

    Means of S pictures differ by chance alone: that part, the variance of the differences over S, is taken off the
    squared distance of the means, which may leave nothing of it.
    """
    own, other = features.double(), reference.double()
    variance, base, chance = (each.var(0).sum(-1).mean() for each in (own, other, own - other))
    squared = (own.mean(0) - other.mean(0)).square().sum(-1).mean() - chance / len(own)
    return float(squared.clamp(min=0).sqrt() / base.sqrt()), float(variance / base - 1)


def _features(backbone: Backbone, scorer: SceneScorer, tokens: Tensor) -> Tensor:
    """[S, N, F]"""
    images = (backbone.decode_image(chunk).cpu() for chunk in tokens.flatten(0, 1).split(CHUNK))
    features = torch.cat([torch.as_tensor(scorer.features(chunk)) for chunk in images])
    return features.unflatten(0, tokens.shape[:2])


@torch.inference_mode()
def negative_log_likelihood(
    backbone: Backbone, prompts: Sequence[str], tokens: Tensor, sampling: SamplingConfig
) -> Tensor:
    """fp64 [N]: nats per cell of pictures [N, rows, cols] under AR, guided as in `sampling`, temperature 1, no filters.

    Takes one pass for all of them.
    """
    session = DecodingSession(backbone, list(prompts), [0] * len(tokens), SamplingConfig(cfg=sampling.cfg))
    grid = session.grid
    session.cells(range(grid.rows)).copy_(tokens)
    states = torch.cat((session.prefill(), session.forward(0, grid.size - 1)), 1)
    states = states.unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for y in range(grid.rows):  # the distributions of a whole picture would be gigabytes
        log_p = session.log_probs(states[:, y])
        total -= log_p.gather(-1, session.cells(range(y, y + 1))[:, 0, :, None]).sum((1, 2)).double().cpu()
    return total / tokens[0].numel()


def real_scenes(count: int, seed: int) -> tuple[Tensor, list[PromptSpec]]:
    """Held-out scenes, equally many of each kind: RGB [N, 192, 192, 3] in 0..1, and what their captions demand."""
    kinds = scenes.KINDS
    drawn = [scenes.example(seed, i, held=True, kind=kinds[i % len(kinds)]) for i in range(count)]
    pictures = np.stack([picture for _, _, picture in drawn])
    specs = [PromptSpec.from_scene(scene, text) for scene, text, _ in drawn]
    return torch.from_numpy(pictures).float() / 255, specs
