"""Messages of many factors at once, in a bounded amount of memory.

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

from messagenet.estimators.any_graph.settings import Columns
from messagenet.estimators.operators import like, refuse_second_derivatives, register_operator, working_dtype
from messagenet.graph.slots import Slots

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


class Output(NamedTuple):
    """How hidden units become messages: W₂ (K, hidden), b₂ (K,) and c (variables,)."""

    weight: Tensor
    bias: Tensor
    scale: Tensor


def slot_messages(
    receiver: Tensor,
    sender: Tensor,
    slots: Slots,
    output: Output,
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
    return _call(receiver, sender, slots, Output(absent, absent, absent), heard, local, chunk, keep=False)


def _call(
    receiver: Tensor,
    sender: Tensor,
    slots: Slots,
    output: Output,
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


def _forward(*arguments: Any) -> Tensor:
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


def _gradients(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
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


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.settings = inputs[_TENSORS:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gradients = torch.ops.messagenet.pass_slots_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.settings)
    return (*gradients, *[None] * (len(_Inputs._fields) - _VARYING))


def _fake(*arguments: Any) -> Tensor:
    inputs = _Inputs(*arguments)
    shape = (len(inputs.receivers), len(inputs.bias)) if inputs.keep else inputs.receiver.shape
    return inputs.receiver.new_empty(shape)


_ARGUMENTS = (
    "Tensor receiver, Tensor sender, Tensor told, Tensor dependent, Tensor local, Tensor local_weight, "
    "Tensor weight, Tensor bias, Tensor scale, Tensor receivers, Tensor senders, Tensor rows, "
    "int[] places, int[] sizes, float[] weights, int chunk, bool keep"
)
register_operator(f"pass_slots({_ARGUMENTS}) -> Tensor", _as_given(_forward), fake=_fake)
register_operator(
    f"pass_slots_backward(Tensor grad, {_ARGUMENTS}) -> ({', '.join(['Tensor'] * _VARYING)})",
    _as_given(_gradients),
    fake=lambda grad, *rest: tuple(like(values) for values in rest[:_VARYING]),
)
torch.library.register_autograd("messagenet::pass_slots", _backward, setup_context=_save)
refuse_second_derivatives("pass_slots_backward")
