"""Which message from where: every single message that one node receives in the last iteration.

The messages are evaluated one slot at a time, straight from the estimators, so the list is also an
independent check of the fused sums: it adds up to the node's logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.estimators.field import Field, fields
from messagenet.estimators.passing import Beliefs, MessagePassing
from messagenet.graph import Relation, Slot

Node = tuple[int, int]


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
    image: int = 0,
    valid: Tensor | None = None,
) -> list[Received]:
    """Every message that a node receives in the last iteration; their sum is the node's logits.

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
        features: What the head is called with.
        node: (row, column) of the receiver.
        image: Its image in the batch.
        valid: The validity mask, if the batch is padded.
    """
    by_type = head.features_by_type(features, valid)
    one = {name: values[image : image + 1] for name, values in by_type.items()}
    ((_, field),) = fields(one, None if valid is None else valid[image : image + 1], head.relations)
    exists = field.graph.contains(node) and (
        field.talking is None or bool(field.talking[0, node[0], node[1]])
    )
    if not exists:
        raise InputError(
            f"node {node} is outside the image's map of {field.graph.height}×{field.graph.width} nodes; "
            "give a row and column inside it, counted from 0"
        )
    previous = head.initial_beliefs(field)
    for step, beliefs in enumerate(head.iterate(field)):
        if step + 1 < head.rules.iterations:
            previous = beliefs
    return _evaluate(head, field, previous, node)


def _evaluate(head: MessagePassing, field: Field, previous: Beliefs, node: Node) -> list[Received]:
    stage = head.stage(head.rules.iterations - 1)
    unary = stage["unary"](field.features["unary"][(0, *node)])
    messages = [Received("unary", (), unary)]
    slots = [slot for slot in field.graph.slots(node) if _talks(field, slot.sender)]
    for index, relation in enumerate(head.relations):
        own = [slot for slot in slots if slot.relation == index]
        if relation.form == "box":
            messages += _box_message(head, field, previous, relation, own, node)
            continue
        features = field.features[relation.name]
        scale = head.scale(field, field.graph.offsets[index]).expand(*features.shape[:3], 1)[(0, *node)]
        for slot in own:
            dependent = torch.log_softmax(_cavity_logits(field, previous, slot, head.relations), -1)
            message = stage[relation.name](features[(0, *node)], features[(0, *slot.sender)], dependent)
            messages.append(Received(relation.name, (slot.sender,), scale * message))
    return messages


def _talks(field: Field, node: Node) -> bool:
    return field.talking is None or bool(field.talking[(0, *node)])


def _cavity_logits(field: Field, previous: Beliefs, slot: Slot, relations: tuple[Relation, ...]) -> Tensor:
    """What the sender believed, without the message that came from this very factor."""
    logits = previous.logits[(0, *slot.sender)]
    reverse = field.graph.rev(slot)
    if reverse is None or (sent := previous.messages.get(relations[reverse.relation].name)) is None:
        return logits
    place = field.graph.offsets[reverse.relation].index(reverse.offset)
    return logits - sent[(0, place, *reverse.receiver)]


def _box_message(
    head: MessagePassing, field: Field, previous: Beliefs, relation: Relation, slots: list[Slot], node: Node
) -> list[Received]:
    if not slots:
        return []
    senders = tuple(slot.sender for slot in slots)
    features = field.features[relation.name]
    dependents = torch.stack([torch.log_softmax(previous.logits[(0, *q)], -1) for q in senders])
    dependent = dependents.mean(0) if head.rules.dependent == "mean" else dependents.sum(0)
    mean = torch.stack([features[(0, *q)] for q in senders]).mean(0)
    message = head.stage(head.rules.iterations - 1)[relation.name](features[(0, *node)], mean, dependent)
    return [Received(relation.name, senders, message)]
