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
    pixels not; acceptance: share of tokens that each verify round kept, by round number.
    """

    backbone: str
    prompts: list[str]
    seeds: list[int]
    config: DecodeConfig
    sampling: SamplingConfig
    tokens: Tensor
    nfe: int
    planned_nfe: int | None
    seconds: float
    acceptance: dict[int, float] = field(default_factory=dict)

    def metadata(self, image: int) -> dict[str, str]:
        """Facts about one image, for the text fields of its file."""
        sampling = self.sampling
        return {
            "prompt": self.prompts[image],
            "seed": str(self.seeds[image]),
            "decoder": str(self.config),
            "nfe": str(self.nfe),
            "seconds": f"{self.seconds:.3f}",
            "sampling": f"cfg={sampling.cfg} temperature={sampling.temperature} "
            f"top_k={sampling.top_k} top_p={sampling.top_p}",
            "backbone": self.backbone,
            "software": "ComfyUI-SSD",
        }


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

    on_event sees every event, off the decoder's clock; an exception it raises ends the run.
    """
    config = config or DecodeConfig()
    session = DecodingSession(
        backbone, prompts, seeds, sampling, grid=grid, negatives=negatives, lookahead=config.lookahead
    )
    kept: dict[int, list[Tensor]] = defaultdict(list)
    for event in decode(session, config, heads):
        if event.round is not None:
            kept[event.round].append(event.accepted.float().mean())
        if on_event:
            on_event(event)
    tokens = event.tokens.clone()  # waits for the device: the clock of the last event may still run ahead
    return Result(
        backbone=backbone.name,
        prompts=prompts,
        seeds=seeds,
        config=config,
        sampling=session.sampling,
        tokens=tokens,
        nfe=session.nfe,
        planned_nfe=config.planned_nfe(session),
        seconds=session.seconds,
        acceptance={number: float(torch.stack(shares).mean()) for number, shares in sorted(kept.items())},
    )
