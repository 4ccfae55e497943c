"""Fully connected CRFs on top of a unary classifier: DeepLab-CRF and CRF-RNN.

    unary logits at the nodes ─ upsampled to the CRF's resolution ─ T mean-field iterations on the image ─ logits

    DeepLabCRF   the unary is trained alone; the CRF is added for prediction, its kernels searched on held-out images
                 (Chen, Papandreou, Kokkinos, Murphy & Yuille, ICLR 2015)
    CRFRNN       the iterations are layers, trained with the rest: T = 5 in training and 10 in prediction, a learned
                 K × K compatibility that starts as Potts', a weight for every kernel and class (Zheng et al., ICCV
                 2015; Schwing & Urtasun, arXiv 1503.02351)

The CRF works on pixels, as published, or on means of 2×2 or 4×4, which is 4 or 16 times cheaper (`working_stride`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.geometry import map_size, upsample
from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian
from messagenet.models.base import Purpose
from messagenet.models.message import UnaryHead
from messagenet.settings import at_least, register

WORKING_STRIDES = (1, 2, 4)
PUBLISHED_KERNELS = {
    "spatial_weight": 3,
    "spatial_position": 3,
    "bilateral_weight": 10,
    "bilateral_position": 80,
    "bilateral_colour": 13,
}


class DenseCRFHead(UnaryHead):
    """A unary classifier, and a dense CRF on its logits; base of the two below.

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        feature_stride: Pixels per node of the feature map.
        hidden: Hidden units of the unary classifier.
        working_stride: Pixels per cell of the CRF: 1, 2 or 4.
        crf_iterations: Of mean field, in prediction.
        spatial_weight, bilateral_weight: Weight of the kernel over positions, and of that over positions and colours.
        spatial_position, bilateral_position: Standard deviation of the kernel's positions, in pixels.
        bilateral_colour: Standard deviation of the kernel's colours, in 0..255.
    """

    context = ("sizes", "images")

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        feature_stride: float,
        *,
        hidden: int = 256,
        working_stride: int = 1,
        crf_iterations: int = 10,
        spatial_weight: float = 3.0,
        spatial_position: float = 3.0,
        bilateral_weight: float = 10.0,
        bilateral_position: float = 80.0,
        bilateral_colour: float = 13.0,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden=hidden)
        if working_stride not in WORKING_STRIDES:
            raise InputError(f"working_stride is {working_stride}; choose 1, 2 or 4 pixels")
        at_least(1, crf_iterations=crf_iterations)
        self.feature_stride = feature_stride
        self.working_stride = working_stride
        self.crf_iterations = crf_iterations
        self.spatial_weight, self.spatial_position = spatial_weight, spatial_position
        self.bilateral_weight, self.bilateral_position = bilateral_weight, bilateral_position
        self.bilateral_colour = bilateral_colour
        for name in PUBLISHED_KERNELS:
            if not (value := getattr(self, name)) > 0:
                raise InputError(f"{name} is {value}; give a number above 0 such as {PUBLISHED_KERNELS[name]}")

    def output_stride(self, feature_stride: float) -> float:
        """Pixels per cell of the CRF."""
        return float(self.working_stride)

    def forward(
        self, features: Tensor, mask: Tensor | None = None, *, sizes: Tensor | None = None, images: Tensor | None = None
    ) -> Tensor:
        """Logits at the cells, (B, K, ⌈H/s⌉, ⌈W/s⌉), 0 in padding; arguments as in `forward_head` of a model."""
        if images is None:
            raise InputError("a dense CRF looks at the image; pass images as well as features")
        unary = super().forward(features, mask)
        if mask is None or sizes is None:
            return self._at_cells(unary, images)
        height, width = (math.ceil(side / self.working_stride) for side in images.shape[2:])
        logits = []
        for index, (rows, columns) in enumerate(sizes.tolist()):
            high, wide = (math.ceil(side / self.feature_stride) for side in (rows, columns))
            own = slice(index, index + 1)
            alone = self._at_cells(unary[own, :, :high, :wide], images[own, :, :rows, :columns])
            logits.append(functional.pad(alone, (0, width - alone.shape[3], 0, height - alone.shape[2])))
        return torch.cat(logits)

    def _at_cells(self, unary: Tensor, images: Tensor) -> Tensor:
        """Logits at the cells of the CRF from those at the nodes, for images of one size."""
        colours = mean_cells(images, self.working_stride)  # (B, 3, ⌈H/s⌉, ⌈W/s⌉)
        size = map_size(colours)
        return self.refine(colours, upsample(unary, size, self.feature_stride / self.working_stride))

    def refine(self, colours: Tensor, potentials: Tensor) -> Tensor:
        """Logits (B, K, h, w) after mean field, from colours in 0..1 (B, 3, h, w) and unary logits."""
        graph = DenseGraph(colours.detach().float().clamp(0, 1), self.kernels)
        weights, compatibility = self.learned_parameters()
        engine = DenseMeanField(self.num_iterations)
        return engine.run(graph, potentials, weights=weights, compatibility=compatibility).logits

    @property
    def kernels(self) -> tuple[Gaussian, Bilateral]:
        """The CRF's kernels, lengths in cells."""
        scale = self.working_stride
        return (
            Gaussian(self.spatial_weight, self.spatial_position / scale),
            Bilateral(self.bilateral_weight, self.bilateral_position / scale, self.bilateral_colour),
        )

    @property
    def num_iterations(self) -> int:
        """Iterations of mean field."""
        return self.crf_iterations

    def learned_parameters(self) -> tuple[Tensor | None, Tensor | None]:
        """Kernel weights (kernels, K) and compatibility (K, K), where they are learned."""
        return None, None


