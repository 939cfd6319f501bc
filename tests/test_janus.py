"""Janus-Pro on tiny random weights: transformers' own generate(), both layouts, pixels, errors."""

import json
import re

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file
from tiny import SIDE, WIDTH

from ssd_core.backbones import load_backbone
from ssd_core.decoders import DecodeConfig
from ssd_core.sampling import SamplingConfig

CODES = tiny.JANUS_CODES
CFG = SamplingConfig(cfg=5.0)


@pytest.fixture
def model(janus):
    return janus.model


@pytest.fixture
def backbone(janus):
    return janus.backbone


def reference(model, backbone, prompts, **options):
    """What transformers' generate() draws, [B, rows, cols]."""
    prompt = backbone.encode_prompts(prompts, None, backbone.grid())
    tokens = model.generate(
        inputs=prompt.ids, attention_mask=prompt.mask.long(), generation_mode="image", guidance_scale=5, **options
    )
    return tokens.view(-1, SIDE, SIDE)


# In these versions its image mode raises TypeError; what we draw does not depend on it.
generates = pytest.mark.skipif(transformers.__version__ in ("5.0.0", "5.16.1", "5.17.0"), reason="broken upstream")


@generates
def test_greedy_ar_is_transformers_generate(model, backbone):
    ours, _ = tiny.draw(backbone, DecodeConfig("ar", rule="greedy"), CFG)
    assert torch.equal(ours.tokens, reference(model, backbone, tiny.PROMPTS, do_sample=False))
    assert len(ours.tokens.unique()) > 8


@generates
@pytest.mark.parametrize("knobs", [{}, {"top_k": 12, "temperature": 0.7}, {"top_k": 30, "top_p": 0.8}], ids=str)
def test_sampled_ar_is_transformers_generate(model, backbone, knobs, monkeypatch):
    ours, session = tiny.draw(backbone, DecodeConfig("ar"), CFG.updated(**knobs))
    tiny.same_noise(monkeypatch, session)
    theirs = reference(model, backbone, tiny.PROMPTS, do_sample=True, **{"top_k": 0, **knobs})
    assert torch.equal(ours.tokens, theirs)


def test_ssd_and_lossless_reach_ar(backbone):
    tiny.check_decoders(backbone, CFG)
    tiny.check_decoders(backbone, SamplingConfig(temperature=1.5))


def test_blocks_equal_single_steps(backbone):
    tiny.check_states(backbone, CFG)


def test_the_prompt_is_deepseeks_and_substituted_pads_stay_visible(janus, backbone):
    prompt = backbone.encode_prompts([" a cat ", "dogs"], ["", ""], backbone.grid())
    text = janus.tokenizer.encode("<|User|>: a cat\n\n<|Assistant|>:", add_special_tokens=False).ids
    assert prompt.ids[0].tolist() == [0, *text, 3]
    assert prompt.ids[2].tolist() == [0, *[2] * len(text), 3]
    assert prompt.mask[0].all()
    assert prompt.mask[2].all()
    assert prompt.mask[1].tolist() == prompt.mask[3].tolist() == [False, *[True] * (len(text) + 1)]
    assert prompt.offset.tolist() == [0, 1, 0, 1]


def test_pixels(model, backbone):
    tiny.check_pixels(backbone, backbone.grid(), 2)
    codes = torch.randint(CODES, (2, SIDE, SIDE))
    expected = model.decode_image_tokens(codes.flatten(1)).add(1).div(2).clamp(0, 1)
    torch.testing.assert_close(backbone.decode_image(codes), expected)


def test_codes_are_compared_by_direction(janus):
    """As in DeepSeek's quantizer: lengths of codebook vectors change neither codes nor pixels."""
    backbone = load_backbone(janus.folder)
    rgb = torch.rand(1, 8, 8, 3, generator=torch.Generator().manual_seed(0))
    codes = backbone.encode_image(rgb)
    pixels = backbone.decode_image(codes)
    backbone.parts["vq"].quantize.embedding.weight.mul_(torch.linspace(0.1, 5, CODES)[:, None])
    assert torch.equal(backbone.encode_image(rgb), codes)
    torch.testing.assert_close(backbone.decode_image(codes), pixels)


