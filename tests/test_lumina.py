"""Lumina-mGPT on tiny random weights: an uncached loop over transformers' Chameleon, its three repairs, errors."""

import shutil

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from ssd_core.backbones import CheckpointError, load_backbone
from ssd_core.decoders import DecodeConfig
from ssd_core.grid import TokenGrid
from ssd_core.sampling import SamplingConfig

GRID = TokenGrid(4, 6, eol=True)
CFG = SamplingConfig(cfg=4.0, top_k=20)
FIRST = 4


@pytest.fixture
def backbone(lumina):
    return lumina.backbone


@torch.no_grad()
def reference(model, backbone, session, image: int, sampling: SamplingConfig, greedy: bool):
    """Token by token, the whole sequence anew each time: codes [rows, cols] of one image."""
    prompt = session.prompt
    sequences = [prompt.ids[row][prompt.mask[row]] for row in (image, image + 2)]
    newline = backbone.tokenizer.id("<reserved08799>")
    for y in range(GRID.rows):
        for x in range(GRID.stride):
            token = torch.tensor([newline])
            if x < GRID.cols:
                logits = [model(sequence[None]).logits[0, -1].double() for sequence in sequences]
                mixed = logits[1] + sampling.cfg * (logits[0] - logits[1])
                codes = mixed[FIRST : FIRST + tiny.LUMINA_CODES] / sampling.temperature
                kept = codes.topk(sampling.top_k).indices
                scores = torch.full_like(codes, -torch.inf).scatter(0, kept, codes[kept].log_softmax(0))
                if not greedy:
                    scores += session.noise.shared(range(y, y + 1))[image, 0, x]
                token = FIRST + scores.argmax()[None]
            sequences = [torch.cat((sequence, token)) for sequence in sequences]
    return sequences[1][3:].view(GRID.rows, GRID.stride)[:, : GRID.cols] - FIRST


@pytest.mark.parametrize("rule", ["greedy", "accept-reject"])
@pytest.mark.parametrize("swin", [False, True])
def test_ar_is_an_uncached_loop(lumina, rule, swin, tmp_path):
    model, backbone = lumina.model, lumina.backbone
    if swin:  # the 34B model
        model, tokenizer = tiny.lumina(swin=True)
        backbone = load_backbone(tiny.save_lumina(model, tokenizer, tmp_path))
    sampling = CFG.updated(temperature=0.8)
    ours, session = tiny.draw(backbone, DecodeConfig("ar", rule=rule), sampling, GRID)
    for image in range(2):
        expected = reference(model, backbone, session, image, sampling, rule == "greedy")
        assert torch.equal(ours.tokens[image], expected)
    assert len(ours.tokens.unique()) > 8


def test_ssd_and_lossless_reach_ar(backbone):
    tiny.check_decoders(backbone, CFG, GRID)
    tiny.check_decoders(backbone, SamplingConfig(temperature=1.5), GRID)


def test_blocks_equal_single_steps(backbone):
    tiny.check_states(backbone, CFG, GRID)


def test_the_prompt_is_upstreams(lumina, backbone):
    prompt = backbone.encode_prompts(["a cat", "dogs!!!"], ["", ""], GRID)
    header = ["<racm3:break>", "<reserved08802>", "<reserved08803>"]
    text = "<s>Generate an image of 12x8 according to the following prompt:\na cat<reserved08706>"
    whole = lumina.tokenizer.encode(text + "".join(header), add_special_tokens=False).ids
    assert prompt.ids[0][prompt.mask[0]].tolist() == whole
    for row in (2, 3):
        assert prompt.ids[row][prompt.mask[row]].tolist() == whole[-3:]
        assert prompt.offset[row] == prompt.length - 3
    with pytest.raises(ValueError, match="no negative prompt"):
        backbone.encode_prompts(["a"], ["ugly"], GRID)


def test_sizes(backbone):
    assert backbone.grid(12, 8) == GRID
    assert backbone.grid() == TokenGrid(384, 384, eol=True)  # 768 pixels at 2 a code; 48 x 48 at the real 16
    assert backbone.grid(height=384) == TokenGrid(192, 768, eol=True)
    with pytest.raises(ValueError, match="multiples of 4 pixels, got 10 x 8: try 8 x 8"):
        backbone.grid(10, 8)


def test_pixels(lumina, backbone):
    tiny.check_pixels(backbone, GRID, 2)
    state = tiny.vqgan(lumina.model)
    decoder = tiny.TamingDecoder()
    decoder.load_state_dict({name[8:]: tensor for name, tensor in state.items() if name.startswith("decoder.")})
    codes = torch.randint(tiny.LUMINA_CODES, (2, 4, 6))
    vq = lumina.model.model.vqmodel
    with torch.no_grad():
        z = vq.post_quant_conv(vq.quantize.embedding(codes).permute(0, 3, 1, 2))
        expected = decoder(z).permute(0, 2, 3, 1).add(1).div(2).clamp(0, 1)
        torch.testing.assert_close(backbone.decode_image(codes), expected)
        theirs = vq.quantize(vq.quant_conv(vq.encoder(expected.permute(0, 3, 1, 2) * 2 - 1)))[2]
    assert torch.equal(backbone.encode_image(expected), theirs.view(2, 4, 6))


def test_norms_stored_once_or_per_head_are_the_same(lumina, backbone, tmp_path):
    once = load_file(lumina.folder / "model.safetensors")
    assert once["model.layers.0.self_attn.q_norm.weight"].shape == (1, tiny.WIDTH // 4)
    folder = shutil.copytree(lumina.folder, tmp_path / "per-head")
    save_file({name: t.clone() for name, t in lumina.model.state_dict().items()}, folder / "model.safetensors")
    per_head = load_backbone(folder)
    assert per_head.fingerprint == backbone.fingerprint
    pictures = [tiny.draw(each, DecodeConfig("ar"), CFG, GRID)[0].tokens for each in (backbone, per_head)]
    assert torch.equal(*pictures)


def test_the_image_tokenizer_is_found_or_asked_for(lumina, tmp_path):
    folder = shutil.copytree(lumina.folder, tmp_path / "a" / "Lumina-mGPT-7B-1024")
    elsewhere = tmp_path / "b" / "original_tokenizers"
    elsewhere.mkdir(parents=True)
    shutil.move(folder / "vqgan.ckpt", elsewhere)
    with pytest.raises(CheckpointError, match=r"no vqgan\.ckpt in .*Chameleon_7B_mGPT"):
        load_backbone(folder)
    for vq in (elsewhere.parent, elsewhere, elsewhere / "vqgan.ckpt"):
        assert load_backbone(folder, vq=vq).grid() == TokenGrid(512, 512, eol=True)
    (folder / "vqgan.safetensors").write_bytes(b"")
    save_file({name: tensor.clone() for name, tensor in tiny.vqgan(lumina.model).items()}, folder / "vqgan.safetensors")
    codes = torch.zeros(1, 4, 6, dtype=torch.long)
    assert torch.equal(load_backbone(folder).decode_image(codes), lumina.backbone.decode_image(codes))
