"""Folders that cannot be loaded: one sentence that says what is there, what is missing, and what to do."""

import json
import shutil
import sys

import pytest
import tiny
import torch
from accelerate import cpu_offload
from safetensors.torch import load_file, save_file

from ssd_core.backbones import CheckpointError, checkpoint, hf, load_backbone
from ssd_core.cache import causal_mask
from ssd_core.decoders import DecodeConfig
from ssd_core.grid import TokenGrid
from ssd_core.sampling import SamplingConfig


@pytest.fixture
def folder(janus):
    return janus.folder


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "Janus-Pro-copy")


def refused(folder, message, **options):
    with pytest.raises(CheckpointError, match=message):
        load_backbone(folder, **options)


def test_no_folder_and_no_download_without_being_asked(monkeypatch):
    monkeypatch.setattr(checkpoint, "list_repo_files", lambda *args: pytest.fail("asked the Hub"))
    refused("no/such/folder", "check the path")
    refused("deepseek-community/Janus-Pro-none", "--download")


def test_download_takes_pickles_only_where_there_is_nothing_else(monkeypatch, folder):
    calls = []
    monkeypatch.setattr(checkpoint, "snapshot_download", lambda name, **options: calls.append(options) or folder)
    for files, pickles in ((["a.safetensors", "pytorch_model.bin"], False), (["pytorch_model.bin"], True)):
        monkeypatch.setattr(checkpoint, "list_repo_files", lambda name, files=files: files)
        load_backbone("someone/Janus-Pro-1B", download=True)
        assert ("pytorch_model*.bin" in calls[-1]["allow_patterns"]) == pickles
        assert not calls[-1]["local_files_only"]


def test_config_of_another_model(tmp_path):
    refused(tmp_path, "has no config.json: it is empty")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    refused(tmp_path, "is damaged")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    refused(tmp_path, 'model_type "bert"; this program drives "janus"')
    (tmp_path / "config.json").write_text('{"model_type": "multi_modality", "gen_vision": {}}', encoding="utf-8")
    refused(tmp_path, "lacks '.*', which every Janus-Pro")


def test_missing_files_are_named(copy):
    shards = sorted(copy.glob("*.safetensors"))
    shards[1].unlink()
    refused(copy, f"lacks 1 of the {len(shards)} weight files .*: {shards[1].name}")
    (copy / "model.safetensors.index.json").unlink()
    refused(copy, r"tensors are missing, such as .* \(looked in .*incomplete")
    for shard in copy.glob("*.safetensors"):
        shard.unlink()
    refused(copy, r"has no weights: expected \*.safetensors .*it holds config.json")
    (copy / "tokenizer.json").unlink()
    (copy / "model.safetensors").write_bytes(b"")
    refused(copy, "has no tokenizer.json")


