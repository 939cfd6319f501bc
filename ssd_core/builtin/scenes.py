"""Captioned scenes: what the builtin model learned to draw, and the ground truth it is scored against.

A scene is one to three sprites (Fluent Emoji 3D) on a landscape (ground and sky) or on a coloured
background. Everything sits on the 8 px raster of the 24 x 24 token grid: the same part of a sprite
always fills a cell in the same way, so a small model spends its capacity on composition.

`sample_scene` draws a layout, `render` paints it, `caption` words it; all are functions of a NumPy
generator, so (seed, index) names a scene for good. `held_out` tells which combinations of objects and
background training never sees.
"""

import functools
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from .words import GROUND_PHRASES, OBJECTS, SKY_PHRASES, plural, with_article

CELL = 8  # pixels of one token
GRID = 24  # cells per side
SIZE = CELL * GRID  # pixels per side
GROUNDS = tuple(GROUND_PHRASES)
SKIES = tuple(SKY_PHRASES)
KINDS = ("single", "two", "counting", "position")
POSITIONS = ("left", "right", "above", "below")
LARGE, SMALL = 12, 8  # cells per side of a sprite on its own, and of one among several
HORIZON = 14  # first row of the ground
SPRITE_FOLDER = Path(__file__).parent / "sprites"

# Top and bottom colour of each background (sRGB).
COLORS = {
    "blue": ((150, 196, 255), (66, 133, 230)),
    "pink": ((255, 214, 232), (245, 138, 182)),
    "green": ((196, 240, 190), (88, 184, 110)),
    "yellow": ((255, 244, 190), (250, 204, 84)),
    "purple": ((216, 196, 255), (142, 102, 222)),
    "white": ((255, 255, 255), (222, 226, 232)),
}
_SKY_COLORS = {
    "day": ((84, 168, 255), (200, 232, 255)),
    "sunset": ((104, 84, 170), (255, 176, 112)),
    "night": ((12, 16, 52), (52, 64, 128)),
}
_GROUND_COLORS = {
    "grass": ((134, 206, 92), (52, 140, 66)),
    "sand": ((250, 220, 158), (224, 176, 104)),
    "snow": ((250, 253, 255), (196, 216, 240)),
    "water": ((92, 184, 230), (24, 96, 176)),
}
_HILL_COLORS = {
    "grass": (104, 176, 92),
    "sand": (226, 180, 116),
    "snow": (190, 210, 236),
    "water": (72, 132, 190),
}
_LIGHT = {"day": (1.0, 1.0, 1.0), "sunset": (0.96, 0.78, 0.76), "night": (0.34, 0.38, 0.60)}


@dataclass(frozen=True)
class Placed:
    """One sprite in a scene: its object name, the top left cell and the side length in cells."""

    name: str
    x: int
    y: int
    size: int

    @property
    def center(self) -> tuple[float, float]:
        """(x, y) of the centre, in cells."""
        return self.x + self.size / 2, self.y + self.size / 2


@dataclass(frozen=True)
class Scene:
    """A layout: the exact ground truth of one picture.

    kind: one of `KINDS`. objects: one to three sprites; in a "position" scene the first stands
    `position` of the second. color is set for coloured backgrounds, ground and sky for landscapes.
    """

    kind: str
    objects: tuple[Placed, ...]
    position: str | None = None
    color: str | None = None
    ground: str | None = None
    sky: str | None = None
    hills: int = 0  # horizontal shift of the hills, in cells
    clouds: tuple[tuple[int, int], ...] = ()  # top left cells of clouds (day, sunset) or stars (night)
    disc: tuple[int, int] | None = None  # top left cell of sun or moon

    @property
    def combination(self) -> str:
        """Names objects, count and background, not where things are: the unit of holding out."""
        background = self.color or f"{self.ground}/{self.sky}"
        return "+".join(sorted(placed.name for placed in self.objects)) + "@" + background


def held_out(scene: Scene) -> bool:
    """True for about 5 % of all combinations; training never draws them."""
    return zlib.crc32(scene.combination.encode()) % 20 == 0


