"""Feature networks C1, chosen by kind, and the ImageNet weights published for them.

Any module with `channels` and `stride` serves as well (`base.Backbone`). With the decorator `@register("backbone",
"mine")` it can be named in configurations, and is saved by its name and options.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError, nearest
from messagenet.models.backbones.base import IMAGENET_STD, Backbone
from messagenet.models.backbones.efficientnet_lite import EfficientNetLite, EfficientNetLite0, load_efficientnet_lite
from messagenet.models.backbones.fused import fused, has_bf16_instructions
from messagenet.models.backbones.hand_crafted import HandCrafted
from messagenet.models.backbones.tiny import Tiny
from messagenet.models.backbones.vgg16 import VGG16, load_vgg16
from messagenet.settings import KIND, Spec, component, find, kinds

__all__ = [
    "IMAGENET_STD",
    "VGG16",
    "Backbone",
    "EfficientNetLite0",
    "HandCrafted",
    "Tiny",
    "as_levels",
    "fused",
    "has_bf16_instructions",
    "level_maps",
    "level_spec",
    "load_efficientnet_lite",
    "load_pretrained",
    "load_vgg16",
]

# Options of backbones for maps at strides 8, 16 and 32.
LEVEL_OPTIONS: dict[str, dict[str, Any]] = {
    **{f"efficientnet_lite{size}": {"output_stride": 32, "levels": [3, 5, 7]} for size in range(3)},
    "vgg16": {"scales": [1.0]},
}
_POOL3, _POOL4, _POOL5 = 17, 24, 30  # layers of VGG-16 up to and with pool3 and pool4, and without pool5


def load_pretrained(backbone: nn.Module, source: str | Path) -> list[str]:
    """Fills a network with published weights; returns the names of the parameters that keep their random values.

    `source` is a file, or "torch.hub" for vgg16, or "package" for efficientnet_lite0, 1 and 2.
    """
    load = getattr(backbone, "load_pretrained", None)
    if load is None:
        published = [kind for kind in kinds("backbone") if hasattr(find("backbone", kind), "load_pretrained")]
        name = getattr(backbone, "config", {KIND: type(backbone).__name__})[KIND]
        raise InputError(f'there are no published weights for the backbone "{name}": {nearest(name, published)}')
    left: list[str] = load(source)
    return left


@runtime_checkable
class Levels(Protocol):
    """A feature network that shows its intermediate maps."""

    def level_maps(self, images: Tensor) -> Sequence[Tensor]:
        """Maps of normalised images (B, 3, H, W), finest first, each half as large as the one before."""
        ...


def level_spec(backbone: str | Spec) -> dict[str, Any]:
    """A backbone with maps at strides 8, 16 and 32, unless its options say otherwise."""
    full = component("backbone", backbone)
    defaults = component("backbone", full[KIND])
    changed = {name: value for name, value in full.items() if value != defaults[name]}
    return {**full, **LEVEL_OPTIONS.get(full[KIND], {}), **changed}


def as_levels(backbone: nn.Module) -> nn.Module:
    """A backbone whose levels are read one by one, without the layers that fuse them."""
    if isinstance(backbone, EfficientNetLite):
        backbone.fusion = nn.ModuleDict()
    elif isinstance(backbone, VGG16):
        if len(backbone.scales) > 1:
            raise InputError(f"this head looks at one scale; give vgg16 scales=[1.0], not {list(backbone.scales)}")
    elif not isinstance(backbone, Levels):
        raise InputError(
            f"the backbone {type(backbone).__name__} has no maps at strides 8, 16 and 32, which this head reads; "
            "choose efficientnet_lite0 or vgg16"
        )
    return backbone


def level_maps(backbone: nn.Module, images: Tensor) -> list[Tensor]:
    """Maps at strides 8, 16 and 32; for VGG-16 pool3, pool4, and block 6 on a pool5 of stride 2."""
    if isinstance(backbone, VGG16):
        layers, block6 = backbone.features, backbone.block6[0]
        pool3 = layers[:_POOL3](images)  # (B, 256, H/8, W/8)
        pool4 = layers[_POOL3:_POOL4](pool3)  # (B, 512, H/16, W/16)
        pool5 = functional.max_pool2d(layers[_POOL4:_POOL5](pool4), 2)  # (B, 512, H/32, W/32)
        return [pool3, pool4, block6(pool5)]
    assert isinstance(backbone, Levels)
    return list(backbone.level_maps(images))
