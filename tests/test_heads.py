"""Heads and their files."""

import pytest
import torch
from fakes import FakeBackbone, random_heads
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ssd_core.heads import HeadsError, SpatialHead, load_heads, save_heads


def test_parameters_at_the_papers_width():
    """Appendix A.6: 134.2 M per head at D = 4096."""
    with torch.device("meta"):
        head = SpatialHead(4096)
    assert round(sum(parameter.numel() for parameter in head.parameters()) / 1e6, 1) == 134.2


def test_a_reset_head_is_the_identity_draft():
    head = SpatialHead(16)
    head.reset()
    h, e = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    assert torch.equal(head(h, e), h)


@pytest.fixture
def saved(tmp_path):
    backbone = FakeBackbone()
    heads = random_heads(backbone)
    return save_heads(heads, tmp_path / "heads.safetensors", {"note": "é"}, torch.float32), heads, backbone


def test_round_trip(saved):
    path, heads, backbone = saved
    loaded = load_heads(path, backbone.fingerprint)
    h, e = torch.randn(2, 4, backbone.hidden_size), torch.randn(2, 4, backbone.hidden_size)
    for offset in (1, 2, 3):
        assert torch.equal(loaded.draft_below(offset, h, e), heads.draft_below(offset, h, e))
        assert torch.equal(loaded.draft_right(offset, h, e), heads.draft_right(offset, h, e))
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file left


def test_missing_file(tmp_path):
    with pytest.raises(HeadsError, match="No heads file at"):
        load_heads(tmp_path / "none.safetensors", "x")


def test_heads_of_another_backbone(saved):
    path, _, backbone = saved
    other = FakeBackbone(seed=1)
    assert other.fingerprint != backbone.fingerprint
    with pytest.raises(HeadsError, match=f"trained for backbone {backbone.fingerprint}, .* is {other.fingerprint}"):
        load_heads(path, other.fingerprint)


def test_truncated_file(saved):
    path, _, backbone = saved
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(HeadsError, match="truncated"):
        load_heads(path, backbone.fingerprint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "99"}, "version 99, this program reads version 1"),
        ({"format": "pt"}, 'metadata say "pt", expected "ssd-heads"'),
        ({"pairing": "own"}, 'as "own", expected "predictor"'),
        ({"k_v": "4"}, "lacks vertical offset 4"),
        ({"expansion": "1.0"}, "do not have the sizes"),
        ({"k_h": None}, "lacks the metadata entry 'k_h'"),
    ],
)
def test_wrong_contents(saved, change, message):
    path, _, backbone = saved
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), **change}
    changed = path.with_name("changed.safetensors")
    save_file(load_file(path), changed, {key: value for key, value in metadata.items() if value is not None})
    with pytest.raises(HeadsError, match=message):
        load_heads(changed, backbone.fingerprint)


def test_heads_in_memory_are_checked_before_decoding(saved):
    _, heads, backbone = saved
    heads.require(backbone.fingerprint, torch.float32, 3, 3)
    with pytest.raises(HeadsError, match="lower k_h or k_v"):
        heads.require(backbone.fingerprint, torch.float32, 4, 1)
    with pytest.raises(HeadsError, match="not for another-model"):
        heads.require("another-model", torch.float32)
    with pytest.raises(HeadsError, match="load them with dtype"):
        heads.require(backbone.fingerprint, torch.bfloat16)
