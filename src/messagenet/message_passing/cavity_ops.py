"""Operators on single messages, for several iterations with exact cavities.

On a grid, the message of slot (o, p) comes from q = p + o and depends on what q believes without p's own influence:

    d_pF    = logsoftmax( L_q − β_{F→q} )              β_{F→q}: the reverse message of the previous iteration
    t_pF    = P_p + Q_q + D d_pF
    β_{F→p} = c_p m_q (W₂ relu(t_pF) + b₂)             c: the aggregation's scale, m_q: 0 for padding, else 1

A gate takes d = √K (softmax(L_q − β_{F→q}) − 1/K) and replaces relu(t) by relu(P_p + Q_q) ⊙ (1 + D d).

On a graph, slot s has receiver p, senders q_1 … q_n (n = order − 1) with incoming messages in rows h_1 … h_n, and
inputs x_s of its own:

    d_s = Σ_j w_j · incoming[h_j]                each sender in its own columns (see `Columns`)
    t_s = P_p + 1/n Σ_j Q_{q_j} + D d_s + C x_s
    β_s = c_p (W₂ relu(t_s) + b₂)

and a gate likewise replaces relu(t) by relu(t − D d) ⊙ (1 + D d).

With an output layer, `pass_edges` and `pass_slots` return every β, which the next iteration needs for its cavities.
Without one, in the last iteration, they return S_p, the sum of the hidden units over the slots of p, and leave W₂ to
the caller. Hidden units exist for one offset, or one chunk of slots, at a time, and are recomputed in the backward
pass, so T iterations store T · slots · K + slots · |x| + O(nodes · hidden) numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.graph import Offset, Window, window
from messagenet.graph.typed import Slots
from messagenet.message_passing.estimator import dependent_input
from messagenet.message_passing.factor_types import Columns
from messagenet.message_passing.fused_sum import register_operator, to_common_dtype


class OutputLayer(NamedTuple):
    """From hidden units to messages."""

    weight: Tensor  # W₂, (K, hidden)
    bias: Tensor  # b₂, (K,)
    scale: Tensor  # c, the scale of messages to each node: (B or 1, H, W, 1) or (variables,)


class Cavity(NamedTuple):
    """What makes messages on a grid depend on the previous iteration."""

    weight: Tensor  # D, (hidden, K)
    logits: Tensor  # L, (B, H, W, K)
    reverse: Tensor  # the mirror relation's messages, (B, n, H, W, K); empty before there are any
    reverse_index: Sequence[int]  # of each offset: the reverse offset in the mirror relation
    gated: bool = False  # whether d multiplies the hidden units


class DependentInput(NamedTuple):
    """What makes messages on a graph depend on the previous iteration."""

    incoming: Tensor  # normalised variable-to-factor messages, or beliefs, (rows, K)
    rows: Tensor  # each sender's row of `incoming`, (slots, order − 1)
    columns: Columns  # how the rows are joined into d
    weight: Tensor  # D, (hidden, columns)
    gated: bool = False  # whether d multiplies the hidden units


class FactorInput(NamedTuple):
    """The factors' own inputs."""

    values: Tensor  # x, (slots, x)
    weight: Tensor  # C, (hidden, x)


def pass_edges(
    receiver: Tensor,  # P, (B, H, W, hidden)
    sender: Tensor,  # Q, likewise; −∞ at padding
    offsets: Sequence[Offset],
    cavity: Cavity | None = None,  # None in the first iteration
    output: OutputLayer | None = None,
    mask: Tensor | None = None,  # 0 at padding, (B, H, W, 1); None if all nodes exist
) -> Tensor:
    """Every message of a relation, (B, n, H, W, K), or without an output layer S, (B, H, W, hidden).

    Messages are 0 where the sender is padding or outside the map.
    """
    absent, shape = receiver.new_empty(0), receiver.shape[:3]
    cavity = cavity or Cavity(absent, absent, absent, [])
    last = [absent] * 4
    if output is not None:
        exists = receiver.new_ones(shape) if mask is None else mask[..., 0]
        last = [output.weight, output.bias, output.scale[..., 0].expand(shape), exists]
    tensors = to_common_dtype(receiver, sender, *cavity[:3], *last)
    flat = [component for offset in offsets for component in offset]
    settings = cavity.reverse_index, flat, cavity.gated, output is not None
    out: Tensor = torch.ops.messagenet.pass_edges(*tensors, *settings)
    return out.to(receiver.dtype)


HIDDEN_AT_ONCE = 1 << 19  # hidden units of a chunk, about what the caches hold


