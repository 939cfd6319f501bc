"""Backbones and heads in the hands of ComfyUI's memory manager."""

import logging
from pathlib import Path

import comfy.model_management as mm
import torch
from comfy.model_patcher import CallbacksMP, ModelPatcher

from ..ssd_core.backbones import Backbone, load_backbone
from ..ssd_core.backbones.checkpoint import read_json
from ..ssd_core.builtin.scenes import GRID
from ..ssd_core.cost import memory_required, size_of
from ..ssd_core.decoders import DecodeConfig
from ..ssd_core.grid import TokenGrid
from ..ssd_core.heads import HeadSet
from .folders import BUILTIN

log = logging.getLogger(__name__)

PIXELS_PER_CODE = {"emu3": 8, "lumina-mgpt": 16}  # of the families that draw several sizes


class ManagedBackbone:
    """A backbone that is read when it is first needed, and that ComfyUI moves between the devices from then on.

    patcher is None before. Packed weights (bits) live on the GPU only: where ComfyUI would move them away
    they are dropped, and read again for the next run.
    """

    def __init__(
        self, name: str, folder: Path | None, dtype: str = "auto", device: str = "default", bits: int | None = None
    ):
        self.name, self.folder, self.bits = name, folder, bits
        self._dtype, self._device = dtype, device
        self._backbone: Backbone | None = None
        self.patcher: ModelPatcher | None = None

    @property
    def load_device(self) -> torch.device:
        """Where it computes."""
        return torch.device("cpu") if self._device == "cpu" else mm.get_torch_device()

    def load(self) -> Backbone:
        """The backbone, wherever it is at present; reads the weights if nobody did."""
        if self._backbone is None:
            target = self.load_device
            home = target if self.bits or self._device == "cpu" else mm.unet_offload_device()
            if self.bits:
                mm.free_memory(mm.get_total_memory(target), target)
            with torch.inference_mode(False):  # weights that training may use as well
                backbone = load_backbone(
                    self.folder or BUILTIN, device=str(home), dtype=self._precision(target), bits=self.bits
                )
            patcher = ModelPatcher(backbone.module(), load_device=target, offload_device=home)
            if self.bits:
                # ComfyUI also detaches a model that it is about to load once more; that one it does not unpatch.
                patcher.add_callback(CallbacksMP.ON_DETACH, lambda _, unpatched: unpatched and self._drop())
            self._backbone, self.patcher = backbone, patcher
            log.info("SSD backbone %s, %s, computes on %s", backbone.fingerprint, backbone.dtype, target)
        return self._backbone

    def ready(self, heads: "ManagedHeads | None", rows: int, grid: TokenGrid, config: DecodeConfig) -> Backbone:
        """The backbone (and the heads) on the device it computes on, with room for the KV cache of `rows` rows."""
        backbone = self.load()
        patchers = [self.patcher] + ([heads.patcher] if heads and heads.patcher else [])
        room = memory_required(backbone, rows, grid, config)
        mm.load_models_gpu(patchers, memory_required=room, force_full_load=True)
        for patcher in patchers:
            patcher.model.to(self.load_device)  # buffers, and what --novram left behind
        backbone.moved(self.load_device)
        return backbone

    def outline(self, width: int = 0, height: int = 0) -> tuple[str, TokenGrid]:
        """Family and grid for a picture size (0: the model's own); reads config.json and no weights."""
        if self._backbone is not None:
            return self._backbone.family, self._backbone.grid(width or None, height or None)
        return outline(self.folder, width, height)

    def _precision(self, device: torch.device) -> str:
        if self._dtype != "auto":
            return self._dtype
        if mm.is_device_cpu(device):
            return "float32"
        if mm.should_use_bf16(device):
            return "bfloat16"
        return "float16" if mm.should_use_fp16(device) else "float32"

    def _drop(self) -> None:
        """Frees the weights. The module itself has to outlive this call: ComfyUI still counts its models."""
        self._backbone = None
        self.patcher.model.clear()


class ManagedHeads:
    """Drafting heads; heads is None for training-free drafts."""

    def __init__(self, heads: HeadSet | None, backbone: ManagedBackbone, story: dict | None = None):
        self.heads, self.story = heads, story or {}
        self.patcher = None
        if heads is not None:
            home = torch.device("cpu") if mm.is_device_cpu(backbone.load_device) else mm.unet_offload_device()
            self.patcher = ModelPatcher(heads.to(home), load_device=backbone.load_device, offload_device=home)


def outline(folder: Path | None, width: int = 0, height: int = 0) -> tuple[str, TokenGrid]:
    """Family and grid of a checkpoint folder (None: builtin) for a picture size (0: its own), from config.json."""
    if folder is None:
        return "builtin", TokenGrid(GRID, GRID)
    key = (folder, (folder / "config.json").stat().st_mtime_ns)
    if key not in _OUTLINES:
        size = size_of(read_json(folder / "config.json"), folder.name)
        _OUTLINES[key] = size.family, size.grid
    family, grid = _OUTLINES[key]
    scale = PIXELS_PER_CODE.get(family)
    if scale and (width or height):
        cells = grid.rows * grid.cols
        cols = width // scale or round(cells / (height // scale))
        rows = height // scale or round(cells / (width // scale))
        grid = TokenGrid(rows, cols, grid.eol)
    return family, grid


_OUTLINES: dict[tuple[Path, int], tuple[str, TokenGrid]] = {}
