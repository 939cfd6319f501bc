"""One training loop for everything this project trains: tokenizer, transformer, heads, scorer.

It knows nothing about what is trained. A batch is a function of its step number, so a resumed run sees
the very batches, and ends with the very weights, of one that was never interrupted. It runs on
accelerate: `accelerate launch` splits the work over processes, and every process draws its own batches.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from ..files import write_atomically


@dataclass(frozen=True)
class LoopConfig:
    """steps in all; linear warm-up, then cosine decay of the learning rates to `final_lr` of their peak.

    ema: decay of the averaged weights that are evaluated and returned (0: the last weights).
    clip: largest gradient norm (0: no clipping). accumulate: batches per optimizer step.
    """

    steps: int
    warmup: int = 20
    final_lr: float = 0.1
    ema: float = 0.0
    clip: float = 0.0
    accumulate: int = 1
    save_every: int = 250
    log_every: int = 50

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be in [0, 1), got {self.ema}.")

    def lr_scale(self, step: int) -> float:
        """Factor on the peak learning rate at a step."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.final_lr + (1 - self.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def fit(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], tuple[Tensor, dict[str, Tensor]]],
    batch: Callable[[int], Any],
    optimizers: Iterable[torch.optim.Optimizer],
    config: LoopConfig,
    folder: str | Path,
    *,
    accelerator: Accelerator,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    identity: str = "",
    on_step: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """Trains `model` in place and returns it, with averaged weights if config.ema > 0.

    loss(model, batch) -> (scalar to minimise, metrics to log); batch(i) -> micro-batch number i, numbered
    over all processes. `folder` gets checkpoint.pt (resumed when present) and log.jsonl; `identity`
    describes the run, and a checkpoint of another one is refused with a ValueError. on_step(step, loss)
    is called after every logged step. Ctrl-C saves a checkpoint before it ends the run.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log = folder / "checkpoint.pt", folder / "log.jsonl"
    optimizers = [accelerator.prepare(optimizer) for optimizer in optimizers]
    wrapped = accelerator.prepare(model)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    average = {name: value.detach().clone() for name, value in model.state_dict().items()} if config.ema else {}
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if saved["identity"] != identity:
            raise ValueError(
                f"{checkpoint} belongs to another run ({saved['identity']}), not to this one ({identity}). "
                "Choose another folder, or delete the file to start over."
            )
        start = saved["step"]
        model.load_state_dict(saved["model"])
        average = {name: value.to(accelerator.device) for name, value in saved["average"].items()}
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    accelerator.wait_for_everyone()  # the first process may replace the checkpoint only when all have read it

    def save(step: int) -> None:
        if not accelerator.is_main_process:
            return
        state = {
            "identity": identity,
            "step": step,
            "model": model.state_dict(),
            "average": average,
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }
        write_atomically(checkpoint, lambda path: torch.save(state, path))

    def index(micro: int) -> int:
        return micro * accelerator.num_processes + accelerator.process_index

    bar = tqdm(total=config.steps, initial=start, disable=not accelerator.is_main_process, dynamic_ncols=True)
    began, step = time.perf_counter(), start
    model.train()
    with _Interrupt() as interrupt, ThreadPoolExecutor(1) as worker:  # draws the next batch meanwhile
        first, last = start * config.accumulate, config.steps * config.accumulate
        upcoming = worker.submit(batch, index(first)) if first < last else None
        try:
            for micro in range(first, last):
                current = upcoming.result()
                upcoming = worker.submit(batch, index(micro + 1)) if micro + 1 < last else None
                step, is_last = micro // config.accumulate, (micro + 1) % config.accumulate == 0
                with accelerator.autocast():
                    value, metrics = loss(wrapped, current)
                accelerator.backward(value / config.accumulate)
                if not is_last:
                    continue
                for optimizer, peak in zip(optimizers, peaks, strict=True):
                    for group, lr in zip(optimizer.param_groups, peak, strict=True):
                        group["lr"] = lr * config.lr_scale(step)
                if config.clip:
                    accelerator.clip_grad_norm_(model.parameters(), config.clip)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
                if average:
                    decay = min(config.ema, step / (step + 9))
                    for name, value_now in model.state_dict().items():
                        average[name].lerp_(value_now.detach().to(average[name].dtype), 1 - decay)
                bar.update()
                if step % config.log_every == 0 or step == config.steps:
                    shown = {name: round(float(metric), 5) for name, metric in metrics.items()}
                    bar.set_postfix(shown)
                    _append(log, accelerator, {"step": step, **shown, "seconds": time.perf_counter() - began})
                    if on_step:
                        on_step(step, float(value.detach()))
                if step % config.save_every == 0 and step < config.steps:
                    save(step)
                if interrupt.asked:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            save(step)
            bar.close()
            raise SystemExit(f"Stopped at step {step}; run the same command again to go on from there.") from None
    save(step)
    bar.close()
    if average:
        model.load_state_dict(average)
    model.eval()
    if evaluate and accelerator.is_main_process:
        _append(log, accelerator, {"step": step, "evaluation": evaluate(model)})
    accelerator.wait_for_everyone()
    return model


class _Interrupt:
    """Turns Ctrl-C into a question asked between steps: inside one, weights and optimizer disagree."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "_Interrupt":
        self._main = threading.current_thread() is threading.main_thread()  # others cannot handle signals
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_) -> None:
        self.asked = True


def _append(log: Path, accelerator: Accelerator, record: dict) -> None:
    if accelerator.is_main_process:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
