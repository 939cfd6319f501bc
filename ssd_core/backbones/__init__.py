"""Backbones: the frozen autoregressive models that the decoders drive, behind one contract."""

from pathlib import Path

from .base import Backbone, Prompt
from .builtin import BuiltinBackbone, load_builtin
from .checkpoint import CheckpointError, find_folder, read_json
from .devices import main_device

__all__ = ["Backbone", "BuiltinBackbone", "CheckpointError", "Prompt", "load_backbone", "load_builtin"]

KINDS = {  # model_type in config.json: what it is
    "janus": "Janus-Pro in transformers' layout (deepseek-community/Janus-Pro-1B, -7B)",
    "multi_modality": "Janus-Pro in DeepSeek's layout (deepseek-ai/Janus-Pro-1B, -7B)",
    "emu3": "Emu3-Gen in transformers' layout (BAAI/Emu3-Gen-hf)",
    "Emu3": "Emu3-Gen in BAAI's layout (BAAI/Emu3-Gen with BAAI/Emu3-VisionTokenizer)",
    "chameleon": "Lumina-mGPT (Alpha-VLLM/Lumina-mGPT-7B-768) with Meta's vqgan.ckpt",
}


def load_backbone(
    name: str | Path = "builtin",
    *,
    device: str = "cpu",
    dtype: str = "auto",
    download: bool = False,
    vq: str | Path | None = None,
    bits: int | None = None,
) -> Backbone:
    """A backbone: "builtin" (the small model in this repository), a checkpoint folder, or a Hub id.

    device: a torch device such as "cpu", "cuda:1" or "mps", or "auto": the best one, large models spread over
    all GPUs and the memory of the machine. dtype "auto" chooses float32 on CPUs and bfloat16 elsewhere.
    download: whether a Hub id may be downloaded (gigabytes); without it only what is on this machine is
    used. vq: the image tokenizer of a checkpoint that comes without (Lumina-mGPT's vqgan.ckpt, the folder
    Emu3-VisionTokenizer). bits: 8 or 4 packs the weights with bitsandbytes.

    Raises ValueError for a device that is not there, CheckpointError (a ValueError) for a checkpoint that
    is unknown or incomplete, or does not fit into memory.
    """
    home = main_device(device)
    if name == "builtin":
        if bits is not None:
            raise ValueError("The builtin model is small: it has no packed weights, leave bits out.")
        return load_builtin(device=str(home), dtype=dtype)
    folder = find_folder(name, download=download)
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    options = dict(name=Path(name).resolve().name, device=device, dtype=dtype, bits=bits)
    try:
        if kind in ("janus", "multi_modality"):
            from .janus import load_janus  # transformers takes seconds to import, the builtin model does without

            return load_janus(folder, config, **options)
        if kind in ("emu3", "Emu3"):
            from .emu3 import load_emu3

            return load_emu3(folder, config, **options, download=download, vq=vq)
        if kind == "chameleon":
            from .lumina import load_lumina

            return load_lumina(folder, config, **options, download=download, vq=vq)
    except KeyError as error:
        raise CheckpointError(
            f"{folder / 'config.json'} lacks {error}, which every {KINDS[kind]} has: it is another model, or damaged."
        ) from error
    known = "; ".join(f'"{kind}": {what}' for kind, what in KINDS.items())
    raise CheckpointError(f'{folder / "config.json"} says model_type "{kind}"; this program drives {known}.')
