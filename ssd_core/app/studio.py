"""The model behind the page: what is on disk, which one is loaded, what to say about it."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from safetensors import SafetensorError, safe_open

from ..backbones import KINDS, Backbone, BuiltinBackbone, load_backbone
from ..builtin.transformer import TransformerConfig
from ..decoders import DecodeConfig, decode
from ..grid import TokenGrid
from ..heads import FORMAT, Heads, HeadsError, load_heads
from ..sampling import SamplingConfig
from ..schedule import Schedule
from ..session import DecodingSession
from .race import palette

SHIPPED, NO_HEADS = "shipped", "none"


@dataclass(frozen=True)
class Model:
    """A loaded backbone, the heads that drafts come from (None: training-free), and its preview colours.

    notice: what went wrong with the heads, in a sentence; negative: whether it takes a negative prompt.
    """

    backbone: Backbone
    heads: Heads | None
    colors: np.ndarray
    negative: bool
    notice: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """What to show about it."""
        backbone, grid = self.backbone, self.backbone.grid()
        reach = f"trained, {self.heads.k_h} columns and {self.heads.k_v} rows ahead" if self.heads else "training-free"
        return {
            "Backbone": f"{backbone.name} ({backbone.fingerprint})",
            "Drafts": reach,
            "Picture": f"{grid.rows} x {grid.cols} tokens out of {backbone.codebook_size}",
            "Runs on": f"{backbone.device.type}, {str(backbone.dtype).removeprefix('torch.')}",
            "Sampling": str(backbone.defaults).removeprefix("SamplingConfig"),
        }


class Studio:
    """The one model that everybody on the page shares. Only the decoder's thread calls `model` and `choose`."""

    def __init__(
        self, backbone: str = "builtin", heads: str = SHIPPED, *, models: Path | None = None, **options: object
    ):
        """options: those of `load_backbone`, kept for every backbone chosen later."""
        self.name, self.heads, self.models, self.options = backbone, heads, models, options
        self.current: Model | None = None
        self.loading = False

    def model(self) -> Model:
        """The model, loaded on first use and warmed up, so that the first race's times are fair.

        Raises CheckpointError or another ValueError if the backbone cannot be loaded.
        """
        if self.current is None:
            self.current = self._load(self.name, self.heads)
        return self.current

    def choose(self, name: str, heads: str) -> Model:
        """Loads another backbone, or other heads. If that fails the present model stays."""
        self.current = self._load(name, heads)
        self.name, self.heads = name, heads
        return self.current

    def _load(self, name: str, heads: str) -> Model:
        self.loading = True
        try:
            same = self.current is not None and name == self.name
            backbone = self.current.backbone if same else load_backbone(name, **self.options)
            loaded, notice = _heads(backbone, heads)
            model = Model(backbone, loaded, palette(backbone), _takes_negatives(backbone), notice)
            if not same:
                _warm_up(model)
            return model
        finally:
            self.loading = False

    @property
    def family(self) -> str:
        """Which presets apply; before anything is loaded, those of the builtin model."""
        return self.current.backbone.family if self.current else BuiltinBackbone.family

    @property
    def defaults(self) -> SamplingConfig:
        """The sampling settings of an untouched page."""
        return self.current.backbone.defaults if self.current else BuiltinBackbone.defaults

    @property
    def grid(self) -> TokenGrid:
        """The token grid of a picture."""
        return self.current.backbone.grid() if self.current else TokenGrid(*2 * (TransformerConfig().grid,))

    def backbones(self) -> list[str]:
        """Names to choose from: the builtin model, and the checkpoints on this machine."""
        found = ["builtin", self.name]
        if self.models and self.models.is_dir():
            found += [str(folder) for folder in sorted(self.models.iterdir()) if _is_checkpoint(folder)]
        with suppress(CacheNotFound, OSError):
            for repo in sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id):
                if any(_is_checkpoint(revision.snapshot_path) for revision in repo.revisions):
                    found.append(repo.repo_id)
        return list(dict.fromkeys(found))

    def heads_files(self) -> list[str]:
        """Heads to choose from: the shipped ones, none, and the heads files among the models on this machine."""
        found = [SHIPPED, NO_HEADS, self.heads]
        if self.models and self.models.is_dir():
            found += [str(path) for path in sorted(self.models.rglob("*.safetensors")) if _is_heads(path)]
        return list(dict.fromkeys(found))


def _heads(backbone: Backbone, choice: str) -> tuple[Heads | None, str]:
    """The heads and what is wrong with them: a page without trained heads is better than no page."""
    if choice == NO_HEADS:
        return None, ""
    if choice == SHIPPED:
        return backbone.shipped_heads(), ""
    try:
        return load_heads(choice, backbone.fingerprint, device=backbone.device, dtype=backbone.dtype), ""
    except HeadsError as error:
        return None, f"{error} Until then drafts are training-free."


def _takes_negatives(backbone: Backbone) -> bool:
    try:
        backbone.encode_prompts([""], ["x"], backbone.grid())
    except ValueError:
        return False
    return True


def _warm_up(model: Model) -> None:
    """The first passes pay for allocations and kernels: a few that nobody sees."""
    session = DecodingSession(model.backbone, [""], [0])
    events = decode(session, DecodeConfig(schedule=Schedule(b=0)), model.heads, synchronize=True)
    for _ in zip(range(5), events, strict=False):
        pass
    events.close()


def _is_checkpoint(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") in KINDS


def _is_heads(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError):
        return False
