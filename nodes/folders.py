"""Where backbones and heads are kept: this pack's own folders under ComfyUI's models, and where people have them."""

import json
from pathlib import Path

import folder_paths

from ..ssd_core.backbones import KINDS

BUILTIN = "builtin"
BACKBONES, HEADS = "ssd", "ssd_heads"  # keys in folder_paths and extra_model_paths.yaml, names below models/
ELSEWHERE = ("LLM", "diffusers", "Janus-Pro", "janus", "lumina_mgpt", "emu3")  # below models/


def register() -> None:
    """Tells ComfyUI about the two folders, behind those that the user's extra_model_paths.yaml names."""
    for key in (BACKBONES, HEADS):
        folder_paths.add_model_folder_path(key, str(Path(folder_paths.models_dir) / key))


def backbones() -> dict[str, Path]:
    """Checkpoint folders by name, relative to where they were found, with forward slashes."""
    found: dict[str, Path] = {}
    for root in _roots():
        for config in sorted([*root.glob("config.json"), *root.glob("*/config.json"), *root.glob("*/*/config.json")]):
            folder = config.parent
            name = folder.relative_to(root).as_posix() if folder != root else folder.name
            if name not in found and _kind(config) in KINDS:
                found[name] = folder
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def backbone_folder(name: str) -> Path | None:
    """The folder of a backbone in the list, None for the builtin one; ValueError if it is gone."""
    if name == BUILTIN:
        return None
    folder = backbones().get(name)
    if folder is None:
        wanted = Path(folder_paths.get_folder_paths(BACKBONES)[0])
        raise ValueError(f'There is no backbone "{name}": put its checkpoint folder into {wanted} and press R.')
    return folder


def heads_files() -> list[str]:
    """Heads files by name, relative to their folder."""
    return [name for name in folder_paths.get_filename_list(HEADS) if name.endswith(".safetensors")]


def heads_file(name: str) -> Path:
    """The path of a heads file; ValueError if it is gone."""
    path = folder_paths.get_full_path(HEADS, name)
    if path is None:
        wanted = folder_paths.get_folder_paths(HEADS)[0]
        raise ValueError(f'There is no heads file "{name}" in {wanted}: choose another, or train some heads.')
    return Path(path)


def new_heads_file(name: str) -> Path:
    """Where heads of this name are written; ValueError for a name that is none, or leads elsewhere."""
    name = name.strip().removesuffix(".safetensors")
    if not plain(name):
        raise ValueError(f'"{name}" is no file name: use letters, digits, dots, dashes, underscores and spaces.')
    return Path(folder_paths.get_folder_paths(HEADS)[0]) / f"{name}.safetensors"


def run_folder(name: str) -> Path:
    """Where a training run keeps its files; ValueError for a name that is none, or leads elsewhere."""
    if not plain(name.strip()):
        raise ValueError(f'"{name}" is no folder name: use letters, digits, dots, dashes, underscores and spaces.')
    return Path(folder_paths.get_output_directory()) / HEADS / name.strip()


def input_folder(name: str) -> Path:
    """A folder of the user's: inside ComfyUI's input folder, or a full path."""
    return Path(folder_paths.get_input_directory()) / name.strip()


def plain(name: str) -> bool:
    """Whether a name is one of a file in a folder and not a path."""
    return bool(name) and name[0] not in ". " and all(letter.isalnum() or letter in "._- " for letter in name)


def stamp(path: Path) -> str:
    """Changes when a file, or a file in a folder, is replaced: names, sizes and times."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return json.dumps(facts)


def _roots() -> list[Path]:
    models = Path(folder_paths.models_dir)
    own = [Path(root) for root in folder_paths.get_folder_paths(BACKBONES)]
    shared = [Path(root) for key in ELSEWHERE for root in folder_paths.folder_names_and_paths.get(key, ([],))[0]]
    roots = [*own, *shared, *(models / name for name in ELSEWHERE)]
    return [root for root in dict.fromkeys(roots) if root.is_dir()]


def _kind(config: Path) -> str | None:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get("model_type") if isinstance(content, dict) else None
