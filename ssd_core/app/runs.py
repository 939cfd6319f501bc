"""What the decoder's thread does for the page: a race, a sweep over schedules, a single picture for the API."""

import base64
import io
import threading
from dataclasses import replace

from PIL import Image

from ..decoders import DecodeConfig
from ..generate import Result, generate
from ..pictures import png_bytes, sheet, to_pil
from ..schedule import Schedule
from ..session import DecodeEvent
from .race import Lane, Race, recording, title
from .settings import Settings
from .studio import Model
from .turnstile import Stopped


def new_race(model: Model, settings: Settings) -> Race:
    """The race that was asked for, at its start."""
    left, right = (
        Lane(
            model.backbone,
            config,
            settings.prompt,
            settings.seeds,
            heads=model.heads,
            sampling=settings.sampling,
            negative=settings.negative,
        )
        for config in (settings.left, settings.right)
    )
    return Race(left, right)


def run_race(race: Race, stop: threading.Event) -> None:
    """Runs until both have finished or `stop` is set; what is there then stays."""
    while not stop.is_set() and race.advance():
        pass
    if not race.finished:
        race.close()


def completed(race: Race, model: Model, settings: Settings, kind: str = "png") -> dict:
    """The recording of a race with its pictures as data URLs: PNG files with the settings inside, or WebP (small)."""
    run = recording(race, model.colors) | {"prompt": settings.prompt, "seed": settings.seed}
    for lane, record in zip(race.lanes, run["lanes"], strict=True):
        if not lane.finished:
            continue
        images, record["pixels"] = lane.pictures()
        result = lane.result()
        if kind == "png":
            record["pictures"] = [png_url(image, result.metadata(i)) for i, image in enumerate(images)]
            record["files"] = [f"ssd-{seed}-{lane.config.decoder}.png" for seed in settings.seeds]
        else:
            record["pictures"] = [webp_url(image) for image in images]
    return run


def draw(model: Model, settings: Settings, stop: threading.Event, progress: list[float]) -> tuple[Image.Image, dict]:
    """One picture with the right decoder, and what it took; `progress` receives the share that is done.

    The picture's `info` holds the same facts as a saved file's text fields. Raises Stopped.
    """

    def look(event: DecodeEvent) -> None:
        progress.append(event.progress)
        if stop.is_set():
            raise Stopped

    result = _generate(model, settings, settings.right, look)
    image = to_pil(model.backbone.decode_image(result.tokens)[0])
    image.info |= result.metadata(0)
    return image, {
        "prompt": settings.prompt,
        "seed": settings.seed,
        "speed": settings.speed,
        "decoder": str(result.config),
        "passes": result.nfe,
        "planned_passes": result.planned_nfe,
        "seconds": round(result.seconds, 4),
        "kept_per_round": [round(share, 4) for share in result.acceptance.values()],
        "backbone": result.backbone,
    }


class Sweep:
    """AR, then SSD with 0 to 4 verify rounds for every k_v asked for, on one prompt and seed.

    cards: what is done; progress: 0..1. Other threads may look at both at any time.
    """

    def __init__(self, model: Model, settings: Settings, rows: list[int], rule: str):
        base = replace(settings.right, decoder="ssd", rule=rule, options=None)
        self.model, self.settings = model, replace(settings, images=1)
        self.configs = [replace(base, decoder="ar")] + [
            replace(base, schedule=Schedule(b=rounds, k_h=base.schedule.k_h, k_v=k_v))
            for k_v in rows
            for rounds in range(5)
        ]
        self.cards: list[dict] = []
        self.progress = 0.0
        self._images: list[Image.Image] = []
        self._results: list[Result] = []

    def run(self, stop: threading.Event) -> None:
        """Draws one picture after the other; raises Stopped."""

        def look(event: DecodeEvent) -> None:
            self.progress = (len(self._results) + event.progress) / len(self.configs)
            if stop.is_set():
                raise Stopped

        for config in self.configs:
            result = _generate(self.model, self.settings, config, look)
            self._results.append(result)
            self._images.append(to_pil(self.model.backbone.decode_image(result.tokens)[0]))
            self.cards.append(self._card(result))

    def sheet(self) -> str:
        """All pictures so far on one sheet: a PNG file as a data URL, with the settings inside."""
        captions = ["\n".join((card["title"], *card["lines"])) for card in self.cards]
        facts = self._results[0].metadata(0) | {"decoder": "\n\n".join(captions)}
        del facts["nfe"], facts["seconds"]
        return png_url(sheet(self._images, captions, columns=3), facts)

    def _card(self, result: Result) -> dict:
        reference, schedule = self._results[0], result.config.schedule
        equal = (result.tokens == reference.tokens).float().mean().item()
        image = self._images[-1]
        speedup = reference.seconds / result.seconds
        card = {
            "title": title(result.config),
            "lines": [f"{result.nfe} passes, {result.seconds:.2f} s"],
            "picture": webp_url(image.resize((256, 256 * image.height // image.width))),
            "equal": equal,
            "speedup": speedup,
            "k_v": 0,
        }
        if result is reference:
            return card
        card["title"] = f"r = {schedule.b}" if schedule.k_v == 1 else f"r = {schedule.b}, k_v = {schedule.k_v}"
        card["lines"].append(f"{speedup:.1f}x, {equal:.0%} equal to AR")
        kept = [f"{share:.0%}" for share in result.acceptance.values()]
        card["lines"].append("kept per round " + " ".join(kept) if kept else "never verified")
        return card | {"k_v": schedule.k_v}


def _generate(model: Model, settings: Settings, config: DecodeConfig, look) -> Result:
    return generate(
        model.backbone,
        [settings.prompt],
        [settings.seed],
        config,
        settings.sampling,
        heads=model.heads,
        negatives=[settings.negative],
        on_event=look,
    )


def png_url(image: Image.Image, facts: dict[str, str]) -> str:
    """A PNG file with text fields as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(image, facts)).decode()


def webp_url(image: Image.Image) -> str:
    """A small file as a data URL."""
    file = io.BytesIO()
    image.save(file, format="WEBP", quality=88, method=4)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
