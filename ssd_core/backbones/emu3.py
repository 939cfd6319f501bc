"""Emu3-Gen 8B (arXiv 2409.18869): codes are entries of the text vocabulary, an end-of-line token closes each row.

Two layouts on disk hold the same weights: transformers' (BAAI/Emu3-Gen-hf) and BAAI's pair of a language
model (BAAI/Emu3-Gen, model_type "Emu3") and an image tokenizer (BAAI/Emu3-VisionTokenizer).
"""

import base64
import binascii
import math
import unicodedata
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import Emu3Config
from transformers.models.emu3.configuration_emu3 import Emu3TextConfig, Emu3VQVAEConfig
from transformers.models.emu3.modeling_emu3 import Emu3TextModel, Emu3VQVAE

from ..grid import TokenGrid
from .base import Prompt
from .checkpoint import CheckpointError, Source, find_folder, read_json, require_file, weight_files
from .hf import TextTokenizer, VocabularyBackbone, build_parts, nearest

AREA = 720 * 720  # pixels; what it was trained on
QUALITY = " masterpiece, film grained, best quality."  # upstream ends every prompt with it
NEGATIVE = (  # and guides away from this one
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, "
    "worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
BOS, PAD, EOL = "<|extra_203|>", "<|endoftext|>", "<|extra_200|>"
BEGIN_OF_IMAGE, CODES_FOLLOW = "<|image start|>", "<|image token|>"
CODE = "<|visual token {:06d}|>"
WORDS = (  # how upstream splits text before merging bytes; digits stay single
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VQ_HUB = "BAAI/Emu3-VisionTokenizer"

NATIVE = (
    (r"^text_model\.lm_head\.", "head."),  # transformers has written these names since 4.48 ...
    (r"^text_model\.model\.", "decoder."),
    (r"^lm_head\.", "head."),  # ... and uses these in memory
    (r"^model\.text_model\.", "decoder."),
    (r"^(model\.)?vqmodel\.", "vq."),
)
ORIGINAL = ((r"^lm_head\.", "head."), (r"^model\.", "decoder."))
ORIGINAL_VQ = (
    (r"\.mid\.attn_1\.norm\.", ".middle_block.attn_norm."),
    (r"\.mid\.", ".middle_block."),
    (r"^(encoder\.down|decoder\.up)\.(\d+)\.attn\.(\d+)\.norm\.", r"\1.\2.attn_norms.\3."),
    (r"\.(attn\.\d+|attn_1)\.([qkv])\.", r".\1.\2_proj."),
    (r"\.(attn\.\d+|attn_1)\.proj_out\.", r".\1.out_proj."),
    (r"^encoder\.down\.", "encoder.down_block.down."),
    (r"^decoder\.up\.", "decoder.up_block.up."),
    (r"^", "vq."),
)


def load_emu3(
    folder: Path,
    config: dict,
    *,
    name: str,
    device: str,
    dtype: str,
    bits: int | None,
    download: bool,
    vq: str | Path | None,
) -> "Emu3Backbone":
    """Emu3-Gen from a folder in either layout; config is its config.json, vq the folder of the image tokenizer."""
    if config["model_type"] == "emu3":
        text, pixels = settings(config, {})
        sources = [Source(weight_files(folder), NATIVE)]
    else:
        vq_folder = _vq_folder(folder, vq, download)
        text, pixels = settings(config, read_json(vq_folder / "config.json"))
        sources = [Source(weight_files(folder), ORIGINAL), Source(weight_files(vq_folder), ORIGINAL_VQ)]
    if (folder / "tokenizer.json").is_file() or not (folder / "emu3.tiktoken").is_file():
        tokenizer = TextTokenizer.from_folder(folder)
    else:
        tokenizer = TextTokenizer(_tiktoken(folder))
    return Emu3Backbone(text, pixels, sources, tokenizer, name=name, device=device, dtype=dtype, bits=bits)


def settings(config: dict, vq: dict) -> tuple[Emu3TextConfig, Emu3VQVAEConfig]:
    """The decoder and the image side of a config.json; in BAAI's layout the image tokenizer has its own, vq."""
    if config["model_type"] == "emu3":
        whole = Emu3Config.from_dict(config)
        return whole.text_config, whole.vq_config
    return Emu3TextConfig.from_dict({**config, "model_type": "emu3_text_model"}), _original_vq(vq)


def build(text: Emu3TextConfig, vq: Emu3VQVAEConfig) -> nn.ModuleDict:
    """The parts of the model, without weights."""
    return build_parts(
        decoder=lambda: Emu3TextModel._from_config(text, attn_implementation="sdpa"),
        head=lambda: nn.Linear(text.hidden_size, vq.codebook_size, bias=False),
        vq=lambda: Emu3VQVAE._from_config(vq, attn_implementation="sdpa"),
    )


def _vq_folder(folder: Path, vq: str | Path | None, download: bool) -> Path:
    """Where BAAI's image tokenizer is; CheckpointError that says where to get it."""
    name = VQ_HUB.split("/")[1]
    nearby = [candidate for candidate in (folder / name, folder.parent / name) if candidate.is_dir()]
    try:
        return find_folder(vq or (nearby or [VQ_HUB])[0], download=download)
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder} holds the language model only, and its image tokenizer was not found: download {VQ_HUB} "
            f"beside it (as {name}), or give its folder (--vq, vq=). {error}"
        ) from error


