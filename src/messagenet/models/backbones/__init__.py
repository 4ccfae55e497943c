"""Feature networks C1 by name, and the ImageNet weights published for them.

A model's json configuration holds the name of its backbone and the options that differ from the defaults, so
both must be enough to build the same network again:

    backbone = build_backbone("efficientnet_lite0", width=128)
    load_pretrained(backbone, "efficientnet_lite0", "package")

A network of one's own needs no entry here: see `contract`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

from torch import nn

from messagenet.errors import InputError, nearest
from messagenet.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, check_backbone
from messagenet.models.backbones.efficientnet_lite import (
    EfficientNetLite,
    EfficientNetLite0,
    EfficientNetLite1,
    EfficientNetLite2,
    load_efficientnet_lite,
)
from messagenet.models.backbones.fused import fused
from messagenet.models.backbones.hand_crafted import HandCrafted
from messagenet.models.backbones.tiny import Tiny
from messagenet.models.backbones.vgg16 import VGG16, load_vgg16

__all__ = [
    "BACKBONES",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "PRETRAINED",
    "VGG16",
    "Backbone",
    "EfficientNetLite",
    "EfficientNetLite0",
    "EfficientNetLite1",
    "EfficientNetLite2",
    "Tiny",
    "build_backbone",
    "check_backbone",
    "fused",
    "load_efficientnet_lite",
    "load_pretrained",
    "load_vgg16",
]

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "vgg16": VGG16,
    "efficientnet_lite0": EfficientNetLite0,
    "efficientnet_lite1": EfficientNetLite1,
    "efficientnet_lite2": EfficientNetLite2,
    "tiny": Tiny,
    "hand_crafted": HandCrafted,
}
"""The feature networks that `build_backbone` knows."""

PRETRAINED: dict[str, Callable[[nn.Module, str | Path], list[str]]] = {
    "vgg16": load_vgg16,
    "efficientnet_lite0": load_efficientnet_lite,
    "efficientnet_lite1": load_efficientnet_lite,
    "efficientnet_lite2": load_efficientnet_lite,
}
"""What loads published weights into each; a loader returns the parameters that keep their random values."""


def build_backbone(name: str, **options: object) -> nn.Module:
    """Builds a feature network.

    Args:
        name: A key of `BACKBONES`.
        **options: Arguments of its class, restricted to what json can hold, because they are saved so.

    >>> build_backbone("tiny", width=16).channels
    16
    >>> build_backbone("tiny", widht=16)
    Traceback (most recent call last):
    messagenet.errors.InputError: the backbone tiny has no option "widht": did you mean "width"?
    """
    if name not in BACKBONES:
        raise InputError(f'there is no backbone "{name}": {nearest(name, BACKBONES)}')
    known = inspect.signature(BACKBONES[name]).parameters
    for option, value in options.items():
        if option not in known:
            raise InputError(f'the backbone {name} has no option "{option}": {nearest(option, known)}')
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{option} = {value!r} cannot be saved as json: use plain numbers and lists"
            ) from error
    return BACKBONES[name](**options)


def load_pretrained(backbone: nn.Module, name: str, source: str | Path) -> list[str]:
    """Fills a feature network with published weights.

    Args:
        backbone: What `build_backbone(name, ...)` returned.
        name: A key of `PRETRAINED`.
        source: A file of weights, or a word that the loader knows: "torch.hub" for vgg16, "package" for
            efficientnet_lite0, 1 and 2.

    Returns:
        The names of the parameters that keep their random values.
    """
    if name not in PRETRAINED:
        raise InputError(
            f'there are no published weights for the backbone "{name}": {nearest(name, PRETRAINED)}'
        )
    return PRETRAINED[name](backbone, source)
