"""What heads are trained on: prompts and the pictures that the frozen backbone itself draws for them.

Nobody needs a data set: the corpus is self-distilled (paper Sec. 3.3 and Table 6). It is a folder of
safetensors files ("shards"), one for each batch of pictures; a shard is written when it is finished, so
drawing can stop at any time and go on later, and several processes share the shards among them.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from ..backbones.base import Backbone
from ..decoders import DecodeConfig, decode
from ..files import write_atomically
from ..grid import TokenGrid
from ..heads import Heads
from ..sampling import MAX_SEED, SamplingConfig
from ..session import DecodingSession

FORMAT = "ssd-corpus"
VERSION = "1"


class CorpusError(ValueError):
    """A corpus that cannot be used; the message says what was found, expected, and what to do."""


@dataclass(frozen=True)
class Corpus:
    """N prompts and their pictures: tokens int32 [N, rows, cols] on the CPU, codes of `grid`.

    decoder and sampling say how the pictures were drawn.
    """

    prompts: list[str]
    tokens: Tensor
    grid: TokenGrid
    decoder: str
    sampling: SamplingConfig

    def __len__(self) -> int:
        return len(self.prompts)

    def joined(self, other: "Corpus") -> "Corpus":
        """These pictures, then those of another corpus on the same grid, drawn with the same sampling."""
        if (self.grid, self.sampling) != (other.grid, other.sampling):
            raise CorpusError(
                f"Only corpora of one grid and one sampling can be joined: {self.grid}, {self.sampling} is one, "
                f"{other.grid}, {other.sampling} the other."
            )
        tokens, decoder = torch.cat((self.tokens, other.tokens)), f"{self.decoder}, then {other.decoder}"
        return replace(self, prompts=self.prompts + other.prompts, tokens=tokens, decoder=decoder)


def draw_corpus(
    backbone: Backbone,
    prompts: list[str],
    folder: str | Path,
    *,
    accelerator: Accelerator,
    config: DecodeConfig | None = None,
    sampling: SamplingConfig | None = None,
    heads: Heads | None = None,
    grid: TokenGrid | None = None,
    batch: int = 16,
    seed: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> None:
    """Draws one picture per prompt into `folder`, `batch` at a time; shards that are there already are kept.

    config: the decoder, by default "ar"; sampling: by default the backbone's own; heads: drafts for "ssd"
    and "lossless". Picture i has the image seed `seed` + i, so the corpus depends neither on the batch
    size nor on the number of processes. Raises CorpusError, before anything is drawn, if the folder holds
    another corpus, and ValueError for prompts that the backbone cannot read. Ctrl-C ends the program, an
    exception from on_progress (which gets the share that is drawn, after every pass) the drawing; the
    finished shards stay.
    """
    if not prompts:
        raise ValueError("A corpus needs at least one prompt.")
    if batch < 1:
        raise ValueError(f"batch must be at least 1 picture, got {batch}.")
    if not 0 <= seed <= MAX_SEED + 1 - len(prompts):
        raise ValueError(f"{len(prompts)} pictures need a seed from 0 to {MAX_SEED + 1 - len(prompts)}, got {seed}.")
    folder, config = Path(folder), config or DecodeConfig("ar")
    sampling, grid = sampling or backbone.defaults, grid or backbone.grid()
    common = _description(backbone.fingerprint, grid, config, sampling, batch)
    shards = []
    for number, first in enumerate(range(0, len(prompts), batch)):
        drawn = prompts[first : first + batch]
        shards.append(_Shard(_path(folder, number), drawn, list(range(seed + first, seed + first + len(drawn)))))
    missing = [shard for shard in shards if not shard.finished(common)]
    if missing:  # a word that the model does not know shows now, not hours later
        for prompt in dict.fromkeys(prompts):
            backbone.encode_prompts([prompt], None, grid)
    accelerator.wait_for_everyone()  # no process writes before all have looked
    mine = missing[accelerator.process_index :: accelerator.num_processes]
    total = sum(len(shard.prompts) for shard in mine) * grid.size
    bar = tqdm(
        desc="Drawing the corpus",
        total=total,
        unit="cell",
        unit_scale=True,
        disable=not (mine and accelerator.is_main_process),
        dynamic_ncols=True,
    )
    with bar:
        try:
            for shard in mine:
                _draw(backbone, shard, common, config, sampling, heads, grid, bar, on_progress)
        except KeyboardInterrupt:
            raise SystemExit(f"Stopped; {folder} keeps the finished shards. Run the same command again.") from None
    accelerator.wait_for_everyone()


@dataclass(frozen=True)
class _Shard:
    path: Path
    prompts: list[str]
    seeds: list[int]

    def finished(self, common: dict[str, str]) -> bool:
        """Whether its pictures are in the folder; CorpusError if others are."""
        if not self.path.exists():
            return False
        found = _metadata(self.path)
        for name, value in common.items():
            if found.get(name) != value:
                raise CorpusError(
                    f"{self.path} belongs to another corpus: its {name} is {found.get(name)}, expected {value}. "
                    "Choose another folder, or delete this one to draw it again."
                )
        for name, wanted in (("prompts", self.prompts), ("seeds", self.seeds)):
            there = json.loads(found[name])
            if any(a != b for a, b in zip(there, wanted, strict=False)):
                raise CorpusError(
                    f"{self.path} belongs to another corpus: it was drawn from other {name}. "
                    "Choose another folder, or delete this one to draw it again."
                )
        return len(json.loads(found["prompts"])) >= len(self.prompts)  # shorter: the end of a smaller corpus


def _draw(
    backbone: Backbone,
    shard: _Shard,
    common: dict[str, str],
    config: DecodeConfig,
    sampling: SamplingConfig,
    heads: Heads | None,
    grid: TokenGrid,
    bar: tqdm,
    on_progress: Callable[[float], None] | None,
) -> None:
    session = DecodingSession(backbone, shard.prompts, shard.seeds, sampling, grid=grid, lookahead=config.lookahead)
    shown = 0
    for event in decode(session, config, heads):
        done = round(event.progress * grid.size) * session.batch
        bar.update(done - shown)
        shown = done
        if on_progress:
            on_progress(bar.n / bar.total)
    tokens = event.tokens.to("cpu", torch.int32).contiguous()
    metadata = common | {"prompts": json.dumps(shard.prompts), "seeds": json.dumps(shard.seeds)}
    write_atomically(shard.path, lambda path: save_file({"tokens": tokens}, path, metadata=metadata))


def load_corpus(folder: str | Path, fingerprint: str, pictures: int | None = None) -> Corpus:
    """Reads a corpus, or its first `pictures` ones, for the backbone with this fingerprint.

    Raises CorpusError if there is none, if it is another backbone's, if its shards do not belong
    together, or if it has fewer pictures than asked for.
    """
    folder = Path(folder)
    paths = sorted(folder.glob("shard-*.safetensors"))
    if not paths:
        raise CorpusError(f"There is no corpus in {folder}: draw one with python -m ssd_core.training.")
    prompts, tokens, common = [], [], None
    for path in paths:
        found = _metadata(path)
        if found["fingerprint"] != fingerprint:
            raise CorpusError(
                f"{path} was drawn by backbone {found['fingerprint']}, but the loaded one is {fingerprint}: "
                "heads learn from their own backbone's pictures only. Choose another folder."
            )
        description = {name: value for name, value in found.items() if name not in ("prompts", "seeds")}
        if common not in (None, description):
            raise CorpusError(f"{path} does not belong to the other shards in {folder}: draw the corpus again.")
        common = description
        with safe_open(path, framework="pt") as file:
            tokens.append(file.get_tensor("tokens"))
        prompts += json.loads(found["prompts"])
        if pictures is not None and len(prompts) >= pictures:
            break
    if len(prompts) < (pictures or 1):
        raise CorpusError(f"{folder} has {len(prompts)} pictures, {pictures or 1} are needed: draw more.")
    return Corpus(
        prompts[:pictures],
        torch.cat(tokens)[:pictures],
        TokenGrid(**json.loads(common["grid"])),
        common["decoder"],
        SamplingConfig(**json.loads(common["sampling"])),
    )


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.safetensors"


def _description(
    fingerprint: str, grid: TokenGrid, config: DecodeConfig, sampling: SamplingConfig, batch: int
) -> dict[str, str]:
    """The metadata that all shards of a corpus have in common."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint,
        "grid": json.dumps(asdict(grid)),
        "decoder": str(config),
        "sampling": json.dumps(asdict(sampling)),
        "batch": str(batch),
    }


def _metadata(path: Path) -> dict[str, str]:
    """Metadata of a shard; CorpusError if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise CorpusError(f"{path} is damaged ({error}): delete it and draw the corpus again.") from error
    expected = {*_description("", TokenGrid(1, 2), DecodeConfig("ar"), SamplingConfig(), 1), "prompts", "seeds"}
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION or expected - metadata.keys():
        raise CorpusError(
            f"{path} is not a shard of a corpus that this program reads: expected {FORMAT} version {VERSION}, found "
            f"{metadata.get('format')} version {metadata.get('version')}. Delete it, or choose another folder."
        )
    return metadata