def _original_vq(config: dict) -> Emu3VQVAEConfig:
    """BAAI's config.json of the image tokenizer, in transformers' terms."""
    names = {
        "ch": "base_channels",
        "ch_mult": "channel_multiplier",
        "z_channels": "latent_channels",
        "double_z": "double_latent",
    }
    same = ("codebook_size", "embed_dim", "in_channels", "out_channels", "temporal_downsample_factor")
    names |= {name: name for name in (*same, "num_res_blocks", "attn_resolutions")}
    vq = Emu3VQVAEConfig(**{ours: config[theirs] for theirs, ours in names.items() if theirs in config})
    vq.hidden_size = vq.base_channels * vq.channel_multiplier[-1]
    return vq


def _squeezed(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """1 x 1 convolutions of BAAI's attention [C, C, 1, 1] are linear layers [C, C] in transformers."""
    if name.startswith("vq.") and tensor.ndim == 4 and len(shape) == 2:
        return tensor.flatten(1) if tensor.shape[2:] == (1, 1) else tensor
    return tensor


def _tiktoken(folder: Path) -> Tokenizer:
    """BAAI's tokenizer from emu3.tiktoken (one base64 token and its rank per line) and emu3_vision_tokens.txt."""
    path = folder / "emu3.tiktoken"
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error) as error:
        raise CheckpointError(f"{path} is damaged ({error}): download it again.") from error
    vision = require_file(folder, "emu3_vision_tokens.txt", "its image tokens").read_text(encoding="utf-8").split("\n")
    # The tokenizers library spells bytes as printable characters: themselves, or the next ones from 256 on.
    alphabet, spare = set(pre_tokenizers.ByteLevel.alphabet()), iter(range(256, 512))
    letters = [chr(byte) if chr(byte) in alphabet else chr(next(spare)) for byte in range(256)]

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(left, right) for left, right in halves if left in ranks and right in ranks]
        merges += [(rank, ranks[left], ranks[right], spelled(left), spelled(right)) for left, right in pairs]
    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, [pair[3:] for pair in sorted(merges)], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    special = [PAD, "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    special += [token.strip() for token in vision if token.strip()]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


class Emu3Backbone(VocabularyBackbone):
    """Emu3-Gen. Pictures of any size in steps of 8 pixels; the unconditional branch is a negative prompt."""

    def __init__(
        self,
        text: Emu3TextConfig,
        vq: Emu3VQVAEConfig,
        sources: list[Source],
        tokenizer: TextTokenizer,
        *,
        name: str,
        device: str,
        dtype: str,
        bits: int | None,
    ):
        size = vq.codebook_size
        parts = build(text, vq)
        self._bos, self._pad, self._begin, self._follow = (
            tokenizer.id(token) for token in (BOS, PAD, BEGIN_OF_IMAGE, CODES_FOLLOW)
        )
        self._scale = 2 ** (len(vq.channel_multiplier) - 1)
        super().__init__(
            name,
            "emu3",
            parts,
            sources,
            tokenizer,
            device=device,
            dtype=dtype,
            bits=bits,
            codebook_size=size,
            first_code=tokenizer.first_of([CODE.format(code) for code in range(size)]),
            eol=tokenizer.id(EOL),
            adapt=_squeezed,
        )

    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        """Any size in steps of 8 pixels; of one side alone the other follows, so that the area is the trained one."""
        if width is None and height is None:
            width = height = math.isqrt(AREA)
        scale = self._scale
        width = width or round(AREA / height / scale) * scale
        height = height or round(AREA / width / scale) * scale
        if width % scale or height % scale or width < 2 * scale or height < scale:
            raise ValueError(
                f"Emu3 draws pictures whose sides are multiples of {scale} pixels, got {width} x {height}: "
                f"try {max(round(width / scale), 2) * scale} x {max(round(height / scale), 1) * scale}."
            )
        return TokenGrid(height // scale, width // scale, eol=True)

    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        texts = [prompt + QUALITY for prompt in prompts]
        texts += [negative or NEGATIVE for negative in negatives or []]
        header = [self._begin, *self.tokenizer.encode(f"{grid.rows}*{grid.cols}"), self._follow]
        rows = [[self._bos, *self.tokenizer.encode(unicodedata.normalize("NFC", text)), *header] for text in texts]
        return self._prompt(rows, self._pad, grid)

    def _paint(self, codes: Tensor) -> Tensor:
        return self._vq.decode(codes)

    def _tokenize(self, pixels: Tensor) -> Tensor:
        frames = pixels[:, None].repeat(1, self._vq.config.temporal_downsample_factor, 1, 1, 1)  # a still video
        latents = self._vq.quant_conv(self._vq.encoder(frames).transpose(1, 2))  # [N, C, 1, rows, cols]
        return nearest(latents[:, :, 0].permute(0, 2, 3, 1), self._vq.quantize.embedding.weight)
