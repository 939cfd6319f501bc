"""The shared training loop on a linear model, and the builtin stages for two steps each."""

import json
import signal

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from ssd_core.backbones import load_builtin
from ssd_core.builtin import train
from ssd_core.training.loop import LoopConfig, fit


@pytest.fixture(autouse=True)
def fresh_accelerate():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def fit_line(folder, config, *, interrupt_at=None, identity="line"):
    """Fits y = 2x + 1; Ctrl-C arrives in the middle of step `interrupt_at`, before its update."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)

    def batch(i):
        return torch.randn(8, 1, generator=torch.Generator().manual_seed(i)), i

    def loss(wrapped, drawn):
        x, i = drawn
        if i == interrupt_at:
            signal.raise_signal(signal.SIGINT)
        value = (wrapped(x) - (2 * x + 1)).square().mean()
        return value, {"loss": value.detach()}

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    accelerator = Accelerator(cpu=True)
    return fit(model, loss, batch, [optimizer], config, folder, accelerator=accelerator, identity=identity)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, ema):
    config = LoopConfig(steps=60, warmup=5, ema=ema, log_every=10)
    whole = fit_line(tmp_path / "whole", config)
    assert (whole.weight - 2).abs() < 0.2
    with pytest.raises(SystemExit, match="Stopped at step 24; run the same command again"):
        fit_line(tmp_path / "halves", config, interrupt_at=23)
    resumed = fit_line(tmp_path / "halves", config)
    assert torch.equal(resumed.weight, whole.weight)
    assert torch.equal(resumed.bias, whole.bias)
    logged = [json.loads(line)["step"] for line in (tmp_path / "halves" / "log.jsonl").read_text().splitlines()]
    assert logged == [10, 20, 30, 40, 50, 60]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    fit_line(tmp_path, LoopConfig(steps=2), identity="one")
    with pytest.raises(ValueError, match=r"belongs to another run \(one\), not to this one \(two\)"):
        fit_line(tmp_path, LoopConfig(steps=2), identity="two")


def test_the_learning_rate_warms_up_and_falls_to_its_last_share():
    config = LoopConfig(steps=100, warmup=10, final_lr=0.1)
    assert config.lr_scale(0) == pytest.approx(0.1)
    assert config.lr_scale(10) == pytest.approx(1)
    assert config.lr_scale(100) == pytest.approx(0.1)


def test_builtin_stages_write_weights_that_load(tmp_path, monkeypatch):
    for stage in ("tokenizer", "transformer"):
        arguments = [stage, "--steps", "2", "--batch", "4", "--out", str(tmp_path), "--weights", str(tmp_path)]
        monkeypatch.setattr("sys.argv", ["train", *arguments])
        train.main()
    backbone = load_builtin(folder=tmp_path)
    assert backbone.encode_image(torch.rand(1, 192, 192, 3)).shape == (1, 24, 24)
    last = json.loads((tmp_path / "transformer" / "log.jsonl").read_text().splitlines()[-1])
    assert last["evaluation"]["held_out_loss"] > 0
