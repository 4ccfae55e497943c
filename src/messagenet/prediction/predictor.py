"""One image in, labels or marginals out: any size, tiled when large, with optional test-time augmentation and
dense-CRF refinement.

Everything is joined at the nodes. Several views of an image (mirrored, at other scales) give the mean of
their node marginals, P = ¹⁄V Σ_v P_v, each brought to the node grid of the image itself; log P then takes the
place of the logits.

A network as prediction runs it: its convolutions fused, as long as that is the same network.

The fused copy is made on the first call, and made again when the network's own parameters have changed or moved since.
It is never copied or sent elsewhere, for oneDNN's kernels cannot be: whoever receives a `Ready` makes one anew.

Dense-CRF refinement: the model's logits as unary potentials of a fully connected CRF on the image's colours.

    P(y) ∝ exp( Σ_i logits_i(y_i) − Σ_{i<j} k(i, j) [y_i ≠ y_j] ),      mean field (see `messagenet.inference.dense`)

It draws labels to the edges that the image shows. A large image is refined in bands over its whole width, so that
memory stays bounded; a band also sees `MARGIN` standard deviations of the widest kernel above and below, where what
is further away counts next to nothing, and only its middle is kept.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.inference.dense import DEEPLAB, DenseGraph, DenseMeanField, Kernel
from messagenet.models import SegmentationNet
from messagenet.models.backbones import fused
from messagenet.prediction.upsample import joined_logits, most_probable, node_places, pixel_strips, sampled

State = tuple[tuple[int, int, int], ...]


class Ready:
    """Calls a network in the fastest way there is.

    Args:
        net: The network, in evaluation mode.
    """

    def __init__(self, net: SegmentationNet) -> None:
        self.net = net
        self._fused: SegmentationNet | None = None
        self._state: State = ()

    def __call__(self, images: Tensor) -> Tensor:
        """Logits at the nodes, (B, K, h, w), of images in 0..1, (B, 3, H, W)."""
        logits: Tensor = self._network(images.device)(images)
        return logits

    def _network(self, device: torch.device) -> SegmentationNet:
        if device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.is_grad_enabled():
            return self.net
        state = _state(self.net.backbones) + _state(self.net.neck or nn.Identity())
        if self._fused is None or state != self._state:
            self._fused, self._state = _with_fused_convolutions(self.net), state
        return self._fused

    def __getstate__(self) -> dict[str, Any]:
        return {"net": self.net, "_fused": None, "_state": ()}


def _with_fused_convolutions(net: SegmentationNet) -> SegmentationNet:
    """The network with other backbones and another neck; everything else is shared with it."""
    other = copy.copy(net)
    other._modules = dict(net._modules)
    other.backbones = nn.ModuleDict({name: fused(backbone) for name, backbone in net.backbones.items()})
    if other.neck is not None:
        other.neck = fused(other.neck)  # type: ignore[assignment]
    return other


def _state(module: nn.Module) -> State:
    """Changes whenever a parameter or buffer is replaced, moved or written to."""
    return tuple(
        (id(values), values.data_ptr(), 0 if values.is_inference() else values._version)
        for values in (*module.parameters(), *module.buffers())
    )


MARGIN = 2.0


@dataclass(frozen=True)
class Refinement:
    """How to refine.

    Attributes:
        kernels: What ties two pixels; DeepLab's unless told.
        iterations: Of mean field.
        pixels: How many pixels are refined in one piece.
    """

    kernels: tuple[Kernel, ...] = DEEPLAB
    iterations: int = 10
    pixels: int = 2_000_000

    def __post_init__(self) -> None:
        if self.pixels < 1:
            raise InputError(f"pixels is {self.pixels}; refine at least one at a time, such as 2000000")

    def strips(self, image: npt.NDArray[np.uint8], logits: Tensor, stride: float) -> Iterator[Tensor]:
        """Refined logits (K, rows, W) of successive bands of an image (H, W, 3), from node logits (K, h, w)."""
        height, width = image.shape[:2]
        margin = math.ceil(MARGIN * max(kernel.position for kernel in self.kernels))
        rows = height if height * width <= self.pixels else max(margin, self.pixels // width - 2 * margin)
        engine = DenseMeanField(self.iterations)
        across = node_places(torch.arange(width, device=logits.device, dtype=torch.float64) + 0.5, stride)
        for start in range(0, height, rows):
            stop = min(start + rows, height)
            top, bottom = max(0, start - margin), min(height, stop + margin)
            down = torch.arange(top, bottom, device=logits.device, dtype=torch.float64) + 0.5
            unary = sampled(logits, node_places(down, stride), across)  # (K, bottom - top, W)
            colours = torch.from_numpy(np.ascontiguousarray(image[top:bottom].transpose(2, 0, 1)))
            graph = DenseGraph(colours.to(logits.device).to(logits.dtype) / 255, self.kernels)
            yield engine.run(graph, unary).logits[:, start - top : stop - top]


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
