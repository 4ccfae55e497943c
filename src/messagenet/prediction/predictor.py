"""One image in, labels or marginals out: any size, tiled when large, with optional test-time augmentation and
dense-CRF refinement.

Everything is joined at the nodes. Several views of an image (mirrored, at other scales) give the mean of
their node marginals, P = ¹⁄V Σ_v P_v, each brought to the node grid of the image itself; log P then takes the
place of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.models import SegmentationNet
from messagenet.prediction.enlarge import most_probable, node_places, pixel_strips, sampled
from messagenet.prediction.ready import Ready
from messagenet.prediction.refine import Refinement
from messagenet.prediction.tiles import joined_logits

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Views:
    """Test-time augmentation and tiling.

    Attributes:
        flip: Also predict the mirror image.
        scales: Sizes at which to predict, as factors of the image's, or of what it is reduced to.
        tile: Largest side, in pixels, that is predicted in one piece; larger images are tiled.
        overlap: How far tiles overlap, in pixels.
        longest_side: Larger images are reduced to this many pixels first, and the answer is enlarged; None for what
            the model is for, 0 for never.
    """

    flip: bool = False
    scales: tuple[float, ...] = (1.0,)
    tile: int = 1024
    overlap: int = 256
    longest_side: int | None = None

    def __post_init__(self) -> None:
        if not self.scales or not all(0 < scale <= 16 for scale in self.scales):
            raise InputError(
                f"scales are {self.scales}; give factors above 0 and up to 16, such as 0.75, 1, 1.25"
            )
        if self.tile < 64 or not 0 <= self.overlap <= self.tile // 2:
            raise InputError(
                f"tile is {self.tile} and overlap {self.overlap} pixels; a tile has at least 64 and overlaps "
                "by at most half of itself"
            )
        if self.longest_side is not None and self.longest_side < 0:
            raise InputError(
                f"longest_side is {self.longest_side}; give a number of pixels, or 0 for any size"
            )


class Predictor:
    """A model ready to segment images.

    >>> from messagenet.models import MessageNet
    >>> predictor = Predictor(MessageNet("tiny", 3, hidden=8))
    >>> predictor.labels(np.zeros((30, 45, 3), np.uint8)).shape
    (30, 45)

    Args:
        net: The model; it is put into evaluation mode.
        views: Test-time augmentation and tiling.
        refinement: A dense CRF on top, if there is to be one.
    """

    def __init__(
        self, net: SegmentationNet, views: Views | None = None, refinement: Refinement | None = None
    ) -> None:
        self.net = net.eval()
        self._ready = Ready(net)
        self.views = views or Views()
        self.refinement = refinement

    def labels(self, image: Image) -> Image:
        """The most probable class of every pixel, uint8 (H, W)."""
        return np.concatenate([most_probable(strip) for strip in self._strips(image)])

    def marginals(self, image: Image) -> Tensor:
        """P(y | x) at every pixel, (K, H, W)."""
        return torch.cat([torch.softmax(strip, 0) for strip in self._strips(image)], 1)

    @torch.inference_mode()
    def _strips(self, image: Image) -> Iterator[Tensor]:
        """Logits (K, rows, W) at the pixels of successive strips of the image."""
        logits = self.node_logits(image)
        if self.refinement is None:
            return pixel_strips(logits, (image.shape[0], image.shape[1]), self.net.stride)
        return self.refinement.strips(image, logits, self.net.stride)

    @torch.inference_mode()
    def node_logits(self, image: Image) -> Tensor:
        """Logits at the nodes, (K, h, w), joined from all tiles and views."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise InputError(
                f"an image must be RGB bytes (height, width, 3), not {image.dtype} {image.shape}"
            )
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]
        reduction = self._reduction(max(image.shape[:2]))
        scales = [reduction * scale for scale in self.views.scales]
        views = [self._view(pixels, scale, flip) for scale in scales for flip in self._flips]
        if len(views) == 1 and scales == [1.0]:
            return views[0][0]
        return torch.stack([torch.softmax(view, 1) for view in views]).mean(0).clamp(min=1e-12).log()[0]

    @property
    def _flips(self) -> Sequence[bool]:
        return (False, True) if self.views.flip else (False,)

    def _reduction(self, side: int) -> float:
        """What an image with this longest side is multiplied by before anything else."""
        asked = self.views.longest_side
        most = self.net.longest_side if asked is None else asked
        return min(1.0, most / side) if most else 1.0

    def _view(self, pixels: Tensor, scale: float, flip: bool) -> Tensor:
        """Node logits (1, K, h, w) of one view, at the nodes of the image itself."""
        height, width = pixels.shape[2:]
        if scale != 1:
            size = [max(1, round(side * scale)) for side in (height, width)]
            pixels = functional.interpolate(pixels.float(), size, mode="bilinear", antialias=scale < 1)
            pixels = pixels.round().clamp(0, 255).to(torch.uint8)
        if flip:
            pixels = pixels.flip(3)
        net, views = self.net, self.views
        if max(pixels.shape[2:]) > views.tile:
            logits = joined_logits(pixels, self._run, views.tile, views.overlap, net.stride)
        else:
            logits = self._run(pixels)
        if scale == 1 and not flip:
            return logits
        rows = self._centres(height, logits.device) * (pixels.shape[2] / height)
        columns = self._centres(width, logits.device)
        columns = (width - columns if flip else columns) * (pixels.shape[3] / width)
        return sampled(logits, node_places(rows, net.stride), node_places(columns, net.stride))

    def _centres(self, side: int, device: torch.device) -> Tensor:
        """Where the nodes of the image are, in pixels."""
        nodes = math.ceil(side / self.net.stride)
        return (torch.arange(nodes, device=device, dtype=torch.float64) + 0.5) * self.net.stride

    def _run(self, pixels: Tensor) -> Tensor:
        parameter = next(self.net.parameters())
        images = pixels.to(parameter.device).to(parameter.dtype) / 255
        logits: Tensor = self._ready(images)
        return logits.float()
