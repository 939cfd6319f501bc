"""Heads and their files."""

import pytest
import torch
from fakes import FakeBackbone, random_heads
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ssd_core.heads import SPACES, HeadsError, HeadSet, SpatialHead, load_heads, save_heads
from ssd_core.sampling import SamplingConfig
from ssd_core.session import DecodingSession


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


def heads_of(backbone, space, state_scale=1.0, token_scale=1.0):
    """Heads with random weights in one of the spaces."""
    torch.manual_seed(1)
    heads = HeadSet(backbone.hidden_size, backbone.fingerprint, 2, 1, space=space)
    heads.state_scale.fill_(state_scale)
    heads.token_scale.fill_(token_scale)
    if "post" in space:
        heads.final_norm.copy_(backbone.transformer.norm.weight)
    return heads.eval().requires_grad_(False)


def states_and_tokens(backbone):
    """h and e [2, 4, D], and a backbone whose final norm weighs its dimensions differently."""
    backbone.transformer.norm.weight.uniform_(-2, 2)
    return 50 * torch.randn(2, 4, backbone.hidden_size), torch.randn(2, 4, backbone.hidden_size) / 50


@pytest.mark.parametrize("space", SPACES)
def test_heads_see_what_their_space_says(space):
    """The inputs of Table 19, and that what is not among them changes nothing."""
    backbone = FakeBackbone()
    h, e = states_and_tokens(backbone)
    known = {"pre": h, "post": backbone.final_norm(h), "e": e}
    heads = heads_of(backbone, space)
    for found, part in zip(heads.inputs(h, e), space.split("+"), strict=True):
        torch.testing.assert_close(found, known[part])
    draft = heads.draft_below(1, h, e)
    assert torch.equal(heads.draft_below(1, h, e + 1), draft) == ("e" not in space.split("+"))
    assert torch.equal(heads.draft_below(1, h + 1, e), draft) == (space == "e")


@pytest.mark.parametrize("space", [space for space in SPACES if space != "e"])
def test_an_identity_draft_has_the_logits_of_its_source(space):
    backbone = FakeBackbone()
    h, e = states_and_tokens(backbone)
    heads = heads_of(backbone, space, 64, 1 / 64)
    heads.vertical[0].reset()
    logits = heads.logits(backbone, heads.draft_below(1, h, e))
    torch.testing.assert_close(logits, backbone.logits(h), atol=1e-3, rtol=1e-3)


def test_a_predicted_embedding_chooses_the_nearest_code():
    backbone = FakeBackbone()
    codes = torch.arange(backbone.codebook_size)
    e = backbone.embed_codes(codes)
    logits = heads_of(backbone, "e").logits(backbone, e + 0.01 * torch.randn_like(e))
    assert torch.equal(logits.argmax(-1), codes)
    distances = torch.cdist(e, e).square() / (2 * e.square().mean())
    exact = heads_of(backbone, "e").logits(backbone, e).log_softmax(-1)
    torch.testing.assert_close(exact, (-distances).log_softmax(-1), atol=1e-3, rtol=1e-3)


def test_decoders_take_q_from_the_heads():
    backbone = FakeBackbone()
    session = DecodingSession(backbone, ["a"], [0], SamplingConfig())
    h_hat, heads = torch.randn(1, 3, backbone.hidden_size), heads_of(backbone, "e")
    expected = heads.logits(backbone, h_hat).log_softmax(-1)
    torch.testing.assert_close(session.log_probs(h_hat, heads), expected)
    assert not torch.allclose(session.log_probs(h_hat), expected)


def test_scales_surround_the_heads():
    backbone = FakeBackbone()
    h, e = states_and_tokens(backbone)
    plain, scaled = heads_of(backbone, "pre+e"), heads_of(backbone, "pre+e", 64, 1 / 64)
    assert torch.equal(scaled.draft_right(2, h, e), 64 * plain.draft_right(2, h / 64, e * 64))
    scaled.bfloat16().horizontal[1].reset()
    h, e = h.bfloat16(), e.bfloat16()
    assert torch.equal(scaled.draft_right(2, h, e), h)  # powers of two round nothing


@pytest.mark.parametrize("space", SPACES)
def test_files_keep_space_and_scales(space, tmp_path):
    backbone = FakeBackbone()
    h, e = states_and_tokens(backbone)
    heads = heads_of(backbone, space, 64, 1 / 64)
    path = save_heads(heads, tmp_path / "heads.safetensors", dtype=torch.float32)
    loaded = load_heads(path, backbone.fingerprint)
    assert loaded.space == space
    assert torch.equal(loaded.draft_below(1, h, e), heads.draft_below(1, h, e))
    if space == "post":
        state = load_file(path)
        del state["final_norm"]
        with safe_open(path, framework="pt") as file:
            save_file(state, path, file.metadata())
        with pytest.raises(HeadsError, match="lacks final_norm"):
            load_heads(path, backbone.fingerprint)


def test_files_of_the_first_version_still_load(saved):
    """They have neither a space nor scales."""
    path, heads, backbone = saved
    with safe_open(path, framework="pt") as file:
        metadata = {name: value for name, value in file.metadata().items() if name != "space"} | {"version": "1"}
    state = {name: value for name, value in load_file(path).items() if not name.endswith("scale")}
    assert len(state) == len(load_file(path)) - 2
    old = path.with_name("old.safetensors")
    save_file(state, old, metadata)
    loaded = load_heads(old, backbone.fingerprint)
    h, e = states_and_tokens(backbone)
    assert loaded.space == "pre+e" and float(loaded.state_scale) == float(loaded.token_scale) == 1
    assert torch.equal(loaded.draft_below(2, h, e), heads.draft_below(2, h, e))


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
        ({"version": "99"}, "version 99, this program reads versions 1 and 2"),
        ({"space": "pixels"}, 'unknown space "pixels", expected one of pre'),
        ({"space": None}, "lacks the metadata entry 'space'"),
        ({"space": "pre"}, "do not have the sizes"),
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
