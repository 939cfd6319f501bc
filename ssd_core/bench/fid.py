"""Frechet inception distance between two folders of pictures, by torchmetrics over torch-fidelity's Inception."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def fid_of_folders(
    real: Path,
    drawn: Path,
    weights: Path | None = None,
    *,
    download: bool = False,
    device: str = "cpu",
    inception: nn.Module | None = None,
) -> tuple[float, tuple[int, int]]:
    """FID (Heusel et al. 2017; antialiased resizing, as in clean-fid) and the numbers of pictures, real and drawn.

    weights: Inception's, as torch-fidelity has them; None: it downloads them if `download` allows. inception:
    another network for RGB uint8 [N, 3, H, W] in its place. The distance is biased upwards for few pictures
    (the paper takes 5000): compare sets of one size only. Raises ValueError that says what is missing.
    """
    files = [_pictures(folder) for folder in (real, drawn)]
    metric = _metric(weights, download, inception).to(device)
    for is_real, paths in zip((True, False), files, strict=True):
        for path in paths:
            metric.update(_read(path).to(device), real=is_real)
    return float(metric.compute()), (len(files[0]), len(files[1]))


def _metric(weights: Path | None, download: bool, inception: nn.Module | None):
    try:
        from torchmetrics.image.fid import FrechetInceptionDistance

        if inception is not None:
            return FrechetInceptionDistance(inception)
        if weights is None and not download:
            raise ValueError(
                "FID needs Inception's weights: name pt_inception-2015-12-05-6726825d.pth with --weights "
                "(https://github.com/toshas/torch-fidelity/releases), or allow the download with --download."
            )
        if weights is not None and not weights.is_file():
            raise ValueError(f"There is no file {weights}: --weights names Inception's.")
        return FrechetInceptionDistance(feature_extractor_weights_path=weights and str(weights))
    except ModuleNotFoundError as error:
        raise ValueError('FID needs torchmetrics and torch-fidelity: pip install "torchmetrics[image]"') from error


def _pictures(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if len(paths) < 2:
        raise ValueError(f"FID compares folders of pictures, and {folder} has {len(paths)} (PNG, JPEG or WebP).")
    return paths


def _read(path: Path) -> Tensor:
    """uint8 [1, 3, H, W]: one by one, as sizes may differ."""
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None]
