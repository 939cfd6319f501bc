"""Janus-Pro 1B and 7B (arXiv 2501.17811): a Llama decoder, a table and a head of its own for 16,384 codes.

Two layouts on disk hold the same weights: transformers' (deepseek-community/Janus-Pro-*) and DeepSeek's
(deepseek-ai/Janus-Pro-*, model_type "multi_modality").
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusConfig, LlamaConfig, LlamaModel
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE, JanusVQVAEAlignerMLP, JanusVQVAEHead

from ..grid import TokenGrid
from .base import Prompt
from .checkpoint import Source, weight_files
from .hf import TextTokenizer, TransformersBackbone, build_parts, nearest

BOS, PAD, BEGIN_OF_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"  # noqa: RUF001 - their bars
TEMPLATE = "<|User|>: {prompt}\n\n<|Assistant|>:"

NATIVE = (
    (r"^model\.language_model\.", "decoder."),
    (r"^model\.generation_embeddings\.", "table."),
    (r"^model\.generation_aligner\.", "aligner."),
    (r"^model\.generation_head\.", "head."),
    (r"^model\.vqmodel\.", "vq."),
)
ORIGINAL = (
    (r"^language_model\.model\.", "decoder."),
    (r"^gen_embed\.", "table."),
    (r"^gen_aligner\.layers\.0\.", "aligner.fc1."),
    (r"^gen_aligner\.layers\.2\.", "aligner.hidden_layers.0."),
    (r"^gen_head\.output_mlp_projector\.", "head.proj_out."),
    (r"^gen_head\.vision_head\.", "head.vision_head."),
    (r"^gen_vision_model\.", "vq."),
    (r"^vq\.encoder\.conv_blocks\.", "vq.encoder.down."),
    (r"^vq\.decoder\.conv_blocks\.", "vq.decoder.up."),
    (r"^(vq\..*)\.res\.", r"\1.block."),
    (r"^(vq\..*)\.mid\.0\.", r"\1.mid.block_1."),
    (r"^(vq\..*)\.mid\.1\.", r"\1.mid.attn_1."),
    (r"^(vq\..*)\.mid\.2\.", r"\1.mid.block_2."),
)


def load_janus(folder: Path, config: dict, *, name: str, device: str, dtype: str, bits: int | None) -> "JanusBackbone":
    """Janus-Pro from a folder in either layout; config is its config.json."""
    text, vq = settings(config)
    sources = [Source(weight_files(folder), NATIVE if config["model_type"] == "janus" else ORIGINAL)]
    return JanusBackbone(
        text, vq, sources, TextTokenizer.from_folder(folder), name=name, device=device, dtype=dtype, bits=bits
    )


def settings(config: dict) -> tuple[LlamaConfig, JanusVQVAEConfig]:
    """The decoder and the image side that a config.json of either layout describes."""
    if config["model_type"] == "janus":
        whole = JanusConfig.from_dict(config)
        return whole.text_config, whole.vq_config
    return LlamaConfig.from_dict(config["language_config"]), _original_vq(config)


def build(text: LlamaConfig, vq: JanusVQVAEConfig) -> nn.ModuleDict:
    """The parts of the model, without weights."""
    return build_parts(
        decoder=lambda: LlamaModel._from_config(text, attn_implementation="sdpa"),
        table=lambda: nn.Embedding(vq.num_embeddings, vq.embed_dim),
        aligner=lambda: JanusVQVAEAlignerMLP(vq),
        head=lambda: JanusVQVAEHead(vq),
        vq=lambda: JanusVQVAE._from_config(vq),
    )


def _original_vq(config: dict) -> JanusVQVAEConfig:
    """The image side of DeepSeek's config.json; what it leaves to their code is VQ-16's."""
    quantizer, table = config["gen_vision_config"]["params"], config["gen_aligner_config"]["params"]
    head = config["gen_head_config"]["params"]
    shape = {"encoder_ch_mult": "channel_multiplier", "z_channels": "latent_channels", "ch": "base_channels"}
    shape |= {"num_res_blocks": "num_res_blocks"}
    vq = JanusVQVAEConfig(
        num_embeddings=quantizer["image_token_size"],
        embed_dim=quantizer["n_embed"],
        projection_dim=table["n_embed"],
        num_hidden_layers=table["depth"],
        image_token_embed_dim=head["image_token_embed"],
        **{ours: quantizer[theirs] for theirs, ours in shape.items() if theirs in quantizer},
    )
    vq.num_patches = config["vision_config"]["params"]["image_size"] // _scale(vq)
    return vq


def _scale(vq: JanusVQVAEConfig) -> int:
    """Pixels per code, along a side."""
    return 2 ** (len(vq.channel_multiplier) - 1)


class JanusBackbone(TransformersBackbone):
    """Janus-Pro. It was trained on one size only; its unconditional branch is the prompt with pads for words."""

    def __init__(
        self,
        text: LlamaConfig,
        vq: JanusVQVAEConfig,
        sources: list[Source],
        tokenizer: TextTokenizer,
        *,
        name: str,
        device: str,
        dtype: str,
        bits: int | None,
    ):
        parts = build(text, vq)
        self._bos, self._pad, self._begin = (tokenizer.id(token) for token in (BOS, PAD, BEGIN_OF_IMAGE))
        self.template = TEMPLATE
        self._side, self._pixels = vq.num_patches, vq.num_patches * _scale(vq)
        size = vq.num_embeddings
        super().__init__(
            name, "janus-pro", parts, sources, tokenizer, device=device, dtype=dtype, bits=bits, codebook_size=size
        )
        with torch.no_grad():  # the aligner sees one code at a time: all its outputs fit a table
            self._table = parts["aligner"](parts["table"](torch.arange(size, device=self.device))).to(self.device)
        del parts["aligner"], parts["table"]

    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        side = self._pixels
        if (width or side, height or side) != (side, side):
            raise ValueError(
                f"Janus-Pro draws {side} x {side} pixels only, it was trained on nothing else; "
                f"got {width or side} x {height or side}. Leave the size out."
            )
        return TokenGrid(self._side, self._side)

    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        if negatives is not None and any(negatives):
            raise ValueError("Janus-Pro has no negative prompt: leave it empty.")
        rows = [self._ids(prompt) for prompt in prompts]
        if negatives is not None:
            # These pads are not padding: the model was trained to see them, so their mask stays True.
            rows += [[ids[0], *[self._pad] * (len(ids) - 2), ids[-1]] for ids in rows]
        return self._prompt(rows, self._pad, grid)

    def _ids(self, prompt: str) -> list[int]:
        return [self._bos, *self.tokenizer.encode(self.template.format(prompt=prompt.strip())), self._begin]

    def embed_codes(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self._table)

    def code_vectors(self) -> Tensor:
        return F.normalize(super().code_vectors(), dim=-1)  # the decoder sees directions

    def _paint(self, codes: Tensor) -> Tensor:
        vectors = F.normalize(self._vq.quantize.embedding(codes), dim=-1)
        return self._vq.decoder(self._vq.post_quant_conv(vectors.permute(0, 3, 1, 2)))

    def _tokenize(self, pixels: Tensor) -> Tensor:
        vectors = self._vq.quant_conv(self._vq.encoder(pixels)).permute(0, 2, 3, 1)
        # The codebook is compared by direction, as in DeepSeek's code; transformers' quantizer omits that.
        codebook = F.normalize(self._vq.quantize.embedding.weight, dim=-1)
        return nearest(F.normalize(vectors, dim=-1), codebook)
