"""Tiny random checkpoints of the real classes, written to disk as users have them, and what to compare with."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fakes import run, uncached_states
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    LlamaConfig,
)
from transformers.models.emu3.configuration_emu3 import Emu3TextConfig, Emu3VQVAEConfig
from transformers.models.janus.configuration_janus import JanusVQVAEConfig

from ssd_core.backbones import Backbone, load_backbone
from ssd_core.backbones.janus import BEGIN_OF_IMAGE, BOS, PAD
from ssd_core.decoders import DecodeConfig
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule
from ssd_core.session import DecodingSession

SIDE, WIDTH = 4, 64
JANUS_CODES, EMU3_CODES = 96, 64
PROMPTS = ["a cat", "two dogs in a boat"]  # of different lengths


@torch.no_grad()
def liven(model: torch.nn.Module, seed: int = 0, gain: float = 1.5) -> torch.nn.Module:
    """Large random weights: greedy tokens vary and depend on all of the context."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "vision_model" in name or ("vqmodel" in name and "embedding" not in name):
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2 and "norm" not in name:
            parameter.copy_(noise * (1.0 if "embed" in name else gain / parameter.shape[1] ** 0.5))
        elif name.endswith("weight"):
            parameter.copy_(1 + 0.1 * noise)
        else:
            parameter.copy_(0.1 * noise)
    return model.float().eval()


def byte_tokenizer(first: list[str] = (), last: list[str] = ()) -> Tokenizer:
    """One token per byte, and special tokens before and after the 256 of them."""
    names = [*first, *sorted(pre_tokenizers.ByteLevel.alphabet()), *last]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*first, *last])
    return tokenizer


def save(model, tokenizer: Tokenizer, folder: Path) -> Path:
    """A checkpoint folder in the native layout, in several files."""
    model.save_pretrained(folder, max_shard_size="300KB")
    assert (folder / "model.safetensors.index.json").is_file()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def janus() -> tuple[JanusForConditionalGeneration, Tokenizer]:
    """Janus-Pro with a 4 x 4 grid."""
    bos, eos, pad, begin, image = range(5)
    tokenizer = byte_tokenizer([BOS, "<eos>", PAD, BEGIN_OF_IMAGE, "<image_placeholder>"])
    text = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    vision = JanusVisionConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=SIDE * 4,
        patch_size=4,
        projection_dim=WIDTH,
        num_image_tokens=SIDE**2,
    )
    vq = JanusVQVAEConfig(
        num_embeddings=JANUS_CODES,
        latent_channels=32,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        projection_dim=WIDTH,
        image_token_embed_dim=WIDTH,
    )
    config = JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=image)
    model = liven(JanusForConditionalGeneration._from_config(config, attn_implementation="sdpa"))
    settings = model.generation_config
    settings.generation_kwargs = {"boi_token_id": begin}
    settings.bos_token_id, settings.eos_token_id, settings.pad_token_id = bos, eos, pad
    settings._from_model_config = False  # or saving drops generation_kwargs
    return model, tokenizer


def emu3() -> tuple[Emu3ForConditionalGeneration, Tokenizer]:
    """Emu3-Gen with grouped heads and 2 pixels per code."""
    special = ["<|endoftext|>", "<image>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>", "<|extra_204|>"]
    special += ["<|image token|>", "<|image start|>", "<|image end|>"]
    special += [f"<|visual token {i:06d}|>" for i in range(EMU3_CODES)]
    tokenizer = byte_tokenizer(last=special)
    text = Emu3TextConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        bos_token_id=tokenizer.token_to_id("<|extra_203|>"),
        eos_token_id=tokenizer.token_to_id("<|extra_204|>"),
    )
    vq = Emu3VQVAEConfig(
        codebook_size=EMU3_CODES,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        attn_resolutions=[1],
        hidden_size=32,
        temporal_downsample_factor=1,
    )
    config = Emu3Config(text_config=text, vq_config=vq, vocabulary_map=tokenizer.get_vocab())
    return liven(Emu3ForConditionalGeneration._from_config(config, attn_implementation="sdpa")), tokenizer


@dataclass
class Saved:
    """A tiny model, the folder it was saved to, and the backbone loaded from there."""

    model: torch.nn.Module
    tokenizer: Tokenizer
    folder: Path
    backbone: Backbone

    @classmethod
    def make(cls, built: tuple[torch.nn.Module, Tokenizer], folder: Path) -> "Saved":
        return cls(*built, save(*built, folder), load_backbone(folder))