def sample_scene(rng: np.random.Generator, *, held: bool = False, kind: str | None = None) -> Scene:
    """A random scene, from the held-out combinations if `held`, else from the training ones."""
    while True:
        scene = _draw_scene(rng, kind or rng.choice(KINDS, p=(0.3, 0.2, 0.25, 0.25)))
        if held_out(scene) == held:
            return scene


def crowded_scene(rng: np.random.Generator) -> Scene:
    """A background packed with objects of all sizes: what a tokenizer and a transformer learn objects from."""
    objects: list[Placed] = []
    for _ in range(40):
        size = int(rng.choice((SMALL, LARGE)))
        x, y = (int(value) for value in rng.integers(0, GRID - size + 1, 2))
        if all(
            abs(x + size / 2 - o.center[0]) >= (size + o.size) / 2
            or abs(y + size / 2 - o.center[1]) >= (size + o.size) / 2
            for o in objects
        ):
            objects.append(Placed(str(rng.choice(OBJECTS)), x, y, size))
    return replace(sample_scene(rng), objects=tuple(objects))


def _draw_scene(rng: np.random.Generator, kind: str) -> Scene:
    landscape = rng.random() < 0.6
    background: dict = {}
    if landscape:
        spots = sorted(rng.permutation([0, 6, 12, 18])[: rng.integers(0, 3)])
        background = dict(
            ground=str(rng.choice(GROUNDS)),
            sky=str(rng.choice(SKIES)),
            hills=int(rng.choice((0, 6, 12, 18))),
            clouds=tuple((int(x) + int(rng.integers(0, 2)), int(rng.integers(0, 5))) for x in spots),
            disc=(int(rng.integers(1, 20)), int(rng.integers(1, 5))),
        )
    else:
        background = dict(color=str(rng.choice(list(COLORS))))

    names = [str(name) for name in rng.choice(OBJECTS, 2, replace=False)]
    floor = int(rng.integers(19, 22)) if landscape else None  # the row below the feet

    def row(size: int, low: int, high: int) -> int:
        return floor - size + int(rng.integers(0, 2)) if landscape else int(rng.integers(low, high + 1))

    position = None
    if kind == "single":
        objects = [Placed(names[0], int(rng.integers(2, 11)), row(LARGE, 4, 8), LARGE)]
    elif kind == "counting" and rng.random() < 0.5:
        objects = [Placed(names[0], SMALL * i, row(SMALL, 6, 10), SMALL) for i in range(3)]
    else:
        second = names[0] if kind == "counting" else names[1]
        position = str(rng.choice(POSITIONS)) if kind != "counting" else "left"
        if position in ("left", "right"):
            columns = int(rng.integers(1, 4)), int(rng.integers(13, 16))
            spots = [(x, row(SMALL, 5, 10)) for x in columns]
        else:
            x = int(rng.integers(4, 13))
            top = (x + int(rng.integers(-2, 3)), int(rng.integers(1, 4)))
            spots = [top, (x, floor - SMALL if landscape else int(rng.integers(13, 16)))]
        if position in ("right", "below"):
            spots.reverse()
        objects = [Placed(name, *spot, SMALL) for name, spot in zip((names[0], second), spots, strict=True)]
        if kind != "position":
            position = None
    if landscape:  # nothing hides behind an object
        background["clouds"] = tuple(spot for spot in background["clouds"] if _free(spot, 5, objects))
        background["disc"] = background["disc"] if _free(background["disc"], 4, objects) else None
    return Scene(kind, tuple(objects), position, **background)


def _free(spot: tuple[int, int], size: int, objects: list[Placed]) -> bool:
    """Whether a square of `size` cells at `spot` (top left x, y) touches none of the objects' squares."""
    (x, y) = spot
    return all(x + size <= o.x or o.x + o.size <= x or y + size <= o.y or o.y + o.size <= y for o in objects)