def test_damaged_files_are_named(copy):
    shard = sorted(copy.glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    refused(copy, f"{shard.name} is truncated or damaged")
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    refused(copy, "run git lfs pull")
    shard.write_bytes(whole)
    (copy / "tokenizer.json").write_text("{}", encoding="utf-8")
    refused(copy, "tokenizer.json is damaged")


def test_a_pickle_that_would_run_code_is_refused(copy):
    for path in copy.glob("model*"):
        path.unlink()

    class Trap:
        def __reduce__(self):
            return pytest.fail, ("the pickle's code ran",)

    torch.save({"x": Trap()}, copy / "pytorch_model.bin")
    refused(copy, "cannot be read safely")


def test_weights_that_do_not_fit_are_refused_before_reading(copy, monkeypatch):
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["intermediate_size"] += 1
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr(checkpoint, "_assign", lambda *args: pytest.fail("read weights"))
    refused(copy, r"do not fit config.json \(.* is \[.*\], expected \[")


def test_too_little_memory(folder, monkeypatch):
    monkeypatch.setattr(hf, "free_memory", lambda device: 1000)
    refused(folder, "has only 0.0 GB free: use device")


def test_a_missing_device_is_explained(folder):
    with pytest.raises(ValueError, match="Try --device cpu"):
        load_backbone(folder, device="cuda:99")


def test_half_precision_draws_and_keeps_the_fingerprint(folder):
    full, half = (load_backbone(folder, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert half.dtype == torch.bfloat16
    assert half.fingerprint == full.fingerprint
    assert half.embed_codes(torch.zeros(1, 1, dtype=torch.long)).dtype == torch.bfloat16
    codes = torch.zeros(1, 4, 4, dtype=torch.long)
    torch.testing.assert_close(half.decode_image(codes), full.decode_image(codes))


def test_other_weights_have_another_fingerprint(folder, copy):
    for shard in copy.glob("*.safetensors"):
        state = {name: value * 1.5 if "layernorm" in name else value for name, value in load_file(shard).items()}
        save_file(state, shard, metadata={"format": "pt"})
    assert load_backbone(copy).fingerprint != load_backbone(folder).fingerprint


def test_weights_that_accelerate_keeps_elsewhere(folder, janus):
    """Layers that are brought in for each pass, as with device "auto" and too little GPU memory."""
    sampling, config = SamplingConfig(cfg=3.0), DecodeConfig("ar")
    expected, _ = tiny.draw(janus.backbone, config, sampling)
    backbone = load_backbone(folder, device="auto")
    for name in ("decoder", "head"):
        cpu_offload(backbone.parts[name], execution_device=torch.device("cpu"))
    assert next(backbone.parts["decoder"].parameters()).is_meta
    got, _ = tiny.draw(backbone, config, sampling)
    assert torch.equal(got.tokens, expected.tokens)


def test_the_parts_are_spread_by_size(janus, monkeypatch):
    monkeypatch.setattr(hf, "get_max_memory", lambda: {"cpu": 600_000, 0: 10**9})
    places = hf._places(janus.backbone.parts, "auto", torch.float32, None, 1000)
    assert {str(place) for place in places.values()} == {"cpu", "0"}
    assert str(places["vq"]) == "cpu"
    monkeypatch.setattr(hf, "get_max_memory", lambda: {"cpu": 600_000})
    with pytest.raises(CheckpointError, match="have free together"):
        hf._places(janus.backbone.parts, "auto", torch.float32, None, 1000)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", ["janus", "emu3", "lumina"])
def test_packed_weights(name, bits, request, monkeypatch):
    pytest.importorskip("bitsandbytes")
    saved = request.getfixturevalue(name)
    backbone = load_backbone(saved.folder, bits=bits)
    assert backbone.fingerprint == saved.backbone.fingerprint
    grid = TokenGrid(4, 4, eol=name != "janus")
    sampling = SamplingConfig(cfg=2.0)
    _, session = tiny.draw(saved.backbone, DecodeConfig("ar"), sampling, grid)
    plain, packed = (
        each.forward(each.embed_text(session.prompt.ids), positions, mask, None, None)
        for each in (saved.backbone, backbone)
        for positions, mask in [
            (torch.arange(session.prompt.length)[None].expand(4, -1), causal_mask(session.prompt.mask))
        ]
    )
    error = ((plain - packed)[:, -1].norm() / plain[:, -1].norm()).item()
    assert 0 < error < (0.1 if bits == 8 else 0.7)
    ar, _ = tiny.draw(backbone, DecodeConfig("ar"), sampling, grid)
    lossless, _ = tiny.draw(backbone, DecodeConfig("lossless", window=5), sampling, grid)
    assert torch.equal(ar.tokens, lossless.tokens)
    monkeypatch.setattr(hf, "free_memory", lambda device: 1000)
    with pytest.raises(CheckpointError, match=f"GB as {bits} bits and the cache"):
        load_backbone(saved.folder, bits=bits)


def test_packed_weights_need_their_library(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match="pip install bitsandbytes"):
        load_backbone(folder, bits=8)
    with pytest.raises(ValueError, match="leave bits out"):
        load_backbone("builtin", bits=4)
