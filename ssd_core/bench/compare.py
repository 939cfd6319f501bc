"""Decoders side by side on the builtin backbone: passes, seconds, agreement with AR, and the scorer's figures."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..decoders import DecodeConfig
from ..generate import Result, generate
from ..heads import Heads
from ..sampling import SamplingConfig
from .scorer import PromptSpec, SceneScorer, evaluate, frechet_distance


@dataclass(frozen=True)
class Contender:
    """A decoder with its knobs, and whether it drafts with the trained heads."""

    config: DecodeConfig
    trained: bool = True

    def __str__(self) -> str:
        return str(self.config) + ("" if self.trained or self.config.decoder == "ar" else " no heads")


@dataclass
class Row:
    """Figures of one contender. seconds and nfe: medians per picture; spread: (least, most) seconds.

    agreement: share of cells equal to AR's at the same seed. scores: category -> share of pictures that
    the scorer finds right. frechet: distance to real scenes in the scorer's features.
    """

    name: str
    nfe: float = 0.0
    seconds: float = 0.0
    spread: tuple[float, float] = (0.0, 0.0)
    speedup: float = 0.0
    acceptance: list[float] = field(default_factory=list)
    agreement: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    frechet: float | None = None

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self)


def measure_speed(
    backbone: Backbone,
    heads: Heads | None,
    contenders: Sequence[Contender],
    prompts: Sequence[str],
    sampling: SamplingConfig,
    *,
    repetitions: int = 1,
    on_run: Callable[[], None] = lambda: None,
) -> list[Row]:
    """One picture at a time, the contenders interleaved so that drifts of the machine hit all alike.

    Seeds are 0, 1, ... by prompt. The first contender is the reference of `speedup`. A first round warms up.
    """
    runs: list[list[Result]] = [[] for _ in contenders]
    for number, prompt in enumerate([prompts[0], *list(prompts) * repetitions]):
        for results, contender in zip(runs, contenders, strict=True):
            chosen = heads if contender.trained else None
            seed = (number - 1) % len(prompts) if number else 0
            result = generate(backbone, [prompt], [seed], contender.config, sampling, heads=chosen)
            if number:
                results.append(result)
            on_run()
    rows = []
    for contender, results in zip(contenders, runs, strict=True):
        seconds = [result.seconds for result in results]
        rounds = results[0].acceptance
        rows.append(
            Row(
                str(contender),
                nfe=statistics.median(result.nfe for result in results),
                seconds=statistics.median(seconds),
                spread=(min(seconds), max(seconds)),
                acceptance=[statistics.mean(result.acceptance[i] for result in results) for i in rounds],
                agreement=statistics.mean(
                    float((result.tokens == reference.tokens).float().mean())
                    for result, reference in zip(results, runs[0], strict=True)
                ),
            )
        )
    for row in rows:
        row.speedup = rows[0].seconds / row.seconds
    return rows


def measure_quality(
    backbone: Backbone,
    heads: Heads | None,
    contender: Contender,
    prompts: Sequence[tuple[str, PromptSpec]],
    scorer: SceneScorer,
    real: Tensor,
    sampling: SamplingConfig,
    *,
    batch: int = 16,
    on_run: Callable[[], None] = lambda: None,
) -> tuple[Row, Tensor]:
    """Scores one picture per prompt (seed: its number). real: features of real scenes for the Frechet distance.

    Returns the row without speed, and the tokens [N, rows, cols].
    """
    tokens = []
    for start in range(0, len(prompts), batch):
        texts = [text for text, _ in prompts[start : start + batch]]
        seeds = list(range(start, start + len(texts)))
        chosen = heads if contender.trained else None
        tokens.append(generate(backbone, texts, seeds, contender.config, sampling, heads=chosen).tokens)
        on_run()
    tokens = torch.cat(tokens)
    images = torch.cat([backbone.decode_image(chunk).cpu() for chunk in tokens.split(batch)])
    scores = evaluate(scorer, images, [spec for _, spec in prompts])
    row = Row(str(contender), scores={name: value[0] for name, value in scores.items()})
    row.frechet = frechet_distance(scorer.features(images), real)
    return row, tokens
