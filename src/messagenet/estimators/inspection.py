"""Which message from where: every single message that one node receives, in any iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.estimators.field import fields
from messagenet.estimators.node_messages import Node, node_messages, talks
from messagenet.estimators.passing import MessagePassing


@dataclass(frozen=True)
class Received:
    """One factor-to-variable message.

    Attributes:
        factor: "unary", or the relation's name.
        senders: The nodes it comes from: none for the unary, one for a pairwise factor, all of a box.
        values: β_{F→p}, (K,), the aggregation's scale included.
    """

    factor: str
    senders: tuple[Node, ...]
    values: Tensor


@torch.no_grad()
def received_messages(
    head: MessagePassing,
    features: Tensor | Mapping[str, Tensor],
    node: Node,
    *,
    iteration: int | None = None,
    image: int = 0,
    valid: Tensor | None = None,
) -> list[Received]:
    """Every message that a node receives in an iteration; their sum is the node's logits after it.

    >>> from messagenet import MessagePassing, four_neighbours
    >>> head = MessagePassing(4, 3, [four_neighbours()], hidden=8)
    >>> features = torch.randn(1, 4, 5, 6)
    >>> messages = received_messages(head, features, (0, 2))
    >>> [(m.factor, m.senders) for m in messages][:3]
    [('unary', ()), ('four_neighbours', ((0, 1),)), ('four_neighbours', ((0, 3),))]
    >>> torch.allclose(sum(m.values for m in messages), head(features)[0, :, 0, 2], atol=1e-5)
    True

    Args:
        head: The message-passing head.
        features: What the head is called with; of a network, `net.told(net.features(images))`.
        node: (row, column) of the receiver.
        iteration: 1 … T, or 0 for the unary message alone; the last one by default.
        image: Its image in the batch.
        valid: The validity mask, if the batch is padded.
    """
    by_type = head.features_by_type(features, valid)
    one = {name: values[image : image + 1] for name, values in by_type.items()}
    ((_, field),) = fields(one, None if valid is None else valid[image : image + 1], head.relations)
    if not field.graph.contains(node) or not talks(field, node):
        raise InputError(
            f"node {node} is outside the image's map of {field.graph.height}×{field.graph.width} nodes; "
            "give a row and column inside it, counted from 0"
        )
    last = head.rules.iterations
    wanted = last if iteration is None else iteration
    if type(wanted) is not int or not 0 <= wanted <= last:
        raise InputError(f"iteration is {wanted!r}; give a whole number from 0 to {last}")
    logits = [beliefs.logits[0] for beliefs in head.iterate(field, wanted - 1)] if wanted > 1 else []
    return [
        Received(factor.name, senders, values)
        for factor in node_messages(head, field, logits, node, wanted)
        for senders, values in factor.each()
    ]
