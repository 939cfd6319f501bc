"""Emu3-Gen on tiny random weights: transformers' own generate(), both layouts, sizes, pixels, errors."""

import base64
import json
import re
import shutil

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from ssd_core.backbones import CheckpointError, load_backbone
from ssd_core.backbones.emu3 import NEGATIVE, QUALITY
from ssd_core.decoders import DecodeConfig
from ssd_core.grid import TokenGrid
from ssd_core.sampling import SamplingConfig

GRID = TokenGrid(4, 5, eol=True)
CFG = SamplingConfig(cfg=3.0, top_k=20)


@pytest.fixture
def backbone(emu3):
    return emu3.backbone


def reference(emu3, image: int, **options):
    """What transformers' generate() draws for one prompt, guided by the negative one: codes [rows, cols]."""
    ids = emu3.tokenizer.token_to_id
    first = ids("<|visual token 000000|>")
    prompt = emu3.backbone.encode_prompts(tiny.PROMPTS, [""] * 2, GRID)
    start = prompt.length
    body, codes = GRID.size, list(range(first, first + tiny.EMU3_CODES))
    tail = [ids(token) for token in ("<|extra_201|>", "<|image end|>", "<|extra_204|>")]

    def allowed(batch, sequence):
        cell = len(sequence) - start + int((~prompt.mask[image]).sum())
        if cell >= body:
            return [tail[cell - body]]
        return codes if cell % GRID.stride < GRID.cols else [ids("<|extra_200|>")]

    conditional, negative = (prompt.ids[row][prompt.mask[row]][None] for row in (image, image + 2))
    processors = [
        UnbatchedClassifierFreeGuidanceLogitsProcessor(CFG.cfg, emu3.model, unconditional_ids=negative),
        PrefixConstrainedLogitsProcessor(allowed, num_beams=1),
    ]
    config = GenerationConfig(
        max_new_tokens=body + 3, pad_token_id=ids("<|endoftext|>"), eos_token_id=ids("<|extra_204|>"), **options
    )
    sequence = emu3.model.generate(
        conditional,
        generation_config=config,
        logits_processor=LogitsProcessorList(processors),
        attention_mask=torch.ones_like(conditional),
    )
    cells = sequence[0, conditional.shape[1] :][:body]
    return cells.view(GRID.rows, GRID.stride)[:, : GRID.cols] - first


def test_greedy_ar_is_transformers_generate(emu3, backbone):
    ours, _ = tiny.draw(backbone, DecodeConfig("ar", rule="greedy"), CFG, GRID)
    for image in range(2):
        assert torch.equal(ours.tokens[image], reference(emu3, image, do_sample=False))
    assert len(ours.tokens.unique()) > 8


@pytest.mark.parametrize("knobs", [{"top_k": 20}, {"top_k": 9, "temperature": 0.7}], ids=str)
def test_sampled_ar_is_transformers_generate(emu3, backbone, knobs, monkeypatch):
    ours, session = tiny.draw(backbone, DecodeConfig("ar"), CFG.updated(**knobs), GRID)
    first = emu3.tokenizer.token_to_id("<|visual token 000000|>")
    for image in range(2):
        with monkeypatch.context() as patch:
            tiny.same_noise(patch, session, image, first)
            assert torch.equal(ours.tokens[image], reference(emu3, image, do_sample=True, **knobs))


def test_ssd_and_lossless_reach_ar(backbone):
    tiny.check_decoders(backbone, CFG, GRID)
    tiny.check_decoders(backbone, SamplingConfig(temperature=1.5), GRID)


def test_blocks_equal_single_steps(backbone):
    tiny.check_states(backbone, CFG, GRID)


def test_the_prompt_is_upstreams(emu3, backbone):

    def encode(text):
        return emu3.tokenizer.encode(text, add_special_tokens=False).ids

    prompt = backbone.encode_prompts(["a cat.", "a cafe\u0301"], ["", "ugly"], GRID)
    texts = ["a cat." + QUALITY, "a caf\u00e9" + QUALITY, NEGATIVE, "ugly"]
    for row, mask, text in zip(prompt.ids, prompt.mask, texts, strict=True):
        whole = f"<|extra_203|>{text}<|image start|>4*5<|image token|>"
        assert row[mask].tolist() == encode(whole)
    assert backbone.encode_prompts(["a"], None, GRID).ids.shape[0] == 1


