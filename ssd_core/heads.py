"""Spatial drafting heads: from the state and the token of one cell to the state of a cell beside or below it.

h[y, x] is the backbone's last state before the final norm whose logits choose the token of cell (y, x);
e[y, x] embeds the token chosen there. A head maps [h; e] to the h of the cell `offset` columns to the
right (horizontal) or `offset` rows below (vertical) (paper Sec. 3.3, A.6, A.9). `SPACES` has the paper's other
inputs and targets (Table 19). Vertical heads that saw the cells beside (y, x) too were tried on the builtin model: of
first drafts they kept 0.3 points more than heads of as many parameters that did not, trained from nothing, and 1.6
going on from trained ones.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .files import write_atomically

if TYPE_CHECKING:
    from .backbones.base import Backbone

FORMAT = "ssd-heads"
VERSION = "2"
FIRST_VERSION = "1"  # files without a space and without scales: they mean "pre+e" and 1
PAIRING = "predictor"  # h is the state that predicts the token which e embeds
# What a head reads at a cell; it predicts the first of these at another cell (Table 19).
SPACES = {
    "pre+e": "the state before the final norm, and the token's embedding",
    "pre": "the state before the final norm",
    "post+e": "the state after the final norm, and the token's embedding",
    "post": "the state after the final norm",
    "e": "the token's embedding",
}


class HeadsError(ValueError):
    """A heads file that cannot be used; the message says what was found, expected, and what to do."""


class SpatialHead(nn.Module):
    """z + SwiGLU(RMSNorm(z)) with z = W0 [h; e]; no biases. 134.2 M parameters at D = 4096, expansion 2.

    inputs: how many vectors it reads.
    """

    def __init__(self, hidden_size: int, expansion: float = 2.0, inputs: int = 2):
        super().__init__()
        inner = round(hidden_size * expansion)
        self.w0 = nn.Linear(inputs * hidden_size, hidden_size, bias=False)
        self.norm = nn.Parameter(torch.ones(hidden_size))
        self.gate = nn.Linear(hidden_size, inner, bias=False)
        self.up = nn.Linear(hidden_size, inner, bias=False)
        self.down = nn.Linear(inner, hidden_size, bias=False)

    def reset(self) -> None:
        """Starts as the identity draft: W0 copies the first input, the SwiGLU adds nothing yet."""
        width = self.w0.out_features
        with torch.no_grad():
            self.w0.weight.zero_()
            self.w0.weight[:, :width] = torch.eye(width)
            self.down.weight.zero_()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs [..., D] each -> the first one's like at another cell, [..., D]."""
        z = self.w0(torch.cat(inputs, -1))
        normed = _rms_normed(z, self.norm)
        return z + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _rms_normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


