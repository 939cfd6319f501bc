"""Lumina-mGPT 7B (arXiv 2408.02657): a fine-tuned Chameleon, codes in the text vocabulary, rows closed by a newline.

Alpha-VLLM/Lumina-mGPT-7B-768 needs three repairs to run on transformers' Chameleon: its query and key
norms are stored once for all heads, it comes without the image tokenizer (Meta's vqgan.ckpt), and
transformers has no pixel decoder for that. The decoder here is Janus', which is the same network but for
attention on its lowest resolution and the order of its levels.
"""

import re
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from torch import Tensor, nn
from transformers import ChameleonConfig
from transformers.models.chameleon.configuration_chameleon import ChameleonVQVAEConfig
from transformers.models.chameleon.modeling_chameleon import ChameleonModel, ChameleonVQVAE
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

from ..grid import TokenGrid
from .base import Prompt
from .checkpoint import CheckpointError, Renames, Source, weight_files
from .hf import TextTokenizer, VocabularyBackbone, build_parts, nearest

BOS, PAD, BEGIN_OF_IMAGE, END_OF_TURN, NEWLINE = "<s>", "<pad>", "<racm3:break>", "<reserved08706>", "<reserved08799>"
SIZE = "<reserved{:05d}>"  # 8800 + n: a side of 2 n codes
TEMPLATE = "Generate an image of {width}x{height} according to the following prompt:\n{prompt}"
VQ_HUB, VQ_FILE = "Alpha-VLLM/Chameleon_7B_mGPT", "original_tokenizers/vqgan.ckpt"

NATIVE = ((r"^lm_head\.", "head."), (r"^model\.", "decoder."))


def load_lumina(
    folder: Path,
    config: dict,
    *,
    name: str,
    device: str,
    dtype: str,
    bits: int | None,
    download: bool,
    vq: str | Path | None,
) -> "LuminaBackbone":
    """Lumina-mGPT from a folder; config is its config.json, vq Meta's vqgan.ckpt or the folder that holds it."""
    model = settings(config)
    pixels = _vq_file(folder, vq, download)
    levels = len(model.vq_config.channel_multiplier)
    sources = [Source(weight_files(folder), NATIVE), Source([pixels], _vq_renames(levels))]
    trained = re.search(r"-(512|768|1024)\b", name)
    side = int(trained[1]) if trained else 768
    tokenizer = TextTokenizer.from_folder(folder)
    return LuminaBackbone(model, sources, tokenizer, side=side, name=name, device=device, dtype=dtype, bits=bits)


def settings(config: dict) -> ChameleonConfig:
    """The model that a config.json describes."""
    model = ChameleonConfig.from_dict(config)
    model.vocabulary_map = model.vocabulary_map or {}  # transformers needs one; ours is the tokenizer's
    return model


def build(config: ChameleonConfig) -> nn.ModuleDict:
    """The parts of the model, without weights."""
    return build_parts(
        decoder=lambda: _decoder(config),
        head=lambda: nn.Linear(config.hidden_size, config.vq_config.num_embeddings, bias=False),
        vq=lambda: _vq(config.vq_config),
    )


def code_token(code: int) -> str:
    """Chameleon's name of a code: its decimal digits as letters."""
    return "IMGIMG" + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) + "Z"


def _vq_file(folder: Path, vq: str | Path | None, download: bool) -> Path:
    """Meta's image tokenizer; CheckpointError that says where to get it."""
    places = [Path(vq)] if vq else [folder, folder.parent]
    names = ("", "vqgan.safetensors", "vqgan.ckpt", VQ_FILE, "tokenizer/vqgan.ckpt")
    for path in (place / name for place in places for name in names):
        if path.is_file():
            return path
    if download and not vq:
        try:
            return Path(hf_hub_download(VQ_HUB, VQ_FILE))
        except (HfHubHTTPError, OSError) as error:
            raise CheckpointError(f"{VQ_FILE} of {VQ_HUB} cannot be downloaded: {error}") from error
    raise CheckpointError(
        f"{folder} comes without its image tokenizer, and there is no vqgan.ckpt in {places[0]}: download "
        f"{VQ_FILE} of {VQ_HUB} from the Hub into the folder, or say where it is (--vq, vq=)."
    )


