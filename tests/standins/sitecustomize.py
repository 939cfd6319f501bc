"""Stand-ins for torchvision and torchaudio in the process of ComfyUI's server.

ComfyUI imports both at start and calls neither for the graphs that are tested here. On the PYTHONPATH of
that one process, this file spares a download of several gigabytes.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MISSING = ("torchvision", "torchaudio")
THEY_ASK = ("transformers", "huggingface_hub", "accelerate", "torch")  # and would believe that it is there


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
        if fullname.partition(".")[0] not in MISSING or self._asked_by_a_library():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module) -> None:
        pass

    @staticmethod
    def _asked_by_a_library() -> bool:
        frame = sys._getframe(2)
        while frame is not None:
            owner = frame.f_globals.get("__name__", "").partition(".")[0]
            if owner not in ("importlib", "_frozen_importlib", "_frozen_importlib_external", "sitecustomize"):
                return owner in THEY_ASK
            frame = frame.f_back
        return False


sys.meta_path.append(Finder())
