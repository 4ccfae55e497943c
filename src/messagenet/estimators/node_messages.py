"""Every message that a node receives in any iteration, made from the beliefs of the iterations before.

A pairwise message needs what its sender believed one iteration ago without the factor's own message, and that message
needs the same at the other end, one iteration earlier still:

    β^t_{q→p} = M_F( f_p, f_q, logsoftmax( L^{t−1}_q − β^{t−1}_{p→q} ) ),        β^1 from L⁰, nothing left out

So beliefs L^0 … L^{t−1} are enough, N·K numbers each, to follow every edge of one node back to the first iteration,
instead of keeping all N·n·K messages of every iteration. They are evaluated edge by edge, straight from the
estimators, so the list is also an independent check of the fused sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.estimators.field import Field
from messagenet.estimators.passing import MessagePassing
from messagenet.estimators.sending import message_scale
from messagenet.graph import Form, Relation

Node = tuple[int, int]


@dataclass(frozen=True, eq=False)
class FactorMessages:
    """What a node hears through the factors of one type.

    Attributes:
        name: "unary", or the relation's name.
        form: Of the relation; None for the unary.
        senders: Nodes (row, column) that send; none for the unary.
        values: The messages, (n, K): one from each sender, or one from the whole box.
    """

    name: str
    form: Form | None
    senders: tuple[Node, ...]
    values: Tensor

    def each(self) -> list[tuple[tuple[Node, ...], Tensor]]:
        """The senders and the values (K,) of every single message."""
        if self.form == "pairwise":
            return [((sender,), values) for sender, values in zip(self.senders, self.values, strict=True)]
        return [(self.senders, values) for values in self.values]


class _Edges(NamedTuple):
    """Ends of pairwise factors, row and column of each: two index tensors (n,)."""

    receivers: tuple[Tensor, Tensor]
    senders: tuple[Tensor, Tensor]

    def reversed(self) -> _Edges:
        return _Edges(self.senders, self.receivers)


@torch.no_grad()
def node_messages(
    head: MessagePassing, field: Field, logits: Sequence[Tensor], node: Node, iteration: int
) -> list[FactorMessages]:
    """The messages to a node in an iteration, by factor type; their sum is the node's logits after it.

    Args:
        head: The message-passing head.
        field: Of one image.
        logits: After each iteration from 1 on, (h, w, K); those before `iteration` are used.
        node: (row, column) of the receiver.
        iteration: 1 … T; 0 for the unary message alone.
    """
    unary = head.stage(max(iteration - 1, 0))["unary"](field.features["unary"][(0, *node)])
    factors = [FactorMessages("unary", None, (), unary[None])]
    if iteration == 0:
        return factors
    believed = [head.initial_beliefs(field).logits[0], *logits]
    slots = field.graph.slots(node)
    for index, relation in enumerate(head.relations):
        senders = tuple(slot.sender for slot in slots if slot.relation == index and talks(field, slot.sender))
        if not senders:
            values = unary.new_zeros(0, len(unary))
        elif relation.form == "box":
            values = _box_message(head, field, believed[iteration - 1], relation, senders, node, iteration)
        else:
            there = tuple(torch.tensor(senders, device=unary.device).unbind(1))
            here = tuple(torch.full_like(there[0], place) for place in node)
            edges = _Edges((here[0], here[1]), (there[0], there[1]))
            values = _pair_messages(head, field, believed, index, edges, iteration)
        factors.append(FactorMessages(relation.name, relation.form, senders, values))
    return factors


def talks(field: Field, node: Node) -> bool:
    """Whether a node exists; others are padding inside a map."""
    return field.talking is None or bool(field.talking[(0, *node)])


def _pair_messages(
    head: MessagePassing, field: Field, believed: Sequence[Tensor], index: int, edges: _Edges, iteration: int
) -> Tensor:
    """Messages of one relation along edges, (n, K)."""
    name = head.relations[index].name
    mirror = field.graph.mirrors[index]
    told = believed[iteration - 1][edges.senders]  # (n, K)
    if iteration > 1 and mirror is not None and head.rules.cavity == "factor":
        told = told - _pair_messages(head, field, believed, mirror, edges.reversed(), iteration - 1)
    features = field.features[name][0]
    estimator = head.stage(iteration - 1)[name]
    scale = message_scale(head.rules, field, field.graph.offsets[index])[0][edges.receivers]  # (n, 1)
    message: Tensor = estimator(
        features[edges.receivers], features[edges.senders], torch.log_softmax(told, -1)
    )
    return scale * message


def _box_message(
    head: MessagePassing,
    field: Field,
    believed: Tensor,
    relation: Relation,
    senders: Sequence[Node],
    node: Node,
    iteration: int,
) -> Tensor:
    """The one message of a node's box, (1, K)."""
    features = field.features[relation.name][0]
    rows, columns = torch.tensor(senders, device=features.device).unbind(1)
    told = torch.log_softmax(believed[rows, columns], -1)
    dependent = told.mean(0) if head.rules.dependent == "mean" else told.sum(0)
    estimator = head.stage(iteration - 1)[relation.name]
    message: Tensor = estimator(features[node], features[rows, columns].mean(0), dependent)
    return message[None]
