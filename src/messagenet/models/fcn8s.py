"""FCN-8s: a classifier with skip connections (Long, Shelhamer & Darrell, arXiv 1411.4038).

    scores = s₈ + up( s₁₆ + up(s₃₂) ),        s_l = W_l f_l + b_l

Features at strides 8, 16 and 32 are scored by 1×1 convolutions; coarse scores are enlarged twofold, bilinearly,
and added to the finer ones. As published, the skip connections start at zero, so that training starts from the
coarse prediction, and the enlargement is not learned. The result has one node every 8 pixels.

The levels are those of the backbone:

    efficientnet_lite0   stages 3, 5 and 7 of the network at output_stride 32
    vgg16                pool3, pool4, and block 6 on a pool5 of stride 2, as published; one scale only
    any other            a module with `level_maps(images)` that returns three maps at strides 8, 16 and 32
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError
from messagenet.graph import Relation
from messagenet.models.backbones import VGG16, EfficientNetLite, build_backbone
from messagenet.models.base import SegmentationNet, heard

STRIDES = (8, 16, 32)
LEVEL_OPTIONS: dict[str, dict[str, object]] = {
    **{f"efficientnet_lite{size}": {"output_stride": 32, "levels": [3, 5, 7]} for size in range(3)},
    "vgg16": {"scales": [1.0]},
}
"""The backbones by name that show the three levels, and the options they need to do so."""
_POOL3, _POOL4, _POOL5 = 17, 24, 30  # layers of VGG-16 up to and with pool3 and pool4, and without pool5


@runtime_checkable
class Levels(Protocol):
    """A network that shows its intermediate maps."""

    def level_maps(self, images: Tensor) -> Sequence[Tensor]:
        """Maps of normalised images (B, 3, H, W), finest first, each half as large as the one before."""
        ...


class FCN8s(SegmentationNet):
    """The whole network: RGB images in 0..1 of any size in, logits at nodes of 8×8 pixels out.

    >>> net = FCN8s("efficientnet_lite0", 5).eval()
    >>> net(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 5, 5, 7])

    Args:
        backbone: "efficientnet_lite0", "vgg16", or a module with `level_maps`.
        classes: What the labels mean: a class list, their names, or how many there are.
        relations: None: it is a classifier of nodes.
        backbone_options: Further options of a backbone given by name.
        void_values: See `SegmentationNet`.
    """

    uses_relations = False
    learns_from_features = decides_from_features = False

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = (),
        *,
        backbone_options: Mapping[str, Any] | None = None,
        void_values: Sequence[int] = (),
    ) -> None:
        super().__init__(
            backbone,
            classes,
            relations,
            settings={},
            backbone_options=backbone_options,
            void_values=void_values,
        )
        trunk = self.backbones["shared"]
        channels = _level_channels(trunk)
        if isinstance(trunk, EfficientNetLite):
            trunk.fusion = nn.ModuleDict()  # the levels are scored, not fused
        self.scores = nn.ModuleList(nn.Conv2d(width, self.classes.num_classes, 1) for width in channels)
        for skip in self.scores[:-1]:
            for parameter in skip.parameters():
                nn.init.zeros_(parameter)

    def _backbone(self, backbone: str | nn.Module, copies: int) -> nn.Module:
        return _trunk(backbone, self.settings["backbone_options"])

    def _map_stride(self) -> float:
        return float(STRIDES[0])

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits at the nodes, (B, K, ⌈H/8⌉, ⌈W/8⌉); 0 at nodes that are not valid.

        Args:
            images: RGB in 0..1, (B, 3, H, W).
            valid: Which pixels are image and not padding, (B, H, W).
        """
        height, width = images.shape[-2:]
        normalised = functional.pad(
            self.normalised(images), (0, -width % STRIDES[-1], 0, -height % STRIDES[-1])
        )
        *finer, scores = (
            score(level)  # (B, K, H/l, W/l)
            for score, level in zip(
                self.scores, level_maps(self.backbones["shared"], normalised), strict=True
            )
        )
        for skip in reversed(finer):
            scores = skip + functional.interpolate(scores, scale_factor=2, mode="bilinear")
        size = -(-height // STRIDES[0]), -(-width // STRIDES[0])
        scores = scores[:, :, : size[0], : size[1]]  # (B, K, ⌈H/8⌉, ⌈W/8⌉)
        return heard(scores, None if valid is None else self.node_valid(valid, size))


def level_maps(trunk: nn.Module, images: Tensor) -> list[Tensor]:
    """The maps at strides 8, 16 and 32 of images whose sides are multiples of 32."""
    if isinstance(trunk, VGG16):
        layers, block6 = trunk.features, trunk.block6[0]
        pool3 = layers[:_POOL3](images)  # (B, 256, H/8, W/8)
        pool4 = layers[_POOL3:_POOL4](pool3)  # (B, 512, H/16, W/16)
        pool5 = functional.max_pool2d(layers[_POOL4:_POOL5](pool4), 2)  # (B, 512, H/32, W/32)
        return [pool3, pool4, block6(pool5)]
    assert isinstance(trunk, Levels)
    return list(trunk.level_maps(images))


def _trunk(backbone: str | nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """The backbone, in the form that has three levels."""
    if isinstance(backbone, str):
        backbone = build_backbone(backbone, **{**LEVEL_OPTIONS.get(backbone, {}), **options})
    elif options:
        raise InputError("backbone_options change a backbone given by name; set up the module itself instead")
    if isinstance(backbone, VGG16) and len(backbone.scales) > 1:
        raise InputError(f"FCN-8s looks at one scale; give vgg16 scales=[1.0], not {list(backbone.scales)}")
    if not isinstance(backbone, VGG16 | Levels):
        raise InputError(
            f"the backbone {type(backbone).__name__} has no maps at strides 8, 16 and 32, which FCN-8s adds up; "
            "choose efficientnet_lite0 or vgg16"
        )
    return backbone


@torch.no_grad()
def _level_channels(trunk: nn.Module) -> list[int]:
    """Channels of the three levels, seen on an empty image."""
    training = trunk.training
    maps = level_maps(trunk.eval(), torch.zeros(1, 3, STRIDES[-1], STRIDES[-1]))
    trunk.train(training)
    found, wanted = [level.shape[2] for level in maps], [STRIDES[-1] // stride for stride in STRIDES]
    if found != wanted:
        raise InputError(
            f"FCN-8s adds up maps at strides 8, 16 and 32, of {wanted} nodes on 32 pixels; those of the backbone have "
            f"{found}: set its levels and output stride accordingly"
        )
    return [level.shape[1] for level in maps]
