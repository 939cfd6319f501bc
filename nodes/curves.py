"""The loss of a training run as a picture. Needs no ComfyUI."""

import json
import math
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE = 480, 270
MARGIN = 44


def read_log(path: Path) -> list[tuple[int, float]]:
    """(step, loss) of a log.jsonl; the loss is the sum over the heads, as the trainer minimises it."""
    points = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        values = [value for name, value in record.items() if name[0] in "hv" and name[1:].isdigit()]
        if values:
            points[record["step"]] = sum(values)
    return sorted(points.items())


def loss_curve(points: list[tuple[int, float]]) -> Image.Image:
    """Loss over steps, the loss on a logarithmic scale."""
    canvas = Image.new("RGB", SIZE, (24, 24, 28))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(13)
    points = [(step, loss) for step, loss in points if loss > 0 and math.isfinite(loss)]
    if not points:
        return canvas
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    span = math.log(high / low) or 1.0
    first, last = points[0][0], points[-1][0]
    left, top, right, bottom = MARGIN + 16, 16, SIZE[0] - 16, SIZE[1] - MARGIN

    def place(step: int, loss: float) -> tuple[float, float]:
        x = left + (right - left) * ((step - first) / (last - first) if last > first else 1)
        return x, bottom - (bottom - top) * math.log(loss / low) / span

    draw.line([(left, top), (left, bottom), (right, bottom)], fill=(110, 110, 120))
    line = [place(*point) for point in points]
    draw.line(line if len(line) > 1 else line * 2, fill=(120, 200, 255), width=2)
    x, y = line[-1]
    draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=(255, 190, 90))
    grey = (170, 170, 180)
    draw.text((6, top - 6), f"{high:.3g}", fill=grey, font=font)
    draw.text((6, bottom - 8), f"{low:.3g}", fill=grey, font=font)
    draw.text((left, bottom + 8), f"loss {points[-1][1]:.4g} at step {last}", fill=grey, font=font)
    return canvas
