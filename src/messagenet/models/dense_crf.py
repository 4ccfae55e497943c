"""Fully connected CRFs on top of a unary network: DeepLab-CRF and CRF-RNN.

    unary logits at the nodes ─ upsampled to the CRF's resolution ─ T mean-field iterations on the image ─ logits

    DeepLabCRF   the unary is trained as if it were all; the CRF is added for prediction, its parameters searched on
                 held-out images (Chen, Papandreou, Kokkinos, Murphy & Yuille, ICLR 2015)
    CRFRNN       the iterations are layers, trained with the rest: T = 5 in training and 10 in prediction, a learned
                 K × K compatibility that starts as Potts', a weight for every kernel and class (Zheng et al., ICCV
                 2015; Schwing & Urtasun, arXiv 1503.02351)

The CRF works on cells of `working_stride` pixels: on pixels, as published, or on averages of 2×2 or 4×4, which is
4 or 16 times cheaper. Its kernels are given in pixels of the image either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError, nearest
from messagenet.graph import Relation
from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian
from messagenet.losses.cross_entropy import upsample
from messagenet.message_passing import MessagePassing
from messagenet.models.base import Features, SegmentationNet, map_size

WORKING_STRIDES = (1, 2, 4)
DEEPLAB = {
    "spatial_weight": 3.0,
    "spatial_position": 3.0,
    "bilateral_weight": 10.0,
    "bilateral_position": 80.0,
    "bilateral_colour": 13.0,
}
"""Kernels by default: weights, lengths in pixels, colours in 0..255."""


class _DenseNet(SegmentationNet):
    """A unary network, and a dense CRF on its logits."""

    uses_relations = False
    learns_from_features = decides_from_features = False
    first_kernels: ClassVar[Mapping[str, float]] = DEEPLAB
    options = ("neck", "hidden", "working_stride", "kernels")
    head: MessagePassing

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = (),
        *,
        backbone_options: Mapping[str, Any] | None = None,
        neck: Mapping[str, Any] | None = None,
        hidden: int = 256,
        working_stride: int = 1,
        crf_iterations: int = 10,
        kernels: Mapping[str, float] | None = None,
        void_values: Sequence[int] = (),
    ) -> None:
        if working_stride not in WORKING_STRIDES:
            raise InputError(f"working_stride is {working_stride}; choose 1, 2 or 4 pixels")
        lengths = {**self.first_kernels, **(kernels or {})}
        for name, value in lengths.items():
            if name not in DEEPLAB:
                raise InputError(f"a dense CRF has no kernel setting {name!r}; {nearest(name, DEEPLAB)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InputError(f"{name} is {value!r}; give a number above 0 such as {DEEPLAB[name]:g}")
        super().__init__(
            backbone,
            classes,
            relations,
            settings={
                "hidden": hidden,
                "working_stride": working_stride,
                "crf_iterations": crf_iterations,
                "kernels": lengths,
            },
            backbone_options=backbone_options,
            neck=neck,
            void_values=void_values,
        )
        self.stride = float(working_stride)
        self.head = MessagePassing(self.head_channels, self.classes.num_classes, (), hidden=hidden)

    def unary_logits(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits at the nodes of the feature map, before the CRF, (B, K, h, w)."""
        return super().logits_of(images, self.features(images), valid)

    def logits_of(self, images: Tensor, features: Features, valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals at the cells of the CRF, (B, K, ⌈H/s⌉, ⌈W/s⌉); 0 in padding.

        Args:
            images: RGB in 0..1, (B, 3, H, W).
            features: What the backbone makes of them.
            valid: Which pixels are image and not padding, (B, H, W).
        """
        unary = super().logits_of(images, features, valid)
        colours = cells(images, int(self.stride))  # (B, 3, ⌈H/s⌉, ⌈W/s⌉)
        if valid is None:
            return self.refined(colours, self._enlarged(unary, map_size(colours)))
        logits = []
        heights, widths = valid.any(2).sum(1).tolist(), valid.any(1).sum(1).tolist()
        for number, size in enumerate(zip(heights, widths, strict=True)):
            own = slice(number, number + 1)
            rows, columns = (math.ceil(side / self.stride) for side in size)
            high, wide = (math.ceil(side / self.feature_stride) for side in size)
            potentials = self._enlarged(unary[own, :, :high, :wide], (rows, columns))
            alone = self.refined(colours[own, :, :rows, :columns], potentials)
            missing = (0, colours.shape[3] - columns, 0, colours.shape[2] - rows)
            logits.append(functional.pad(alone, missing))
        return torch.cat(logits)

    def _enlarged(self, unary: Tensor, size: tuple[int, int]) -> Tensor:
        """Logits of nodes at the cells of the CRF."""
        return upsample(unary, size, self.feature_stride / self.stride)

    def refined(self, colours: Tensor, potentials: Tensor) -> Tensor:
        """Logits (B, K, h, w) after mean field, from colours in 0..1 (B, 3, h, w) and unary logits."""
        graph = DenseGraph(colours.detach().float().clamp(0, 1), self.kernels)
        weights, compatibility = self.learned()
        engine = DenseMeanField(self.crf_iterations)
        return engine.run(graph, potentials, weights=weights, compatibility=compatibility).logits

    @property
    def kernels(self) -> tuple[Gaussian, Bilateral]:
        """What ties two cells, lengths in cells."""
        found = self.settings["kernels"]
        return (
            Gaussian(found["spatial_weight"], found["spatial_position"] / self.stride),
            Bilateral(
                found["bilateral_weight"],
                found["bilateral_position"] / self.stride,
                found["bilateral_colour"],
            ),
        )

    @classmethod
    def upgraded(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with the kernels in one place; models used to have them among the others."""
        if "kernels" in settings:
            return dict(settings)
        kernels = {name: value for name, value in settings.items() if name in DEEPLAB}
        return {name: value for name, value in settings.items() if name not in DEEPLAB} | {"kernels": kernels}

    def adjust(self, **values: float) -> None:
        """Changes kernels; `save` writes the new ones."""
        self.check_adjustable(values)
        self.settings["kernels"] = {**self.settings["kernels"], **values}

    @property
    def crf_iterations(self) -> int:
        """Of mean field."""
        return int(self.settings["crf_iterations"])

    def learned(self) -> tuple[Tensor | None, Tensor | None]:
        """Kernel weights and compatibility, where they are not those of the kernels and Potts'."""
        return None, None


class DeepLabCRF(_DenseNet):
    """A unary network with a dense CRF for prediction.

    >>> DeepLabCRF("tiny", 3, hidden=8)(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 3, 40, 50])

    Args:
        backbone, classes, backbone_options, neck, void_values: See `SegmentationNet`. With `vgg16`, its `scales` give
            the multi-scale variant and `fc6_kernel` the field of view.
        relations: None: all pixels are tied.
        hidden: Hidden units of the unary classifier.
        working_stride: Pixels per cell of the CRF: 1, 2 or 4.
        crf_iterations: Of mean field.
        kernels: Any of `DEEPLAB` to change: weights, lengths in pixels, colours in 0..255.
    """

    learns_from_features = True
    adjustable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "bilateral_weight": (3.0, 5.0, 10.0),
        "bilateral_position": (10.0, 30.0, 80.0),
        "bilateral_colour": (5.0, 13.0, 30.0),
    }

    def judged_logits(self, images: Tensor, valid: Tensor | None) -> Tensor:
        """Those of the unary network: the CRF takes no part in training."""
        return self.unary_logits(images, valid)

    @property
    def judged_stride(self) -> float:
        """That of the feature map."""
        return self.feature_stride


