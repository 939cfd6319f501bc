"""Stand-ins for torchvision and torchaudio in the process of ComfyUI's server.

ComfyUI imports both at start and calls neither for the graphs that are tested here. On the PYTHONPATH of
that one process, this file spares a download of several gigabytes.
"""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MISSING = ("torchvision", "torchaudio")
find_spec = importlib.util.find_spec


class StandIn(ModuleType):
    """A module that has every name; using what the name stands for is an error."""

    __path__ = ()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: _refuse(name)})


def _refuse(name: str) -> None:
    raise RuntimeError(f"{name} is a stand-in in this test server.")


class Finder(MetaPathFinder, Loader):
    """Finds the missing packages and everything below them."""

    def find_spec(self, fullname, path=None, target=None):
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in MISSING else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module) -> None:
        pass


def _honest(name: str, package: str | None = None):
    """`importlib.util.find_spec`, by which transformers and others learn what they can use."""
    return None if name.partition(".")[0] in MISSING else find_spec(name, package)


importlib.util.find_spec = _honest
sys.meta_path.append(Finder())
