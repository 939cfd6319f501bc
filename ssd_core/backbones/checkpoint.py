"""Checkpoints on disk: which files, whether they are whole, and their tensors, each read once to where it belongs.

Everything is checked against the headers of the files before any weights are read, so that an incomplete
folder costs a second and not 14 GB.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import list_repo_files, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm import tqdm

Renames = Sequence[tuple[str, str | Callable[[re.Match], str]]]  # arguments of re.sub, applied in order
Adapt = Callable[[str, Tensor, torch.Size], Tensor]
Pack = Callable[[nn.Module, str, Tensor, torch.device], nn.Parameter]


class CheckpointError(ValueError):
    """A folder that cannot be loaded; the message says what was found, what is missing and how to mend it."""


@dataclass(frozen=True)
class Source:
    """Weight files and how the names in them become names of our modules."""

    files: list[Path]
    renames: Renames

    def target(self, key: str) -> str:
        """Our name for a tensor of these files."""
        for pattern, replacement in self.renames:
            key = re.sub(pattern, replacement, key)
        return key


def find_folder(name: str | Path, *, download: bool = False) -> Path:
    """The folder of a checkpoint: `name` itself, or the local copy of the Hub repository called so.

    Only with `download` is the Hub asked. CheckpointError if there is no such folder or repository.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    missing = f'There is no folder "{name}"'
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise CheckpointError(f"{missing}: check the path.")
    files = ["*.json", "*.txt", "*.tiktoken", "*.safetensors"]
    try:
        if download and not any(file.endswith(".safetensors") for file in list_repo_files(name)):
            files.append("pytorch_model*.bin")
        return Path(snapshot_download(name, allow_patterns=files, local_files_only=not download))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{missing} and no copy of a Hub repository of that name here: check the path, or allow the download "
            "(--download, download=True)."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(f'{missing}, and the Hub repository "{name}" cannot be downloaded: {error}') from error


def read_json(path: Path) -> dict:
    """A JSON object from a file; CheckpointError if there is none."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}: {_found(path.parent)}. Download the folder again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): download it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object: download it again.")
    return content


def require_file(folder: Path, name: str, what: str) -> Path:
    """A file of a checkpoint; CheckpointError that says what it is for if it is not there."""
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {name} ({what}): {_found(folder)}. Download the folder again.")
    return path


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder: safetensors, or .bin where there are none. CheckpointError if some are missing."""
    for index, pattern in (
        ("model.safetensors.index.json", "*.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model*.bin"),
    ):
        if (folder / index).is_file():
            wanted = sorted(set(read_json(folder / index).get("weight_map", {}).values()))
            missing = [name for name in wanted if not (folder / name).is_file()]
            if missing:
                raise CheckpointError(
                    f"{folder} lacks {len(missing)} of the {len(wanted)} weight files that {index} lists: "
                    f"{', '.join(missing)}. Download them again."
                )
            return [folder / name for name in wanted]
        if files := sorted(folder.glob(pattern)):
            return files
    raise CheckpointError(
        f"{folder} has no weights: expected *.safetensors or pytorch_model*.bin, {_found(folder)}. "
        "Download the weight files as well."
    )


