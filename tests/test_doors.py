"""Every backbone through every door: Python, the command line, and heads trained for it."""

import pytest
import tiny
import torch
from PIL import Image

from ssd_core.__main__ import main
from ssd_core.backbones import load_backbone
from ssd_core.decoders import DecodeConfig
from ssd_core.generate import generate
from ssd_core.heads import HeadsError, load_heads
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule
from ssd_core.training.__main__ import main as train

SIZES = {"janus": (), "emu3": ("--width", "10", "--height", "8"), "lumina": ("--width", "12", "--height", "8")}
NAMES = list(SIZES)


@pytest.fixture
def saved(request, name):
    return request.getfixturevalue(name)


def grid_of(backbone, name):
    return backbone.grid(*map(int, SIZES[name][1::2]))


@pytest.mark.parametrize("name", NAMES)
def test_command_line_and_python_draw_the_same_picture(saved, name, tmp_path, capsys):
    out = tmp_path / "cat.png"
    knobs = ("--seed", "3", "--r", "1", "--k-h", "2")
    assert main(["generate", "a cat", "--backbone", str(saved.folder), *SIZES[name], "--out", str(out), *knobs]) == 0
    backbone = load_backbone(saved.folder)
    grid = grid_of(backbone, name)
    config = DecodeConfig(schedule=Schedule(b=1, k_h=2))
    result = generate(backbone, ["a cat"], [3], config, grid=grid)
    assert result.nfe == config.schedule.planned_nfe(grid)
    assert f"{result.nfe} passes" in capsys.readouterr().out
    with Image.open(out) as image:
        assert image.size == (grid.cols * 2, grid.rows * 2)
        pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    expected = (backbone.decode_image(result.tokens)[0] * 255).round().flatten()
    assert (pixels - expected).abs().max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_heads_are_trained_loaded_and_refused_by_others(saved, name, tmp_path, request):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\ntwo dogs\na bus on snow\n", encoding="utf-8")
    out = tmp_path / "heads.safetensors"
    train(
        [
            *("--backbone", str(saved.folder), *SIZES[name], "--device", "cpu", "--prompts", str(prompts)),
            *("--pictures", "6", "--steps", "3", "--k-h", "2", "--k-v", "2", "--batch", "2", "--draw-batch", "3"),
            *("--out", str(out), "--work", str(tmp_path / "work")),
        ]
    )
    backbone = saved.backbone
    heads = load_heads(out, backbone.fingerprint)
    config, sampling = DecodeConfig(schedule=Schedule(b=1, i=1, k_h=2, k_v=2)), SamplingConfig(cfg=2.0)
    grid = grid_of(backbone, name)
    result = generate(backbone, tiny.PROMPTS, [0, 1], config, sampling, heads=heads, grid=grid)
    assert result.nfe == config.schedule.planned_nfe(grid)
    other = request.getfixturevalue(NAMES[NAMES.index(name) - 1]).backbone
    with pytest.raises(HeadsError, match="trained for backbone"):
        load_heads(out, other.fingerprint)
    with pytest.raises(HeadsError, match="trained for backbone"):
        generate(other, ["a"], [0], config, heads=heads, grid=grid_of(other, NAMES[NAMES.index(name) - 1]))


def test_one_clear_sentence_on_the_command_line(janus, tmp_path, capsys, monkeypatch):
    for options, message in (
        (("--width", "512"), "pixels only, it was trained on nothing else"),
        (("--negative", "ugly"), "no negative prompt"),
        (("--backbone", str(tmp_path)), "has no config.json: it is empty"),
        (("--backbone", "nobody/nothing"), "allow the download (--download"),
        (("--device", "cuda:99"), "Try --device cpu"),
    ):
        assert main(["generate", "a cat", "--backbone", str(janus.folder), *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1

    def full(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 3 GiB")

    monkeypatch.setattr("ssd_core.__main__.generate", full)
    assert main(["generate", "a cat", "--backbone", str(janus.folder)]) == 2
    assert "out of memory (Tried to allocate 3 GiB): lower --batch, or try --dtype" in capsys.readouterr().err
