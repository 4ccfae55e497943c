"""One iteration of one factor type: what each factor is told, its messages, and their sums.

Three ways lead to the sum of a variable's messages, Σ_s c (W₂ relu(t_s) + b₂), and the cheapest that serves is
taken:

- what a sender says does not depend on whom it tells (first iteration, no cavity, one-way factors): D d is made
  once per variable and becomes part of Q, and W₂ follows the sum: no vector of K per factor exists;
- the last iteration with cavities: d once per factor, W₂ after the sum;
- any other: every message is made and kept, because the next iteration leaves it out of its cavities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.estimators.any_graph.estimator import FactorEstimator
from messagenet.estimators.any_graph.field import GraphField
from messagenet.estimators.any_graph.settings import FactorType, columns
from messagenet.estimators.any_graph.slot_messages import Heard, Local, Output, slot_messages, slot_sums
from messagenet.graph.slots import Layout, Slots

Stage = Mapping[str, Sequence[FactorEstimator]]


def send(
    field: GraphField,
    name: str,
    estimators: Sequence[FactorEstimator],
    beliefs: Tensor,
    told: Tensor | None,
    chunk: int | None,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The total message of a factor type to every variable, (variables, K), and if asked for every message.

    Args:
        field: The graph and its features.
        name: The factor type.
        estimators: Its estimators in this iteration.
        beliefs: What the variables believed, normalised, (variables, K).
        told: What they told each factor of the type, without its own message, (slots, K); None: their beliefs.
        chunk: Slots whose hidden units exist at once.
        keep: Return the messages, (slots, K).
    """
    layout = field.layouts[name]
    width = field.rules.most_classes
    total = beliefs.new_zeros(field.graph.num_variables, width)
    if not len(layout):
        return total, None
    computed = _computed(field, name, layout, beliefs, told)
    if computed is not None:
        total = total.index_add(0, layout.receivers, _widened(computed, width))
    sent: list[Tensor] = []
    for slots in layout.slots:
        own = None if computed is None else computed[slots.rows]
        messages, sums = _send_part(
            field, name, slots, estimators[slots.estimator], beliefs, told, own, chunk, keep
        )
        total = total + _widened(sums, width)
        if messages is not None:
            sent.append(messages)
    if not keep:
        return total, None
    most = max(messages.shape[1] for messages in sent)
    joined = [_widened(messages, most) for messages in sent]
    return total, joined[0] if len(joined) == 1 else torch.cat(joined)


def _send_part(
    field: GraphField,
    name: str,
    slots: Slots,
    estimator: FactorEstimator,
    beliefs: Tensor,
    told: Tensor | None,
    computed: Tensor | None,
    chunk: int | None,
    keep: bool,
) -> tuple[Tensor | None, Tensor]:
    """Messages (if kept) and their sums, for slots of one estimator and one order."""
    receiver, sender = field.projections(name, estimator)
    sender, heard = _heard(field, name, slots, estimator, sender, beliefs, told)
    classes = estimator.output.out_features
    local = _local(field, name, slots, estimator, None if computed is None else computed[:, :classes])
    scale = _scale(field, name, slots).to(receiver.dtype)
    weight, bias = estimator.output.weight, estimator.output.bias
    if not keep:
        active = slot_sums(receiver, sender, slots, heard, local, chunk)
        count = torch.bincount(slots.receivers, minlength=len(receiver))
        sums = functional.linear(active, weight) + count.unsqueeze(1) * bias
        return None, scale.unsqueeze(1) * sums
    messages = slot_messages(receiver, sender, slots, Output(weight, bias, scale), heard, local, chunk)
    sums = messages.new_zeros(len(receiver), classes).index_add(0, slots.receivers, messages)
    return (messages if computed is None else messages + computed[:, :classes]), sums


