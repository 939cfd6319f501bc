"""Backbones: the frozen autoregressive models that the decoders drive, behind one contract."""

import torch

from .base import Backbone, Prompt
from .builtin import BuiltinBackbone, load_builtin

__all__ = ["Backbone", "BuiltinBackbone", "Prompt", "load_backbone", "load_builtin"]


def load_backbone(name: str = "builtin", *, device: str = "cpu", dtype: str = "auto") -> Backbone:
    """The backbone called `name`; "builtin" is the small model in this repository.

    device: a torch device such as "cpu", "cuda:1" or "mps". dtype "auto" chooses float32 on CPUs and
    bfloat16 elsewhere. Raises ValueError for an unknown name or a device that is not there.
    """
    if name != "builtin":
        raise ValueError(f'Unknown backbone "{name}": this version drives "builtin" only.')
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f'The device "{device}" cannot be used here ({error}). Try --device cpu.') from error
    return load_builtin(device=device, dtype=dtype)
