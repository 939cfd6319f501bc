"""Recorded races: python -m ssd_core.app record | animate | gallery"""

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ..__main__ import add_model_options
from ..speeds import SPEEDS
from . import recordings
from .runs import completed, new_race, run_race
from .settings import default_form, settings_of, to_query
from .studio import SHIPPED, Studio


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; 0, or 2 after one sentence about what is wrong with the request."""
    parser = argparse.ArgumentParser(prog="python -m ssd_core.app", description="Recorded races, for the app.")
    commands = parser.add_subparsers(dest="command", required=True)

    record = commands.add_parser("record", help="race AR against SSD and write down what happened")
    record.set_defaults(run=_record)
    record.add_argument("prompt")
    record.add_argument("--seed", type=int, default=7, help="(default: %(default)s)")
    record.add_argument("--speed", choices=SPEEDS, default="balanced", help="(default: %(default)s)")
    record.add_argument("--out", type=Path, required=True, help="JSON file to write")
    _add_model(record)

    animate = commands.add_parser("animate", help="make an animated picture from a recording")
    animate.set_defaults(run=_animate)
    animate.add_argument("recording", type=Path)
    animate.add_argument("--out", type=Path, required=True, help="WebP or GIF file to write")

    gallery = commands.add_parser("gallery", help="record the shipped races again, and the animated picture")
    gallery.set_defaults(run=_gallery)
    gallery.add_argument("--animation", type=Path, help="WebP or GIF file to write, of the first race")
    _add_model(gallery)

    args = parser.parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _add_model(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--heads", default=SHIPPED, help='a heads file, "shipped", or "none" (default: %(default)s)')


def studio_of(args: argparse.Namespace, models: Path | None = None) -> Studio:
    """The model that the options choose; not loaded yet."""
    options = {name: getattr(args, name) for name in ("device", "dtype", "download", "vq", "bits")}
    return Studio(args.backbone, args.heads, models=models, **options)


def race_to_file(studio: Studio, prompt: str, seed: int, speed: str, path: Path) -> dict:
    """Runs a race and writes its recording; the recording."""
    model = studio.model()
    form = default_form(model.backbone.family, model.backbone.defaults)
    wanted = form | {"prompt": prompt, "seed": seed, "speed": speed}
    settings = settings_of(wanted, model.backbone.family)
    race = new_race(model, settings)
    run_race(race, threading.Event())
    run = completed(race, model, settings, "webp") | {"link": to_query(wanted, form)}
    recordings.save(run, path)
    print(f"{path}: {run['verdict']}")
    return run


def _record(args: argparse.Namespace) -> None:
    race_to_file(studio_of(args), args.prompt, args.seed, args.speed, args.out)


def _animate(args: argparse.Namespace) -> None:
    path = recordings.animate(recordings.load(args.recording), args.out)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def _gallery(args: argparse.Namespace) -> None:
    studio, paths = studio_of(args), []
    for i, (prompt, seed, speed) in enumerate(recordings.GALLERY):
        paths.append(recordings.FOLDER / f"{i + 1}-{speed}.json")
        run = race_to_file(studio, prompt, seed, speed, paths[-1])
        if i == 0 and args.animation:
            path = recordings.animate(run, args.animation)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    for path in set(recordings.FOLDER.glob("*.json")) - set(paths):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
