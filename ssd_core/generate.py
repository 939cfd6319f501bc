"""Prompts in, pictures and their statistics out: the plain Python door to the decoders."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .backbones.base import Backbone
from .decoders import DecodeConfig, decode
from .grid import TokenGrid
from .heads import Heads
from .sampling import SamplingConfig
from .session import DecodeEvent, DecodingSession


@dataclass(frozen=True)
class Result:
    """What a run drew and what it took.

    tokens int64 [B, rows, cols]; nfe: backbone passes; seconds: the decoder's own time, prefill included,
    pixels not; acceptance: share of tokens that each verify round below the first row kept, by round.
    """

    backbone: str
    prompts: list[str]
    negatives: list[str] | None
    seeds: list[int]
    config: DecodeConfig
    sampling: SamplingConfig
    trained_heads: bool
    tokens: Tensor
    nfe: int
    planned_nfe: int | None
    seconds: float
    acceptance: dict[int, float] = field(default_factory=dict)

    def metadata(self, image: int) -> dict[str, str]:
        """What it takes to draw one image again, and what it took, for the text fields of its file."""
        sampling = self.sampling
        facts = {
            "prompt": self.prompts[image],
            "negative": self.negatives[image] if self.negatives else "",
            "seed": str(self.seeds[image]),
            "decoder": str(self.config),
            "heads": "trained" if self.trained_heads else "none",
            "sampling": f"cfg={sampling.cfg} temperature={sampling.temperature} "
            f"top_k={sampling.top_k} top_p={sampling.top_p}",
            "backbone": self.backbone,
            "nfe": str(self.nfe),
            "seconds": f"{self.seconds:.3f}",
            "software": "ComfyUI-SSD",
        }
        return {name: value for name, value in facts.items() if value}


def generate(
    backbone: Backbone,
    prompts: list[str],
    seeds: list[int],
    config: DecodeConfig | None = None,
    sampling: SamplingConfig | None = None,
    *,
    heads: Heads | None = None,
    negatives: list[str] | None = None,
    grid: TokenGrid | None = None,
    on_event: Callable[[DecodeEvent], None] | None = None,
) -> Result:
    """Decodes a batch, one prompt and one seed per image; `backbone.decode_image(result.tokens)` paints it.

    config: by default SSD with the family's preset; sampling: by default the backbone's own. on_event sees
    every event, off the decoder's clock; an exception it raises ends the run.
    """
    config = config or DecodeConfig.preset(backbone.family)
    session = DecodingSession(
        backbone, prompts, seeds, sampling, grid=grid, negatives=negatives, lookahead=config.lookahead
    )
    kept: dict[int, list[Tensor]] = defaultdict(list)
    for event in decode(session, config, heads, synchronize=on_event is not None):
        if event.round is not None and event.rows.start > 0:
            kept[event.round].append(event.accepted.flatten())
        if on_event:
            on_event(event)
    return summarize(session, config, heads, prompts, negatives, kept)


def summarize(
    session: DecodingSession,
    config: DecodeConfig,
    heads: Heads | None,
    prompts: list[str],
    negatives: list[str] | None,
    kept: dict[int, list[Tensor]],
) -> Result:
    """The Result of a session that has decoded; kept: the `accepted` of its verify passes, by round."""
    backbone = session.backbone
    return Result(
        backbone=f"{backbone.name} {backbone.fingerprint} {backbone.dtype} {backbone.device.type}",
        prompts=prompts,
        negatives=negatives,
        seeds=session.noise.seeds,
        config=config,
        sampling=session.sampling,
        trained_heads=heads is not None,
        tokens=session.cells(range(session.grid.rows)).clone(),
        nfe=session.nfe,
        planned_nfe=config.planned_nfe(session),
        seconds=session.seconds,
        acceptance={number: float(torch.cat(cells).float().mean()) for number, cells in sorted(kept.items())},
    )
