"""The builtin transformer: Llama-shaped (RMSNorm, RoPE, SwiGLU, no biases), words in, image codes out.

The sequence is the caption (at most 24 words, ending at position 23), then 576 codes in raster order.
Positions are absolute: cell c of the grid stands at position 24 + c whatever the caption's length, and
each input also carries a learned embedding of the row and the column that it predicts.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import KVCache, causal_mask
from .scenes import GRID
from .tokenizer import CODEBOOK_SIZE
from .words import MAX_WORDS, VOCABULARY_SIZE


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the builtin transformer (10.4 M parameters by default)."""

    hidden_size: int = 384
    num_layers: int = 6
    num_heads: int = 6
    intermediate_size: int = 768
    codebook_size: int = CODEBOOK_SIZE
    vocabulary_size: int = VOCABULARY_SIZE
    prefix: int = MAX_WORDS
    grid: int = GRID
    rope_theta: float = 10_000.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in fp32."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    """Multi-head self-attention with RMS-normalised queries and keys and rotary positions."""

    def __init__(self, config: TransformerConfig, layer: int):
        super().__init__()
        self.layer, self.num_heads, self.head_dim = layer, config.num_heads, config.head_dim
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim)
        self.k_norm = RMSNorm(config.head_dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, cache: KVCache | None, slots) -> Tensor:
        rows, n, width = x.shape
        q, k, v = self.qkv(x).view(rows, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = _rotate(self.q_norm(q), *rope), _rotate(self.k_norm(k), *rope)
        if cache is not None:
            k, v = cache.write(self.layer, slots, k, v, mask.shape[-1])
        if self.training:
            attended = _causal_attention(q, k, v, mask)
        else:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(attended.transpose(1, 2).reshape(rows, n, width))


def _causal_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, chunk: int = 148) -> Tensor:
    """Plain attention for training on CPUs, where the fused kernel's backward pass is slow.

    Chunks of queries leave out the keys that come after all of them: a third less work.
    """
    parts = []
    for start in range(0, q.shape[2], chunk):
        stop = min(start + chunk, q.shape[2])
        scores = q[:, :, start:stop] @ k[:, :, :stop].transpose(-1, -2) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask[:, :, start:stop, :stop], -1e9).softmax(-1)
        parts.append(weights.to(v.dtype) @ v[:, :, :stop])
    return torch.cat(parts, 2)


class Layer(nn.Module):
    """Pre-norm attention and SwiGLU."""

    def __init__(self, config: TransformerConfig, layer: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size)
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, cache: KVCache | None, slots) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, mask, cache, slots)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class BuiltinTransformer(nn.Module):
    """forward maps embeddings to states before the final norm; `logits` maps those to code logits."""

    def __init__(self, config: TransformerConfig | None = None):
        super().__init__()
        self.config = config = config or TransformerConfig()
        self.text_embedding = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.code_embedding = nn.Embedding(config.codebook_size, config.hidden_size)
        self.row_embedding = nn.Embedding(config.grid + 1, config.hidden_size)
        self.column_embedding = nn.Embedding(config.grid, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.codebook_size, bias=False)
        half = config.head_dim // 2
        frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02 if "embedding" in name else parameter.shape[-1] ** -0.5)
        for layer in self.layers:
            nn.init.zeros_(layer.attention.out.weight)
            nn.init.zeros_(layer.down.weight)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: KVCache | None = None,
        slots: slice | Tensor | None = None,
    ) -> Tensor:
        """x [rows, n, D], positions int64 [rows, n], mask bool [rows, 1, n, length] (True: attend).

        Returns the last layer's states before the final norm [rows, n, D]. With a cache, keys and values
        are written at `slots` and the mask speaks of the cache's first `length` slots.
        """
        x, rope = self.prepare(x, positions)
        for layer in self.layers:
            x = layer(x, rope, mask, cache, slots)
        return x

    def prepare(self, x: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What the first layer reads: inputs with the place they predict, and the rotary cosines and sines."""
        predicted = positions - (self.config.prefix - 1)  # raster index of the cell an input predicts; < 0 in the text
        row = self.row_embedding((predicted // self.config.grid).clamp(0, self.config.grid))
        column = self.column_embedding(predicted % self.config.grid)
        x = x + torch.where((predicted >= 0)[..., None], row + column, torch.zeros_like(row))
        angles = positions[:, None, :, None].float() * self.frequencies
        return x, (angles.cos().to(x.dtype), angles.sin().to(x.dtype))

    def logits(self, h: Tensor) -> Tensor:
        """States before the final norm [..., D] -> logits over the codebook, fp32 [..., V]."""
        return self.head(self.norm(h)).float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def training_inputs(prompts: list[list[int]], prefix: int, cells: int) -> tuple[Tensor, Tensor]:
    """Left-padded text for teacher forcing: ids [N, prefix], and the causal mask bool [N, 1, T, T].

    T = prefix + cells - 1 inputs: the last cell predicts nothing.
    """
    ids = torch.zeros(len(prompts), prefix, dtype=torch.long)
    for row, words in zip(ids, prompts, strict=True):
        row[prefix - len(words) :] = torch.tensor(words)
    first = torch.tensor([prefix - len(words) for words in prompts])
    real = torch.arange(prefix + cells - 1) >= first[:, None]
    return ids, causal_mask(real)
