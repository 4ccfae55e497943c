"""The kernels of a fully connected CRF: how much two pixels have to do with each other.

    Gaussian     k(i, j) = exp(−|p_i − p_j|² / 2σ_p²)                              smoothness
    Bilateral    k(i, j) = exp(−|p_i − p_j|² / 2σ_p² − |c_i − c_j|² / 2σ_c²)       appearance

with positions p in pixels and colours c in 0..255 (Krähenbühl & Koltun, "Efficient inference in fully connected
CRFs with Gaussian edge potentials", NIPS 2011, eq. 3). Every kernel is exp(−|f_i − f_j|² / 2) of features f, so a
sum over all pixels is a Gaussian filter in the space of features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError


@dataclass(frozen=True)
class Gaussian:
    """Pixels near each other agree; the defaults are DeepLab's.

    Attributes:
        weight: how much the kernel counts, unless `DenseMeanField.run` is given weights.
        position: σ_p, in pixels.
    """

    weight: float = 3.0
    position: float = 3.0

    def __post_init__(self) -> None:
        _check(self, "position")

    def features(self, image: Tensor) -> Tensor:
        """(H·W, 2) features of the pixels of an image (3, H, W), x first, in float64."""
        return (_positions(image) / self.position).T


@dataclass(frozen=True)
class Bilateral:
    """Pixels near each other and of like colour agree; the defaults are DeepLab's.

    Attributes:
        weight: how much the kernel counts, unless `DenseMeanField.run` is given weights.
        position: σ_p, in pixels.
        colour: σ_c, in units of 0..255 although images are 0..1, as everyone states it.
    """

    weight: float = 10.0
    position: float = 80.0
    colour: float = 13.0

    def __post_init__(self) -> None:
        _check(self, "position", "colour")

    def features(self, image: Tensor) -> Tensor:
        """(H·W, 5) features of the pixels of an image (3, H, W) in 0..1: x, y, red, green, blue, in float64."""
        colours = image.detach().double().flatten(1) * (255 / self.colour)  # (3, N)
        return torch.cat([_positions(image) / self.position, colours]).T


Kernel = Gaussian | Bilateral


def _check(kernel: Kernel, *lengths: str) -> None:
    for name in lengths:
        if not (getattr(kernel, name) > 0 and math.isfinite(getattr(kernel, name))):
            raise InputError(
                f"{name} of {type(kernel).__name__} is {getattr(kernel, name)}; give a positive standard deviation"
            )
    if not math.isfinite(kernel.weight):
        raise InputError(f"weight of {type(kernel).__name__} is {kernel.weight}; give a finite number")


def _positions(image: Tensor) -> Tensor:
    """(2, H·W) x and y of every pixel, rows first."""
    height, width = image.shape[-2:]
    rows = torch.arange(height, dtype=torch.float64, device=image.device)
    columns = torch.arange(width, dtype=torch.float64, device=image.device)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()])
