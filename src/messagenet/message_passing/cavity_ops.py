"""Messages one by one: what more than one iteration with exact cavities needs.

The message of slot (o, p), from q = p + o, depends on what q believed without p's own influence:

    d_pF    = logsoftmax( L_q − β_{F→q} )              β_{F→q}: the reverse slot's message, one iteration ago
    t_pF    = P_p + Q_q + D d_pF
    β_{F→p} = w_pq (W₂ relu(t_pF) + b₂)                w: the aggregation's scale, 0 from a silent sender

Only messages, N·n·K numbers, are kept between iterations. The hidden units (N·n·hidden) exist for one offset
at a time, in the forward pass and again in the backward pass, which recomputes them. `edge_messages` returns
every β; `cavity_sum`, for the last iteration, returns S_p = Σ_o relu(t_pF) and leaves W₂ to its caller.

Messages of many factors at once, in a bounded amount of memory.

For slot s with receiver p, senders q_1 … q_n (n = order − 1) and rows h_1 … h_n of what they said,

    d_s = Σ_j w_j · told[h_j]                    each sender in its own columns (see `Columns`)
    t_s = P_p + 1/n Σ_j Q_{q_j} + D d_s + C x_s
    β_s = c_p (W₂ relu(t_s) + b₂)                c: the aggregation's scale
    S_p = Σ_{s to p} relu(t_s)                   where single messages are not needed: W₂ is left to the caller

The hidden units relu(t) exist for one chunk of slots at a time, in the forward pass and again in the backward
pass, which recomputes them. Kept for the backward pass are the inputs alone: `told` (one row of K per slot, its
storage shared with the log-softmax that made it), x, and P and Q per variable. So T iterations keep

    T · slots · K  +  slots · |x|  +  O(variables · hidden)      numbers.

Receivers are sorted, so sums over a variable's slots run over neighbouring rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from messagenet.graph import Offset, Window, window
from messagenet.graph.typed import Slots
from messagenet.message_passing.estimator import Columns
from messagenet.message_passing.fused_sum import (
    like,
    refuse_second_derivatives,
    register_operator,
    working_dtype,
)


class Cavity(NamedTuple):
    """What makes a message depend on the previous iteration.

    Attributes:
        weight: D, (hidden, K).
        logits: L, the beliefs before normalisation, (B, H, W, K).
        reverse: The mirror relation's messages, (B, n, H, W, K).
        places: For each offset, where the reverse offset stands in the mirror's list.
    """

    weight: Tensor
    logits: Tensor
    reverse: Tensor
    places: Sequence[int]


class EdgeOutput(NamedTuple):
    """How hidden units become messages.

    Attributes:
        weight: W₂, (K, hidden).
        bias: b₂, (K,).
        scale: What a message to each node is multiplied with, (B, H, W).
        talking: 1 for nodes that send, 0 for padding, (B, H, W).
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    talking: Tensor


def edge_messages(
    receiver: Tensor,
    sender: Tensor,
    output: EdgeOutput,
    offsets: Sequence[Offset],
    cavity: Cavity | None = None,
) -> Tensor:
    """Every message of a relation, (B, n, H, W, K); zero where the sender is outside the map or silent.

    Args:
        receiver: P, (B, H, W, hidden).
        sender: Q, likewise; −∞ for a silent sender.
        output: W₂, b₂ and the weight of each message.
        offsets: The relation's offsets.
        cavity: Absent in the first iteration, when no message has been sent yet.
    """
    absent = receiver.new_empty(0)
    cavity = cavity or Cavity(absent, absent, absent, [])
    tensors = _working(receiver, sender, *cavity[:3], *output)
    messages: Tensor = torch.ops.messagenet.pass_edges(*tensors, cavity.places, _flat(offsets), True)
    return messages.to(receiver.dtype)


def cavity_sum(receiver: Tensor, sender: Tensor, offsets: Sequence[Offset], cavity: Cavity) -> Tensor:
    """S_p = Σ_o relu(t_pF), (B, H, W, hidden); arguments as for `edge_messages`."""
    tensors = _working(receiver, sender, *cavity[:3], *(receiver.new_empty(0) for _ in EdgeOutput._fields))
    total: Tensor = torch.ops.messagenet.pass_edges(*tensors, cavity.places, _flat(offsets), False)
    return total.to(receiver.dtype)


def _flat(offsets: Sequence[Offset]) -> list[int]:
    return [component for offset in offsets for component in offset]


def _working(*tensors: Tensor) -> list[Tensor]:
    """All in one precision, at least float32."""
    dtype = working_dtype(*tensors)
    return [values.to(dtype) for values in tensors]


