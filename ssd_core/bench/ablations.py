"""The paper's ablations as named sets of contenders, and first-round acceptance by direction (Figure 1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..correction import RULES
from ..decoders import DecodeConfig
from ..heads import HeadSet
from ..sampling import SamplingConfig
from ..schedule import Schedule
from ..session import DecodingSession
from .contenders import Contender

ABLATIONS = {
    "rules": "update rules at the preset's schedule (Table 3)",
    "rounds": "verify rounds on single rows (Table 4)",
    "lookahead": "rows drafted at once, b = 5 and i = 4 (Table 20)",
    "staged": "joint against staged verification of two rows (Table 21)",
    "heads": "heads files given with --heads, drafts unverified (Tables 5 and 19)",
}


def contenders(name: str, base: DecodeConfig) -> list[Contender]:
    """The configurations of an ablation; base: the family's preset. "heads" has one, for every file."""
    k_h = base.schedule.k_h

    def ssd(rule: str = base.rule, **knobs: int) -> Contender:
        return Contender(replace(base, decoder="ssd", schedule=Schedule(**{"k_h": k_h, **knobs}), rule=rule))

    if name == "rules":
        return [Contender(replace(base, decoder="ssd", rule=rule)) for rule in RULES]
    if name == "rounds":
        return [ssd(b=r) for r in range(5)]
    if name == "lookahead":
        return [ssd(b=5, i=4 if k_v > 1 else 0, k_v=k_v) for k_v in (1, 2, 3)]
    if name == "staged":
        return [ssd(b=9, k_v=2), *(ssd(b=5, i=i, k_v=2) for i in (1, 2, 3, 4))]
    if name == "heads":
        return [ssd(b=0)]
    raise ValueError(f'Unknown ablation "{name}": choose one of {", ".join(ABLATIONS)}.')


@dataclass(frozen=True)
class Direction:
    """Share of drafts that a first round keeps: the likeliest code of a head, `distance` cells away."""

    distance: int
    horizontal: float | None
    vertical: float | None

    def as_dict(self) -> dict:
        """For files."""
        return asdict(self)

    def as_texts(self) -> dict[str, str]:
        """For tables."""
        return {
            "distance": str(self.distance),
            "to the right": "" if self.horizontal is None else f"{self.horizontal:.1%}",
            "below": "" if self.vertical is None else f"{self.vertical:.1%}",
        }


@torch.inference_mode()
def measure_directions(
    backbone: Backbone, heads: HeadSet, prompts: Sequence[str], tokens: Tensor, sampling: SamplingConfig
) -> list[Direction]:
    """Mean min(1, p / q) of drafts on AR's pictures [N, rows, cols], where every context is right."""
    offsets = range(1, max(heads.k_h, heads.k_v) + 1)
    sums = {(vertical, offset): [0.0, 0] for vertical in (False, True) for offset in offsets}
    for prompt, picture in zip(prompts, tokens, strict=True):
        session = DecodingSession(backbone, [prompt], [0], sampling)
        grid = session.grid
        session.cells(range(grid.rows)).copy_(picture[None])
        states = torch.cat((session.prefill(), session.forward(0, grid.size - 1)), 1)
        h = states.unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
        e = session.embed(session.tokens[:, : grid.size]).unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
        for y in range(grid.rows):
            log_p = session.log_probs(h[:, y])
            for offset in offsets:
                if offset <= heads.k_h and offset < grid.cols:
                    h_hat = heads.draft_right(offset, h[:, y, :-offset], e[:, y, :-offset])
                    _add(sums[False, offset], session, log_p[:, offset:], heads, h_hat)
                if offset <= heads.k_v and offset <= y:
                    h_hat = heads.draft_below(offset, h[:, y - offset], e[:, y - offset])
                    _add(sums[True, offset], session, log_p, heads, h_hat)
    share = {key: total / count if count else None for key, (total, count) in sums.items()}
    return [Direction(offset, share[False, offset], share[True, offset]) for offset in offsets]


def _add(total: list, session: DecodingSession, log_p: Tensor, heads: HeadSet, h_hat: Tensor) -> None:
    log_q, drafts = session.log_probs(h_hat, heads).max(-1, keepdim=True)
    kept = (log_p.gather(-1, drafts) - log_q).exp().clamp(max=1)
    total[0] += float(kept.sum())
    total[1] += kept.numel()
