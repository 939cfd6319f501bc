"""Where a backbone runs, in which precision, and how much room there is."""

import psutil
import torch


def main_device(device: str) -> torch.device:
    """The device that inputs and outputs live on; ValueError if this machine lacks it."""
    if device == "auto":
        kinds = (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available()))
        device = next((kind for kind, there in kinds if there), "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f'The device "{device}" cannot be used here ({error}). Try --device cpu.') from error
    return torch.device(device)


def main_dtype(device: str, dtype: str) -> torch.dtype:
    """The precision of the language model; "auto" is float32 on CPUs and bfloat16 elsewhere."""
    if dtype == "auto":
        dtype = "float32" if main_device(device).type == "cpu" else "bfloat16"
    return getattr(torch, dtype)


def free_memory(device: torch.device) -> int:
    """Bytes that a device has free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available  # on Macs, GPU and CPU share it
