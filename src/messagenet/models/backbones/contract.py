"""What a feature network C1 must be: f = C1(x), one vector of `channels` numbers per node of the grid.

The network sees an RGB image and returns a feature map; each cell of the map is a variable node p, and its
vector is the C1(x, p) that message estimators read (Lin, Shen, Reid, van den Hengel, NIPS 2015, section 3.3).
Nothing else is asked of it, so any module with `channels`, `stride` and such a `forward` can take the place
of the networks shipped here:

    images (B, 3, H, W)  →  features (B, channels, h, w),   h ≈ H / stride,  w ≈ W / stride

Images arrive normalised with `IMAGENET_MEAN` and `IMAGENET_STD`, and may have any size from 1×1 up.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from messagenet.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of red, green and blue (each in 0..1) that the caller has subtracted."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of red, green and blue that the caller has divided by."""


class Backbone(Protocol):
    """The shape of a feature network, for type checkers; `check_backbone` is its counterpart at run time."""

    @property
    def channels(self) -> int:
        """Numbers per node, r in the paper."""
        ...

    @property
    def stride(self) -> float:
        """Image pixels per node along either axis.

        Not always whole: an image enlarged 1.2 times before a network of stride 16 has a node every 13.3.
        """
        ...

    def __call__(self, images: Tensor) -> Tensor:
        """Maps normalised images (B, 3, H, W) to features (B, channels, h, w)."""
        ...


def check_backbone(module: object) -> None:
    """Refuses a module that cannot serve as a feature network, naming what it lacks.

    >>> from torch import nn
    >>> check_backbone(nn.Conv2d(3, 8, 1))
    Traceback (most recent call last):
    messagenet.errors.InputError: the backbone Conv2d has no attribute "channels": set it to the number of ...
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise InputError(f"the backbone must be a torch.nn.Module, not {kind}")
    for attribute, kinds, meaning in (
        ("channels", (int,), "the number of channels of its feature map"),
        ("stride", (int, float), "the number of image pixels per node"),
    ):
        value = getattr(module, attribute, None)
        if value is None:
            raise InputError(f'the backbone {kind} has no attribute "{attribute}": set it to {meaning}')
        if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
            raise InputError(f"the backbone {kind} has {attribute} = {value!r}: set it to {meaning}")


def positive_integer(option: str, value: object) -> int:
    """Returns `value` if it can be a count, or says which option was wrong.

    >>> positive_integer("width", 32)
    32
    >>> positive_integer("width", 1.5)
    Traceback (most recent call last):
    messagenet.errors.InputError: width must be a whole number above zero, not 1.5
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{option} must be a whole number above zero, not {value!r}")
    return value
