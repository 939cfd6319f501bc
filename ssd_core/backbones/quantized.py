"""The decoder's layers in 8 or 4 bits, through bitsandbytes: half or a quarter of the memory, other pictures."""

import torch
from torch import Tensor, nn

BITS = (8, 4)


def quantize_layers(layers: nn.Module, bits: int, dtype: torch.dtype) -> None:
    """Replaces the linear layers inside a module on the meta device; `pack` fills them.

    Raises ValueError if bits is neither 8 nor 4, or bitsandbytes is missing.
    """
    if bits not in BITS:
        raise ValueError(f"Weights can be packed into 8 or 4 bits, got {bits}.")
    try:
        import bitsandbytes as bnb
    except ImportError as error:
        raise ValueError("8-bit and 4-bit weights need bitsandbytes: python -m pip install bitsandbytes") from error

    linears = [
        (owner, name, child)
        for owner in layers.modules()
        for name, child in owner.named_children()
        if type(child) is nn.Linear
    ]
    for owner, name, old in linears:
        sizes = dict(input_features=old.in_features, output_features=old.out_features, bias=old.bias is not None)
        if bits == 8:
            new = bnb.nn.Linear8bitLt(**sizes, has_fp16_weights=False, device="meta")
        else:
            new = bnb.nn.Linear4bit(**sizes, quant_type="nf4", compute_dtype=dtype, device="meta")
        setattr(owner, name, new)


def pack(owner: nn.Module, leaf: str, tensor: Tensor, device: torch.device) -> nn.Parameter:
    """The parameter `leaf` of a module from its weights in CPU memory, packed if the module is a packed one."""
    kind = type(owner).__name__
    if leaf == "weight" and kind in ("Linear8bitLt", "Linear4bit"):
        import bitsandbytes as bnb

        if kind == "Linear8bitLt":
            return bnb.nn.Int8Params(tensor, requires_grad=False, has_fp16_weights=False).to(device)
        return bnb.nn.Params4bit(tensor, requires_grad=False, quant_type="nf4", module=owner).to(device)
    return nn.Parameter(tensor.to(device), requires_grad=False)
