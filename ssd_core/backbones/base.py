"""What a decoder may ask of a backbone. Decoders see codes 0..V-1, states and slots; never vocabularies."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..cache import KVCache
from ..grid import TokenGrid
from ..heads import HeadSet
from ..sampling import SamplingConfig


@dataclass(frozen=True)
class Prompt:
    """Encoded prompts: the conditional rows first, then (if guided) as many unconditional ones.

    ids int64 [rows, L] and mask bool [rows, L], left-padded, structural header tokens included;
    offset int64 [rows]: position = slot - offset.
    """

    ids: Tensor
    mask: Tensor
    offset: Tensor

    @property
    def length(self) -> int:
        """Slots that the prompt takes, padding included."""
        return self.ids.shape[1]


class Backbone(ABC):
    """A frozen model. D is `hidden_size`, V is `codebook_size`; code V stands for the end-of-line token.

    name and family say what it is (family picks presets); fingerprint names the weights that heads are
    trained for; defaults are its official sampling settings.
    """

    name: str
    family: str
    fingerprint: str
    hidden_size: int
    codebook_size: int
    defaults: SamplingConfig
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        """The token grid of a picture size in pixels (default: the model's own); ValueError if unsupported."""

    @abstractmethod
    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        """Encodes B prompts; `negatives` (B texts, "" for none) adds the unconditional rows, None leaves them out."""

    @abstractmethod
    def new_cache(self, rows: int, slots: int) -> KVCache:
        """An empty KV cache."""

    @abstractmethod
    def embed_text(self, ids: Tensor) -> Tensor:
        """Prompt ids [...] -> [..., D]."""

    @abstractmethod
    def embed_codes(self, codes: Tensor) -> Tensor:
        """Codes [...] (V: end of line) -> [..., D]."""

    @abstractmethod
    def forward(
        self, x: Tensor, positions: Tensor, mask: Tensor, cache: KVCache | None, slots: slice | Tensor | None
    ) -> Tensor:
        """One pass: x [rows, n, D] at positions int64 [rows, n] -> states before the final norm [rows, n, D].

        mask bool [rows, 1, n, length], True: attend. With a cache, keys and values go to `slots` (a slice,
        or int64 [rows, n]) and the mask speaks of its first `length` slots; it moves no cursor.
        """

    @abstractmethod
    def final_norm(self, h: Tensor) -> Tensor:
        """States [..., D] -> what the head of the network reads, [..., D]: an RMSNorm with weights."""

    @abstractmethod
    def logits(self, h: Tensor) -> Tensor:
        """States [..., D] -> logits over the codebook, fp32 [..., V]: final norm and head."""

    @abstractmethod
    def decode_image(self, codes: Tensor) -> Tensor:
        """Codes [N, rows, cols] -> RGB float32 [N, height, width, 3] in 0..1."""

    @abstractmethod
    def encode_image(self, rgb: Tensor) -> Tensor:
        """RGB float [N, height, width, 3] in 0..1 -> codes [N, rows, cols]."""

    @abstractmethod
    def preview_colors(self) -> Tensor:
        """The mean colour of each code, float32 [V, 3] in 0..1, computed once: a cheap preview of a grid."""

    def code_vectors(self) -> Tensor:
        """What the codes stand for in the image tokenizer, float32 [V, C]: codes that paint alike are near.

        Unless a backbone knows better: their embeddings.
        """
        return self.embed_codes(torch.arange(self.codebook_size, device=self.device)).float()

    @abstractmethod
    def pass_bytes(self) -> int:
        """Bytes of weights that every pass reads: the layers and the head."""

    @abstractmethod
    def module(self) -> nn.Module:
        """All weights in one module, for a memory manager that moves them between devices; see `moved`."""

    def moved(self, device: torch.device) -> None:
        """To be called after all weights of `module()` went to another device: inputs and caches follow."""
        self.device = device

    def shipped_heads(self) -> HeadSet | None:
        """Heads that come with the backbone, or None: drafts are training-free then."""
        return None
