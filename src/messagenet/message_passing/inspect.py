"""Single messages of one node.

A pairwise message needs its sender's previous belief without the factor's own message, which needs the same at the
other end, one iteration earlier:

    β^t_{q→p} = M_F( f_p, f_q, logsoftmax( L^{t−1}_q − β^{t−1}_{p→q} ) ),        β^1 from L⁰, nothing left out

So the beliefs L^0 … L^{t−1}, N·K numbers each, suffice; the N·n·K messages of an iteration need not be stored. Messages
are evaluated edge by edge, straight from the estimators: an independent check of the fused sums.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph import Form
from messagenet.graph.grid import Node
from messagenet.message_passing.estimator import MessageEstimator, dependent_input
from messagenet.message_passing.grid import GridContext, MessagePassing, split_by_size

Ends = tuple[Tensor, Tensor]  # rows and columns of nodes, (n,) each


@dataclass(frozen=True)
class Received:
    """One factor-to-variable message."""

    factor: str  # "unary", or the relation's name
    senders: tuple[Node, ...]  # none for the unary, one for a pairwise factor, all of a box
    values: Tensor  # β_{F→p}, (K,), the aggregation's scale included


@torch.no_grad()
def received_messages(
    head: MessagePassing,
    features: Tensor | Mapping[str, Tensor],
    node: Node,
    *,
    iteration: int | None = None,
    image: int = 0,
    mask: Tensor | None = None,
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
        features: What the head is called with; of a model, `model.forward_neck(model.forward_features(images))`.
        node: (row, column) of the receiver.
        iteration: 1 … T, or 0 for the unary message alone; the last one by default.
        image: Index of its image in the batch.
        mask: Which nodes exist, (B, h, w), if the batch is padded.
    """
    if not isinstance(head, MessagePassing):
        raise InputError(f"the head is a {type(head).__name__}; give a MessagePassing, such as model.head")
    by_type = head.features_by_type(features, mask)
    one = {name: values[image : image + 1] for name, values in by_type.items()}
    mask = None if mask is None else mask[image : image + 1]
    ((_, context),) = split_by_size(one, mask, head.relations)
    try:
        row, column = node = tuple(operator.index(each) for each in node)  # type: ignore[assignment]
    except (TypeError, ValueError):
        raise InputError(f"node is {node!r}; give a row and a column") from None
    if not (context.graph.contains((row, column)) and exists(context, node)):
        raise InputError(
            f"node {node} is outside the image's map of {context.graph.height}×{context.graph.width} nodes; "
            "give a row and column inside it, counted from 0"
        )
    t = head.iterations if iteration is None else iteration
    if type(t) is not int or not 0 <= t <= head.iterations:
        raise InputError(f"iteration is {t!r}; give a whole number from 0 to {head.iterations}")
    logits = [beliefs.logits[0] for beliefs in head.iterate(context, t - 1)] if t > 1 else []
    return [
        Received(factor.name, senders, values)
        for factor in node_messages(head, context, logits, node, t)
        for senders, values in factor.each()
    ]


@dataclass(frozen=True, eq=False)
class FactorMessages:
    """The messages that a node receives through the factors of one type."""

    name: str  # "unary", or the relation's name
    form: Form | None  # the relation's; None for the unary
    senders: tuple[Node, ...]
    values: Tensor  # (n, K): one from each sender, or one from the whole box

    def each(self) -> list[tuple[tuple[Node, ...], Tensor]]:
        """The senders and the values (K,) of every single message."""
        if self.form == "pairwise":
            return [((sender,), values) for sender, values in zip(self.senders, self.values, strict=True)]
        return [(self.senders, values) for values in self.values]


@torch.no_grad()
def node_messages(
    head: MessagePassing, context: GridContext, logits: Sequence[Tensor], node: Node, iteration: int
) -> list[FactorMessages]:
    """The messages to a node in an iteration (0: the unary alone), by factor type; their sum is its logits after it.

    `logits` are those after each iteration from 1 on, (h, w, K); those before `iteration` are used.
    """
    unary = head.stage(max(iteration - 1, 0))["unary"](context.features["unary"][(0, *node)])
    factors = [FactorMessages("unary", None, (), unary[None])]
    if iteration == 0:
        return factors
    beliefs = [head.initial_beliefs(context).logits[0], *logits]
    slots = context.graph.slots(node)
    for index, relation in enumerate(head.relations):
        senders = tuple(s.sender for s in slots if s.relation == index and exists(context, s.sender))
        if not senders:
            values = unary.new_zeros(0, len(unary))
        elif relation.form == "box":
            values = _box_message(head, context, beliefs[iteration - 1], index, senders, node, iteration)
        else:
            rows, columns = torch.tensor(senders, device=unary.device).unbind(1)
            receivers = (torch.full_like(rows, node[0]), torch.full_like(columns, node[1]))
            values = _pair_messages(head, context, beliefs, index, receivers, (rows, columns), iteration)
        factors.append(FactorMessages(relation.name, relation.form, senders, values))
    return factors


def exists(context: GridContext, node: Node) -> bool:
    """Whether a node of the map is not padding."""
    return context.mask is None or bool(context.mask[(0, *node)])


def _pair_messages(
    head: MessagePassing,
    context: GridContext,
    beliefs: Sequence[Tensor],
    index: int,
    receivers: Ends,
    senders: Ends,
    iteration: int,
) -> Tensor:  # (n, K)
    name, mirror = head.relations[index].name, context.graph.mirrors[index]
    cavity = beliefs[iteration - 1][senders]  # (n, K)
    if iteration > 1 and mirror is not None and head.cavity == "factor":
        cavity = cavity - _pair_messages(head, context, beliefs, mirror, senders, receivers, iteration - 1)
    features = context.features[name][0]
    estimator: MessageEstimator = head.stage(iteration - 1)[name]
    scale = head.output_layer(context, index, estimator).scale[0][receivers]  # (n, 1)
    dependent = dependent_input(cavity, head.gated)
    message: Tensor = estimator(features[receivers], features[senders], dependent)
    return scale * message


def _box_message(
    head: MessagePassing,
    context: GridContext,
    beliefs: Tensor,
    index: int,
    senders: Sequence[Node],
    node: Node,
    iteration: int,
) -> Tensor:
    """The one message of a node's box, (1, K)."""
    name = head.relations[index].name
    features = context.features[name][0]
    rows, columns = torch.tensor(senders, device=features.device).unbind(1)
    incoming = dependent_input(beliefs[rows, columns], head.gated)
    dependent = incoming.sum(0) if head.dependent == "sum" else incoming.mean(0)
    estimator: MessageEstimator = head.stage(iteration - 1)[name]
    message: Tensor = estimator(features[node], features[rows, columns].mean(0), dependent)
    return message[None]