def pass_slots(
    receiver: Tensor,  # P, (variables, hidden)
    sender: Tensor,  # Q, likewise
    slots: Slots,
    dependent: DependentInput | None = None,  # None in the first iteration, or where d is part of Q
    factor: FactorInput | None = None,
    output: OutputLayer | None = None,
    chunk: int | None = None,  # slots at once; by default as many as fit the caches
) -> Tensor:
    """Every message, (slots, K), or without an output layer S, (variables, hidden)."""
    absent = receiver.new_empty(0)
    none = DependentInput(absent, slots.senders, Columns((), (), (), 0), absent)
    incoming, rows, columns, weight, gated = dependent or none
    out: Tensor = torch.ops.messagenet.pass_slots(
        *to_common_dtype(receiver, sender, incoming, weight, *(factor or [absent] * 2), *(output or [absent] * 3)),
        *(slots.receivers, slots.senders, rows),
        *(list(columns.starts), list(columns.sizes), list(columns.weights)),
        chunk or max(1, HIDDEN_AT_ONCE // max(1, receiver.shape[1])),
        gated,
        output is not None,
    )
    return out.to(receiver.dtype)


def _zeros(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(values, memory_format=torch.contiguous_format) for values in tensors)


class _Edges(NamedTuple):  # the arguments of `pass_edges`, flat
    receiver: Tensor
    sender: Tensor
    cavity_weight: Tensor
    logits: Tensor
    reverse: Tensor
    weight: Tensor
    bias: Tensor
    scale: Tensor
    mask: Tensor
    reverse_index: Sequence[int]
    offsets: Sequence[int]
    gated: bool
    keep: bool

    def shape(self) -> Sequence[int]:
        batch, height, width, _ = self.receiver.shape
        edges = (batch, len(self.offsets) // 2, height, width, len(self.bias))
        return edges if self.keep else self.receiver.shape

    def windows(self) -> Iterator[tuple[int, Window]]:
        for index, offset in enumerate(zip(self.offsets[::2], self.offsets[1::2], strict=True)):
            if (w := window(self.receiver.shape[1:3], offset)) is not None:
                yield index, w

    def hidden(self, index: int, w: Window) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """relu(t), with a cavity d, and the gate if there is one, for one offset: (B, h, w, hidden), K for d."""
        total = self.receiver[w.receivers] + self.sender[w.senders]
        if not self.reverse_index:
            return total.relu_(), None, None
        cavity = self.logits[w.senders]
        if self.reverse.numel():
            cavity = cavity - self.reverse[:, self.reverse_index[index]][w.senders]
        dependent = dependent_input(cavity, self.gated)
        product = dependent @ self.cavity_weight.T
        if self.gated:
            return total.relu_(), dependent, product.add_(1)
        return total.add_(product).relu_(), dependent, None

    def message_weight(self, w: Window) -> Tensor:
        """c_p m_q, (B, h, w, 1)."""
        return (self.scale[w.receivers] * self.mask[w.senders]).unsqueeze(-1)

    def forward(self) -> Tensor:
        out = self.receiver.new_zeros(self.shape())
        for index, w in self.windows():
            hidden, _, gate = self.hidden(index, w)
            hidden = hidden if gate is None else hidden.mul_(gate)
            if self.keep:
                out[:, index][w.receivers] = (hidden @ self.weight.T + self.bias) * self.message_weight(w)
            else:
                out[w.receivers] += hidden
        return out

    def gradients(self, grad: Tensor) -> tuple[Tensor, ...]:
        gradients = _zeros(self[:7])
        d_receiver, d_sender, d_cavity, d_logits, d_reverse, d_weight, d_bias = gradients
        for index, w in self.windows():
            active, dependent, gate = self.hidden(index, w)
            hidden = active if gate is None else active * gate
            if self.keep:
                d_message = grad[:, index][w.receivers] * self.message_weight(w)
                d_weight += d_message.flatten(0, 2).T @ hidden.flatten(0, 2)
                d_bias += d_message.sum((0, 1, 2))
                d_hidden = d_message @ self.weight
            else:
                d_hidden = grad[w.receivers]
            d_total = (d_hidden if gate is None else d_hidden * gate) * (active > 0)
            d_receiver[w.receivers] += d_total
            d_sender[w.senders] += d_total
            if dependent is not None:
                d_product = d_total if gate is None else d_hidden * active
                d_cavity += d_product.flatten(0, 2).T @ dependent.flatten(0, 2)
                d_normalised = self.through_softmax(d_product @ self.cavity_weight, dependent)
                d_logits[w.senders] += d_normalised
                if self.reverse.numel():
                    d_reverse[:, self.reverse_index[index]][w.senders] -= d_normalised
        return gradients

    def through_softmax(self, grad: Tensor, dependent: Tensor) -> Tensor:
        """The gradient for L − β from that for d."""
        if not self.gated:
            return grad - dependent.exp() * grad.sum(-1, keepdim=True)
        root = math.sqrt(dependent.shape[-1])
        probabilities = dependent / root + 1 / dependent.shape[-1]
        return root * probabilities * (grad - (probabilities * grad).sum(-1, keepdim=True))


class _Slots(NamedTuple):  # the arguments of `pass_slots`, flat
    receiver: Tensor
    sender: Tensor
    incoming: Tensor
    dependent_weight: Tensor
    factor: Tensor
    factor_weight: Tensor
    weight: Tensor
    bias: Tensor
    scale: Tensor
    receivers: Tensor
    senders: Tensor
    rows: Tensor
    starts: Sequence[int]
    sizes: Sequence[int]
    weights: Sequence[float]
    chunk: int
    gated: bool
    keep: bool

    def shape(self) -> Sequence[int]:
        return (len(self.receivers), len(self.bias)) if self.keep else self.receiver.shape

    def chunks(self) -> Iterator[slice]:
        for start in range(0, len(self.receivers), self.chunk):
            yield slice(start, min(start + self.chunk, len(self.receivers)))

    def dependent(self, part: slice) -> Tensor | None:
        """d of a chunk, (slots, columns)."""
        if not self.starts:
            return None
        if len(self.starts) == 1:
            return self.incoming.index_select(0, self.rows[part, 0])[:, : self.sizes[0]]
        total = self.incoming.new_zeros(part.stop - part.start, self.dependent_weight.shape[1])
        for j, (start, size, weight) in enumerate(zip(self.starts, self.sizes, self.weights, strict=True)):
            message = self.incoming.index_select(0, self.rows[part, j])[:, :size]
            total[:, start : start + size].add_(message, alpha=weight)
        return total

    def hidden(self, part: slice, dependent: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """relu(t) of a chunk, and the gate if there is one, (slots, hidden)."""
        total = self.receiver.index_select(0, self.receivers[part])
        others = self.senders.shape[1]
        for j in range(others):
            total.add_(self.sender.index_select(0, self.senders[part, j]), alpha=1 / others)
        if self.factor.numel():
            total.addmm_(self.factor[part], self.factor_weight.T)
        if dependent is not None and self.gated:
            return total.relu_(), (dependent @ self.dependent_weight.T).add_(1)
        if dependent is not None:
            total.addmm_(dependent, self.dependent_weight.T)
        return total.relu_(), None

    def forward(self) -> Tensor:
        out = self.receiver.new_zeros(self.shape())
        with torch.autocast(out.device.type, enabled=False):
            for part in self.chunks():
                (active, gate), to = self.hidden(part, self.dependent(part)), self.receivers[part]
                if gate is not None:
                    active *= gate
                if self.keep:
                    torch.addmm(self.bias, active, self.weight.T, out=out[part])
                    out[part] *= self.scale.index_select(0, to).unsqueeze(1)
                else:
                    out.index_add_(0, to, active)
        return out

    def gradients(self, grad: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            return self._gradients(grad.contiguous())

    def _gradients(self, grad: Tensor) -> tuple[Tensor, ...]:
        gradients = _zeros(self[:8])
        d_receiver, d_sender, d_incoming, d_dependent_weight, d_factor, d_factor_weight, d_weight, d_bias = gradients
        others = self.senders.shape[1]
        for part in self.chunks():
            to = self.receivers[part]
            dependent = self.dependent(part)
            active, gate = self.hidden(part, dependent)
            if self.keep:
                d_message = grad[part] * self.scale.index_select(0, to).unsqueeze(1)
                d_weight.addmm_(d_message.T, active if gate is None else active * gate)
                d_bias += d_message.sum(0)
                d_hidden = d_message @ self.weight
            else:
                d_hidden = grad.index_select(0, to)
            d_active = d_hidden if gate is None else d_hidden * gate
            d_total = torch.ops.aten.threshold_backward(d_active, active, 0)
            d_receiver.index_add_(0, to, d_total)
            for j in range(others):
                d_sender.index_add_(0, self.senders[part, j], d_total, alpha=1 / others)
            if dependent is not None:
                d_product = d_total if gate is None else d_hidden * active
                d_dependent_weight.addmm_(d_product.T, dependent)
                d_dependent = d_product @ self.dependent_weight
                for j, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
                    d_message = d_dependent[:, start : start + size]
                    d_incoming[:, :size].index_add_(0, self.rows[part, j], d_message, alpha=self.weights[j])
            if self.factor.numel():
                d_factor_weight.addmm_(d_total.T, self.factor[part])
                torch.mm(d_total, self.factor_weight, out=d_factor[part])
        return gradients


register_operator("pass_edges", _Edges, differentiable=7)
register_operator("pass_slots", _Slots, differentiable=8)
