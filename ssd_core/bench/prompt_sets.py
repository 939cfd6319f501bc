"""Pictures for GenEval and DPG-Bench, in the folders that their official evaluators read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..files import write_atomically

GENEVAL, DPG = "geneval", "dpg"
BENCHMARKS = {
    GENEVAL: "evaluation_metadata.jsonl; writes 00000/samples/00000.png, ... and 00000/metadata.jsonl, ...",
    DPG: "the folder of prompts, one .txt each; writes the pictures of each prompt in one PNG, two by two",
}


@dataclass(frozen=True)
class BenchmarkPrompt:
    """A prompt of a benchmark: its number, its text, its name (DPG-Bench) and its line of metadata (GenEval)."""

    benchmark: str
    number: int
    text: str
    name: str
    metadata: str = ""

    def files(self, folder: Path, samples: int) -> list[Path]:
        """The pictures' files; the last one is written last."""
        if self.benchmark == DPG:
            return [folder / f"{self.name}.png"]
        return [folder / self.name / "samples" / f"{i:05d}.png" for i in range(samples)]

    def is_drawn(self, folder: Path, samples: int) -> bool:
        """Whether all of its pictures are there."""
        return all(file.is_file() for file in self.files(folder, samples))

    def write(self, folder: Path, images: Sequence[Image.Image]) -> None:
        """Writes its pictures, atomically each."""
        if self.benchmark == DPG:
            images = [_two_by_two(images)]
        else:
            _write_text(folder / self.name / "metadata.jsonl", self.metadata)
        for file, image in zip(self.files(folder, len(images)), images, strict=True):
            write_atomically(file, lambda path, image=image: image.save(path, format="PNG"))


def read_prompts(benchmark: str, source: Path) -> list[BenchmarkPrompt]:
    """The prompts of GenEval's evaluation_metadata.jsonl, or of DPG-Bench's folder of texts.

    Raises ValueError that says what is there instead.
    """
    if benchmark == GENEVAL:
        if not source.is_file():
            raise ValueError(f"There is no file {source}: GenEval's prompts are evaluation_metadata.jsonl.")
        lines = [line for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
        try:
            texts = [json.loads(line)["prompt"] for line in lines]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f'{source} is not GenEval\'s: a line without a JSON object with "prompt".') from error
        return [
            BenchmarkPrompt(GENEVAL, i, text, f"{i:05d}", line)
            for i, (text, line) in enumerate(zip(texts, lines, strict=True))
        ]
    files = sorted(source.glob("*.txt")) if source.is_dir() else []
    if not files:
        raise ValueError(f"There are no .txt files in {source}: DPG-Bench's prompts are its folder prompts.")
    return [BenchmarkPrompt(DPG, i, file.read_text("utf-8").strip(), file.stem) for i, file in enumerate(files)]


def _two_by_two(images: Sequence[Image.Image]) -> Image.Image:
    width, height = images[0].size
    columns = 1 if len(images) == 1 else 2
    canvas = Image.new("RGB", (columns * width, -(-len(images) // columns) * height))
    for i, image in enumerate(images):
        canvas.paste(image, (i % columns * width, i // columns * height))
    return canvas


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text + "\n", encoding="utf-8"))
