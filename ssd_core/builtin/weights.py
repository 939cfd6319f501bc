"""Reading and writing the weights that this repository ships: bf16 safetensors beside this file."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ..files import write_atomically

WEIGHTS = Path(__file__).parent


def load_module(module: nn.Module, path: Path) -> nn.Module:
    """Fills a module with the weights of a file, in fp32 and eval mode, and returns it.

    Raises FileNotFoundError or ValueError that says how to mend it.
    """
    fix = f"Restore it with git, or train it: python -m ssd_core.builtin.train {path.stem}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {fix}")
    try:
        state = {name: tensor.float() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged ({error}). {fix}") from error
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} holds the weights of another version. {fix}") from error
    return module.eval()


def save_weights(module: nn.Module, path: Path) -> None:
    """Writes a module's weights in bf16."""
    state = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in module.state_dict().items()}
    write_atomically(path, lambda temporary: save_file(state, temporary, metadata={"format": "pt"}))