def test_sizes(backbone):
    assert backbone.grid(12, 8) == TokenGrid(4, 6, eol=True)
    assert backbone.grid() == TokenGrid(360, 360, eol=True)  # 720 pixels at 2 a code; 90 x 90 at the real 8
    assert backbone.grid(width=1440) == TokenGrid(180, 720, eol=True)
    with pytest.raises(ValueError, match="multiples of 2 pixels, got 13 x 8: try 12 x 8"):
        backbone.grid(13, 8)
    with pytest.raises(ValueError, match="choose a smaller picture"):
        backbone.encode_prompts(["a"], None, backbone.grid())


def test_pixels(emu3, backbone):
    tiny.check_pixels(backbone, GRID, 2)
    codes = torch.randint(tiny.EMU3_CODES, (2, 4, 5))
    with torch.no_grad():
        expected = emu3.model.model.vqmodel.decode(codes).permute(0, 2, 3, 1).add(1).div(2).clamp(0, 1)
        torch.testing.assert_close(backbone.decode_image(codes), expected)
        pixels = expected.permute(0, 3, 1, 2) * 2 - 1
        sizes = torch.tensor([[8, 10]] * 2)
        theirs = emu3.model.model.vqmodel.encode(pixels, sizes)
        theirs = getattr(theirs, "image_tokens", theirs)  # a list before transformers 5
    assert torch.equal(backbone.encode_image(expected), torch.stack(list(theirs)))


def test_only_the_rows_of_the_codes_are_read(emu3, backbone):
    first = emu3.tokenizer.token_to_id("<|visual token 000000|>")
    h = torch.randn(2, 3, tiny.WIDTH)
    expected = emu3.model.lm_head(emu3.model.model.text_model.norm(h))[..., first : first + tiny.EMU3_CODES]
    torch.testing.assert_close(backbone.logits(h), expected)
    assert backbone.parts["head"].weight.shape == (tiny.EMU3_CODES, tiny.WIDTH)


# --------------------------------------------------------------------------------------------- BAAI's layout


def original_vq_name(name: str) -> str:
    """BAAI's name for one of the image tokenizer's tensors."""
    for ours, theirs in (
        (r"^encoder\.down_block\.", "encoder."),
        (r"^decoder\.up_block\.", "decoder."),
        (r"\.attn_norms\.(\d+)\.", r".attn.\1.norm."),
        (r"\.middle_block\.attn_norm\.", ".mid.attn_1.norm."),
        (r"\.middle_block\.", ".mid."),
        (r"\.([qkv])_proj\.", r".\1."),
        (r"\.out_proj\.", ".proj_out."),
    ):
        name = re.sub(ours, theirs, name)
    return name


