"""The small model that this repository ships: 24 x 24 codes, 192 x 192 pixels, a closed vocabulary."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from ..builtin import words
from ..builtin.tokenizer import ImageTokenizer
from ..builtin.transformer import BuiltinTransformer
from ..builtin.weights import WEIGHTS, load_module
from ..cache import KVCache
from ..grid import TokenGrid
from ..heads import HeadSet, load_heads
from ..schedule import PRESETS
from .base import Backbone, Prompt


def load_builtin(*, device: str = "cpu", dtype: str = "auto", folder: Path = WEIGHTS) -> "BuiltinBackbone":
    """The builtin backbone from its shipped weights (or another folder with the same files)."""
    transformer = load_module(BuiltinTransformer(), folder / "transformer.safetensors")
    tokenizer = load_module(ImageTokenizer(), folder / "tokenizer.safetensors")
    if dtype == "auto":
        dtype = "float32" if torch.device(device).type == "cpu" else "bfloat16"
    heads = folder / "heads.safetensors"
    return BuiltinBackbone(transformer, tokenizer, device=device, dtype=getattr(torch, dtype), heads=heads)


class BuiltinBackbone(Backbone):
    """Any BuiltinTransformer with the tokenizer; also the small real part that tests stand on."""

    name = family = "builtin"
    defaults = PRESETS["builtin"].sampling

    def __init__(
        self,
        transformer: BuiltinTransformer,
        tokenizer: ImageTokenizer,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        heads: Path | None = None,
    ):
        self.device, self.dtype = torch.device(device), dtype
        config = transformer.config
        self.fingerprint = f"builtin-{config.hidden_size}-{_digest(transformer)}"
        frequencies = transformer.frequencies.float().to(self.device)  # rotary angles need fp32
        self.transformer = transformer.to(device=self.device, dtype=dtype).eval().requires_grad_(False)
        self.transformer.frequencies = frequencies
        self.tokenizer = tokenizer.to(self.device).eval().requires_grad_(False)
        self.hidden_size, self.codebook_size = config.hidden_size, config.codebook_size
        self._module = nn.ModuleDict({"transformer": self.transformer, "tokenizer": self.tokenizer})
        self._heads, self._colors = heads, None

    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        side = self.transformer.config.grid
        pixels = side * self.tokenizer.patch
        if (width or pixels, height or pixels) != (pixels, pixels):
            raise ValueError(f"The builtin model draws {pixels} x {pixels} pixels only, got {width} x {height}.")
        return TokenGrid(side, side)

    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        if negatives is not None and any(negatives):
            raise ValueError("The builtin model has no negative prompt: leave it empty.")
        encoded = [words.encode(prompt) for prompt in prompts]
        if negatives is not None:
            encoded += [words.encode("")] * len(prompts)
        length = max(map(len, encoded))
        ids = torch.zeros(len(encoded), length, dtype=torch.long)
        mask = torch.zeros(len(encoded), length, dtype=torch.bool)
        for row, keep, text in zip(ids, mask, encoded, strict=True):
            row[length - len(text) :] = torch.tensor(text)
            keep[length - len(text) :] = True
        offset = torch.full((len(encoded),), length - self.transformer.config.prefix)
        return Prompt(ids.to(self.device), mask.to(self.device), offset.to(self.device))

    def new_cache(self, rows: int, slots: int) -> KVCache:
        config = self.transformer.config
        return KVCache(config.num_layers, rows, config.num_heads, slots, config.head_dim, self.dtype, self.device)

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.transformer.text_embedding(ids)

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.transformer.code_embedding(codes)

    def forward(
        self, x: Tensor, positions: Tensor, mask: Tensor, cache: KVCache | None, slots: slice | Tensor | None
    ) -> Tensor:
        return self.transformer(x, positions, mask, cache, slots)

    def final_norm(self, h: Tensor) -> Tensor:
        return self.transformer.norm(h)

    def logits(self, h: Tensor) -> Tensor:
        return self.transformer.logits(h)

    def decode_image(self, codes: Tensor) -> Tensor:
        return self.tokenizer.decode(codes)

    def encode_image(self, rgb: Tensor) -> Tensor:
        return self.tokenizer.encode(rgb)

    def preview_colors(self) -> Tensor:
        if self._colors is None:
            # Each code among eight of its own kind: alone it would be painted as the corner of a picture.
            codes = torch.arange(self.codebook_size, device=self.device)[:, None, None].expand(-1, 3, 3)
            patch = self.tokenizer.patch
            middle = [self.tokenizer.decode(some)[:, patch:-patch, patch:-patch] for some in codes.split(256)]
            self._colors = torch.cat(middle).mean((1, 2))
        return self._colors

    def code_vectors(self) -> Tensor:
        return self.tokenizer.latents(torch.arange(self.codebook_size, device=self.device))

    def pass_bytes(self) -> int:
        named = self.transformer.named_parameters()
        return sum(parameter.nbytes for name, parameter in named if "embedding" not in name)

    def module(self) -> nn.Module:
        return self._module

    def moved(self, device: torch.device) -> None:
        super().moved(device)
        self._colors = None

    def shipped_heads(self) -> HeadSet | None:
        return self._heads and load_heads(self._heads, self.fingerprint, device=self.device, dtype=self.dtype)


def _digest(module: torch.nn.Module) -> str:
    """Names the weights of a module, whatever precision they are held in."""
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.detach().to("cpu", torch.bfloat16).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]
