"""Grouped speculative decoding (So et al., ICCV 2025): SJD that keeps a draft if its like would do. Not exact.

A group is the draft and the codes whose probabilities rank next to its own, if they look alike: then the
probabilities of the whole group are compared, which accepts more. The kept token is the draft itself.
Unlike in the reference code, groups at the edge of the ranking are smaller instead of empty, and the
vocabulary is sorted once per pass instead of once per token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..session import DecodeEvent, DecodingSession
from .options import at_least
from .sjd import SJDOptions, jacobi
from .speculative import Ratio, at, speculate


@dataclass(frozen=True)
class GSDOptions(SJDOptions):
    """SJD's, and: group: ranks around the draft's, itself included. gap: how far p may differ within a group.

    distance: squared distance of two codes' embeddings within a group, as a share of the mean one between
    codes. The reference's 0.5 is absolute and belongs to one model; the share is ours, so that it has a
    meaning for every backbone.
    """

    group: int = field(default=14, metadata={"help": "codes that may stand in for a draft"})
    gap: float = field(default=0.15, metadata={"help": "largest difference of their probabilities"})
    distance: float = field(default=0.5, metadata={"help": "largest distance of their embeddings; 1: the mean one"})

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, group=self.group)
        at_least(0, gap=self.gap, distance=self.distance)


def gsd(session: DecodingSession, options: GSDOptions, rule: str) -> Iterator[DecodeEvent]:
    """SJD with the grouped test."""
    ratio = grouped(session.backbone, options)
    return speculate(session, options.window, jacobi(session, options.drafts), ratio, rule, coupled=options.coupled)


def grouped(backbone: Backbone, options: GSDOptions) -> Ratio:
    """log of sum p / sum q over each draft's group."""
    furthest = options.distance * mean_distance(backbone)

    def ratio(log_p: Tensor, log_q: Tensor, tokens: Tensor) -> Tensor:
        p, q = log_p.exp(), log_q.exp()
        ranking = p.sort(dim=-1, stable=True).indices
        rank = (ranking == tokens[..., None]).int().argmax(-1, keepdim=True)
        ranks = rank + torch.arange(options.group, device=p.device) - options.group // 2
        there = (ranks >= 0) & (ranks < p.shape[-1])
        codes = ranking.gather(-1, ranks.clamp(0, p.shape[-1] - 1))  # [..., group]
        near = (p.gather(-1, codes) - at(p, tokens)[..., None]).abs() < options.gap
        e = backbone.embed_codes(tokens).float()[..., None, :]
        alike = (backbone.embed_codes(codes).float() - e).square().sum(-1) < furthest
        member = there & (near & alike | (codes == tokens[..., None]))
        return (p.gather(-1, codes) * member).sum(-1).log() - (q.gather(-1, codes) * member).sum(-1).log()

    return ratio


def mean_distance(backbone: Backbone) -> float:
    """Mean squared distance between the embeddings of two codes, from 256 of them."""
    codes = torch.arange(0, backbone.codebook_size, max(1, backbone.codebook_size // 256), device=backbone.device)
    return 2 * float(backbone.embed_codes(codes).float().var(0, correction=0).sum())
