"""What the transformers models have in common: a decoder that is fed embeddings, a head over the codes, a VQ model.

Positions, the boolean mask and the cache are ours, so nothing depends on how a version of transformers
makes them.
"""

import hashlib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_max_memory
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Cache

from ..cache import KVCache
from ..grid import TokenGrid
from ..schedule import PRESETS
from .base import Backbone, Prompt
from .checkpoint import Adapt, CheckpointError, Source, load_weights, require_file
from .devices import free_memory, main_device, main_dtype
from .quantized import pack, quantize_layers

PREVIEW_BATCH = 256  # codes painted at once for `preview_colors`


class TransformersBackbone(Backbone):
    """A causal language model over image codes, made of parts built on the meta device and filled from `sources`.

    parts: "decoder" (a transformers model without its head), "head" (states after the final norm -> V
    logits), "vq" (codes <-> pixels, always fp32), and what a family needs besides. device: a torch device,
    or "auto" to spread the weights over all GPUs and then the memory of the machine. bits: 8 or 4 packs the
    weights of the decoder's layers, on one device. rows and adapt: as in `load_weights`. What `grid` needs
    has to be set before this runs: the room for the cache of a picture depends on it.
    """

    def __init__(
        self,
        name: str,
        family: str,
        parts: nn.ModuleDict,
        sources: list[Source],
        tokenizer: "TextTokenizer",
        *,
        device: str,
        dtype: str,
        bits: int | None,
        codebook_size: int,
        rows: dict[str, slice] | None = None,
        adapt: Adapt | None = None,
    ):
        self.name, self.family, self.defaults = name, family, PRESETS[family].sampling
        self.tokenizer = tokenizer
        self.device, self.dtype = main_device(device), main_dtype(device, dtype)
        config = parts["decoder"].config
        self.hidden_size, self.codebook_size = config.hidden_size, codebook_size
        self.max_positions = config.max_position_embeddings
        self._decoder, self._head, self._vq = parts["decoder"], parts["head"], parts["vq"]
        if bits is not None:
            quantize_layers(self._decoder.layers, bits, self.dtype)
        places = _places(parts, device, self.dtype, bits, self._cache_bytes())

        def place(name: str) -> torch.device:
            owners = (prefix for prefix in places if not prefix or f"{name}.".startswith(f"{prefix}."))
            return torch.device(places[max(owners, key=len)])

        def precision(name: str) -> torch.dtype:
            return _precision(name, self.dtype)

        load_weights(parts, sources, place=place, dtype=precision, rows=rows, adapt=adapt, pack=pack)
        arguments = inspect.signature(type(self._decoder).forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"  # renamed in 5.24
        self.fingerprint = f"{family}-{self.hidden_size}-{_digest(self._decoder, codebook_size)}"
        parts.eval().requires_grad_(False)  # Emu3 has dropout in its layers
        self.parts = parts.to(self.device) if "" in places else dispatch_model(parts, places, self.device)
        self._colors = None

    # -------------------------------------------------------------------------------------- the language model

    def new_cache(self, rows: int, slots: int) -> KVCache:
        heads, head_dim = self._cache_widths()
        devices = [_device_of(layer, self.device) for layer in self._decoder.layers]
        return KVCache(len(devices), rows, heads, slots, head_dim, self.dtype, devices)

    def _cache_widths(self) -> tuple[int, int]:
        """Key-value heads, and their width."""
        config = self._decoder.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return config.num_key_value_heads, head_dim

    def _cache_bytes(self) -> int:
        """What one guided picture of the default size takes."""
        slots = min(self.grid().size + 256, self.max_positions)
        per_layer = 2 * math.prod(self._cache_widths()) * self.dtype.itemsize
        return 2 * slots * len(self._decoder.layers) * per_layer

    def embed_text(self, ids: Tensor) -> Tensor:
        return self._decoder.embed_tokens(ids).to(self.device)

    def forward(
        self, x: Tensor, positions: Tensor, mask: Tensor, cache: KVCache | None, slots: slice | Tensor | None
    ) -> Tensor:
        captured: list[Tensor] = []
        # `output_hidden_states` gives the last state after the norm, and differs between versions.
        hook = self._decoder.norm.register_forward_pre_hook(lambda module, args: captured.append(args[0]))
        view = None if cache is None else _SlotCache(cache, slots, mask.shape[-1])
        try:
            self._decoder(
                inputs_embeds=x,
                position_ids=positions,
                attention_mask=mask,
                use_cache=False,  # never makes a cache of its own; ours is written all the same
                **{self._cache_argument: view},
            )
        finally:
            hook.remove()
        return captured[0].to(self.device)

    def final_norm(self, h: Tensor) -> Tensor:
        return self._decoder.norm(h).to(self.device)

    def logits(self, h: Tensor) -> Tensor:
        return self._head(self._decoder.norm(h)).to(self.device).float()

    def _prompt(self, rows: list[list[int]], pad: int, grid: TokenGrid) -> Prompt:
        """Left-pads token ids; ValueError if the picture would not fit behind them."""
        length = max(map(len, rows))
        if length + grid.size > self.max_positions:
            raise ValueError(
                f"The prompt takes {length} tokens and the picture {grid.size}, but {self.name} has only "
                f"{self.max_positions} positions: shorten the prompt, or choose a smaller picture."
            )
        ids = torch.full((len(rows), length), pad)
        mask = torch.zeros(len(rows), length, dtype=torch.bool)
        for row, keep, tokens in zip(ids, mask, rows, strict=True):
            row[length - len(tokens) :] = torch.tensor(tokens)
            keep[length - len(tokens) :] = True
        offset = torch.tensor([length - len(tokens) for tokens in rows])
        return Prompt(ids.to(self.device), mask.to(self.device), offset.to(self.device))

    # ------------------------------------------------------------------------------------------------- pixels

    @abstractmethod
    def _paint(self, codes: Tensor) -> Tensor:
        """Codes [N, rows, cols] -> pixels [N, 3, height, width], nominally in -1..1."""

    @abstractmethod
    def _tokenize(self, pixels: Tensor) -> Tensor:
        """Pixels [N, 3, height, width] in -1..1 -> codes [N, rows, cols]."""

    @torch.no_grad()
    def decode_image(self, codes: Tensor) -> Tensor:
        pixels = torch.cat([self._paint(one) for one in codes.to(self.device).split(1)])  # one by one: it takes memory
        return ((pixels + 1) / 2).clamp(0, 1).permute(0, 2, 3, 1)

    @torch.no_grad()
    def encode_image(self, rgb: Tensor) -> Tensor:
        height, width = rgb.shape[1:3]
        self.grid(width, height)  # refuses sizes that the model does not draw
        pixels = rgb.to(self.device, torch.float32).permute(0, 3, 1, 2) * 2 - 1
        return torch.cat([self._tokenize(one) for one in pixels.split(1)])

    def code_vectors(self) -> Tensor:
        return self._vq.quantize.embedding.weight.float()

    def pass_bytes(self) -> int:
        parts = (self._decoder.layers, self._decoder.norm, self._head)
        return sum(parameter.nbytes for part in parts for parameter in part.parameters())

    @torch.no_grad()
    def preview_colors(self) -> Tensor:
        if self._colors is None:
            codes = torch.arange(self.codebook_size, device=self.device)[:, None, None]
            pixels = torch.cat([self._paint(some).mean((2, 3)) for some in codes.split(PREVIEW_BATCH)])
            self._colors = ((pixels + 1) / 2).clamp(0, 1)
        return self._colors

    def module(self) -> nn.Module:
        return self.parts

    def moved(self, device: torch.device) -> None:
        super().moved(device)
        self._colors = None


class VocabularyBackbone(TransformersBackbone):
    """A backbone whose codes are entries of its text vocabulary, in order from `first_code` on.

    eol: the id of the end-of-line token.
    """

    def __init__(self, *args, first_code: int, eol: int, codebook_size: int, **kwargs):
        rows = {"head.weight": slice(first_code, first_code + codebook_size)}  # no other row is ever needed
        super().__init__(*args, codebook_size=codebook_size, rows=rows, **kwargs)
        ids = torch.arange(first_code, first_code + codebook_size + 1)
        ids[-1] = eol
        self._ids = ids.to(self.device)

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.embed_text(self._ids[codes])

    def moved(self, device: torch.device) -> None:
        super().moved(device)
        self._ids = self._ids.to(device)


class TextTokenizer:
    """A tokenizer.json as it is: no class that rebuilds parts of it or adds tokens of its own."""

    def __init__(self, tokenizer: Tokenizer):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer

    @classmethod
    def from_folder(cls, folder: Path) -> "TextTokenizer":
        """The tokenizer of a checkpoint; CheckpointError if it is missing or damaged."""
        path = require_file(folder, "tokenizer.json", "the text tokenizer")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # what the tokenizers library raises is a bare Exception
            raise CheckpointError(f"{path} is damaged ({error}): download it again.") from error

    def encode(self, text: str) -> list[int]:
        """Token ids without anything added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def id(self, token: str) -> int:
        """The id of a token; CheckpointError if the vocabulary lacks it."""
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise CheckpointError(f"The tokenizer lacks the token {token}: it belongs to another model.")
        return number

    def first_of(self, tokens: list[str]) -> int:
        """The id of the first of some tokens; CheckpointError unless the others follow it one by one."""
        first = self.id(tokens[0])
        for i, token in enumerate(tokens):
            if self.id(token) != first + i:
                raise CheckpointError(f"The tokenizer has {token} as {self.id(token)}, not {first + i}: it is damaged.")
        return first


class _SlotCache(Cache):
    """Our cache as transformers sees it during one pass."""

    def __init__(self, cache: KVCache, slots: slice | Tensor, length: int):
        # Not calling the base class: its layers would be a second cache.
        self.layers, self.offloading = [], False
        self._cache, self._slots, self._length = cache, slots, length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs):
        return self._cache.write(layer_idx, self._slots, key_states, value_states, self._length)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # asked for by old versions only, to make positions that we pass anyway


def build_parts(**builders: Callable[[], nn.Module]) -> nn.ModuleDict:
    """Builds modules without weights. Buffers that no file holds (rotary frequencies) are real."""
    with init_empty_weights(include_buffers=False):
        return nn.ModuleDict({name: build() for name, build in builders.items()})


def nearest(vectors: Tensor, codebook: Tensor) -> Tensor:
    """Index of the codebook row closest to each vector: [..., C], [V, C] -> int64 [...]."""
    some = vectors.flatten(0, -2).split(1024)  # all distances of an Emu3 picture at once are a gigabyte
    return torch.cat([torch.cdist(each, codebook).argmin(-1) for each in some]).view(vectors.shape[:-1])


def _precision(name: str, dtype: torch.dtype) -> torch.dtype:
    """The precision of a tensor of the parts: the pixel side stays in fp32, it is small and bf16 shows bands."""
    return torch.float32 if name.startswith("vq.") else dtype


def _places(
    parts: nn.ModuleDict, device: str, dtype: torch.dtype, bits: int | None, cache: int
) -> dict[str, torch.device | str | int]:
    """Where the parts go, by name ("": all of them), so that `cache` bytes stay free for a picture.

    CheckpointError if there is not enough memory.
    """
    needed = sum(t.numel() * _precision(name, dtype).itemsize for name, t in parts.state_dict().items())
    if bits is not None:
        layers = sum(t.numel() for t in parts["decoder"].layers.state_dict().values())
        needed += layers * bits // 8 - layers * dtype.itemsize
    needs = f"The weights take {needed / 1e9:.1f} GB as {f'{bits} bits' if bits else dtype} and"
    needs += f" the cache of a picture {cache / 1e9:.1f} GB"
    home = main_device(device)
    if device != "auto" or bits is not None:
        free = free_memory(home)
        if needed + cache > free:
            raise CheckpointError(
                f"{needs}, but {home} has only {free / 1e9:.1f} GB free: "
                'use device "auto" to spread them over what is there, bfloat16, 8 or 4 bits, or a smaller model.'
            )
        return {"": home}
    room, pixels = get_max_memory(), parts["vq"]
    first = home.index or 0 if home.type == "cuda" else home.type
    room[first] = max(0, room[first] - cache - sum(t.numel() * 4 for t in pixels.state_dict().values()))
    others = nn.ModuleDict({name: part for name, part in parts.items() if part is not pixels})
    places = infer_auto_device_map(others, room, [type(parts["decoder"].layers[0]).__name__], dtype=dtype)
    if "disk" in places.values():
        raise CheckpointError(
            f"{needs}, more than the GPUs and the memory of this machine have free together: "
            "close other programs, or take a smaller model."
        )
    return {"": home} if set(places.values()) == {first} else {**places, "vq": home}


def _device_of(layer: nn.Module, home: torch.device) -> torch.device:
    """Where a layer computes, also if accelerate keeps its weights elsewhere."""
    place = getattr(getattr(layer, "_hf_hook", None), "execution_device", None)
    place = next(layer.parameters()).device if place is None else torch.device(place)
    return home if place.type == "meta" else place


def _digest(decoder: nn.Module, codebook_size: int) -> str:
    """Names the weights of a decoder by its sizes and its norms, whatever precision and place they are held in."""
    config = decoder.config
    digest = hashlib.sha256(f"{config.num_hidden_layers} {config.vocab_size} {codebook_size}".encode())
    for name, tensor in decoder.named_parameters():
        if "norm" in name:
            digest.update(tensor.detach().to("cpu", torch.bfloat16).view(torch.uint8).numpy())
    return digest.hexdigest()[:12]
