"""Spatial drafting heads: from the state and the token of one cell to the state of a cell beside or below it.

h[y, x] is the backbone's last state before the final norm whose logits choose the token of cell (y, x);
e[y, x] embeds the token chosen there. A head maps [h; e] to the h of the cell `offset` columns to the
right (horizontal) or `offset` rows below (vertical) (paper Sec. 3.3, A.6, A.9).
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .files import write_atomically

FORMAT = "ssd-heads"
VERSION = "1"
PAIRING = "predictor"  # h is the state that predicts the token which e embeds


class HeadsError(ValueError):
    """A heads file that cannot be used; the message says what was found, expected, and what to do."""


class SpatialHead(nn.Module):
    """z + SwiGLU(RMSNorm(z)) with z = W0 [h; e]; no biases. 134.2 M parameters at D = 4096, expansion 2."""

    def __init__(self, hidden_size: int, expansion: float = 2.0):
        super().__init__()
        inner = round(hidden_size * expansion)
        self.w0 = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.norm = nn.Parameter(torch.ones(hidden_size))
        self.gate = nn.Linear(hidden_size, inner, bias=False)
        self.up = nn.Linear(hidden_size, inner, bias=False)
        self.down = nn.Linear(inner, hidden_size, bias=False)

    def reset(self) -> None:
        """Starts as the identity draft, h_hat = h: W0 copies h, the SwiGLU adds nothing yet."""
        width = self.w0.out_features
        with torch.no_grad():
            self.w0.weight.zero_()
            self.w0.weight[:, :width] = torch.eye(width)
            self.down.weight.zero_()

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        """h, e [..., D] -> h_hat [..., D]."""
        z = self.w0(torch.cat((h, e), -1))
        wide = z.float()
        normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(z.dtype) * self.norm
        return z + self.down(F.silu(self.gate(normed)) * self.up(normed))


class HeadSet(nn.Module):
    """k_h horizontal heads (offsets 1..k_h) and k_v vertical ones (1..k_v) for one backbone."""

    def __init__(self, hidden_size: int, fingerprint: str, k_h: int = 5, k_v: int = 3, expansion: float = 2.0):
        super().__init__()
        self.hidden_size, self.fingerprint, self.expansion = hidden_size, fingerprint, expansion
        self.horizontal = nn.ModuleList(SpatialHead(hidden_size, expansion) for _ in range(k_h))
        self.vertical = nn.ModuleList(SpatialHead(hidden_size, expansion) for _ in range(k_v))

    @property
    def k_h(self) -> int:
        """Largest horizontal offset."""
        return len(self.horizontal)

    @property
    def k_v(self) -> int:
        """Largest vertical offset."""
        return len(self.vertical)

    def draft_right(self, offset: int, h: Tensor, e: Tensor) -> Tensor:
        """States `offset` columns to the right of the given cells: h, e [..., D] -> [..., D]."""
        return self.horizontal[offset - 1](h, e)

    def draft_below(self, offset: int, h: Tensor, e: Tensor) -> Tensor:
        """States `offset` rows below the given cells: h, e [..., D] -> [..., D]."""
        return self.vertical[offset - 1](h, e)

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
            if metadata.get("version") != VERSION:
                raise HeadsError(
                    f"{path} has format version {metadata.get('version')}, this program reads version {VERSION}: "
                    "update the program, or train the heads again."
                )
            if metadata["pairing"] != PAIRING:
                raise HeadsError(f'{path} pairs states and tokens as "{metadata["pairing"]}", expected "{PAIRING}".')
            if metadata["fingerprint"] != fingerprint:
                raise HeadsError(
                    f"{path} was trained for backbone {metadata['fingerprint']}, but the loaded one is {fingerprint}: "
                    "choose the heads of this backbone, or train some with python -m ssd_core.training."
                )
            sizes = int(metadata["hidden_size"]), int(metadata["k_h"]), int(metadata["k_v"])
            with torch.device("meta"):
                heads = HeadSet(sizes[0], fingerprint, *sizes[1:], float(metadata["expansion"]))
            expected, found = set(heads.state_dict()), set(file.keys())
            if expected - found:
                parts = sorted({tuple(name.split(".")[:2]) for name in expected - found})
                missing = ", ".join(f"{direction} offset {int(number) + 1}" for direction, number in parts)
                raise HeadsError(
                    f"{path} lacks {missing} (found {len(found)} tensors of {len(expected)}): "
                    "the file is incomplete, copy or train it again."
                )
            state = {name: file.get_tensor(name).to(dtype) for name in expected}
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
