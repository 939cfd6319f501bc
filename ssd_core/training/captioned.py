"""A corpus from a folder of pictures with captions: the tokenizer's codes instead of the backbone's own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from ..backbones.base import Backbone
from ..grid import TokenGrid
from .corpus import Corpus, CorpusError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def captioned_pictures(folder: str | Path) -> list[tuple[Path, str]]:
    """The pictures of a folder that have a caption, a text file of the same name (cat.png, cat.txt), sorted.

    Raises CorpusError if there are none, or the folder is missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CorpusError(f"There is no folder {folder}: give one with pictures and a .txt caption beside each.")
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    captions = [(path, path.with_suffix(".txt")) for path in pictures]
    found = [(path, _caption(text)) for path, text in captions if text.is_file()]
    if not found:
        raise CorpusError(
            f"{folder} has {len(pictures)} pictures and no caption for any: "
            "put a .txt file of the same name beside each."
        )
    return found


def encode_corpus(
    backbone: Backbone,
    pictures: list[tuple[Path, str]],
    grid: TokenGrid | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> Corpus:
    """Encodes pictures, each cut to the middle and scaled to what the grid shows; on_progress gets the share done.

    Raises CorpusError for a picture that cannot be read, or a caption that the backbone does not know how to read.
    """
    grid, tokens = grid or backbone.grid(), []
    for caption, path in {caption: path for path, caption in reversed(pictures)}.items():
        try:
            backbone.encode_prompts([caption], None, grid)
        except ValueError as error:
            raise CorpusError(f"The caption of {path} cannot be used: {error}") from error
    corner = torch.zeros(1, 2, 2, dtype=torch.long, device=backbone.device)
    with torch.no_grad():
        scale = backbone.decode_image(corner).shape[1] // 2  # pixels per code
        for number, (path, _) in enumerate(pictures, 1):
            rgb = _read(path, (grid.cols * scale, grid.rows * scale)).to(backbone.device)
            tokens.append(backbone.encode_image(rgb[None]).to("cpu", torch.int32))
            if on_progress:
                on_progress(number / len(pictures))
    return Corpus([caption for _, caption in pictures], torch.cat(tokens), grid, "pictures", backbone.defaults)


def _caption(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text: save it as UTF-8.") from error


def _read(path: Path, size: tuple[int, int]) -> torch.Tensor:
    """RGB float [height, width, 3] in 0..1 of the middle of a picture."""
    try:
        with Image.open(path) as image:
            fitted = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), size, Image.Resampling.LANCZOS)
    except (OSError, Image.DecompressionBombError) as error:
        raise CorpusError(f"{path} cannot be read ({error}): remove or replace it.") from error
    return torch.from_numpy(np.array(fitted)).float() / 255
