"""Pictures on disk: PNG files with facts about the run, captioned sheets of several pictures."""

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from .files import write_atomically


def to_pil(rgb: Tensor) -> Image.Image:
    """RGB float [H, W, 3] in 0..1 -> 8 bit picture."""
    return Image.fromarray((rgb.clamp(0, 1) * 255).round().to("cpu", torch.uint8).numpy())


def require_png(path: Path) -> None:
    """Raises ValueError unless the file name ends in .png."""
    if path.suffix.lower() != ".png":
        raise ValueError(f'{path}: pictures are written as PNG, whose text fields keep the settings; name it "….png".')


def save_png(image: Image.Image, path: str | Path, facts: dict[str, str]) -> Path:
    """Writes a PNG, atomically, with each fact as a text field (UTF-8)."""
    path = Path(path)
    require_png(path)
    return write_atomically(path, lambda temporary: temporary.write_bytes(png_bytes(image, facts)))


def png_bytes(image: Image.Image, facts: dict[str, str]) -> bytes:
    """A PNG file with each fact as a text field (UTF-8)."""
    info = PngInfo()
    for key, value in facts.items():
        info.add_itxt(key, value)
    file = io.BytesIO()
    image.save(file, format="PNG", pnginfo=info)
    return file.getvalue()


def sheet(images: Sequence[Image.Image], captions: Sequence[str], *, columns: int, side: int = 288) -> Image.Image:
    """A grid of pictures, each `side` pixels wide, with its caption (any number of lines) below it."""
    margin, size = 12, 14
    font = ImageFont.load_default(size)
    lines = max(caption.count("\n") for caption in captions) + 1
    cell = side + margin, side * images[0].height // images[0].width + lines * (size + 5) + 2 * margin
    rows = -(-len(images) // columns)
    canvas = Image.new("RGB", (cell[0] * columns + margin, cell[1] * rows + margin), "white")
    draw = ImageDraw.Draw(canvas)
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = margin + i % columns * cell[0], margin + i // columns * cell[1]
        scaled = image.resize((side, side * image.height // image.width), Image.Resampling.LANCZOS)
        canvas.paste(scaled, (x, y))
        draw.multiline_text((x, y + scaled.height + 6), caption, fill=(32, 32, 40), font=font, spacing=4)
    return canvas
