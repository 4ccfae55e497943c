"""The networks of this library: a head that passes learned messages, and the same without; messages of known tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError
from messagenet.graph import Relation
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.inference.factors import FactorTable
from messagenet.inference.log_math import log_normalise
from messagenet.message_passing import ComputedMessages, MessageEstimator, MessagePassing
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


def table_messages(
    tables: Tensor | Mapping[int, Tensor], *, maximise: bool = False, floor: float = -100.0
) -> ComputedMessages:
    r"""A function that computes the messages of factors with known tables, for heads that learn to correct them.

        μ_{F→p}(y_p) = log Σ_{y_F \ y_p} exp[ θ_F(y_F) + Σ_{q≠p} β_{q→F}(y_q) ],      normalised

    With an untrained `GraphMessagePassing(computed=…)`, message passing is belief propagation; training starts there.

    >>> same = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])               # one table for all factors
    >>> compute = table_messages(same)
    >>> incoming = torch.tensor([[-0.1, -2.4]])                           # one factor, two positions
    >>> [message.argmax().item() for message in compute([incoming, incoming], torch.arange(1))]
    [0, 0]

    Args:
        tables: Log-potentials, (factors or 1, K, …, K), −∞ if impossible; by order for factors of several orders.
        maximise: Max-product instead of sum-product.
        floor: Smallest value of a message, so that an impossible state can be subtracted from a belief again.
    """
    by_order = {tables.ndim - 1: tables} if isinstance(tables, Tensor) else tables
    prepared = {order: FactorTable.prepare(each.unsqueeze(1), maximise=maximise) for order, each in by_order.items()}

    def compute(incoming: Sequence[Tensor], factor_ids: Tensor) -> list[Tensor]:
        table = prepared.get(len(incoming))
        if table is None:
            raise InputError(f"no table for factors of order {len(incoming)}; there are {sorted(prepared)}")
        shape = tuple(message.shape[1] for message in incoming)
        if tuple(table.logs.shape[2:]) != shape or table.logs.shape[0] not in (1, len(factor_ids)):
            raise InputError(
                f"tables have shape {(table.logs.shape[0], *table.logs.shape[2:])}; for these factors give "
                f"({len(factor_ids)} or 1, {', '.join(map(str, shape))})"
            )
        if len(factor_ids) == 0:
            return [torch.zeros_like(message) for message in incoming]
        messages = table.messages([message.unsqueeze(1) for message in incoming])
        return [log_normalise(message.squeeze(1)).clamp_min(floor) for message in messages]

    return compute
