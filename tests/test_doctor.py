"""The doctor: what it says about whole checkpoints, and the first thing it says about broken ones."""

import shutil
from dataclasses import replace

import pytest
import torch
from test_doors import SIZES

from ssd_core import doctor
from ssd_core.__main__ import main
from ssd_core.backbones import load_backbone
from ssd_core.decoders import decode
from ssd_core.heads import HeadSet, save_heads


@pytest.mark.parametrize("name", SIZES)
def test_a_whole_checkpoint_passes(name, request, tmp_path, capsys):
    saved = request.getfixturevalue(name)
    heads = HeadSet(saved.backbone.hidden_size, saved.backbone.fingerprint, 5, 2)
    path = save_heads(heads, tmp_path / "heads.safetensors")
    assert main(["doctor", str(saved.folder), *SIZES[name], "--heads", str(path), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    steps = ["configuration", "files", "memory", "loading", "heads", "prefill", "AR and SSD"]
    assert [line.split(": ")[0] for line in out.splitlines()[:-1]] == [f"ok  {step}" for step in steps]
    assert out.endswith("works on this machine.\n")


def failure(capsys, *options):
    assert main(["doctor", *map(str, options)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.out, captured.err


def test_broken_checkpoints_are_explained(janus, emu3, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(janus.folder, tmp_path / "copy")
    sorted(folder.glob("*.safetensors"))[0].unlink()
    out, err = failure(capsys, folder)
    assert out.startswith("ok  configuration")
    assert "lacks 1 of the" in err
    assert "there is no" in failure(capsys, tmp_path / "nothing")[1].lower()

    path = save_heads(HeadSet(64, emu3.backbone.fingerprint, 1, 1), tmp_path / "heads.safetensors")
    assert "was trained for backbone emu3" in failure(capsys, janus.folder, "--heads", path)[1]

    with monkeypatch.context() as patch:
        patch.setattr(doctor, "free_memory", lambda device: 10)
        assert "Not enough memory" in failure(capsys, janus.folder, "--device", "cpu")[1]
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "decode", off_by_one)
        assert "AR and SSD part after 0 of 4" in failure(capsys, janus.folder)[1]


def off_by_one(session, config):
    for event in decode(session, config):
        yield replace(event, tokens=event.tokens + (config.decoder == "ssd"))


def test_a_model_that_overflows(janus, tmp_path, capsys, monkeypatch):
    def broken(*args, **kwargs):
        backbone = load_backbone(janus.folder)
        backbone.parts["head"].vision_head.weight.mul_(torch.inf)
        return backbone

    monkeypatch.setattr(doctor, "load_backbone", broken)
    assert "computes no numbers in torch.float32" in failure(capsys, janus.folder)[1]


def test_known_tokens(janus, monkeypatch):
    tokens = []
    monkeypatch.setattr(doctor, "JANUS_1B_TOKENS", [0] * 12)
    try:
        doctor._known_tokens(janus.backbone)
    except doctor.DoctorError as error:
        tokens = [int(token) for token in str(error).split("[")[1].split("]")[0].split(",")]
    assert len(tokens) == 12
    ids = janus.backbone.encode_prompts(["a"], None, janus.backbone.grid()).ids
    monkeypatch.setattr(doctor, "JANUS_1B_TOKENS", tokens)
    assert "the first 12 of 12 agree" in doctor._known_tokens(janus.backbone)
    monkeypatch.setattr(doctor, "JANUS_1B_TOKENS", [*tokens[:5], -1, *tokens[6:]])
    assert "the first 5 of 12 agree (rounding" in doctor._known_tokens(janus.backbone)
    assert torch.equal(janus.backbone.encode_prompts(["a"], None, janus.backbone.grid()).ids, ids)
