"""Decoders side by side: passes, seconds, what a pass costs, agreement with AR."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch

from ..backbones.base import Backbone
from ..generate import Result, generate
from ..grid import TokenGrid
from ..heads import Heads
from ..sampling import SamplingConfig
from .contenders import Contender
from .meter import Meter, bandwidth, peak_bytes, reset_peak


@dataclass
class Speed:
    """One contender's figures, per picture.

    nfe and seconds: medians; spread: (least, most) seconds; speedup: in seconds, over the first contender.
    ms_per_pass: medians' quotient; cells_per_pass: of the picture; fed_per_pass: tokens that a pass feeds.
    acceptance: share of tokens kept by each verify round below the first row. agreement: share of cells equal
    to the first contender's. peak_bytes: of tensors, on CUDA devices. bytes_per_pass: weights and cache that a
    pass reads; bandwidth_share: of what copying reaches on this machine.
    """

    name: str
    nfe: float
    seconds: float
    spread: tuple[float, float]
    speedup: float
    ms_per_pass: float
    cells_per_pass: float
    fed_per_pass: float
    acceptance: list[float] = field(default_factory=list)
    agreement: float = 1.0
    peak_bytes: int | None = None
    bytes_per_pass: float = 0.0
    bandwidth_share: float = 0.0

    def as_dict(self) -> dict:
        """For files."""
        return asdict(self)

    def as_texts(self) -> dict[str, str]:
        """For tables."""
        return {
            "decoder": self.name,
            "passes": f"{self.nfe:g}",
            "seconds": f"{self.seconds:.2f}",
            "least-most": f"{self.spread[0]:.2f}-{self.spread[1]:.2f}",
            "speed-up": f"{self.speedup:.2f}x",
            "ms per pass": f"{self.ms_per_pass:.1f}",
            "cells per pass": f"{self.cells_per_pass:.2f}",
            "fed per pass": f"{self.fed_per_pass:.1f}",
            "kept per round": " ".join(f"{share:.0%}" for share in self.acceptance),
            "equal to AR": f"{self.agreement:.1%}",
            "peak GB": "" if self.peak_bytes is None else f"{self.peak_bytes / 1e9:.2f}",
            "MB per pass": f"{self.bytes_per_pass / 1e6:.0f}",
            "of bandwidth": f"{self.bandwidth_share:.0%}",
        }


def measure_speed(
    backbone: Backbone,
    heads: Heads | None,
    contenders: Sequence[Contender],
    prompts: Sequence[str],
    sampling: SamplingConfig,
    *,
    repetitions: int = 1,
    grid: TokenGrid | None = None,
    on_run: Callable[[], None] = lambda: None,
) -> list[Speed]:
    """One picture at a time, the contenders interleaved so that drifts of the machine hit all alike.

    Seeds are 0, 1, ... by prompt. The first contender is the reference. A first round warms up and counts what
    passes feed and read.
    """
    runs: list[list[Result]] = [[] for _ in contenders]
    meters, peaks = [], []
    for number, prompt in enumerate([prompts[0], *list(prompts) * repetitions]):
        for results, contender in zip(runs, contenders, strict=True):
            options = dict(heads=heads if contender.trained else None, grid=grid)
            seed = (number - 1) % len(prompts) if number else 0
            if number:
                results.append(generate(backbone, [prompt], [seed], contender.config, sampling, **options))
            else:
                reset_peak(backbone.device)
                with Meter(backbone) as meter:
                    generate(backbone, [prompt], [seed], contender.config, sampling, **options)
                meters.append(meter)
                peaks.append(peak_bytes(backbone.device))
            on_run()
    fastest = bandwidth(backbone.device)
    reference = statistics.median(result.seconds for result in runs[0])
    rows = []
    for contender, results, meter, peak in zip(contenders, runs, meters, peaks, strict=True):
        every = [result.seconds for result in results]
        seconds, nfe = statistics.median(every), statistics.median(result.nfe for result in results)
        pairs = list(zip(results, runs[0], strict=True))
        rows.append(
            Speed(
                name=str(contender),
                nfe=nfe,
                seconds=seconds,
                spread=(min(every), max(every)),
                speedup=reference / seconds,
                ms_per_pass=1e3 * seconds / nfe,
                cells_per_pass=results[0].tokens[0].numel() / nfe,
                fed_per_pass=meter.tokens / meter.passes,
                acceptance=[statistics.mean(result.acceptance[i] for result in results) for i in results[0].acceptance],
                agreement=statistics.mean(float(torch.eq(a.tokens, b.tokens).float().mean()) for a, b in pairs),
                peak_bytes=peak,
                bytes_per_pass=meter.bytes_per_pass(),
                bandwidth_share=meter.bytes_per_pass() * nfe / seconds / fastest,
            )
        )
    return rows