def test_logits_are_those_of_the_generation_head(model, backbone):
    h = torch.randn(2, 3, WIDTH)
    expected = model.model.generation_head(model.model.language_model.norm(h))
    torch.testing.assert_close(backbone.logits(h), expected)
    assert backbone.logits(h.bfloat16().float()).dtype == torch.float32


# ------------------------------------------------------------------------------------------ DeepSeek's layout


def original_name(name: str) -> str:
    """DeepSeek's name for one of transformers' tensors."""
    for ours, theirs in (
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
        (r"^model\.generation_embeddings\.", "gen_embed."),
        (r"^model\.generation_aligner\.fc1\.", "gen_aligner.layers.0."),
        (r"^model\.generation_aligner\.hidden_layers\.0\.", "gen_aligner.layers.2."),
        (r"^model\.generation_head\.proj_out\.", "gen_head.output_mlp_projector."),
        (r"^model\.generation_head\.vision_head\.", "gen_head.vision_head."),
        (r"^model\.vqmodel\.(.*)\.mid\.block_1\.", r"model.vqmodel.\1.mid.0."),
        (r"^model\.vqmodel\.(.*)\.mid\.attn_1\.", r"model.vqmodel.\1.mid.1."),
        (r"^model\.vqmodel\.(.*)\.mid\.block_2\.", r"model.vqmodel.\1.mid.2."),
        (r"^model\.vqmodel\.(.*)\.block\.", r"model.vqmodel.\1.res."),
        (r"^model\.vqmodel\.encoder\.down\.", "model.vqmodel.encoder.conv_blocks."),
        (r"^model\.vqmodel\.decoder\.up\.", "model.vqmodel.decoder.conv_blocks."),
        (r"^model\.vqmodel\.", "gen_vision_model."),
    ):
        name = re.sub(ours, theirs, name)
    return name


@pytest.fixture(scope="module")
def original_folder(janus, tmp_path_factory):
    target = tmp_path_factory.mktemp("original")
    state = {}
    for file in janus.folder.glob("*.safetensors"):
        state |= {original_name(name): tensor for name, tensor in load_file(file).items()}
    assert any(".conv_blocks." in name and ".res." in name for name in state)
    state["gen_vision_model.quantize.codebook_used"] = torch.zeros(65536)
    names = sorted(state)
    torch.save({name: state[name] for name in names[::2]}, target / "pytorch_model-00001-of-00002.bin")
    torch.save({name: state[name] for name in names[1::2]}, target / "pytorch_model-00002-of-00002.bin")
    config = {
        "model_type": "multi_modality",
        "language_config": {
            "model_type": "llama",
            "vocab_size": 261,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 256,
            "torch_dtype": "bfloat16",
        },
        "gen_vision_config": {
            "cls": "VQ-16",
            "params": {
                "image_token_size": CODES,
                "n_embed": 8,
                "encoder_ch_mult": [1, 1],
                "z_channels": 32,
                "ch": 32,
                "num_res_blocks": 1,
            },
        },
        "gen_aligner_config": {"params": {"depth": 2, "input_dim": 8, "n_embed": WIDTH}},
        "gen_head_config": {"params": {"image_token_embed": WIDTH, "image_token_size": CODES, "n_embed": WIDTH}},
        "vision_config": {"params": {"image_size": SIDE * 2}},
    }
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (target / "tokenizer.json").write_bytes((janus.folder / "tokenizer.json").read_bytes())
    return target


def test_both_layouts_give_the_same_tokens_and_pixels(backbone, original_folder):
    original = load_backbone(original_folder)
    assert original.fingerprint == backbone.fingerprint
    pictures = [tiny.draw(each, DecodeConfig("ar"), CFG)[0].tokens for each in (backbone, original)]
    assert torch.equal(*pictures)
    assert torch.equal(backbone.decode_image(pictures[0]), original.decode_image(pictures[0]))


# ----------------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_done_is_explained(backbone):
    with pytest.raises(ValueError, match="8 x 8 pixels only"):
        backbone.grid(16, 8)
    with pytest.raises(ValueError, match="no negative prompt"):
        backbone.encode_prompts(["a"], ["ugly"], backbone.grid())
    with pytest.raises(ValueError, match="has only 256 positions: shorten the prompt"):
        backbone.encode_prompts(["a" * 300], None, backbone.grid())
