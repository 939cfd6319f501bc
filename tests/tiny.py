"""Tiny random checkpoints of the real classes, written to disk as users have them, and what to compare with."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fakes import run, uncached_states
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    Emu3Config,
    Emu3ForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    LlamaConfig,
)
from transformers.models.chameleon.configuration_chameleon import ChameleonVQVAEConfig
from transformers.models.emu3.configuration_emu3 import Emu3TextConfig, Emu3VQVAEConfig
from transformers.models.janus.configuration_janus import JanusVQVAEConfig

from ssd_core.backbones import Backbone, load_backbone
from ssd_core.backbones.janus import BEGIN_OF_IMAGE, BOS, PAD
from ssd_core.decoders import DecodeConfig
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule
from ssd_core.session import DecodingSession

SIDE, WIDTH = 4, 64
JANUS_CODES, EMU3_CODES, LUMINA_CODES = 96, 64, 64
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
        temporal_downsample_factor=4,
    )
    config = Emu3Config(text_config=text, vq_config=vq, vocabulary_map=tokenizer.get_vocab())
    return liven(Emu3ForConditionalGeneration._from_config(config, attn_implementation="sdpa")), tokenizer


def lumina(swin: bool = False) -> tuple[ChameleonForConditionalGeneration, Tokenizer]:
    """Chameleon whose query and key norms are the same for all heads, with Lumina's tokens."""
    codes = ["IMGIMG" + "".join(chr(65 + int(digit)) for digit in str(i)) + "Z" for i in range(LUMINA_CODES)]
    first = ["<s>", "<pad>", "</s>", "<unk>", *codes, "<eoss>", "<racm3:break>", "<image>"]
    tokenizer = byte_tokenizer([*first, "<reserved08706>", *(f"<reserved{8799 + i:05d}>" for i in range(30))])
    vq = ChameleonVQVAEConfig(
        embed_dim=16,
        num_embeddings=LUMINA_CODES,
        latent_channels=16,
        resolution=32,
        base_channels=32,
        channel_multiplier=[1, 2],
        num_res_blocks=1,
    )
    config = ChameleonConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        swin_norm=swin,
        vq_config=vq.to_dict(),
        vocabulary_map=tokenizer.get_vocab(),
    )
    model = liven(ChameleonForConditionalGeneration._from_config(config, attn_implementation="sdpa"))
    for name, parameter in model.named_parameters():
        if "_norm." in name and parameter.ndim == 2:
            parameter.data.copy_(parameter.data[:1].expand_as(parameter))
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []  # or its forward() forbids all codes
    return model, tokenizer


def save_lumina(model: ChameleonForConditionalGeneration, tokenizer: Tokenizer, folder: Path) -> Path:
    """The folder that Alpha-VLLM publishes, and Meta's vqgan.ckpt beside its weights."""
    save(model, tokenizer, folder)
    for path in folder.glob("model*"):
        path.unlink()
    state = {name: t for name, t in model.state_dict().items() if "vqmodel" not in name}
    state = {name: t[:1] if "_norm." in name and t.ndim == 2 else t for name, t in state.items()}
    save_file({name: t.clone() for name, t in state.items()}, folder / "model.safetensors", {"format": "pt"})
    torch.save({"state_dict": vqgan(model), "epoch": 3}, folder / "vqgan.ckpt")
    return folder


def vqgan(model: ChameleonForConditionalGeneration) -> dict[str, Tensor]:
    """The tensors of a vqgan.ckpt: the model's own encoder and codebook, and a random decoder as in taming."""
    state = {name.removeprefix("model.vqmodel."): t for name, t in model.state_dict().items() if "vqmodel" in name}
    decoder = TamingDecoder().requires_grad_(False)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1
        parameter.copy_(noise * scale + float(name.endswith("weight") and parameter.ndim == 1))
    return state | {f"decoder.{name}": t for name, t in decoder.state_dict().items()}


class TamingDecoder(torch.nn.Module):
    """The VQGAN decoder written out anew, for two levels of 32 and 64 channels and one block each (plus one)."""

    def __init__(self):
        super().__init__()
        n = torch.nn

        def block(a: int, b: int) -> torch.nn.ModuleDict:
            layers = {"norm1": n.GroupNorm(32, a, eps=1e-6), "conv1": n.Conv2d(a, b, 3, padding=1)}
            layers |= {"norm2": n.GroupNorm(32, b, eps=1e-6), "conv2": n.Conv2d(b, b, 3, padding=1)}
            return n.ModuleDict(layers | ({"nin_shortcut": n.Conv2d(a, b, 1)} if a != b else {}))

        attention = n.ModuleDict({"norm": n.GroupNorm(32, 64, eps=1e-6)})
        attention.update({name: n.Conv2d(64, 64, 1) for name in ("q", "k", "v", "proj_out")})
        self.conv_in = n.Conv2d(16, 64, 3, padding=1)
        self.mid = n.ModuleDict({"block_1": block(64, 64), "attn_1": attention, "block_2": block(64, 64)})
        high = n.ModuleDict({"block": n.ModuleList([block(64, 32), block(32, 32)])})
        low = n.ModuleDict({"block": n.ModuleList([block(64, 64), block(64, 64)])})
        low["upsample"] = n.ModuleDict({"conv": n.Conv2d(64, 64, 3, padding=1)})
        self.up = n.ModuleList([high, low])  # highest resolution first, run last
        self.norm_out, self.conv_out = n.GroupNorm(32, 32, eps=1e-6), n.Conv2d(32, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        f = torch.nn.functional

        def block(m, x: Tensor) -> Tensor:
            y = m["conv2"](f.silu(m["norm2"](m["conv1"](f.silu(m["norm1"](x))))))
            return y + (m["nin_shortcut"](x) if "nin_shortcut" in m else x)

        def attend(m, x: Tensor) -> Tensor:
            q, k, v = (m[name](m["norm"](x)).flatten(2).transpose(1, 2)[:, None] for name in "qkv")
            y = f.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
            return x + m["proj_out"](y)

        x = self.conv_in(z)
        x = block(self.mid["block_2"], attend(self.mid["attn_1"], block(self.mid["block_1"], x)))
        for level in reversed(self.up):
            for each in level["block"]:
                x = block(each, x)
            if "upsample" in level:
                x = level["upsample"]["conv"](f.interpolate(x, scale_factor=2.0))
        return self.conv_out(f.silu(self.norm_out(x)))


@dataclass
class Saved:
    """A tiny model, the folder it was saved to, and the backbone loaded from there."""

    model: torch.nn.Module
    tokenizer: Tokenizer
    folder: Path
    backbone: Backbone

    @classmethod
    def make(cls, built: tuple[torch.nn.Module, Tokenizer], folder: Path, save=save) -> "Saved":
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