class HeadSet(nn.Module):
    """k_h horizontal heads (offsets 1..k_h) and k_v vertical ones (1..k_v) for one backbone.

    space: what they read and predict, one of `SPACES`. Around the heads states are divided by `state_scale` and
    embeddings by `token_scale`: states before a final norm can be a hundred times as large as what a network
    learns easily. Both are powers of two, so that no precision is lost, and kept in the heads file.
    """

    def __init__(
        self,
        hidden_size: int,
        fingerprint: str,
        k_h: int = 5,
        k_v: int = 3,
        expansion: float = 2.0,
        space: str = "pre+e",
    ):
        super().__init__()
        if space not in SPACES:
            raise ValueError(f'Unknown space "{space}" for heads: choose one of {", ".join(SPACES)}.')
        self.hidden_size, self.fingerprint, self.expansion, self.space = hidden_size, fingerprint, expansion, space
        inputs = len(space.split("+"))
        self.horizontal = nn.ModuleList(SpatialHead(hidden_size, expansion, inputs) for _ in range(k_h))
        self.vertical = nn.ModuleList(SpatialHead(hidden_size, expansion, inputs) for _ in range(k_v))
        self.register_buffer("state_scale", torch.ones(()))
        self.register_buffer("token_scale", torch.ones(()))
        if self._after_norm:
            self.register_buffer("final_norm", torch.ones(hidden_size))  # the backbone's weights

    @property
    def _after_norm(self) -> bool:
        return self.space.startswith("post")

    @property
    def k_h(self) -> int:
        """Largest horizontal offset."""
        return len(self.horizontal)

    @property
    def k_v(self) -> int:
        """Largest vertical offset."""
        return len(self.vertical)

    def draft_right(self, offset: int, h: Tensor, e: Tensor) -> Tensor:
        """States `offset` columns to the right of the given cells: h, e [..., D] -> [..., D]; see `logits`."""
        return self.as_state(self.horizontal[offset - 1](*self.inputs(h, e)))

    def draft_below(self, offset: int, h: Tensor, e: Tensor) -> Tensor:
        """States `offset` rows below the given cells: h, e [..., D] -> [..., D]; see `logits`."""
        return self.as_state(self.vertical[offset - 1](*self.inputs(h, e)))

    def inputs(self, h: Tensor, e: Tensor) -> tuple[Tensor, ...]:
        """What the heads read at cells with states h before the final norm and embeddings e, [..., D] each.

        The first of them is what they predict at other cells.
        """
        return tuple(self._input(part, h, e) for part in self.space.split("+"))

    def _input(self, part: str, h: Tensor, e: Tensor) -> Tensor:
        if part == "e":
            return e / self.token_scale
        return (_rms_normed(h, self.final_norm) if part == "post" else h) / self.state_scale

    def as_state(self, predicted: Tensor) -> Tensor:
        """What a head predicted, [..., D], as a state before the final norm (in the space "e": an embedding).

        The final norm of a state has a fixed length: in the spaces "post" and "post+e" a prediction keeps its
        direction, which decides what is likeliest, and gets that length.
        """
        if self.space == "e":
            return predicted * self.token_scale
        if self._after_norm:
            weight = torch.where(self.final_norm == 0, torch.ones_like(self.final_norm), self.final_norm)
            return predicted * self.state_scale / weight
        return predicted * self.state_scale

    def logits(self, backbone: "Backbone", h_hat: Tensor) -> Tensor:
        """Drafted states [..., D] -> logits over the codebook, fp32 [..., V].

        The paper does not say how a predicted embedding chooses a code. In the space "e" the nearer a code's
        embedding, the likelier: the log-density of a Gaussian as wide as the embeddings' entries.
        """
        if self.space != "e":
            return backbone.logits(h_hat)
        codes = backbone.embed_codes(torch.arange(backbone.codebook_size, device=h_hat.device)).float()
        squares = codes.square()
        return (h_hat.float() @ codes.T - squares.sum(-1) / 2) / squares.mean()

    def require(self, backbone_fingerprint: str, dtype: torch.dtype, k_h: int = 1, k_v: int = 1) -> None:
        """Raises HeadsError unless they fit a backbone and offsets 1..k_h and 1..k_v are there."""
        if self.fingerprint != backbone_fingerprint:
            raise HeadsError(
                f"These heads were trained for backbone {self.fingerprint}, not for {backbone_fingerprint}: "
                "load those of this backbone, or decode without heads."
            )
        own = next(self.parameters()).dtype
        if own != dtype:
            raise HeadsError(f"The heads are {own}, the backbone is {dtype}: load them with dtype={dtype}.")
        if k_h > self.k_h or k_v > self.k_v:
            raise HeadsError(
                f"The schedule drafts k_h={k_h} columns and k_v={k_v} rows at once, but these heads reach only "
                f"{self.k_h} columns and {self.k_v} rows: lower k_h or k_v, or train more heads."
            )


class IdentityHeads:
    """Training-free drafts for any backbone: the state of the cell above (or to the left) as it is."""

    k_h = k_v = sys.maxsize

    def draft_right(self, offset: int, h: Tensor, e: Tensor) -> Tensor:
        """h itself."""
        return h

    draft_below = draft_right

    def logits(self, backbone: "Backbone", h_hat: Tensor) -> Tensor:
        """The backbone's."""
        return backbone.logits(h_hat)

    def require(self, backbone_fingerprint: str, dtype: torch.dtype, k_h: int = 1, k_v: int = 1) -> None:
        """Any backbone and offset will do."""


