"""Finished runs on disk, by all that they depend on: a benchmark that was interrupted goes on where it stopped."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from .. import __file__ as package
from ..backbones.base import Backbone
from ..files import write_atomically
from ..heads import Heads, HeadSet

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """A folder of JSON files, one per run; None keeps them in memory only."""

    folder: Path | None = None
    _memory: dict = field(default_factory=dict)

    def recall(self, key: dict, compute: Callable[[], T]) -> T:
        """What `compute` returned for this key the last time, or else what it returns now; both JSON."""
        key = json.loads(json.dumps({**key, "code": code_digest()}))
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
        if name not in self._memory:
            path = self.folder and self.folder / f"{name}.json"
            if path and path.is_file():
                self._memory[name] = json.loads(path.read_text(encoding="utf-8"))["value"]
            else:
                self._memory[name] = compute()
                text = json.dumps({"key": key, "value": self._memory[name]})
                if path:
                    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return self._memory[name]


def weights_of(backbone: Backbone, heads: Heads | None) -> dict:
    """What of the weights a run depends on."""
    return {
        "backbone": f"{backbone.name} {backbone.fingerprint} {backbone.dtype} {backbone.device.type}",
        "heads": heads_digest(heads) if isinstance(heads, HeadSet) else "none",
    }


def heads_digest(heads: HeadSet) -> str:
    """Names the weights of some heads."""
    digest = hashlib.sha256(heads.space.encode())
    for tensor in heads.state_dict().values():
        digest.update(tensor.detach().to("cpu", torch.bfloat16).flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


@cache
def code_digest() -> str:
    """Names the code that decodes: runs of other code are not recalled.

    The speed scale only says which decoder a name stands for: runs outlast a change of it.
    """
    root, digest = Path(package).parent, hashlib.sha256()
    for folder in (".", "backbones", "builtin", "decoders"):
        for path in sorted((root / folder).glob("*.py")):
            if path.name != "speeds.py":
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
