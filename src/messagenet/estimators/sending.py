"""One iteration of one relation on a grid: its messages, and their sums.

Three ways lead to the sum of a node's messages, and the cheapest that serves is taken:

- a pairwise relation whose cavities nobody needs is one fused sum, Σ_q relu(P_p + Q_q), and W₂ after it;
- with cavities to leave out but none to keep (the last iteration), what each neighbour was told joins that sum;
- where the next iteration leaves messages out of its cavities, every one of them is made and kept.

A box relation has one message per node, made from the average of its senders.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.estimators.aggregate import relu_sum
from messagenet.estimators.beliefs import Beliefs
from messagenet.estimators.box_sum import box_sum
from messagenet.estimators.edge_messages import Cavity, Output, cavity_sum, edge_messages
from messagenet.estimators.estimator import MessageEstimator
from messagenet.estimators.field import Field
from messagenet.estimators.rules import Rules
from messagenet.graph import Offset


def send(
    field: Field,
    index: int,
    estimator: MessageEstimator,
    rules: Rules,
    previous: Beliefs,
    logits: Tensor,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The total message of a relation to every node, (B, H, W, K), and every message, (B, n, H, W, K), if needed.

    Args:
        field: The map and its features.
        index: The relation's number.
        estimator: Its estimator in this iteration.
        rules: How messages are passed.
        previous: The beliefs before this iteration.
        logits: Their sums, (B, H, W, K).
        keep: Return the messages where a next iteration needs them for its cavities.
    """
    relation, offsets = field.graph.relations[index], field.graph.offsets[index]
    if relation.form == "box":
        return _box_total(field, relation.name, offsets, estimator, rules, logits), None
    cavity = _cavity(field, index, estimator, previous, logits)
    receiver, sender = field.projections(relation.name, estimator)
    if estimator.dependent is not None and cavity is None:
        sender = sender + estimator.dependent(torch.log_softmax(logits, -1))
    sender = field.silenced(sender)
    scale = message_scale(rules, field, offsets)
    if keep and field.graph.mirrors[index] is not None and rules.cavity == "factor":
        sent = _messages(field, receiver, sender, estimator, scale, offsets, cavity)
        return sent.sum(1), sent
    active = (
        relu_sum(receiver, sender, offsets)
        if cavity is None
        else cavity_sum(receiver, sender, offsets, cavity)
    )
    bias = field.count(offsets) * estimator.output.bias
    return scale * (functional.linear(active, estimator.output.weight) + bias), None


def message_scale(rules: Rules, field: Field, offsets: tuple[Offset, ...]) -> Tensor:
    """What a message to each node is multiplied with, (B or 1, H, W, 1)."""
    count = field.count(offsets)
    match rules.aggregation:
        case "sum":
            return torch.ones_like(count)
        case "mean":
            return 1 / count.clamp(min=1)
        case "fixed":
            return torch.full_like(count, 1 / max(len(offsets), 1))
        case _:
            return torch.full_like(count, 1 / max(len(offsets), 1) ** 0.5)


def _box_dependent(rules: Rules, field: Field, offsets: tuple[Offset, ...], logits: Tensor) -> Tensor:
    """d of a box factor, which sends to its own node only and so has no cavity to leave out."""
    total = box_sum(field.heard(torch.log_softmax(logits, -1)), offsets)
    return total / field.count(offsets).clamp(min=1) if rules.dependent == "mean" else total


def _cavity(
    field: Field, index: int, estimator: MessageEstimator, previous: Beliefs, logits: Tensor
) -> Cavity | None:
    """What to leave out of what the neighbours say; None where no messages of the opposite relation were kept."""
    mirror = field.graph.mirrors[index]
    if mirror is None:
        return None
    sent = previous.messages.get(field.graph.relations[mirror].name)
    if sent is None:
        return None
    places = field.graph.reverse_offsets[index]
    assert estimator.dependent is not None
    assert places is not None
    return Cavity(estimator.dependent.weight, logits, sent, places)


def _messages(
    field: Field,
    receiver: Tensor,
    sender: Tensor,
    estimator: MessageEstimator,
    scale: Tensor,
    offsets: tuple[Offset, ...],
    cavity: Cavity | None,
) -> Tensor:
    """Every message of a pairwise relation, (B, n, H, W, K)."""
    shape = receiver.shape[:3]
    talking = receiver.new_ones(shape) if field.talking is None else field.talking[..., 0]
    output = Output(estimator.output.weight, estimator.output.bias, scale[..., 0].expand(shape), talking)
    return edge_messages(receiver, sender, output, offsets, cavity)


def _box_total(
    field: Field,
    name: str,
    offsets: tuple[Offset, ...],
    estimator: MessageEstimator,
    rules: Rules,
    logits: Tensor,
) -> Tensor:
    """The message of a node's one box factor, (B, H, W, K); 0 where the box holds no node."""
    hidden = field.box_projections(name, offsets, estimator)
    if estimator.dependent is not None:
        hidden = hidden + estimator.dependent(_box_dependent(rules, field, offsets, logits))
    message = estimator.output(torch.relu(hidden))
    return torch.where(field.count(offsets) > 0, message, 0)
