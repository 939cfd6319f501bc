"""The builtin image tokenizer: 192 x 192 pixels <-> 24 x 24 codes of a finite scalar quantizer (FSQ).

Every 8 x 8 patch becomes four numbers, each rounded to a few levels (8 * 8 * 6 * 5 = 1,920 codes). The
encoder looks at a patch and its eight neighbours only, so equal surroundings give equal codes; most
of the capacity is in the decoder. There is no codebook to collapse (Mentzer et al. 2023).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = (8, 8, 6, 5)
CODEBOOK_SIZE = math.prod(LEVELS)


class ChannelNorm(nn.Module):
    """RMS norm over the channels of each pixel: no statistics leak between distant cells."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * self.weight


class ResidualBlock(nn.Module):
    """x + two convolutions with kernel size `kernel` and 1 (two of `kernel` if `wide`)."""

    def __init__(self, channels: int, kernel: int = 3, wide: bool = True):
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.first = nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
        last = kernel if wide else 1
        self.second = nn.Conv2d(channels, channels, last, padding=last // 2)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(self.norm(x))))


def _upsample(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out * 4, 1), nn.PixelShuffle(2))


class ImageTokenizer(nn.Module):
    """encode: RGB -> codes; decode: codes -> RGB. Any grid of 8 px patches works; trained on 24 x 24."""

    patch = 8

    def __init__(self, width: int = 176):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(self.patch),
            nn.Conv2d(3 * self.patch**2, width, 1),
            ResidualBlock(width, 1),
            ResidualBlock(width, 3, wide=False),
            ResidualBlock(width, 1),
            ChannelNorm(width),
            nn.Conv2d(width, len(LEVELS), 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(len(LEVELS), width, 3, padding=1),
            ResidualBlock(width),
            ResidualBlock(width),
            _upsample(width, width // 2),
            ResidualBlock(width // 2),
            _upsample(width // 2, width // 4),
            ResidualBlock(width // 4),
            ChannelNorm(width // 4),
            nn.Conv2d(width // 4, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )
        levels = torch.tensor(LEVELS, dtype=torch.float32).view(-1, 1, 1)
        self.register_buffer("levels", levels, persistent=False)
        strides = torch.tensor([1, *LEVELS[:-1]]).cumprod(0).view(-1, 1, 1)
        self.register_buffer("strides", strides, persistent=False)

    def _digits(self, z: Tensor) -> Tensor:
        """Integer digits 0..L-1 per dimension (as float), straight-through gradient. z [N, 4, H, W]."""
        scaled = torch.sigmoid(z.float()) * (self.levels - 1e-3) - 0.5 + 5e-4
        return scaled + (scaled.round() - scaled).detach()

    def _latent(self, digits: Tensor) -> Tensor:
        """Digits -> decoder input in -1..1."""
        return digits * 2 / (self.levels - 1) - 1

    def reconstruct(self, rgb: Tensor) -> Tensor:
        """Differentiable round trip, for training. rgb [N, 3, H, W] in 0..1 -> the same shape."""
        return self.decoder(self._latent(self._digits(self.encoder(rgb * 2 - 1))).to(rgb.dtype)) * 0.5 + 0.5

    @torch.no_grad()
    def encode(self, rgb: Tensor) -> Tensor:
        """rgb [N, H, W, 3] float in 0..1 -> codes [N, H/8, W/8] int64."""
        z = self.encoder(rgb.permute(0, 3, 1, 2) * 2 - 1)
        return (self._digits(z).round().long() * self.strides).sum(1)

    def latents(self, codes: Tensor) -> Tensor:
        """codes [N] int64 -> the decoder's input for each, float32 [N, 4] in -1..1."""
        return self._latent(self._split(codes[:, None, None]))[:, :, 0, 0]

    def _split(self, codes: Tensor) -> Tensor:
        """codes [N, H, W] -> digits float32 [N, 4, H, W]."""
        return (codes.unsqueeze(1) // self.strides % self.levels.long()).float()

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """codes [N, H, W] int64 -> rgb [N, 8H, 8W, 3] float32 in 0..1."""
        dtype = self.decoder[0].weight.dtype
        rgb = self.decoder(self._latent(self._split(codes)).to(dtype)).float() * 0.5 + 0.5
        return rgb.clamp(0, 1).permute(0, 2, 3, 1)
