"""The networks of this library: a head that passes learned messages, and the same without messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.graph import Relation
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.message_passing import MessageEstimator, MessagePassing
from messagenet.models.base import Head, InputSpec, SegmentationModel, zero_padding
from messagenet.settings import KIND, Spec, register


@register("head", "unary")
class UnaryHead(Head):
    """A classifier of single nodes: the unary factor of a message-passing head, alone.

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        hidden: Hidden units of the classifier.
    """

    def __init__(self, in_channels: int, num_classes: int, *, hidden: int = 256) -> None:
        super().__init__(in_channels, num_classes)
        self.unary = unary_estimator(in_channels, hidden, num_classes)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits at the nodes, (B, K, h, w), from features (B, r, h, w)."""
        logits: Tensor = self.unary(self.channels_last(zero_padding(features, mask)))
        return zero_padding(logits.permute(0, 3, 1, 2), mask)


def unary_estimator(in_channels: int, hidden: int, num_classes: int) -> MessageEstimator:
    """The estimator of a unary factor: a classifier of a node's own features."""
    return MessageEstimator(in_channels, hidden, num_classes, has_sender=False)


class MessageNet(SegmentationModel):
    """A segmentation model whose head passes learned messages.

    >>> import torch
    >>> model = MessageNet("tiny", ["ground", "sky", "tree"], hidden=16)
    >>> model(torch.rand(1, 3, 40, 50)).shape                     # logits at the nodes, one for 4×4 pixels
    torch.Size([1, 3, 10, 13])

    Args:
        backbone, classes, neck, separate_features: See `SegmentationModel`.
        relations: Which neighbours send messages. Default: the paper's three.
        **options: Of the head, `MessagePassing`: hidden, iterations, tied, …
    """

    head: MessagePassing

    def __init__(
        self,
        backbone: str | Spec | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int | InputSpec = VOC_CLASSES,
        relations: Sequence[Relation | str] = PAPER_RELATIONS,
        *,
        neck: str | Spec | nn.Module | None = None,
        separate_features: bool = False,
        **options: Any,
    ) -> None:
        head = {KIND: "message", "relations": relations, **options}
        super().__init__(backbone, classes, head, neck=neck, separate_features=separate_features)


class UnaryNet(SegmentationModel):
    """A segmentation model that classifies every node from its own features.

    Args:
        backbone, classes, neck: See `SegmentationModel`.
        hidden: Hidden units of the classifier.
    """

    head: UnaryHead

    def __init__(
        self,
        backbone: str | Spec | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int | InputSpec = VOC_CLASSES,
        *,
        neck: str | Spec | nn.Module | None = None,
        hidden: int = 256,
    ) -> None:
        super().__init__(backbone, classes, {KIND: "unary", "hidden": hidden}, neck=neck)
