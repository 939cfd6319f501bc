"""Small random backbones that take milliseconds: the real contract, the real cache, end-of-line cells too."""

import torch
from torch import Tensor

from ssd_core.backbones.base import Prompt
from ssd_core.backbones.builtin import BuiltinBackbone
from ssd_core.builtin.tokenizer import ImageTokenizer
from ssd_core.builtin.transformer import BuiltinTransformer, TransformerConfig
from ssd_core.cache import causal_mask
from ssd_core.decoders import decode
from ssd_core.grid import TokenGrid
from ssd_core.heads import HeadSet
from ssd_core.session import DecodingSession


class FakeBackbone(BuiltinBackbone):
    """A random transformer over `codes` codes on any grid, with or without end-of-line cells."""

    def __init__(
        self, rows: int = 5, cols: int = 6, *, eol: bool = True, codes: int = 32, seed: int = 0, layers: int = 2
    ):
        torch.manual_seed(seed)
        config = TransformerConfig(
            hidden_size=32, num_layers=layers, num_heads=2, intermediate_size=48, codebook_size=codes + 1, grid=8
        )
        transformer = BuiltinTransformer(config)
        for name, parameter in transformer.named_parameters():
            if "norm" not in name:  # large weights: greedy tokens vary, and depend on all of the context
                torch.nn.init.normal_(parameter, std=1.0 if "embedding" in name else 1.5 * parameter.shape[-1] ** -0.5)
        super().__init__(transformer, ImageTokenizer(width=16))
        self.codebook_size = codes
        self._grid = TokenGrid(rows, cols, eol)

    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        return self._grid

    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        texts = [*prompts, *(negatives or [])]
        length = max(len(text) + 1 for text in texts)
        ids, mask = torch.zeros(2, len(texts), length, dtype=torch.long)
        for row, keep, text in zip(ids, mask, texts, strict=True):
            row[length - len(text) - 1 :] = torch.tensor([1, *(ord(letter) % 90 + 2 for letter in text)])
            keep[length - len(text) - 1 :] = 1
        offset = torch.full((len(texts),), length - self.transformer.config.prefix)
        return Prompt(ids, mask.bool(), offset)

    def logits(self, h: Tensor) -> Tensor:
        return super().logits(h)[..., : self.codebook_size]


def random_heads(backbone: BuiltinBackbone, k_h: int = 3, k_v: int = 3) -> HeadSet:
    """Heads with random weights: drafts that are mostly wrong."""
    torch.manual_seed(1)
    return HeadSet(backbone.hidden_size, backbone.fingerprint, k_h, k_v).eval()


def run(backbone, config, *, heads=None, sampling=None, prompts=("abc",), seeds=(0,), grid=None, negatives=None):
    """Decodes; the last event and the session."""
    session = DecodingSession(
        backbone, list(prompts), list(seeds), sampling, grid=grid, negatives=negatives, lookahead=config.lookahead
    )
    *_, last = decode(session, config, heads)
    return last, session


@torch.no_grad()
def uncached_states(session: DecodingSession, tokens: Tensor) -> Tensor:
    """States [rows, size, D] that predict cells 0, 1, ... of raster tokens [B, size]: one pass, no cache."""
    backbone, prompt = session.backbone, session.prompt
    x = torch.cat((backbone.embed_text(prompt.ids), session.embed(tokens[:, :-1])), 1)
    slots = torch.arange(x.shape[1])
    real = torch.cat((prompt.mask, torch.ones(len(x), tokens.shape[1] - 1, dtype=torch.bool)), 1)
    mask = (slots <= slots[:, None]) & real[:, None, None] | torch.eye(len(slots), dtype=torch.bool)
    h = backbone.forward(x, slots - prompt.offset[:, None], mask, None, None)
    return h[:, prompt.length - 1 :]


@torch.no_grad()
def masked_states(session: DecodingSession, tokens: Tensor, cells: Tensor, sees: Tensor) -> Tensor:
    """States [rows, n, D] after tokens [B, n] at raster cells [n], in one pass without cache; sees bool [n, n]:
    who attends to whom, themselves apart."""
    backbone, prompt = session.backbone, session.prompt
    x = torch.cat((backbone.embed_text(prompt.ids), session.embed(tokens)), 1)
    slots = torch.cat((torch.arange(prompt.length), prompt.length + cells))
    mask = causal_mask(torch.cat((prompt.mask, torch.ones(len(x), len(cells), dtype=torch.bool)), 1)).clone()
    mask[:, :, prompt.length :, prompt.length :] = sees | torch.eye(len(cells), dtype=torch.bool)
    h = backbone.forward(x, slots - prompt.offset[:, None], mask, None, None)
    return h[:, prompt.length :]
