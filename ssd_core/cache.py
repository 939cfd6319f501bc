"""A preallocated KV cache indexed by slot: writing moves no cursor, so rolling back is not advancing."""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of all layers, each [rows, kv_heads, slots, head_dim], allocated once.

    A slot is a position in the sequence (left padding included). A pass writes its keys and values at
    its slots and attends to the first `length` ones through an explicit mask; a later pass over the same
    slots simply overwrites them. device: one for all layers, or one per layer.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        kv_heads: int,
        slots: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | list[torch.device],
    ):
        shape = (rows, kv_heads, slots, head_dim)
        devices = device if isinstance(device, list) else [device] * layers
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for device in devices]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for device in devices]

    def write(
        self, layer: int, slots: slice | Tensor, keys: Tensor, values: Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        """Stores keys and values [rows, kv_heads, n, head_dim] and returns views of the first `length` slots.

        slots: a slice shared by all rows, or int64 [rows, n] where rows stand at different places.
        """
        layer_keys, layer_values = self.keys[layer], self.values[layer]
        if isinstance(slots, slice):
            layer_keys[:, :, slots] = keys
            layer_values[:, :, slots] = values
        else:
            index = slots.to(keys.device)[:, None, :, None].expand_as(keys)
            layer_keys.scatter_(2, index, keys)
            layer_values.scatter_(2, index, values)
        return layer_keys[:, :, :length], layer_values[:, :, :length]


def causal_mask(valid: Tensor) -> Tensor:
    """Causal attention over slots that hold something: valid bool [rows, n] -> bool [rows, 1, n, n].

    Every slot sees itself even if it is padding: a query without any key is undefined in some kernels.
    """
    n = valid.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool, device=valid.device).tril()
    itself = torch.eye(n, dtype=torch.bool, device=valid.device)
    return (causal & valid[:, None] | itself)[:, None]