class CRFRNN(_DenseNet):
    """A unary network and mean-field layers, trained together.

    >>> CRFRNN("tiny", 3, hidden=8)(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 3, 40, 50])

    Args:
        backbone, classes, backbone_options, neck, void_values: See `SegmentationNet`.
        relations: None: all pixels are tied.
        hidden: Hidden units of the unary classifier.
        working_stride: Pixels per cell of the CRF: 1, 2 or 4.
        training_iterations: Of mean field, in training.
        crf_iterations: Of mean field, in prediction.
        kernels: Any of `DEEPLAB` to change. The weights are where learning starts: at 1, for a network that is not
            trained yet has nothing that is worth smoothing strongly.
    """

    first_kernels: ClassVar[Mapping[str, float]] = {**DEEPLAB, "spatial_weight": 1.0, "bilateral_weight": 1.0}

    def __init__(self, *parts: Any, training_iterations: int = 5, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.settings["training_iterations"] = training_iterations
        num_classes = self.classes.num_classes
        start = torch.tensor([kernel.weight for kernel in self.kernels])
        self.kernel_weights = nn.Parameter(start[:, None].repeat(1, num_classes))  # (kernels, K)
        self.compatibility = nn.Parameter(1 - torch.eye(num_classes))

    @property
    def crf_iterations(self) -> int:
        """Of mean field: fewer in training."""
        return int(self.settings["training_iterations" if self.training else "crf_iterations"])

    def learned(self) -> tuple[Tensor | None, Tensor | None]:
        """Kernel weights (kernels, K) and compatibility (K, K)."""
        return self.kernel_weights, self.compatibility


def cells(images: Tensor, stride: int) -> Tensor:
    """The mean colour of each cell of stride × stride pixels, (B, 3, ⌈H/stride⌉, ⌈W/stride⌉).

    >>> cells(torch.arange(3.0).expand(1, 3, 1, 3), 2)[0, 0]
    tensor([[0.5000, 2.0000]])
    """
    if stride == 1:
        return images
    return functional.avg_pool2d(images, stride, ceil_mode=True, count_include_pad=False)
