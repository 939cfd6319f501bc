"""Recorded races: files that play without a model, and the animated picture made from one."""

import base64
import io
import json
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..files import write_atomically
from ..session import DRAFT, FINAL
from .race import replay

FOLDER = Path(__file__).parent / "gallery"
FORMAT = "ssd-race"
GALLERY = (  # prompt, seed, speed; the first one is the page's first impression and the README's animation
    ("a fox left of a rocket, at night", 7, "lossless"),
    ("three apples on grass", 1, "quality"),
    ("a lemon left of a snowman on grass", 3, "balanced"),
    ("an owl above a car on pink", 2, "lossless"),
    ("two stars on the sea at sunset", 3, "fast"),
)


def save(run: dict, path: Path) -> Path:
    """Writes a recording as JSON, atomically."""
    text = json.dumps({"format": FORMAT} | run | {"mode": "recording"}, separators=(",", ":"))
    return write_atomically(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))


def load(path: Path) -> dict:
    """Reads a recording; ValueError if the file is something else."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        if run["format"] == FORMAT:
            return run
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path} is no recorded race: make one with python -m ssd_core.app record.")


def name(run: dict) -> str:
    """What a recording is called in the gallery."""
    return f"{run['prompt']}: {run['lanes'][1]['title']}"


def shipped() -> dict[str, dict]:
    """The recordings of the gallery by name, in its order."""
    return {name(run): run for run in (load(path) for path in sorted(FOLDER.glob("*.json")))}


# ----------------------------------------------------------------------------------------- animated picture

_SIDE, _MARGIN, _TEXT = 288, 16, 14
_INK, _FAINT, _RAIL, _ACCENT = "#1f2430", "#6b7280", "#e5e7eb", "#4f46e5"


def animate(run: dict, path: Path, *, per_second: int = 10, longest: float = 6.0, hold: float = 2.5) -> Path:
    """Writes a race as an animated WebP or GIF, then its verdict for `hold` seconds.

    It plays in real time, or, if that took more than `longest` seconds, both sides equally faster.
    """
    if path.suffix.lower() not in (".webp", ".gif"):
        raise ValueError(f'{path}: an animation is written as WebP or GIF; name it "….webp" or "….gif".')
    end = max(lane["seconds"] for lane in run["lanes"])
    count = math.ceil(min(end, longest) * per_second)
    frames = [_frame(run, end * i / count) for i in range(count + 1)]
    durations = [1000 // per_second] * count + [round(1000 * hold)]
    options = {"quality": 70, "method": 4} if path.suffix.lower() == ".webp" else {}
    if not options:
        frames = [frame.quantize(128, dither=Image.Dither.NONE) for frame in frames]
    return write_atomically(
        path,
        lambda temporary: frames[0].save(
            temporary, save_all=True, append_images=frames[1:], duration=durations, loop=0, **options
        ),
    )


def _frame(run: dict, seconds: float) -> Image.Image:
    height = _SIDE * run["rows"] // run["cols"]
    canvas = Image.new("RGB", (2 * _SIDE + 3 * _MARGIN, height + 7 * _MARGIN + 8), "white")
    pen, font, bold = ImageDraw.Draw(canvas), ImageFont.load_default(_TEXT), ImageFont.load_default(_TEXT + 4)
    for i, lane in enumerate(run["lanes"]):
        left, top = _MARGIN + i * (_SIDE + _MARGIN), _MARGIN
        picture, passes, drawn = _moment(run, lane, seconds)
        pen.text((left, top - 4), lane["title"], fill=_INK, font=bold)
        now = min(seconds, lane["seconds"])
        facts = f"{passes} passes, {now:.1f} s"
        pen.text((left + _SIDE, top), facts, fill=_FAINT, font=font, anchor="ra")
        canvas.paste(picture.resize((_SIDE, height), Image.Resampling.NEAREST), (left, top + 24))
        bar = top + height + 32
        pen.rectangle((left, bar, left + _SIDE - 1, bar + 5), fill=_RAIL)
        pen.rectangle((left, bar, left + max(1, round(_SIDE * drawn)) - 1, bar + 5), fill=_ACCENT)
    verdict = run["verdict"].split("; ") if seconds >= max(lane["seconds"] for lane in run["lanes"]) else []
    for i, line in enumerate([verdict[0], "; ".join(verdict[1:])] if verdict else [f"“{run['prompt']}”"]):
        y = height + 4.2 * _MARGIN + i * (_TEXT + 6)
        pen.text((canvas.width / 2, y), line, fill=_INK if i == 0 else _FAINT, font=font, anchor="ma")
    return canvas


def _moment(run: dict, lane: dict, seconds: float) -> tuple[Image.Image, int, float]:
    """The picture of one side at a time, its passes so far and the share that is final."""
    if lane["finished"] and seconds >= lane["seconds"]:
        return _real_pixels(run, lane), lane["passes"], 1.0
    passes, rgb, status = 0, np.zeros((lane["cells"], 3), np.uint8), np.zeros(lane["cells"], np.uint8)
    for when, count, shown, state in replay(lane):
        if when > seconds:
            break
        passes, rgb, status = count, shown.copy(), state.copy()
    return _cells(run, rgb, status), passes, float((status == FINAL).mean())


def _real_pixels(run: dict, lane: dict) -> Image.Image:
    images = [Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))) for url in lane["pictures"]]
    side, (width, height) = math.isqrt(len(images)), images[0].size
    whole = Image.new("RGB", (side * width, side * height))
    for i, image in enumerate(images):
        whole.paste(image, (i % side * width, i // side * height))
    return whole.resize((_SIDE, _SIDE * run["rows"] // run["cols"]), Image.Resampling.LANCZOS)


def _cells(run: dict, rgb: np.ndarray, status: np.ndarray) -> Image.Image:
    """Final cells as squares, drafts as dots on a faint ground, the rest empty; 12 pixels a cell."""
    shape, side, inset = (run["rows"], run["cols"]), 12, 3
    ground = np.full((*shape, 3), 243.0)
    color, state = rgb.reshape(*shape, 3).astype(float), status.reshape(shape)[..., None]
    faint = np.where(state == DRAFT, 0.3 * color + 0.7 * ground, ground)
    outer = np.where(state == FINAL, color, faint)
    inner = np.where(state == DRAFT, color, outer)
    big = np.broadcast_to(outer[:, None, :, None], (shape[0], side, shape[1], side, 3)).copy()
    big[:, inset:-inset, :, inset:-inset] = inner[:, None, :, None]
    return Image.fromarray(big.reshape(shape[0] * side, shape[1] * side, 3).round().astype(np.uint8))
