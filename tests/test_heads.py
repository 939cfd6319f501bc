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
    with pytest.raises(HeadsError, match=f"trained for backbone {backbone.fingerprint}, .* is another-model"):
        load_heads(path, "another-model")


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
        ({"k_v": "4"}, r"lacks the tensors of vertical\.3"),
        ({"k_h": None}, "lacks the metadata entry 'k_h'"),
    ],
)
def test_wrong_contents(saved, change, message):
    path, _, backbone = saved
    with safe_open(path, framework="pt") as file:
        metadata = {**file.metadata(), **change}
    save_file(load_file(path), path, {key: value for key, value in metadata.items() if value is not None})
    with pytest.raises(HeadsError, match=message):
        load_heads(path, backbone.fingerprint)
