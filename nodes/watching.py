"""What a viewer of a run gets to see, from its events: previews, which guesses stayed, the map of cells."""

import torch
from PIL import Image
from torch import Tensor

from ..ssd_core.backbones.base import Backbone
from ..ssd_core.pictures import to_pil
from ..ssd_core.session import DRAFT, FINAL, UNKNOWN, DecodeEvent

PIXELS, COLOURS, OFF = "pixels", "colours", "off"
PREVIEWS = (PIXELS, COLOURS, OFF)
PREVIEW_SIDE = 384  # least pixels of a preview of colours
GREY = 0.15
# A cell of the map that the browser draws.
MAP_UNKNOWN, MAP_DRAFT, MAP_KEPT, MAP_CORRECTED = range(4)


class FirstGuesses:
    """Remembers the token that each cell had when it was first seen. tokens int64 [B, rows, cols], -1: none yet."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def see(self, event: DecodeEvent) -> None:
        """Takes the cells that are new in an event."""
        if self.tokens is None:
            self.tokens = torch.full_like(event.tokens, -1)
        new = (self.tokens < 0) & (event.status != UNKNOWN)
        self.tokens = torch.where(new, event.tokens, self.tokens)

    def kept(self, event: DecodeEvent) -> Tensor:
        """Whether each cell still has its first token, bool [B, rows, cols]."""
        return self.tokens == event.tokens

    def cells(self, event: DecodeEvent) -> str:
        """The first picture of the batch for the browser: a digit (MAP_...) per cell, in raster order."""
        status, kept = event.status[0].cpu(), self.kept(event)[0].cpu()
        states = torch.where(kept, MAP_KEPT, MAP_CORRECTED)
        states = states.where(status == FINAL, torch.where(status == DRAFT, MAP_DRAFT, MAP_UNKNOWN))
        return "".join(map(str, states.flatten().tolist()))


def mask(kept: Tensor, height: int, width: int) -> Tensor:
    """bool [B, rows, cols] -> float [B, height, width] of 0 and 1."""
    return torch.nn.functional.interpolate(kept[:, None].float(), (height, width), mode="nearest")[:, 0].cpu()


def picture(backbone: Backbone, event: DecodeEvent, mode: str) -> Image.Image:
    """A preview: known cells in pixels or in their mean colours, guesses paler, the rest grey; a batch is tiled."""
    if mode == PIXELS:
        rgb = backbone.decode_image(event.tokens).float()
    else:
        rgb = backbone.preview_colors().to(event.tokens.device)[event.tokens]
        scale = -(-PREVIEW_SIDE // max(rgb.shape[1:3]))
        rgb = rgb.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
    strength = torch.tensor([0.0, 0.55, 1.0], device=rgb.device)[event.status.long()]
    strength = torch.nn.functional.interpolate(strength[:, None], rgb.shape[1:3], mode="nearest")[:, 0, :, :, None]
    return to_pil(tile(GREY + (rgb - GREY) * strength))


def tile(rgb: Tensor) -> Tensor:
    """A batch of pictures [B, H, W, 3] as one, nearly square, in reading order."""
    count, height, width, _ = rgb.shape
    columns = next(n for n in range(1, count + 1) if n * n >= count)
    rows = -(-count // columns)
    canvas = torch.full((rows * columns, height, width, 3), GREY, device=rgb.device)
    canvas[:count] = rgb
    return canvas.view(rows, columns, height, width, 3).transpose(1, 2).reshape(rows * height, columns * width, 3)