def draw(backbone, config: DecodeConfig, sampling: SamplingConfig, grid=None, prompts=PROMPTS, negatives=None):
    """Decodes one picture per prompt; the last event and the session."""
    return run(
        backbone, config, sampling=sampling, prompts=prompts, seeds=range(len(prompts)), grid=grid, negatives=negatives
    )


def same_noise(monkeypatch: pytest.MonkeyPatch, session, image: int | None = None, first_code: int = 0) -> None:
    """Makes transformers' `generate()` sample with the session's noise, so that its tokens can be compared.

    Its warped probabilities stay its own; only the random choice (`torch.multinomial`) is replaced.
    """
    grid, steps = session.grid, iter(range(session.grid.size + 3))

    def choose(probabilities: Tensor, num_samples: int) -> Tensor:
        y, x = divmod(next(steps), grid.stride)
        scores = probabilities.log()
        if y < grid.rows and x < grid.cols:
            noise = session.noise.shared(range(y, y + 1), slice(x, x + 1))[:, 0, 0]
            noise = noise if image is None else noise[image : image + 1]
            scores[:, first_code : first_code + noise.shape[1]] += noise
        return scores.argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", choose)


def check_decoders(backbone, sampling: SamplingConfig, grid=None) -> None:
    """What must be true of every backbone: SSD and lossless reach AR's picture, in the planned number of passes."""
    grid = grid or backbone.grid()
    greedy, _ = draw(backbone, DecodeConfig("ar", rule="greedy"), sampling, grid)
    for schedule in (
        Schedule(b=grid.cols + 1, k_h=1),
        Schedule(b=2 * grid.stride, i=grid.cols, k_h=1, k_v=2),
    ):
        got, session = draw(backbone, DecodeConfig(schedule=schedule, rule="greedy"), sampling, grid)
        assert torch.equal(got.tokens, greedy.tokens)
        assert session.nfe == schedule.planned_nfe(grid)

    config = DecodeConfig(schedule=Schedule(b=1, k_h=2))
    _, session = draw(backbone, config, sampling, grid)
    assert session.nfe == config.planned_nfe(session)

    sampled, session = draw(backbone, DecodeConfig("ar"), sampling, grid)
    assert session.nfe == grid.size
    assert not torch.equal(sampled.tokens, greedy.tokens)
    got, session = draw(backbone, DecodeConfig("lossless", window=6), sampling, grid)
    assert torch.equal(got.tokens, sampled.tokens)
    assert session.nfe <= grid.size


@torch.inference_mode()
def check_states(backbone, sampling: SamplingConfig, grid=None) -> None:
    """Block passes, single steps and one uncached pass compute the same states."""
    session = DecodingSession(backbone, PROMPTS, [0, 1], sampling, grid=grid)
    cells = session.cells(range(session.grid.rows))
    cells.copy_(torch.randint(backbone.codebook_size, cells.shape, generator=torch.Generator().manual_seed(0)))
    size = session.grid.size
    expected = uncached_states(session, session.tokens)
    single = torch.cat([session.prefill(), *(session.forward(cell, 1) for cell in range(size - 1))], 1)
    torch.testing.assert_close(single, expected, atol=1e-4, rtol=1e-4)
    stride = session.grid.stride
    blocks = [
        session.prefill(),
        *(session.forward(at, min(stride, size - 1 - at)) for at in range(0, size - 1, stride)),
    ]
    torch.testing.assert_close(torch.cat(blocks, 1), expected, atol=1e-4, rtol=1e-4)


def check_pixels(backbone, grid, scale: int) -> None:
    """Pictures have the right size and range, partial ones too; encoding gives codes; every code has a colour."""
    codes = torch.randint(backbone.codebook_size, (2, grid.rows, grid.cols), generator=torch.Generator().manual_seed(0))
    rgb = backbone.decode_image(codes)
    assert rgb.shape == (2, grid.rows * scale, grid.cols * scale, 3)
    assert rgb.dtype == torch.float32
    assert rgb.min() >= 0
    assert rgb.max() <= 1
    assert rgb.std() > 0.01
    torch.testing.assert_close(backbone.decode_image(codes[:1])[0], rgb[0])
    assert backbone.decode_image(codes[:, :2]).shape == (2, 2 * scale, grid.cols * scale, 3)
    again = backbone.encode_image(rgb)
    assert again.shape == codes.shape
    assert again.min() >= 0
    assert again.max() < backbone.codebook_size
    colors = backbone.preview_colors()
    assert colors.shape == (backbone.codebook_size, 3)
    assert 0 <= colors.min() < colors.max() <= 1