# -- one offset at a time ----------------------------------------------------------------------------------


def _windows(like: Tensor, offsets: Sequence[int]) -> Iterator[tuple[int, Window]]:
    for index, offset in enumerate(zip(offsets[::2], offsets[1::2], strict=True)):
        if (w := window(like.shape[1:3], offset)) is not None:
            yield index, w


def _hidden(
    receiver: Tensor, sender: Tensor, cavity: Cavity, index: int, w: Window
) -> tuple[Tensor, Tensor | None]:
    """t and, with a cavity, d for one offset: (B, h, w, hidden) and (B, h, w, K)."""
    total = receiver[w.receivers] + sender[w.senders]
    if not cavity.places:
        return total, None
    reverse = cavity.reverse[:, cavity.places[index]][w.senders]
    dependent = torch.log_softmax(cavity.logits[w.senders] - reverse, -1)
    return total + dependent @ cavity.weight.T, dependent


def _edge_forward(
    receiver: Tensor,
    sender: Tensor,
    cavity_weight: Tensor,
    logits: Tensor,
    reverse: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    talking: Tensor,
    places: Sequence[int],
    offsets: Sequence[int],
    keep: bool,
) -> Tensor:
    cavity = Cavity(cavity_weight, logits, reverse, places)
    images, height, width, _ = receiver.shape
    shape = (images, len(offsets) // 2, height, width, len(bias)) if keep else receiver.shape
    out = receiver.new_zeros(shape)
    for index, w in _windows(receiver, offsets):
        hidden = _hidden(receiver, sender, cavity, index, w)[0].relu_()
        if keep:
            loudness = (scale[w.receivers] * talking[w.senders]).unsqueeze(-1)
            out[:, index][w.receivers] = (hidden @ weight.T + bias) * loudness
        else:
            out[w.receivers] += hidden
    return out


def _edge_gradients(
    grad: Tensor,
    receiver: Tensor,
    sender: Tensor,
    cavity_weight: Tensor,
    logits: Tensor,
    reverse: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    talking: Tensor,
    places: Sequence[int],
    offsets: Sequence[int],
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    cavity = Cavity(cavity_weight, logits, reverse, places)
    inputs = (receiver, sender, cavity_weight, logits, reverse, weight, bias)
    d_receiver, d_sender, d_cavity, d_logits, d_reverse, d_weight, d_bias = (
        torch.zeros_like(values, memory_format=torch.contiguous_format) for values in inputs
    )
    for index, w in _windows(receiver, offsets):
        hidden, dependent = _hidden(receiver, sender, cavity, index, w)
        if keep:
            loudness = (scale[w.receivers] * talking[w.senders]).unsqueeze(-1)
            d_message = grad[:, index][w.receivers] * loudness
            d_weight += d_message.flatten(0, 2).T @ hidden.relu().flatten(0, 2)
            d_bias += d_message.sum((0, 1, 2))
            d_hidden = (d_message @ weight) * (hidden > 0)
        else:
            d_hidden = grad[w.receivers] * (hidden > 0)
        d_receiver[w.receivers] += d_hidden
        d_sender[w.senders] += d_hidden
        if dependent is not None:
            d_cavity += d_hidden.flatten(0, 2).T @ dependent.flatten(0, 2)
            d_dependent = d_hidden @ cavity_weight
            d_normalised = d_dependent - dependent.exp() * d_dependent.sum(-1, keepdim=True)
            d_logits[w.senders] += d_normalised
            d_reverse[:, places[index]][w.senders] -= d_normalised
    return d_receiver, d_sender, d_cavity, d_logits, d_reverse, d_weight, d_bias


# -- registration ------------------------------------------------------------------------------------------


def _save_edges(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:9])
    ctx.settings = inputs[9:]


def _edge_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gradients = torch.ops.messagenet.pass_edges_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return (*gradients, None, None, None, None, None)


def _fake_edges(receiver: Tensor, *rest: Any) -> Tensor:
    bias, offsets, keep = rest[5], rest[9], rest[10]
    images, height, width, _ = receiver.shape
    return receiver.new_empty(
        (images, len(offsets) // 2, height, width, len(bias)) if keep else receiver.shape
    )


_EDGE_ARGUMENTS = (
    "Tensor receiver, Tensor sender, Tensor cavity_weight, Tensor logits, Tensor reverse, Tensor weight, "
    "Tensor bias, Tensor scale, Tensor talking, int[] places, int[] offsets, bool keep"
)
register_operator(f"pass_edges({_EDGE_ARGUMENTS}) -> Tensor", _edge_forward, fake=_fake_edges)
register_operator(
    f"pass_edges_backward(Tensor grad, {_EDGE_ARGUMENTS}) -> ({', '.join(['Tensor'] * 7)})",
    _edge_gradients,
    fake=lambda grad, *rest: tuple(like(values) for values in rest[:7]),
)
torch.library.register_autograd("messagenet::pass_edges", _edge_backward, setup_context=_save_edges)
refuse_second_derivatives("pass_edges_backward")


R = TypeVar("R")
HIDDEN_AT_ONCE = 1 << 19  # hidden units of a chunk, about what the caches hold


class Heard(NamedTuple):
    """What makes messages depend on the previous iteration.

    Attributes:
        told: Normalised messages or beliefs, (rows, K).
        rows: For each slot, the row of each sender, (slots, order − 1).
        columns: How they make d.
        weight: D, (hidden, columns).
    """

    told: Tensor
    rows: Tensor
    columns: Columns
    weight: Tensor


class Local(NamedTuple):
    """What belongs to the slots themselves: x, (slots, x), and C, (hidden, x)."""

    values: Tensor
    weight: Tensor


class SlotOutput(NamedTuple):
    """How hidden units become messages: W₂ (K, hidden), b₂ (K,) and c (variables,)."""

    weight: Tensor
    bias: Tensor
    scale: Tensor


def slot_messages(
    receiver: Tensor,
    sender: Tensor,
    slots: Slots,
    output: SlotOutput,
    heard: Heard | None = None,
    local: Local | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Every message, (slots, K).

    Args:
        receiver: P, (variables, hidden).
        sender: Q, likewise.
        slots: Who tells whom.
        output: The last layer and the scale of messages.
        heard: Absent where no message has been sent yet, or where it is already part of Q.
        local: Absent where factors have no inputs of their own.
        chunk: Slots at once; by default as many as fit the caches.
    """
    return _call(receiver, sender, slots, output, heard, local, chunk, keep=True)


def slot_sums(
    receiver: Tensor,
    sender: Tensor,
    slots: Slots,
    heard: Heard | None = None,
    local: Local | None = None,
    chunk: int | None = None,
) -> Tensor:
    """S, (variables, hidden): the sum of the hidden units of each variable's slots; arguments as above."""
    absent = receiver.new_empty(0)
    return _call(receiver, sender, slots, SlotOutput(absent, absent, absent), heard, local, chunk, keep=False)


def _call(
    receiver: Tensor,
    sender: Tensor,
    slots: Slots,
    output: SlotOutput,
    heard: Heard | None,
    local: Local | None,
    chunk: int | None,
    keep: bool,
) -> Tensor:
    absent = receiver.new_empty(0)
    told, rows, columns, dependent = heard or (absent, slots.senders, Columns((), (), (), 0), absent)
    values, weight = local or (absent, absent)
    tensors = (receiver, sender, told, dependent, values, weight, *output)
    dtype = working_dtype(*tensors)
    out: Tensor = torch.ops.messagenet.pass_slots(
        *(tensor.to(dtype) for tensor in tensors),
        slots.receivers,
        slots.senders,
        rows,
        list(columns.places),
        list(columns.sizes),
        list(columns.weights),
        chunk or max(1, HIDDEN_AT_ONCE // max(1, receiver.shape[1])),
        keep,
    )
    return out.to(receiver.dtype)


# -- one chunk of slots at a time --------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """The operator's arguments, by name."""

    receiver: Tensor
    sender: Tensor
    told: Tensor
    dependent: Tensor
    local: Tensor
    local_weight: Tensor
    weight: Tensor
    bias: Tensor
    scale: Tensor
    receivers: Tensor
    senders: Tensor
    rows: Tensor
    places: Sequence[int]
    sizes: Sequence[int]
    weights: Sequence[float]
    chunk: int
    keep: bool

    def chunks(self) -> Iterator[slice]:
        for start in range(0, len(self.receivers), self.chunk):
            yield slice(start, min(start + self.chunk, len(self.receivers)))

    def heard(self, part: slice) -> Tensor | None:
        """d of a chunk, (slots, columns)."""
        if not self.places:
            return None
        if len(self.places) == 1:
            return self.told.index_select(0, self.rows[part, 0])[:, : self.sizes[0]]
        total = self.told.new_zeros(part.stop - part.start, self.dependent.shape[1])
        for j, (place, size, weight) in enumerate(zip(self.places, self.sizes, self.weights, strict=True)):
            said = self.told.index_select(0, self.rows[part, j])[:, :size]
            total[:, place : place + size].add_(said, alpha=weight)
        return total

    def hidden(self, part: slice, heard: Tensor | None) -> Tensor:
        """t of a chunk, (slots, hidden)."""
        total = self.receiver.index_select(0, self.receivers[part])
        others = self.senders.shape[1]
        for j in range(others):
            total.add_(self.sender.index_select(0, self.senders[part, j]), alpha=1 / others)
        if heard is not None:
            total.addmm_(heard, self.dependent.T)
        if self.local.numel():
            total.addmm_(self.local[part], self.local_weight.T)
        return total


def _slot_forward(*arguments: Any) -> Tensor:
    inputs = _Inputs(*arguments)
    shape = (len(inputs.receivers), len(inputs.bias)) if inputs.keep else inputs.receiver.shape
    out = inputs.receiver.new_zeros(shape)
    for part in inputs.chunks():
        active = inputs.hidden(part, inputs.heard(part)).relu_()
        to = inputs.receivers[part]
        if inputs.keep:
            torch.addmm(inputs.bias, active, inputs.weight.T, out=out[part])
            out[part] *= inputs.scale.index_select(0, to).unsqueeze(1)
        else:
            out.index_add_(0, to, active)
    return out


def _slot_gradients(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    inputs = _Inputs(*arguments)
    gradients = [
        torch.zeros_like(values, memory_format=torch.contiguous_format) for values in arguments[:_VARYING]
    ]
    d_receiver, d_sender, d_told, d_dependent, d_local, d_local_weight, d_weight, d_bias = gradients
    others = inputs.senders.shape[1]
    for part in inputs.chunks():
        to = inputs.receivers[part]
        heard = inputs.heard(part)
        active = inputs.hidden(part, heard).relu_()
        if inputs.keep:
            d_message = grad[part] * inputs.scale.index_select(0, to).unsqueeze(1)
            d_weight.addmm_(d_message.T, active)
            d_bias += d_message.sum(0)
            d_active = d_message @ inputs.weight
        else:
            d_active = grad.index_select(0, to)
        d_hidden = torch.ops.aten.threshold_backward(d_active, active, 0)
        d_receiver.index_add_(0, to, d_hidden)
        for j in range(others):
            d_sender.index_add_(0, inputs.senders[part, j], d_hidden, alpha=1 / others)
        if heard is not None:
            d_dependent.addmm_(d_hidden.T, heard)
            d_heard = d_hidden @ inputs.dependent
            for j, (place, size) in enumerate(zip(inputs.places, inputs.sizes, strict=True)):
                said = d_heard[:, place : place + size]
                d_told[:, :size].index_add_(0, inputs.rows[part, j], said, alpha=inputs.weights[j])
        if inputs.local.numel():
            d_local_weight.addmm_(d_hidden.T, inputs.local[part])
            torch.mm(d_hidden, inputs.local_weight, out=d_local[part])
    return tuple(gradients)


# -- registration ------------------------------------------------------------------------------------------

_VARYING, _TENSORS = 8, 12  # arguments that have a gradient; arguments that are tensors


def _as_given(implementation: Callable[..., R]) -> Callable[..., R]:
    """Computes in the precision of the tensors given, also where autocast would choose another."""

    def run(tensor: Tensor, *arguments: Any) -> R:
        with torch.autocast(tensor.device.type, enabled=False):
            return implementation(tensor, *arguments)

    return run


def _save_slots(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.settings = inputs[_TENSORS:]


def _slot_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gradients = torch.ops.messagenet.pass_slots_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.settings)
    return (*gradients, *[None] * (len(_Inputs._fields) - _VARYING))


def _fake_slots(*arguments: Any) -> Tensor:
    inputs = _Inputs(*arguments)
    shape = (len(inputs.receivers), len(inputs.bias)) if inputs.keep else inputs.receiver.shape
    return inputs.receiver.new_empty(shape)


_SLOT_ARGUMENTS = (
    "Tensor receiver, Tensor sender, Tensor told, Tensor dependent, Tensor local, Tensor local_weight, "
    "Tensor weight, Tensor bias, Tensor scale, Tensor receivers, Tensor senders, Tensor rows, "
    "int[] places, int[] sizes, float[] weights, int chunk, bool keep"
)
register_operator(f"pass_slots({_SLOT_ARGUMENTS}) -> Tensor", _as_given(_slot_forward), fake=_fake_slots)
register_operator(
    f"pass_slots_backward(Tensor grad, {_SLOT_ARGUMENTS}) -> ({', '.join(['Tensor'] * _VARYING)})",
    _as_given(_slot_gradients),
    fake=lambda grad, *rest: tuple(like(values) for values in rest[:_VARYING]),
)
torch.library.register_autograd("messagenet::pass_slots", _slot_backward, setup_context=_save_slots)
refuse_second_derivatives("pass_slots_backward")
