"""The paper's models at their real sizes with random weights: their passes cost what real ones cost.

SSD's passes do not depend on the weights, so this measures its latencies without a checkpoint (Table 1);
the pictures are noise. How many passes the decoders with a free pace take says nothing here.
"""

import inspect

import torch
from torch import Tensor, nn

from ..backbones.base import Prompt
from ..backbones.devices import free_memory, main_device, main_dtype
from ..backbones.hf import TransformersBackbone
from ..cost import KNOWN, size_of
from ..grid import TokenGrid
from ..heads import HeadSet
from ..schedule import PRESETS


class RandomBackbone(TransformersBackbone):
    """A configuration of `cost.KNOWN`, or another config.json, without its image tokenizer.

    prompt: tokens of the prompts. ValueError if the weights do not fit the device.
    """

    def __init__(self, name: str, *, config: dict | None = None, device: str, dtype: str, prompt: int = 90):
        config = config or KNOWN.get(name)
        if config is None:
            raise ValueError(f'Unknown model "{name}": choose one of {", ".join(KNOWN)}.')
        size = size_of(config, name)
        self.name, self.family, self.defaults = f"{name} (random weights)", size.family, PRESETS[size.family].sampling
        self.device, self.dtype = main_device(device), main_dtype(device, dtype)
        self._grid, self._length = size.grid, prompt
        needed = self.dtype.itemsize * (size.layers + size.embedding + size.head)
        if needed > free_memory(self.device):
            raise ValueError(
                f"{name} takes {needed / 1e9:.1f} GB as {self.dtype}, more than {self.device} has free: "
                "choose another device or model."
            )
        parts = _parts(config)
        generator = torch.Generator(self.device).manual_seed(0)
        for module in parts.modules():
            for leaf, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[leaf] = self._random(parameter.shape, generator)
        self.parts = parts.to(self.device).eval().requires_grad_(False)
        self._decoder, self._head = parts["decoder"], parts["head"]
        settings = self._decoder.config
        self.hidden_size, self.max_positions = settings.hidden_size, settings.max_position_embeddings
        self.codebook_size = [part for part in self._head.modules() if isinstance(part, nn.Linear)][-1].out_features
        self._codes = self._random((self.codebook_size + 1, self.hidden_size), generator)
        self._cache_argument = "cache" if "cache" in _arguments(self._decoder) else "past_key_values"
        self.fingerprint = f"random-{name}"
        self._colors = None

    def _random(self, shape, generator: torch.Generator) -> nn.Parameter:
        tensor = torch.empty(shape, dtype=self.dtype, device=self.device)
        tensor = tensor.fill_(1) if len(shape) == 1 else tensor.normal_(0, 0.02, generator=generator)
        return nn.Parameter(tensor, requires_grad=False)

    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        if width or height:
            raise ValueError("Random weights draw the model's own size only: leave width and height out.")
        return self._grid

    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        count = len(prompts) + len(negatives or [])
        ids = torch.zeros(count, self._length, dtype=torch.long, device=self.device)
        return Prompt(ids, torch.ones_like(ids, dtype=torch.bool), ids[:, 0])

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self._codes[codes]

    def code_vectors(self) -> Tensor:
        return self._codes[:-1, :8].float()

    def _paint(self, codes: Tensor) -> Tensor:
        raise ValueError("Random weights have no image tokenizer.")

    def _tokenize(self, pixels: Tensor) -> Tensor:
        raise ValueError("Random weights have no image tokenizer.")

    def shipped_heads(self) -> HeadSet:
        """Random heads of the paper's size."""
        with torch.device(self.device):
            heads = HeadSet(self.hidden_size, self.fingerprint)
        return heads.to(self.dtype).eval().requires_grad_(False)


def _arguments(decoder: nn.Module):
    return inspect.signature(type(decoder).forward).parameters


def _parts(config: dict) -> nn.ModuleDict:
    """Decoder and head of a config.json, without weights."""
    kind = config.get("model_type")
    if kind in ("janus", "multi_modality"):
        from ..backbones import janus as family

        parts = family.build(*family.settings(config))
    elif kind in ("emu3", "Emu3"):
        from ..backbones import emu3 as family

        parts = family.build(*family.settings(config, {}))
    else:
        from ..backbones import lumina as family

        parts = family.build(family.settings(config))
    return nn.ModuleDict({name: parts[name] for name in ("decoder", "head")})
