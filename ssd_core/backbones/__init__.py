"""Backbones: the frozen autoregressive models that the decoders drive, behind one contract."""

from .base import Backbone, Prompt
from .builtin import BuiltinBackbone, load_builtin

__all__ = ["Backbone", "BuiltinBackbone", "Prompt", "load_backbone", "load_builtin"]


def load_backbone(name: str = "builtin", *, device: str = "cpu", dtype: str = "auto") -> Backbone:
    """The backbone called `name`; "builtin" is the small model in this repository.

    dtype "auto" chooses float32 on CPUs and bfloat16 elsewhere. Raises ValueError for an unknown name.
    """
    if name != "builtin":
        raise ValueError(f'Unknown backbone "{name}": this version drives "builtin" only.')
    return load_builtin(device=device, dtype=dtype)