def _vq_renames(levels: int) -> Renames:
    """Names in vqgan.ckpt: its decoder counts levels from the highest resolution, Janus' from the lowest."""
    return ((r"^decoder\.up\.(\d+)\.", lambda match: f"decoder.up.{levels - 1 - int(match[1])}."), (r"^", "vq."))


def _repeated(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """Query and key norms stored for a part of the heads each, [parts, head_dim] -> [heads, head_dim]."""
    if not re.search(r"\.[qk]_norm\.", name) or len(shape) != 2 or shape[0] % tensor.shape[0]:
        return tensor
    return tensor.repeat_interleave(shape[0] // tensor.shape[0], 0)


def _decoder(config: ChameleonConfig) -> ChameleonModel:
    decoder = ChameleonModel._from_config(config, attn_implementation="sdpa")
    del decoder.vqmodel  # we have our own, with a pixel decoder
    return decoder


def _vq(config: ChameleonVQVAEConfig) -> ChameleonVQVAE:
    names = ("latent_channels", "base_channels", "channel_multiplier", "num_res_blocks")
    vq = ChameleonVQVAE._from_config(config)
    vq.decoder = JanusVQVAEDecoder(JanusVQVAEConfig(**{name: getattr(config, name) for name in names}))
    vq.decoder.up[0].attn = nn.ModuleList()
    return vq


class LuminaBackbone(VocabularyBackbone):
    """Lumina-mGPT. Sides in steps of 2 codes; the unconditional branch is the header of the picture alone."""

    def __init__(
        self,
        config: ChameleonConfig,
        sources: list[Source],
        tokenizer: TextTokenizer,
        *,
        side: int,
        name: str,
        device: str,
        dtype: str,
        bits: int | None,
    ):
        size = config.vq_config.num_embeddings
        parts = build(config)
        self._bos, self._pad, self._begin, self._end_of_turn = (
            tokenizer.id(token) for token in (BOS, PAD, BEGIN_OF_IMAGE, END_OF_TURN)
        )
        self._scale, self._side = 2 ** (len(config.vq_config.channel_multiplier) - 1), side
        super().__init__(
            name,
            "lumina-mgpt",
            parts,
            sources,
            tokenizer,
            device=device,
            dtype=dtype,
            bits=bits,
            codebook_size=size,
            first_code=tokenizer.first_of([code_token(code) for code in range(size)]),
            eol=tokenizer.id(NEWLINE),
            adapt=_repeated,
        )

    def grid(self, width: int | None = None, height: int | None = None) -> TokenGrid:
        """Any size in steps of 32 pixels; of one side alone the other follows, so that the area is the trained one."""
        step = 2 * self._scale
        if width is None and height is None:
            width = height = self._side
        width = width or round(self._side**2 / height / step) * step
        height = height or round(self._side**2 / width / step) * step
        if width % step or height % step or min(width, height) < step:
            raise ValueError(
                f"Lumina-mGPT draws pictures whose sides are multiples of {step} pixels, got {width} x {height}: "
                f"try {max(round(width / step), 1) * step} x {max(round(height / step), 1) * step}."
            )
        return TokenGrid(height // self._scale, width // self._scale, eol=True)

    def encode_prompts(self, prompts: list[str], negatives: list[str] | None, grid: TokenGrid) -> Prompt:
        if negatives is not None and any(negatives):
            raise ValueError("Lumina-mGPT has no negative prompt: leave it empty.")
        # Upstream lets the model write the header itself; it does not always ask for the size in the prompt.
        sides = [self.tokenizer.id(SIZE.format(8800 + side // 2)) for side in (grid.rows, grid.cols)]
        header = [self._begin, *sides]
        height, width = grid.rows * self._scale, grid.cols * self._scale
        texts = [TEMPLATE.format(width=width, height=height, prompt=prompt) for prompt in prompts]
        rows = [[self._bos, *self.tokenizer.encode(text), self._end_of_turn, *header] for text in texts]
        return self._prompt(rows + [header] * len(negatives or []), self._pad, grid)

    def _paint(self, codes: Tensor) -> Tensor:
        vectors = self._vq.quantize.embedding(codes).permute(0, 3, 1, 2)
        return self._vq.decoder(self._vq.post_quant_conv(vectors))

    def _tokenize(self, pixels: Tensor) -> Tensor:
        vectors = self._vq.quant_conv(self._vq.encoder(pixels)).permute(0, 2, 3, 1)
        return nearest(vectors, self._vq.quantize.embedding.weight)