@register("head", "deeplab_crf")
class DeepLabCRF(DenseCRFHead):
    """A unary classifier with a dense CRF for prediction; the CRF takes no part in training.

    With `vgg16`, its `scales` give the multi-scale variant and `fc6_kernel` the field of view (DeepLab-MCL).
    """

    needs_images: ClassVar[frozenset[Purpose]] = frozenset({"prediction"})
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "bilateral_weight": (3.0, 5.0, 10.0),
        "bilateral_position": (10.0, 30.0, 80.0),
        "bilateral_colour": (5.0, 13.0, 30.0),
    }

    def forward_train(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the unary classifier, (B, K, h, w)."""
        return UnaryHead.forward(self, features, mask)


@register("head", "crf_rnn")
class CRFRNN(DenseCRFHead):
    """A unary classifier and mean-field layers, trained together.

    Kernel weights start at 1: an untrained classifier has nothing worth smoothing strongly.

    Args:
        training_iterations: Of mean field, in training.
    """

    needs_images: ClassVar[frozenset[Purpose]] = frozenset({"loss", "prediction"})

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        feature_stride: float,
        *,
        training_iterations: int = 5,
        spatial_weight: float = 1.0,
        bilateral_weight: float = 1.0,
        **options: Any,
    ) -> None:
        options |= {"spatial_weight": spatial_weight, "bilateral_weight": bilateral_weight}
        super().__init__(in_channels, num_classes, feature_stride, **options)
        at_least(1, training_iterations=training_iterations)
        self.training_iterations = training_iterations
        start = torch.tensor([kernel.weight for kernel in self.kernels])
        self.kernel_weights = nn.Parameter(start[:, None].repeat(1, num_classes))  # (kernels, K)
        self.compatibility = nn.Parameter(1 - torch.eye(num_classes))

    @property
    def num_iterations(self) -> int:
        """Iterations of mean field: fewer in training."""
        return self.training_iterations if self.training else self.crf_iterations

    def learned_parameters(self) -> tuple[Tensor | None, Tensor | None]:
        """Kernel weights (kernels, K) and compatibility (K, K)."""
        return self.kernel_weights, self.compatibility


def mean_cells(images: Tensor, stride: int) -> Tensor:
    """The mean colour of each cell of stride × stride pixels, (B, 3, ⌈H/stride⌉, ⌈W/stride⌉).

    >>> mean_cells(torch.arange(3.0).expand(1, 3, 1, 3), 2)[0, 0]
    tensor([[0.5000, 2.0000]])
    """
    if stride == 1:
        return images
    return functional.avg_pool2d(images, stride, ceil_mode=True, count_include_pad=False)