Heads = HeadSet | IdentityHeads


def save_heads(
    heads: HeadSet, path: str | Path, training: dict | None = None, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Writes a HeadSet to one safetensors file, atomically; `training` holds facts worth keeping (JSON)."""
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": heads.fingerprint,
        "hidden_size": str(heads.hidden_size),
        "k_h": str(heads.k_h),
        "k_v": str(heads.k_v),
        "expansion": str(heads.expansion),
        "space": heads.space,
        "pairing": PAIRING,
        "training": json.dumps(training or {}),
    }
    state = {name: value.detach().to("cpu", dtype).contiguous() for name, value in heads.state_dict().items()}
    return write_atomically(path, lambda temporary: save_file(state, temporary, metadata=metadata))


def load_heads(
    path: str | Path,
    fingerprint: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> HeadSet:
    """Reads a heads file for the backbone with this fingerprint.

    Raises HeadsError for a missing or truncated file, another format or version, another backbone, or
    missing offsets.
    """
    path = Path(path)
    if not path.is_file():
        raise HeadsError(f"No heads file at {path}: check the path, or train heads with python -m ssd_core.training.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                found = metadata.get("format", "no format entry")
                raise HeadsError(f'{path} is not a heads file: its metadata say "{found}", expected "{FORMAT}".')
            version = metadata.get("version")
            if version not in (FIRST_VERSION, VERSION):
                raise HeadsError(
                    f"{path} has format version {version}, this program reads versions {FIRST_VERSION} and {VERSION}: "
                    "update the program, or train the heads again."
                )
            if metadata["pairing"] != PAIRING:
                raise HeadsError(f'{path} pairs states and tokens as "{metadata["pairing"]}", expected "{PAIRING}".')
            if metadata["fingerprint"] != fingerprint:
                raise HeadsError(
                    f"{path} was trained for backbone {metadata['fingerprint']}, but the loaded one is {fingerprint}: "
                    "choose the heads of this backbone, or train some with python -m ssd_core.training."
                )
            space = metadata["space"] if version == VERSION else "pre+e"
            if space not in SPACES:
                raise HeadsError(
                    f'{path} has heads of the unknown space "{space}", expected one of {", ".join(SPACES)}: '
                    "update the program, or train the heads again."
                )
            sizes = int(metadata["hidden_size"]), int(metadata["k_h"]), int(metadata["k_v"])
            with torch.device("meta"):
                heads = HeadSet(sizes[0], fingerprint, *sizes[1:], float(metadata["expansion"]), space)
            expected, found = set(heads.state_dict()), set(file.keys())
            unscaled = {"state_scale", "token_scale"} if version == FIRST_VERSION else set()
            expected -= unscaled
            if expected - found:
                missing = ", ".join(sorted({_part(name) for name in expected - found}))
                raise HeadsError(
                    f"{path} lacks {missing} (found {len(found)} tensors of {len(expected)}): "
                    "the file is incomplete, copy or train it again."
                )
            state = {name: file.get_tensor(name).to(dtype) for name in expected}
            state |= {name: torch.ones((), dtype=dtype) for name in unscaled}
    except SafetensorError as error:
        raise HeadsError(
            f"{path} is truncated or not a safetensors file ({error}): copy or download it again."
        ) from error
    except KeyError as error:
        raise HeadsError(f"{path} lacks the metadata entry {error}: train the heads again.") from error
    try:
        heads.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise HeadsError(f"The tensors in {path} do not have the sizes its metadata say: train them again.") from error
    return heads.to(device).eval().requires_grad_(False)


def _part(name: str) -> str:
    """What a tensor belongs to: such as "vertical offset 2"."""
    direction, *rest = name.split(".")
    return f"{direction} offset {int(rest[0]) + 1}" if rest else direction
