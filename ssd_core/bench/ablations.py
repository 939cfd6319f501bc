"""The paper's ablations as named sets of contenders, and first-round acceptance by direction (Figure 1).

Two of them, `TRAINED`, compare ways to train heads, and train small ones for it.
"""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from PIL import Image
from torch import Tensor

from ..backbones.base import Backbone
from ..builtin import scenes
from ..correction import RULES
from ..decoders import DecodeConfig
from ..heads import SPACES, HeadSet
from ..sampling import SamplingConfig
from ..schedule import Schedule
from ..session import DecodingSession
from ..training.captioned import captioned_pictures, encode_corpus
from ..training.corpus import Corpus, draw_corpus, load_corpus
from ..training.heads import HeadsConfig, train_heads
from .contenders import Contender

ABLATIONS = {
    "rules": "update rules at the preset's schedule (Table 3)",
    "rounds": "verify rounds on single rows (Table 4)",
    "lookahead": "rows drafted at once, b = 5 and i = 4 (Table 20)",
    "staged": "joint against staged verification of two rows (Table 21)",
    "data": "how many pictures heads learn from, and whose, drafts unverified (Table 5)",
    "spaces": "what heads read and predict, drafts unverified (Table 19)",
    "heads": "heads files given with --heads, drafts unverified",
}
TRAINED = ("data", "spaces")
OF_HEADS = (*TRAINED, "heads")
SCENE_SEED = 6  # of the scenes that stand for a folder of captioned pictures


def contenders(name: str, base: DecodeConfig) -> list[Contender]:
    """The configurations of an ablation; base: the family's preset. Those of heads have one, for all of them."""
    k_h = base.schedule.k_h

    def ssd(rule: str = base.rule, **knobs: int) -> Contender:
        return Contender(replace(base, decoder="ssd", schedule=Schedule(**{"k_h": k_h, **knobs}), rule=rule))

    if name == "rules":
        return [Contender(replace(base, decoder="ssd", rule=rule)) for rule in RULES]
    if name == "rounds":
        return [ssd(b=r) for r in range(5)]
    if name == "lookahead":
        return [ssd(b=5, i=4 if k_v > 1 else 0, k_v=k_v) for k_v in (1, 2, 3)]
    if name == "staged":
        return [ssd(b=9, k_v=2), *(ssd(b=5, i=i, k_v=2) for i in (1, 2, 3, 4))]
    if name in OF_HEADS:
        return [ssd(b=0)]
    raise ValueError(f'Unknown ablation "{name}": choose one of {", ".join(ABLATIONS)}.')


@dataclass(frozen=True)
class TrainedHeads:
    """Heads that were trained for an ablation; seconds: what that took, from drawing the first picture on."""

    name: str
    heads: HeadSet
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} ({self.seconds:.0f} s)"