@pytest.fixture(scope="module")
def original_folder(emu3, tmp_path_factory):
    root = tmp_path_factory.mktemp("original")
    folder, vq = root / "Emu3-Gen", root / "Emu3-VisionTokenizer"
    folder.mkdir()
    vq.mkdir()
    state = emu3.model.state_dict()
    text = {re.sub(r"^model\.text_model\.", "model.", name): t for name, t in state.items() if "vqmodel" not in name}
    save_file(text, folder / "model.safetensors", metadata={"format": "pt"})
    pixels = {}
    for name, tensor in state.items():
        if name.startswith("model.vqmodel."):
            attention = re.search(r"\.(q|k|v|out)_proj\.weight$", name)
            pixels[original_vq_name(name.removeprefix("model.vqmodel."))] = (
                tensor[:, :, None, None] if attention else tensor
            )
    assert {"encoder.mid.attn_1.q.weight", "decoder.up.1.attn.0.norm.conv_y.weight"} <= pixels.keys()
    save_file(pixels, vq / "model.safetensors", metadata={"format": "pt"})

    config = emu3.model.config
    words = {**config.text_config.to_dict(), "model_type": "Emu3", "architectures": ["Emu3ForCausalLM"]}
    words.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps({**words, "rope_theta": 1e6, "rope_scaling": None}), "utf-8")
    image = {
        "model_type": "Emu3VisionVQ",
        "codebook_size": tiny.EMU3_CODES,
        "ch": 32,
        "ch_mult": [1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [1],
        "temporal_downsample_factor": 4,
    }
    (vq / "config.json").write_text(json.dumps(image), "utf-8")
    shutil.copy(emu3.folder / "tokenizer.json", folder)
    return folder


def test_both_layouts_give_the_same_tokens_and_pixels(backbone, original_folder):
    original = load_backbone(original_folder)
    assert original.fingerprint == backbone.fingerprint
    pictures = [tiny.draw(each, DecodeConfig("ar"), CFG, GRID)[0].tokens for each in (backbone, original)]
    assert torch.equal(*pictures)
    rgb = backbone.decode_image(pictures[0])
    assert torch.equal(rgb, original.decode_image(pictures[0]))
    assert torch.equal(backbone.encode_image(rgb), original.encode_image(rgb))


def test_the_names_that_transformers_writes_and_uses_are_both_known(emu3, backbone, tmp_path):
    shutil.copytree(emu3.folder, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("model*"):
        path.unlink()
    state = emu3.model.state_dict()
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    in_memory = load_backbone(tmp_path)
    assert in_memory.fingerprint == backbone.fingerprint
    written = {key for path in emu3.folder.glob("*.safetensors") for key in load_file(path)}
    assert written != set(state)


def test_the_image_tokenizer_can_lie_elsewhere_or_is_asked_for(original_folder, tmp_path):
    folder, vq = tmp_path / "a" / "Emu3-Gen", tmp_path / "b"
    shutil.copytree(original_folder, folder)
    with pytest.raises(CheckpointError, match="download BAAI/Emu3-VisionTokenizer beside it"):
        load_backbone(folder)
    shutil.copytree(original_folder.parent / "Emu3-VisionTokenizer", vq)
    assert load_backbone(folder, vq=vq).codebook_size == tiny.EMU3_CODES


def test_the_tiktoken_file_becomes_the_same_tokenizer(original_folder, tmp_path):
    """Byte pairs are merged by rank; digits stay single; specials follow in upstream's order."""
    folder = shutil.copytree(original_folder, tmp_path / "Emu3-Gen")
    shutil.copytree(original_folder.parent / "Emu3-VisionTokenizer", tmp_path / "Emu3-VisionTokenizer")
    (folder / "tokenizer.json").unlink()
    ranks = [bytes([byte]) for byte in range(256)] + [b"at", b" c", b" cat", b"ca", "\u00e9".encode(), b"90"]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(ranks)]
    (folder / "emu3.tiktoken").write_text("\n".join(lines), "utf-8")
    vision = ["<|image token|>", "<|image start|>", "<|image end|>"]
    vision += [f"<|visual token {i:06d}|>" for i in range(tiny.EMU3_CODES)]
    with pytest.raises(CheckpointError, match=r"has no emu3_vision_tokens\.txt"):
        load_backbone(folder)
    (folder / "emu3_vision_tokens.txt").write_text("\n".join(vision) + "\n", "utf-8")

    from ssd_core.backbones.emu3 import _tiktoken

    tokenizer = _tiktoken(folder)
    start = len(ranks)
    assert tokenizer.encode("a cat").ids == [ord("a"), ranks.index(b" cat")]
    assert tokenizer.encode("caf\u00e9 90*90").ids == [
        ranks.index(b"ca"), ord("f"), ranks.index("\u00e9".encode()), *b" 9", ord("0"), ord("*"), *b"90",
    ]  # fmt: skip
    assert tokenizer.token_to_id("<|endoftext|>") == start
    assert tokenizer.token_to_id("<|extra_204|>") == start + 207
    assert tokenizer.token_to_id("<|visual token 000001|>") == start + 208 + 3 + 1
    assert tokenizer.encode("a<|extra_200|><|visual token 000003|>").ids == [97, start + 203, start + 214]
