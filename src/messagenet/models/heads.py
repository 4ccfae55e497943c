"""What a head is: the part of a network between the feature map and the beliefs.

Every system of the comparison is a backbone and a head, and a head is any module with

    forward(features, valid)        logits of the marginals at the nodes: what it predicts
    loss(features, labels, valid)   a sum and a count: what it is trained with

A head without an objective of its own is trained with the cross-entropy of its marginals. Neither may depend
on padding: a map that was padded to the size of others gets the same logits and the same loss as alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.learning.totals import Loss, cross_entropy_total


class Head(Protocol):
    """The shape of a head, for type checkers."""

    def __call__(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals, (B, K, h, w); 0 at nodes that are not valid.

        Args:
            features: The feature map, (B, r, h, w).
            valid: Which nodes exist, (B, h, w), where maps of several sizes were padded to one.
        """
        ...

    def loss(self, features: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
        """What training minimises.

        Args:
            features: The feature map, (B, r, h, w).
            labels: Classes of the nodes and 255 for void, (B, h, w).
            valid: Which nodes exist, (B, h, w).
        """
        ...


class MarginalHead(nn.Module):
    """A head that is trained with the cross-entropy of its own marginals.

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.

    Attributes:
        check_finite: Refuse features with NaN or infinity.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        check_sizes(in_channels, num_classes)
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.check_finite = True

    def loss(self, features: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
        """− Σ_p log P(ŷ_p | x) over the labelled nodes, and their number."""
        return marginal_loss(self(features, valid), labels, valid)

    def nodes(self, features: Tensor) -> Tensor:
        """The features, checked, channels last: (B, h, w, r)."""
        return checked(features, self.in_channels, self.check_finite).permute(0, 2, 3, 1)


def marginal_loss(logits: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
    """The summed cross-entropy of logits (B, K, h, w) and the number of labelled nodes.

    >>> marginal_loss(torch.zeros(1, 2, 1, 3), torch.tensor([[[0, 1, 255]]])).mean
    tensor(0.6931)
    """
    return cross_entropy_total(logits.permute(0, 2, 3, 1), known(labels, valid))


def known(labels: Tensor, valid: Tensor | None) -> Tensor:
    """The labels, void where there is no node."""
    return labels if valid is None else torch.where(valid.bool(), labels, VOID)


def heard(values: Tensor, valid: Tensor | None) -> Tensor:
    """Maps (B, C, h, w) with 0 where there is no node."""
    return values if valid is None else torch.where(valid.bool()[:, None], values, 0)


def check_sizes(in_channels: int, num_classes: int) -> None:
    """Refuses a head that could not classify anything."""
    if type(in_channels) is not int or in_channels < 1:
        raise InputError(f"in_channels is {in_channels!r}; give the number of channels of the feature map")
    if type(num_classes) is not int or num_classes < 2:
        raise InputError(f"num_classes is {num_classes!r}; a labelling needs at least 2 classes")


def checked(features: Tensor, in_channels: int, check_finite: bool = True) -> Tensor:
    """The feature map, if it is one that a head for so many channels can take."""
    if features.ndim != 4 or features.shape[1] != in_channels:
        raise InputError(
            f"features have shape {tuple(features.shape)}; this head takes (batch, {in_channels}, height, width)"
        )
    if check_finite and not torch.compiler.is_compiling() and not bool(torch.isfinite(features).all()):
        raise InputError(
            "features contain NaN or infinity; look for a diverged backbone (lower the learning rate) or a bad "
            "input image"
        )
    return features