def train_variants(
    name: str, backbone: Backbone, base: DecodeConfig, *, pictures: int = 32, steps: int = 50, batch: int = 4
) -> list[TrainedHeads]:
    """The heads of an ablation in `TRAINED`: one head below, base.schedule.k_h to the right, `steps` steps each.

    "data": a quarter of the pictures, then all, drawn by the backbone itself; that quarter and as many drawn by SSD
    with the heads it trained as fit into the time that all took; as many scenes with captions as drawn, then four
    times as many; those again for as many steps as fit into that time. "spaces": one after the other, on pictures
    that the backbone draws. Both are for a backbone that can read scene captions.
    """
    if pictures < 4:
        raise ValueError(f"Training takes at least 4 pictures, got {pictures}.")
    config = HeadsConfig(k_h=base.schedule.k_h, k_v=1, expansion=1.0, lr=3e-3, steps=steps, batch=batch)
    accelerator = Accelerator(cpu=backbone.device.type == "cpu")
    with tempfile.TemporaryDirectory() as folder:
        workshop = _Workshop(backbone, accelerator, Path(folder), max(2, pictures // 4))
        if name == "spaces":
            own, drawing = workshop.drawn(pictures)
            return [workshop.train(space, own, drawing, replace(config, space=space)) for space in SPACES]
        few, drawing = workshop.drawn(workshop.batch)
        first = workshop.train(f"{len(few)} own", few, drawing, config)
        own, more = workshop.drawn(pictures)  # only the missing ones are drawn
        drawn = workshop.train(f"{len(own)} own", own, drawing + more, config)
        by_ssd, more = workshop.drawn_by_ssd(first.heads, base, drawing + more - first.seconds)
        title = f"{len(few)} own, {len(by_ssd)} by SSD with their heads"
        found = [first, drawn, workshop.train(title, few.joined(by_ssd), first.seconds + more, config)]
        for count in (workshop.batch, pictures, 4 * pictures):
            given, encoding = workshop.encoded(count)
            found.append(workshop.train(f"{count} given", given, encoding, config))
        factor = (drawn.seconds - encoding) / (found[-1].seconds - encoding)
        longer = replace(config, steps=max(steps, math.floor(steps * factor)))
        title = f"{4 * pictures} given, {longer.steps} steps"
        return [*found, workshop.train(title, given, encoding, longer)]


@dataclass(frozen=True)
class _Workshop:
    """Makes corpora and heads in a temporary folder, against the clock. batch: pictures that are drawn together."""

    backbone: Backbone
    accelerator: Accelerator
    folder: Path
    batch: int

    def drawn(self, count: int) -> tuple[Corpus, float]:
        """The first pictures that the backbone draws; seconds for what was not there yet."""
        return self._draw(range(count), "corpus")

    def drawn_by_ssd(self, heads: HeadSet, base: DecodeConfig, seconds: float) -> tuple[Corpus, float]:
        """Other pictures, which SSD draws with some heads, as many batches as fit into `seconds` (at least one);
        seconds for them. One row at a time, with as many rounds as base has."""
        schedule = Schedule(b=base.schedule.b, k_h=base.schedule.k_h)
        how = dict(config=replace(base, decoder="ssd", schedule=schedule), heads=heads)
        spent = longest = 0.0
        stop = self.batch
        while stop == self.batch or spent + longest <= seconds:
            stop += self.batch
            corpus, drawing = self._draw(range(self.batch, stop), "corpus by SSD", **how)
            spent, longest = spent + drawing, max(longest, drawing)
        return corpus, spent

    def _draw(self, numbers: range, folder: str, **how) -> tuple[Corpus, float]:
        captions = [caption for caption, _ in map(_captioned_scene, numbers)]
        options = dict(accelerator=self.accelerator, batch=self.batch, seed=numbers.start, **how)
        began, where = time.perf_counter(), self.folder / folder
        draw_corpus(self.backbone, captions, where, **options)
        seconds = time.perf_counter() - began
        return load_corpus(where, self.backbone.fingerprint, len(captions)), seconds

    def encoded(self, count: int) -> tuple[Corpus, float]:
        """Scenes with captions, read from a folder; seconds for reading and encoding them."""
        folder = self.folder / "pictures"
        folder.mkdir(exist_ok=True)
        for number in range(len(list(folder.glob("*.txt"))), count):
            caption, scene = _captioned_scene(number)
            scene.save(folder / f"{number:06d}.png")
            (folder / f"{number:06d}.txt").write_text(caption, encoding="utf-8")
        began = time.perf_counter()
        corpus = encode_corpus(self.backbone, captioned_pictures(folder))
        return corpus, time.perf_counter() - began

    def train(self, name: str, corpus: Corpus, before: float, config: HeadsConfig) -> TrainedHeads:
        """Heads that learn from a corpus; before: the seconds that its pictures took."""
        began = time.perf_counter()
        work = self.folder / f"training {name}"
        heads = train_heads(self.backbone, corpus, config, accelerator=self.accelerator, work=work)
        return TrainedHeads(name, heads, before + time.perf_counter() - began)


def _captioned_scene(number: int) -> tuple[str, Image.Image]:
    _, caption, picture = scenes.example(SCENE_SEED, number)
    return caption, Image.fromarray(picture)


@dataclass(frozen=True)
class Direction:
    """Share of drafts that a first round keeps: the likeliest code of a head, `distance` cells away."""

    distance: int
    horizontal: float | None
    vertical: float | None

    def as_dict(self) -> dict:
        """For files."""
        return asdict(self)

    def as_texts(self) -> dict[str, str]:
        """For tables."""
        return {
            "distance": str(self.distance),
            "to the right": "" if self.horizontal is None else f"{self.horizontal:.1%}",
            "below": "" if self.vertical is None else f"{self.vertical:.1%}",
        }


@torch.inference_mode()
def measure_directions(
    backbone: Backbone, heads: HeadSet, prompts: Sequence[str], tokens: Tensor, sampling: SamplingConfig
) -> list[Direction]:
    """Mean min(1, p / q) of drafts on AR's pictures [N, rows, cols], where every context is right."""
    offsets = range(1, max(heads.k_h, heads.k_v) + 1)
    sums = {(vertical, offset): [0.0, 0] for vertical in (False, True) for offset in offsets}
    for prompt, picture in zip(prompts, tokens, strict=True):
        session = DecodingSession(backbone, [prompt], [0], sampling)
        grid = session.grid
        session.cells(range(grid.rows)).copy_(picture[None])
        states = torch.cat((session.prefill(), session.forward(0, grid.size - 1)), 1)
        h = states.unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
        e = session.embed(session.tokens[:, : grid.size]).unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
        for y in range(grid.rows):
            log_p = session.log_probs(h[:, y])
            for offset in offsets:
                if offset <= heads.k_h and offset < grid.cols:
                    h_hat = heads.draft_right(offset, h[:, y, :-offset], e[:, y, :-offset])
                    _add(sums[False, offset], session, log_p[:, offset:], heads, h_hat)
                if offset <= heads.k_v and offset <= y:
                    h_hat = heads.draft_below(offset, h[:, y - offset], e[:, y - offset])
                    _add(sums[True, offset], session, log_p, heads, h_hat)
    share = {key: total / count if count else None for key, (total, count) in sums.items()}
    return [Direction(offset, share[False, offset], share[True, offset]) for offset in offsets]


def _add(total: list, session: DecodingSession, log_p: Tensor, heads: HeadSet, h_hat: Tensor) -> None:
    log_q, drafts = session.log_probs(h_hat, heads).max(-1, keepdim=True)
    kept = (log_p.gather(-1, drafts) - log_q).exp().clamp(max=1)
    total[0] += float(kept.sum())
    total[1] += kept.numel()