def load_weights(
    module: nn.Module,
    sources: Sequence[Source],
    *,
    place: Callable[[str], torch.device],
    dtype: Callable[[str], torch.dtype],
    rows: dict[str, slice] | None = None,
    adapt: Adapt | None = None,
    pack: Pack | None = None,
) -> None:
    """Fills every parameter and persistent buffer of a module built on the meta device.

    place and dtype say where each tensor goes and as what (integers stay what they are); rows: only these
    rows of a tensor are read; adapt(name, tensor, wanted shape) reshapes one that is stored differently;
    pack(module, parameter name, tensor, device) makes parameters that are no plain ones.
    Tensors that the module does not have are left on the disk. Raises CheckpointError, before reading any
    weights, if tensors are missing or have other shapes than the configuration says.
    """
    wanted = module.state_dict()
    rows, adapt = rows or {}, adapt or (lambda name, tensor, shape: tensor)
    plan: dict[Path, list[tuple[str, str]]] = {}
    missing, misfits = set(wanted), []
    for source in sources:
        for path in source.files:
            with _opened(path) as reader:
                for key in reader.keys():  # noqa: SIM118 - a reader is no mapping
                    name = source.target(key)
                    if name not in wanted:
                        continue
                    shape = list(reader.shape(key))
                    if name in rows:
                        shape[0] = len(range(shape[0])[rows[name]])
                    shape = adapt(name, torch.empty(shape, device="meta"), wanted[name].shape).shape
                    if shape != wanted[name].shape:
                        misfits.append(f"{key} in {path.name} is {list(shape)}, expected {list(wanted[name].shape)}")
                    plan.setdefault(path, []).append((key, name))
                    missing.discard(name)
    if missing:
        files = ", ".join(path.name for source in sources for path in source.files)
        raise CheckpointError(
            f"{len(missing)} of {len(wanted)} tensors are missing, such as {min(missing)} (looked in {files}): "
            "the checkpoint is incomplete or of another kind than its config.json says. Download it again."
        )
    if misfits:
        raise CheckpointError(f"The weights do not fit config.json ({misfits[0]}): download both again.")

    with tqdm(total=len(wanted), desc="loading", unit="tensor", disable=None, leave=False) as bar:
        for path, names in plan.items():
            with _opened(path) as reader:
                for key, name in names:
                    tensor = adapt(name, reader.read(key, rows.get(name)), wanted[name].shape)
                    precision = dtype(name) if tensor.is_floating_point() else tensor.dtype
                    _assign(module, name, tensor.to(precision), place(name), pack or _plain)
                    bar.update()


def _assign(module: nn.Module, name: str, tensor: Tensor, device: torch.device, pack: Pack) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    if leaf in owner._parameters:
        owner._parameters[leaf] = pack(owner, leaf, tensor, device)
    else:
        owner._buffers[leaf] = tensor.to(device)


def _plain(owner: nn.Module, leaf: str, tensor: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(tensor.to(device), requires_grad=False)


class _SafetensorsReader:
    def __init__(self, file):
        self._file = file
        self.keys = file.keys

    def shape(self, key: str) -> list[int]:
        return self._file.get_slice(key).get_shape()

    def read(self, key: str, rows: slice | None) -> Tensor:
        return self._file.get_tensor(key) if rows is None else self._file.get_slice(key)[rows]


class _PickleReader:
    def __init__(self, state: dict[str, Tensor]):
        self._state = state
        self.keys = state.keys

    def shape(self, key: str) -> torch.Size:
        return self._state[key].shape

    def read(self, key: str, rows: slice | None) -> Tensor:
        return self._state[key] if rows is None else self._state[key][rows]


@contextmanager
def _opened(path: Path) -> Iterator[_SafetensorsReader | _PickleReader]:
    """Gives access to the tensors of a file without reading them all."""
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise CheckpointError(f"{path} is a Git LFS pointer, not the weights: run git lfs pull in its folder.")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                yield _SafetensorsReader(file)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is truncated or damaged ({error}): download it again.") from error
        return
    try:
        state = _load_pickle(path)
    except Exception as error:  # torch.load fails in many ways; none may fall back to running the pickle's code
        raise CheckpointError(
            f"{path} cannot be read safely ({error}): download it again, or convert it to safetensors."
        ) from error
    state = state.get("state_dict", state)
    yield _PickleReader({key: value for key, value in state.items() if isinstance(value, Tensor)})


def _load_pickle(path: Path) -> dict:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):  # files from before torch 1.6 cannot be mapped
            raise
        return torch.load(path, map_location="cpu", weights_only=True)


def _found(folder: Path) -> str:
    """What is in a folder, for an error message."""
    if not folder.is_dir():
        return "there is no such folder"
    names = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"it holds {shown}" if names else "it is empty"
