"""Hand-crafted features: sixteen statistics of each cell of `stride` × `stride` pixels.

After those of inference machines (Ross, Munoz, Hebert & Bagnell, CVPR 2011; Hoiem, Efros & Hebert, ICCV 2005):

    colour     mean and standard deviation of red, green and blue                      6
    light      standard deviation, min and max of their mean                           3
    gradient   mean |∂y| and |∂x| of the light                                         2
    edges      mean |∇| of edges that lie flat, stand, rise and fall                   4
    texture    mean |Laplacian|                                                        1

An edge of direction φ with strength m counts m·max(0, cos 2(φ − φ_k)) for each of the four directions φ_k. The
derivatives reach one pixel beyond the cell. Nothing is trained. Positions are added where the padding is known.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.models.backbones.base import positive_integer
from messagenet.settings import register

POSITIONS = 4
_TINY = 1e-8  # keeps derivatives of square roots finite in flat cells


@register("backbone", "hand_crafted")
class HandCrafted(nn.Module):
    """The statistics as a backbone: normalised images in, sixteen numbers per node out.

    Args:
        stride: Pixels per node.

    >>> HandCrafted(stride=8)(torch.zeros(1, 3, 33, 17)).shape
    torch.Size([1, 16, 5, 3])
    """

    channels = 16

    def __init__(self, stride: int = 8) -> None:
        super().__init__()
        self.stride = positive_integer("stride", stride)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, 3, H, W) to features (B, 16, ⌈H/stride⌉, ⌈W/stride⌉)."""
        height, width = images.shape[-2:]
        missing = (0, -width % self.stride, 0, -height % self.stride)
        pixels = functional.pad(images, missing, mode="replicate")  # (B, 3, h·stride, w·stride)
        light = pixels.mean(1, keepdim=True)
        framed = functional.pad(light, (1, 1, 1, 1), mode="replicate")
        above, below = framed[..., :-2, 1:-1], framed[..., 2:, 1:-1]
        left, right = framed[..., 1:-1, :-2], framed[..., 1:-1, 2:]
        down, across = (below - above) / 2, (right - left) / 2
        strength = (down.square() + across.square() + _TINY).sqrt()
        standing = (across.square() - down.square()) / strength  # m cos 2φ
        rising = 2 * across * down / strength  # m sin 2φ
        per_pixel = torch.cat(
            [
                *(down.abs(), across.abs()),
                *(torch.relu(-standing), torch.relu(standing), torch.relu(rising), torch.relu(-rising)),
                (above + below + left + right - 4 * light).abs(),
            ],
            1,
        )
        colours = torch.cat([pixels, light], 1)
        variance = self._mean(colours.square()) - self._mean(colours).square()
        return torch.cat(
            [
                self._mean(pixels),
                (variance.clamp(min=0) + _TINY).sqrt(),
                -functional.max_pool2d(-light, self.stride),
                functional.max_pool2d(light, self.stride),
                self._mean(per_pixel),
            ],
            1,
        )

    def _mean(self, values: Tensor) -> Tensor:
        return functional.avg_pool2d(values, self.stride)


def positions(valid: Tensor) -> Tensor:
    """Position of each node in its own image: y, x, y², x², from −1 at one edge to 1 at the other, (B, h, w, 4).

    `valid`, (B, h, w), says which nodes exist; an image ends at the last row and column that has one.

    >>> positions(torch.ones(1, 1, 4, dtype=torch.bool))[0, 0, :, 1]
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """
    axes = []
    for across, along in ((2, 1), (1, 2)):
        nodes = valid.shape[along]
        numbers = torch.arange(nodes, device=valid.device)
        extent = ((numbers + 1) * valid.any(across)).amax(1).clamp(min=1)  # (B,)
        place = (2 * numbers + 1) / extent[:, None] - 1  # (B, h) or (B, w)
        axes.append(place.unsqueeze(across).expand(valid.shape))
    return torch.stack([*axes, *(axis.square() for axis in axes)], -1)
