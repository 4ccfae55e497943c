"""What a head asks of the feature maps it is given, said in one line each where they do not meet it."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from messagenet.errors import InputError


def check_maps(maps: Collection[Tensor], in_channels: int, weight: Tensor) -> None:
    """Refuses maps that are not all (batch, in_channels, height, width) of one size, type and device.

    Args:
        maps: One feature map for each factor type; the same map may come more than once.
        in_channels: r.
        weight: A parameter of the head, whose type and device the maps must have.
    """
    for values in maps:
        if values.ndim != 4 or values.shape[1] != in_channels:
            raise InputError(
                f"features have shape {tuple(values.shape)}; this head takes (batch, {in_channels}, "
                "height, width)"
            )
    sizes = {(values.shape[0], *values.shape[2:]) for values in maps}
    if len(sizes) > 1:
        raise InputError(f"the feature maps differ in batch or size: {sorted(sizes)}; give all of one size")
    if others := [values.device for values in maps if values.device != weight.device]:
        raise InputError(
            f"features are on {others[0]}, the head is on {weight.device}; move one of them with .to(device)"
        )
    if types := [values.dtype for values in maps if values.dtype != weight.dtype]:
        if torch.is_autocast_enabled(weight.device.type) and all(dtype.is_floating_point for dtype in types):
            return  # autocast brings all of them to one type
        raise InputError(
            f"features are {types[0]}, the head is {weight.dtype}; convert one of them with .to(dtype)"
        )


def check_finite(maps: Collection[Tensor], valid: Tensor | None) -> None:
    """Refuses NaN and infinity in maps (B, r, H, W), but for nodes that are not `valid`, (B, H, W)."""
    for values in {id(values): values for values in maps}.values():
        finite = torch.isfinite(values).all(1)  # (B, H, W)
        if valid is not None and valid.shape == finite.shape:
            finite = finite | ~valid.bool()
        if not bool(finite.all()):
            raise InputError(
                "features contain NaN or infinity; look for a diverged backbone (lower the learning "
                "rate) or a bad input image"
            )
