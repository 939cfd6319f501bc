"""Trains spatial drafting heads for any backbone (paper Sec. 3.3, A.1, Table 6): self-distillation.

The teacher is the frozen backbone: one uncached pass over a prompt and its picture gives every state
that decoding would compute one by one. Legend: h[y, x] is the state before the final norm that predicts
cell (y, x), e[y, x] embeds its token (`heads.PAIRING`). The head of offset d learns to turn them into
h[y, x + d] (horizontal) or h[y + d, x] (vertical); `heads.SPACES` has other inputs and targets.
"""

import functools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from ..backbones.base import Backbone, Prompt
from ..cache import causal_mask
from ..grid import TokenGrid
from ..heads import SPACES, HeadSet, save_heads
from .corpus import Corpus
from .loop import LoopConfig, fit

HELD_OUT = 0.03  # share of the pictures that judge the heads and never train them
MOST_HELD_OUT = 256
MEASURED = 8  # pictures whose states say how large states are


@dataclass(frozen=True)
class HeadsConfig:
    """How heads are trained; the defaults are the paper's (A.1, Table 6).

    k_h, k_v, expansion, space: the heads of the `HeadSet`. scaled: give inputs and targets about unit size, by
    `HeadSet.state_scale` and `token_scale`; the paper does not mention it. Smooth-L1 is quadratic below 1 and
    linear above: of states a hundred times as large it sees little more than signs. batch: pictures per process
    and micro-batch.
    The learning rate warms up to `lr`, then falls to `final_lr` of it. steps: optimizer steps, None for
    `epochs` passes over the pictures. caption_drop: share of prompts replaced by the unconditional one,
    because guidance runs the heads on both halves. ce_weight: weight of the cross-entropy with the
    backbone's distribution at the target cell (EAGLE: 0.1; the paper reports none).
    """

    k_h: int = 5
    k_v: int = 3
    expansion: float = 2.0
    space: str = "pre+e"
    scaled: bool = True
    epochs: float = 3
    steps: int | None = None
    batch: int = 8
    accumulate: int = 1
    lr: float = 1e-4
    final_lr: float = 0.1
    warmup: int = 20
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    caption_drop: float = 0.1
    ce_weight: float = 0.0
    seed: int = 0
    save_every: int = 250
    log_every: int = 20

    def __post_init__(self) -> None:
        for name in ("k_h", "k_v", "batch", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("expansion", "epochs", "lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}.")
        if self.space not in SPACES:
            raise ValueError(f'Unknown space "{self.space}" for heads: choose one of {", ".join(SPACES)}.')
        if not 0 <= self.caption_drop <= 1:
            raise ValueError(f"caption_drop must be in [0, 1], got {self.caption_drop}.")
        if self.ce_weight < 0:
            raise ValueError(f"ce_weight must not be negative, got {self.ce_weight}.")

    def planned_steps(self, pictures: int, processes: int) -> int:
        """Optimizer steps for a number of training pictures, split over some processes."""
        return self.steps or math.ceil(self.epochs * pictures / (self.batch * self.accumulate * processes))


# ------------------------------------------------------------------------------------------- the teacher


def encode_dropped(backbone: Backbone, prompts: list[str], dropped: list[bool], grid: TokenGrid) -> Prompt:
    """Encodes B prompts, the dropped ones as the unconditional half of guidance would be; B rows."""
    if not any(dropped):
        return backbone.encode_prompts(prompts, None, grid)
    both = backbone.encode_prompts(prompts, [""] * len(prompts), grid)
    rows = torch.arange(len(prompts)) + torch.tensor(dropped) * len(prompts)
    rows = rows.to(both.ids.device)
    return Prompt(both.ids[rows], both.mask[rows], both.offset[rows])


@torch.no_grad()
def teacher_states(backbone: Backbone, prompt: Prompt, tokens: Tensor, grid: TokenGrid) -> tuple[Tensor, Tensor]:
    """One teacher-forced pass: the states and embeddings that `DecodingSession` has for these tokens.

    prompt: B rows; tokens int [B, rows, cols]. Returns h and e, each [B, rows, cols, D] in the
    backbone's dtype. End-of-line cells are fed, but have no states: nothing drafts them.
    """
    batch, device = len(tokens), backbone.device
    tokens = tokens.to(device, torch.long)
    raster = torch.full((batch, grid.rows, grid.stride), backbone.codebook_size, dtype=torch.long, device=device)
    raster[:, :, : grid.cols] = tokens
    codes = raster.flatten(1)[:, :-1]  # the last cell predicts nothing
    with torch.autocast(device.type, enabled=False):  # the states of decoding, whatever precision heads learn in
        x = torch.cat((backbone.embed_text(prompt.ids), backbone.embed_codes(codes)), 1)
        slots = torch.arange(x.shape[1], device=device)
        valid = torch.cat((prompt.mask, torch.ones_like(codes, dtype=torch.bool)), 1)
        states = backbone.forward(x, slots - prompt.offset[:, None], causal_mask(valid), None, None)
        h = states[:, prompt.length - 1 :].unflatten(1, (grid.rows, grid.stride))[:, :, : grid.cols]
        return h, backbone.embed_codes(tokens)


def pairs(heads: HeadSet, h: Tensor, e: Tensor) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Name ("h1".."v1".."), prediction, what it should be, and the true state of every head's cells.

    Only pairs inside the grid: h, e [B, rows, cols, D]; offset d leaves [B, rows, cols - d, D] or
    [B, rows - d, cols, D]. Predictions and their targets are as `HeadSet.inputs` has them.
    """
    inputs = heads.inputs(h, e)
    for d, head in enumerate(heads.horizontal, 1):
        yield f"h{d}", head(*(part[:, :, :-d] for part in inputs)), inputs[0][:, :, d:], h[:, :, d:]
    for d, head in enumerate(heads.vertical, 1):
        yield f"v{d}", head(*(part[:, :-d] for part in inputs)), inputs[0][:, d:], h[:, d:]


class HeadLosses(nn.Module):
    """forward: h, e [B, rows, cols, D] -> the loss of every head, fp32 [k_h + k_v].

    A module around the heads because DistributedDataParallel synchronises what passes through forward.
    """

    def __init__(self, heads: HeadSet, backbone: Backbone, ce_weight: float = 0.0):
        super().__init__()
        self.heads, self.backbone, self.ce_weight = heads, backbone, ce_weight

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        # Heads keep fp32 weights; beside a half-precision backbone their products are bf16.
        half = self.backbone.dtype != torch.float32
        with torch.autocast(h.device.type, torch.bfloat16, enabled=half):
            losses = [self._loss(*parts) for _, *parts in pairs(self.heads, h.float(), e.float())]
        return torch.stack(losses)

    def _loss(self, predicted: Tensor, target: Tensor, h: Tensor) -> Tensor:
        loss = F.smooth_l1_loss(predicted.float(), target)
        if self.ce_weight:
            dtype = self.backbone.dtype
            with torch.no_grad():
                p = self.backbone.logits(h.to(dtype)).softmax(-1)
            h_hat = self.heads.as_state(predicted.float()).to(dtype)
            log_q = self.heads.logits(self.backbone, h_hat).log_softmax(-1)
            loss = loss - self.ce_weight * (p * log_q).sum(-1).mean()
        return loss


def untrained_heads(backbone: Backbone, corpus: Corpus, pictures: np.ndarray, config: HeadsConfig) -> HeadSet:
    """Heads before their first step, fp32: identity drafts, with the scales of some of a corpus's pictures."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        sizes = config.k_h, config.k_v, config.expansion
        heads = HeadSet(backbone.hidden_size, backbone.fingerprint, *sizes, config.space)
    for head in (*heads.horizontal, *heads.vertical):
        head.reset()
    heads.to(backbone.device)
    if "post" in config.space:
        long = torch.full((backbone.hidden_size,), 1e3, device=backbone.device, dtype=backbone.dtype)
        heads.final_norm.copy_(backbone.final_norm(long))  # its weights, wherever and however they are kept
    if config.scaled:
        some = pictures[:MEASURED]
        prompt = backbone.encode_prompts([corpus.prompts[i] for i in some], None, corpus.grid)
        h, e = teacher_states(backbone, prompt, corpus.tokens[torch.from_numpy(some)], corpus.grid)
        for part, measured in zip(config.space.split("+"), heads.inputs(h.float(), e.float()), strict=True):
            scale = heads.token_scale if part == "e" else heads.state_scale
            scale.fill_(2.0 ** round(math.log2(float(measured.square().mean().sqrt()))))
    return heads


# --------------------------------------------------------------------------------------------- training


class Batches:
    """Which pictures micro-batch number i holds, and which of them lose their prompt.

    A function of i, and of (seed, epoch, picture) for the dropped prompts: neither resuming nor the
    number of processes changes it. Every epoch is a permutation of `pictures`; batches run on across the
    ends of epochs, so none is short.
    """

    def __init__(self, pictures: np.ndarray, config: HeadsConfig):
        self.pictures, self.config = pictures, config
        self._order = functools.lru_cache(2)(self._permute)

    def __call__(self, i: int) -> tuple[list[int], list[bool]]:
        """Picture numbers and whether each one's prompt is dropped."""
        chosen, dropped = [], []
        for place in range(i * self.config.batch, (i + 1) * self.config.batch):
            epoch, rank = divmod(place, len(self.pictures))
            picture = int(self._order(epoch)[rank])
            chosen.append(picture)
            dice = np.random.default_rng((self.config.seed, epoch, picture, 1))
            dropped.append(bool(dice.random() < self.config.caption_drop))
        return chosen, dropped

    def _permute(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.config.seed, epoch)).permutation(self.pictures)


def train_heads(
    backbone: Backbone,
    corpus: Corpus,
    config: HeadsConfig | None = None,
    *,
    accelerator: Accelerator,
    work: str | Path = "runs/heads",
    out: str | Path | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> HeadSet:
    """Trains one head per offset on a corpus of the backbone's own pictures; all in one pass over the data.

    Each head minimises Smooth-L1 (beta 1) to its true target, independently of the others. `work` gets
    checkpoint.pt, from which the same call goes on after an interruption, and log.jsonl. Prints how
    well the heads and the identity draft do on held-out pictures, and writes the heads to `out` with the
    whole story in its metadata. Returns what the file holds, in the backbone's dtype, ready for `decode`.
    Raises ValueError for a corpus that is too small or has another grid, and for offsets beyond the grid.
    """
    config = config or HeadsConfig()
    grid = corpus.grid
    if config.k_h >= grid.cols or config.k_v >= grid.rows:
        raise ValueError(
            f"Offsets up to k_h={config.k_h} and k_v={config.k_v} need a larger grid than {grid.rows} x {grid.cols}: "
            "lower them."
        )
    if len(corpus) < 2:
        raise ValueError(f"Training needs at least 2 pictures, one of them held out; the corpus has {len(corpus)}.")
    if backbone.device.type != accelerator.device.type:
        raise ValueError(f"The backbone is on {backbone.device}, training on {accelerator.device}: use one device.")
    order = np.random.default_rng(config.seed).permutation(len(corpus))
    held = min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(corpus))))
    validation, pictures = order[:held], np.sort(order[held:])
    steps = config.planned_steps(len(pictures), accelerator.num_processes)

    heads = untrained_heads(backbone, corpus, pictures, config)
    names = [f"h{d + 1}" for d in range(config.k_h)] + [f"v{d + 1}" for d in range(config.k_v)]
    latest: dict[str, float] = {}

    def loss(wrapped: nn.Module, batch: tuple[list[int], list[bool]]) -> tuple[Tensor, dict[str, Tensor]]:
        chosen, dropped = batch
        prompt = encode_dropped(backbone, [corpus.prompts[i] for i in chosen], dropped, grid)
        losses = wrapped(*teacher_states(backbone, prompt, corpus.tokens[chosen], grid))
        return losses.sum(), dict(zip(names, losses.detach(), strict=True))

    report: dict[str, dict[str, float]] = {}

    def evaluate(losses: HeadLosses) -> dict[str, float]:
        shipped = losses.heads.bfloat16().float()  # judge what the file holds
        report.update(evaluate_heads(shipped, backbone, corpus, validation, config.batch))
        return {f"{name}_{key}": value for name, row in report.items() for key, value in row.items()}

    def note(step: int, value: float) -> None:
        latest["loss"] = value
        if on_step:
            on_step(step, value)

    optimizer = torch.optim.AdamW(heads.parameters(), config.lr, config.betas, weight_decay=config.weight_decay)
    per_step = config.batch * config.accumulate * accelerator.num_processes
    story = asdict(config) | {"steps": steps, "epochs": round(steps * per_step / len(pictures), 3)}
    story |= {"processes": accelerator.num_processes, "pictures": len(pictures)}
    loop = LoopConfig(
        steps=steps,
        warmup=config.warmup,
        final_lr=config.final_lr,
        accumulate=config.accumulate,
        save_every=config.save_every,
        log_every=config.log_every,
    )
    fit(
        HeadLosses(heads, backbone, config.ce_weight),
        loss,
        Batches(pictures, config),
        [optimizer],
        loop,
        work,
        accelerator=accelerator,
        evaluate=evaluate,
        identity=_identity(backbone, corpus, story),
        on_step=note,
    )
    if accelerator.is_main_process:
        print(format_report(report))
        if out is not None:
            story |= {
                "prompts": len(set(corpus.prompts)),
                "held_out": held,
                "decoder": corpus.decoder,
                "sampling": asdict(corpus.sampling),
                "loss": latest.get("loss"),
                "heads": report,
            }
            print(f"Heads written to {save_heads(heads, out, story)}")
    accelerator.wait_for_everyone()
    return heads.requires_grad_(False).bfloat16().to(device=backbone.device, dtype=backbone.dtype).eval()


