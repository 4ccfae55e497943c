"""A small feature network with local features, so that tests and demonstrations show what messages add.

Node (i, j) depends only on the pixels of its cell and on a margin of one pixel around it:

    rows  i·stride − 1  …  (i+1)·stride,      columns likewise,      receptive_field = stride + 2.

Spatial norms would tie every node to the whole image, so each node is normalised over its own channels (Ba, Kiros &
Hinton, arXiv 1607.06450). Zero padding would show border nodes where they are, so border pixels are repeated.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.settings import at_least, register


@register("backbone", "tiny")
class Tiny(nn.Module):
    """Edges of 3×3 pixels, gathered over each cell, then mixed within the node.

    Args:
        width: Channels throughout, and of the result.
        stride: Pixels per node: 4 or 8.

    Attributes:
        receptive_field: Side, in pixels, of the square a node sees, centred on its cell.

    >>> import torch
    >>> tiny = Tiny(width=16)
    >>> tiny(torch.zeros(1, 3, 33, 17)).shape
    torch.Size([1, 16, 9, 5])
    >>> tiny.receptive_field
    6
    """

    def __init__(self, width: int = 32, stride: int = 4) -> None:
        super().__init__()
        at_least(1, width=width)
        if stride not in (4, 8):
            raise InputError(f"stride of the tiny backbone must be 4 or 8, not {stride!r}")
        self.channels = width
        self.stride = stride
        self.receptive_field = stride + 2
        self.edges = nn.Conv2d(3, width, 3, padding=1, padding_mode="replicate")
        self.gather = nn.Conv2d(width, width, stride, stride=stride)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (B, 3, H, W) to features (B, width, ⌈H/stride⌉, ⌈W/stride⌉)."""
        height, width = images.shape[-2:]
        missing = (0, -width % self.stride, 0, -height % self.stride)
        whole_cells = F.pad(images, missing, mode="replicate")  # (B, 3, h·stride, w·stride)
        edges = F.relu(self.edges(whole_cells))  # (B, width, h·stride, w·stride)
        nodes = self.gather(edges).permute(0, 2, 3, 1)  # (B, h, w, width)
        nodes = F.relu(self.norm(nodes)).permute(0, 3, 1, 2)  # (B, width, h, w)
        return F.relu(self.mix(nodes))
