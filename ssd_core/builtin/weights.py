"""Reading and writing the weights that this repository ships: bf16 safetensors beside this file."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..files import write_atomically

WEIGHTS = Path(__file__).parent


def load_weights(path: Path) -> dict[str, Tensor]:
    """A safetensors file as float32 tensors; FileNotFoundError or ValueError that says how to mend it."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing. It is part of the repository: restore it with git, or train it with "
            f"python -m ssd_core.builtin.train {path.stem}."
        )
    try:
        return {name: tensor.float() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged ({error}): restore it with git.") from error


def save_weights(module: nn.Module, path: Path) -> None:
    """Writes a module's weights in bf16."""
    state = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in module.state_dict().items()}
    write_atomically(path, lambda temporary: save_file(state, temporary, metadata={"format": "pt"}))