def _identity(backbone: Backbone, corpus: Corpus, story: dict) -> str:
    """Describes a run for its checkpoint: whatever changes the result, not how often it saves or logs."""
    story = {name: value for name, value in story.items() if name not in ("save_every", "log_every", "epochs")}
    settings = " ".join(f"{name}={value}" for name, value in story.items())
    digest = zlib.crc32("\n".join(corpus.prompts).encode(), zlib.crc32(corpus.tokens.numpy().tobytes()))
    return f"heads of {backbone.fingerprint}, corpus={digest:08x} {settings}"


# ------------------------------------------------------------------------------------------- validation


@torch.no_grad()
def evaluate_heads(
    heads: HeadSet, backbone: Backbone, corpus: Corpus, pictures: np.ndarray, batch: int = 8
) -> dict[str, dict[str, float]]:
    """How close the drafts come on some pictures of a corpus, with their prompts.

    For every head: loss (Smooth-L1, as in training) and agreement (share of cells where the likeliest code at the
    drafted state is the likeliest one at the true state), and both for the identity draft.
    """
    report: dict[str, dict[str, float]] = {}
    heads_dtype = next(heads.parameters()).dtype
    for chosen in np.array_split(pictures, math.ceil(len(pictures) / batch)):
        prompt = backbone.encode_prompts([corpus.prompts[i] for i in chosen], None, corpus.grid)
        h, e = teacher_states(backbone, prompt, corpus.tokens[torch.from_numpy(chosen)], corpus.grid)
        likeliest = _likeliest(backbone.logits, h)
        h, e = h.to(heads_dtype), e.to(heads_dtype)
        known = heads.inputs(h, e)[0]
        for name, predicted, target, _ in pairs(heads, h, e):
            d, right = int(name[1:]), name[0] == "h"
            source = known[:, :, :-d] if right else known[:, :-d]
            wanted = likeliest[:, :, d:] if right else likeliest[:, d:]
            copied = likeliest[:, :, :-d] if right else likeliest[:, :-d]
            drafted = _likeliest(lambda row: heads.logits(backbone, row), heads.as_state(predicted).to(backbone.dtype))
            measured = {
                "loss": F.smooth_l1_loss(predicted.float(), target.float()),
                "identity_loss": F.smooth_l1_loss(source.float(), target.float()),
                "agreement": (drafted == wanted).float().mean(),
                "identity_agreement": (copied == wanted).float().mean(),
            }
            row = report.setdefault(name, dict.fromkeys(measured, 0.0))
            for key, value in measured.items():
                row[key] += float(value) * len(chosen) / len(pictures)
    return report


def _likeliest(logits: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    """Argmax codes at states [B, rows, cols, D], row by row: the logits of a whole Emu3 picture are 1 GB."""
    return torch.stack([logits(row).argmax(-1) for row in h.unbind(1)], 1)


def format_report(report: dict[str, dict[str, float]]) -> str:
    """`evaluate_heads` as a table."""
    lines = [
        "Held-out pictures     Smooth-L1            top-1 agreement",
        "head              head  identity       head  identity",
    ]
    for name, row in report.items():
        where = f"{name[1:]} {'right' if name[0] == 'h' else 'below'}"
        losses = f"{row['loss']:10.4g}{row['identity_loss']:10.4g}"
        lines.append(f"{where:12}{losses}{row['agreement']:11.1%}{row['identity_agreement']:10.1%}")
    return "\n".join(lines)
