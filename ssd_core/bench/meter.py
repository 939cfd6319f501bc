"""What passes cost the machine: tokens, bytes, memory, and how fast its memory is."""

import os
import platform
import time
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from ..backbones.base import Backbone


class Meter(AbstractContextManager):
    """Counts the passes of a backbone while it is open: passes, tokens fed, slots attended to (both per row)."""

    def __init__(self, backbone: Backbone):
        self.backbone, self.passes, self.tokens, self.slots, self.rows = backbone, 0, 0, 0, 0

    def __enter__(self) -> "Meter":
        forward = self.backbone.forward

        def counted(x, positions, mask, cache, slots):
            self.passes += 1
            self.tokens += x.shape[1]
            self.slots += mask.shape[-1]
            self.rows = x.shape[0]
            return forward(x, positions, mask, cache, slots)

        self.backbone.forward = counted
        return self

    def __exit__(self, *exception) -> None:
        del self.backbone.forward

    def bytes_per_pass(self) -> float:
        """Weights and cache that a pass has to read at least; heads and activations are not counted."""
        slot = self.backbone.new_cache(1, 1)
        cache = sum(tensor.nbytes for tensor in (*slot.keys, *slot.values))
        return self.backbone.pass_bytes() + self.rows * cache * self.slots / self.passes


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def bandwidth(device: torch.device, size: int = 2**28, repetitions: int = 5) -> float:
    """Bytes per second that copying `size` bytes reads and writes, the best of some tries: for now, on this machine."""
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(repetitions):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size / best


def reset_peak(device: torch.device) -> None:
    """Starts a new measurement of the peak memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Most memory that tensors took on a CUDA device since `reset_peak`; None elsewhere, where nobody counts."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """The model of a GPU, or of a CPU with the number of its cores and of the threads at work."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return f"{_cpu_model()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _cpu_model() -> str:
    """Linux keeps it in a file; elsewhere the architecture may have to do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "CPU"


def fastest_dtype(device: torch.device) -> str:
    """ "bfloat16" where it multiplies matrices clearly faster than float32, as GPUs and some CPUs do."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.ones(size, 512, dtype=dtype, device=device) for size in (1024, 512))
        times = []
        for _ in range(6):  # the first one warms up
            synchronize(device)
            began = time.perf_counter()
            a @ b
            synchronize(device)
            times.append(time.perf_counter() - began)
        seconds[dtype] = min(times)
    return "bfloat16" if seconds[torch.bfloat16] < 0.7 * seconds[torch.float32] else "float32"
