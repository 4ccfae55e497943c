"""Dense-CRF refinement: the model's logits as unary potentials of a fully connected CRF on the image's colours.

    P(y) ∝ exp( Σ_i logits_i(y_i) − Σ_{i<j} k(i, j) [y_i ≠ y_j] ),      mean field (see `messagenet.inference.dense`)

It draws labels to the edges that the image shows. A large image is refined in bands over its whole width, so that
memory stays bounded; a band also sees `MARGIN` standard deviations of the widest kernel above and below, where what
is further away counts next to nothing, and only its middle is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.inference.dense import DEEPLAB, DenseGraph, DenseMeanField, Kernel
from messagenet.prediction.enlarge import node_places, sampled

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