def _heard(
    field: GraphField,
    name: str,
    slots: Slots,
    estimator: FactorEstimator,
    sender: Tensor,
    beliefs: Tensor,
    told: Tensor | None,
) -> tuple[Tensor, Heard | None]:
    """Q and what else the senders said; where that does not depend on whom they tell, it becomes part of Q."""
    if estimator.dependent is None:
        return sender, None
    rules, kind = field.rules, field.rules.factors[name]
    position = kind.receivers[slots.estimator]
    layout = columns(kind, position, slots.order, rules.num_classes, rules.dependent)
    weight = estimator.dependent.weight
    if told is not None:
        if not kind.one_way:
            return sender, Heard(told, slots.reverse, layout, weight)
        everyone = torch.cat([_widened(told, beliefs.shape[1]), beliefs])
        rows = torch.where(slots.reverse < 0, slots.senders + len(told), slots.reverse)
        return sender, Heard(everyone, rows, layout, weight)
    if layout.alike:
        said = beliefs[:, : layout.sizes[0]]
        return torch.addmm(sender, said, weight.T, alpha=(slots.order - 1) * layout.weights[0]), None
    return sender, Heard(beliefs, slots.senders, layout, weight)


def _local(
    field: GraphField, name: str, slots: Slots, estimator: FactorEstimator, computed: Tensor | None
) -> Local | None:
    """Features of the factor and its computed message, per slot."""
    if estimator.local is None:
        return None
    parts = [] if computed is None else [computed]
    if name in field.factor_features:
        parts.insert(0, field.factor_features[name].index_select(0, slots.factors))
    return Local(parts[0] if len(parts) == 1 else torch.cat(parts, 1), estimator.local.weight)


def _computed(
    field: GraphField, name: str, layout: Layout, beliefs: Tensor, told: Tensor | None
) -> Tensor | None:
    """The computed messages of every slot, (slots, K), where potentials are known."""
    compute = field.known.get(name)
    if compute is None:
        return None
    if isinstance(compute, Tensor):
        raise InputError(
            f"known messages of {name!r} must be computed by a function of the messages it is told"
        )
    kind, classes = field.rules.factors[name], field.rules.num_classes
    width = max(classes[kind.kind_at(i)] for block in layout.row_of for i in range(block.shape[1]))
    by_block: list[Tensor] = []
    for (scopes, numbers), rows in zip(field.graph.factors.get(name, ()), layout.row_of, strict=True):
        incoming = []
        for position in range(scopes.shape[1]):
            answered = kind.sends_to is None or position in kind.sends_to
            said = beliefs[scopes[:, position]] if told is None or not answered else told[rows[:, position]]
            incoming.append(said[:, : classes[kind.kind_at(position)]])
        outgoing = compute(incoming, numbers)
        if [message.shape for message in outgoing] != [message.shape for message in incoming]:
            raise InputError(
                f"computed messages of {name!r} have shapes {[tuple(m.shape) for m in outgoing]}; return one for "
                f"each position, shaped like the messages told: {[tuple(m.shape) for m in incoming]}"
            )
        by_block.append(torch.cat([_widened(message, width) for message in outgoing]))
    parts = [by_block[slots.block].index_select(0, slots.origin) for slots in layout.slots]
    return torch.cat(parts).to(beliefs.dtype)


def _scale(field: GraphField, name: str, slots: Slots) -> Tensor:
    """What a message to each variable is multiplied with, (variables,)."""
    count = field.layouts[name].counts[slots.estimator]
    kind: FactorType = field.rules.factors[name]
    match field.rules.aggregation:
        case "sum":
            return torch.ones_like(count, dtype=torch.float64)
        case "mean":
            return 1 / count.clamp(min=1).double()
        case "fixed":
            return torch.full_like(count, 1 / kind.degree, dtype=torch.float64)
        case _:
            return torch.full_like(count, kind.degree**-0.5, dtype=torch.float64)


def _widened(message: Tensor, width: int) -> Tensor:
    missing = width - message.shape[1]
    return functional.pad(message, (0, missing)) if missing else message