# ---------------------------------------------------------------------------------------------- words


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Words for a scene: one of several templates; the background is left unsaid one time in five."""
    first = scene.objects[0].name
    if scene.kind == "single":
        subject = with_article(first)
    elif scene.kind == "counting":
        subject = {2: "two", 3: "three"}[len(scene.objects)] + " " + plural(first)
    else:
        relation = {
            None: ("and",),
            "left": ("left of", "to the left of"),
            "right": ("right of", "to the right of"),
            "above": ("above", "over"),
            "below": ("below", "under"),
        }[scene.position]
        subject = f"{with_article(first)} {rng.choice(relation)} {with_article(scene.objects[1].name)}"

    if scene.color:
        places = [f"on a {scene.color} background", f"on {scene.color}"]
        place = str(rng.choice(places))
    else:
        ground = str(rng.choice(GROUND_PHRASES[scene.ground]))
        sky = str(rng.choice(SKY_PHRASES[scene.sky]))
        place = str(rng.choice([f"{ground} {sky}", f"{ground} {sky}", ground, sky]))
    template = rng.choice(["{s} {p}", "{s}, {p}", "a picture of {s} {p}", "{p}, {s}", "{s}"])
    return str(template).format(s=subject, p=place)


# --------------------------------------------------------------------------------------------- pixels


@functools.cache
def _sprite(name: str, cells: int) -> np.ndarray:
    """Premultiplied RGBA float32 [cells*8, cells*8, 4] in 0..1."""
    with Image.open(SPRITE_FOLDER / f"{name}.webp") as file:
        image = file.convert("RGBa").resize((cells * CELL, cells * CELL), Image.Resampling.LANCZOS)
    return np.asarray(image, np.float32) / 255


@functools.cache
def _gradient(top: tuple, bottom: tuple, rows: int) -> np.ndarray:
    """[rows*8, 1, 3] in 0..1, from the top colour to the bottom one."""
    t = np.linspace(0, 1, rows * CELL, dtype=np.float32)[:, None, None]
    return ((1 - t) * np.float32(top) + t * np.float32(bottom)) / 255


@functools.cache
def _texture(ground: str) -> np.ndarray:
    """Brightness pattern [16, 192, 1] that repeats every two cells, so it costs few codes."""
    y, x = np.mgrid[0:16, 0:SIZE].astype(np.float32)
    if ground == "grass":
        blades = np.sin((x + 5 * (y // 8)) * np.pi / 4) * ((y % 8) / 8)
        pattern = 0.035 * blades
    elif ground == "water":
        pattern = 0.05 * np.maximum(np.sin(y * np.pi / 8 + np.sin(x * np.pi / 8)), 0) ** 2
    elif ground == "sand":
        pattern = 0.025 * np.sin(y * np.pi / 4 + 0.8 * np.sin(x * np.pi / 8))
    else:
        pattern = 0.012 * np.sin(x * np.pi / 8) * np.sin(y * np.pi / 8)
    return pattern[..., None].astype(np.float32)


@functools.cache
def _shadow(cells: int) -> np.ndarray:
    """Opacity [16, cells*8, 1] of the soft contact shadow below a sprite."""
    y, x = np.mgrid[0:16, 0 : cells * CELL].astype(np.float32)
    distance = ((x + 0.5) / (cells * 4) - 1) ** 2 / 0.7 + ((y - 7.5) / 7.5) ** 2
    return (0.30 * np.clip(1 - distance, 0, 1))[..., None]


@functools.cache
def _disc(sky: str) -> np.ndarray:
    """Premultiplied RGBA [32, 32, 4] of the sun or the moon."""
    y, x = np.mgrid[0:32, 0:32].astype(np.float32) - 15.5
    radius = np.hypot(x, y)
    alpha = np.clip(12.5 - radius, 0, 1)
    glow = 0.35 * np.clip(1 - radius / 16, 0, 1)
    color = {"day": (255, 232, 120), "sunset": (255, 214, 140), "night": (240, 240, 224)}[sky]
    opacity = np.maximum(alpha, glow)[..., None]
    return np.concatenate([np.float32(color) / 255 * opacity, opacity], -1).astype(np.float32)


@functools.cache
def _star() -> np.ndarray:
    """Premultiplied RGBA [8, 8, 4] of one star."""
    y, x = np.abs(np.mgrid[0:8, 0:8].astype(np.float32) - 3.5)
    opacity = np.clip(1.2 - (x * y) * 0.8 - 0.28 * (x + y), 0, 1)[..., None]
    return np.concatenate([opacity, opacity, 0.88 * opacity, opacity], -1).astype(np.float32)


def _paste(canvas: np.ndarray, rgba: np.ndarray, x: int, y: int) -> None:
    """Composites premultiplied `rgba` with its top left corner at cell (x, y), clipped to the canvas."""
    height = min(rgba.shape[0], SIZE - y * CELL)
    width = min(rgba.shape[1], SIZE - x * CELL)
    part = rgba[:height, :width]
    area = canvas[y * CELL : y * CELL + height, x * CELL : x * CELL + width]
    area *= 1 - part[..., 3:]
    area += part[..., :3]


def render(scene: Scene) -> np.ndarray:
    """The picture of a scene: uint8 RGB [192, 192, 3]."""
    canvas = np.empty((SIZE, SIZE, 3), np.float32)
    if scene.color:
        canvas[:] = _gradient(*COLORS[scene.color], GRID)
    else:
        _paint_landscape(canvas, scene)
    for placed in sorted(scene.objects, key=lambda placed: placed.y):
        bottom = placed.y + placed.size
        if scene.ground and bottom > HORIZON + 2 and bottom <= GRID - 1:
            opacity = _shadow(placed.size)
            left, top = placed.x * CELL, (bottom - 1) * CELL
            canvas[top : top + 16, left : left + placed.size * CELL] *= 1 - opacity
        _paste(canvas, _sprite(placed.name, placed.size), placed.x, placed.y)
    return (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _paint_landscape(canvas: np.ndarray, scene: Scene) -> None:
    top = HORIZON * CELL
    light = np.float32(_LIGHT[scene.sky])
    canvas[:top] = _gradient(*_SKY_COLORS[scene.sky], HORIZON)
    if scene.disc:
        _paste(canvas, _disc(scene.sky), *scene.disc)
    for x, y in scene.clouds:
        if scene.sky == "night":
            for dx, dy in ((0, 1), (3, 0), (2, 4)):
                _paste(canvas, _star(), min(x + dx, GRID - 1), y + dy)
        else:
            _paste(canvas, _sprite("cloud", 5) * 0.9, x, y)
    columns = np.arange(SIZE) + scene.hills * CELL
    heights = 9 + 5 * np.sin(columns * 2 * np.pi / SIZE) + 3 * np.sin(columns * 6 * np.pi / SIZE)
    rows = np.arange(top)[:, None]
    cover = np.clip(rows - (top - heights)[None] + 0.5, 0, 1)[..., None].astype(np.float32)
    canvas[:top] += cover * (np.float32(_HILL_COLORS[scene.ground]) / 255 * light - canvas[:top])
    ground = _gradient(*_GROUND_COLORS[scene.ground], GRID - HORIZON)
    texture = np.resize(_texture(scene.ground), (SIZE - top, SIZE, 1))
    canvas[top:] = (ground + texture) * light


def example(seed: int, index: int, *, held: bool = False, kind: str | None = None) -> tuple[Scene, str, np.ndarray]:
    """Scene number `index` of the endless data set `seed`: layout, caption, picture [192, 192, 3] uint8."""
    rng = np.random.default_rng((seed, index))
    scene = sample_scene(rng, held=held, kind=kind)
    return scene, caption(scene, rng), render(scene)


def crowded_example(seed: int, index: int) -> tuple[Scene, str, np.ndarray]:
    """A crowded scene like `example`; its caption lists the objects from top to bottom, left to right."""
    scene = crowded_scene(np.random.default_rng((seed, index)))
    ordered = sorted(scene.objects, key=lambda placed: (placed.y, placed.x))
    return scene, " ".join(placed.name for placed in ordered), render(scene)
