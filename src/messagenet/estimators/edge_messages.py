"""Messages one by one: what more than one iteration with exact cavities needs.

The message of slot (o, p), from q = p + o, depends on what q believed without p's own influence:

    d_pF    = logsoftmax( L_q − β_{F→q} )              β_{F→q}: the reverse slot's message, one iteration ago
    t_pF    = P_p + Q_q + D d_pF
    β_{F→p} = w_pq (W₂ relu(t_pF) + b₂)                w: the aggregation's scale, 0 from a silent sender

Only messages, N·n·K numbers, are kept between iterations. The hidden units (N·n·hidden) exist for one offset
at a time, in the forward pass and again in the backward pass, which recomputes them. `edge_messages` returns
every β; `cavity_sum`, for the last iteration, returns S_p = Σ_o relu(t_pF) and leaves W₂ to its caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from messagenet.estimators.operators import like, refuse_second_derivatives, register_operator, working_dtype
from messagenet.graph import Offset, Window, window


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


class Output(NamedTuple):
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
    receiver: Tensor, sender: Tensor, output: Output, offsets: Sequence[Offset], cavity: Cavity | None = None
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
    tensors = _working(receiver, sender, *cavity[:3], *(receiver.new_empty(0) for _ in Output._fields))
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


def _forward(
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


def _gradients(
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


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:9])
    ctx.settings = inputs[9:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    gradients = torch.ops.messagenet.pass_edges_backward(grad, *ctx.saved_tensors, *ctx.settings)
    return (*gradients, None, None, None, None, None)


def _fake(receiver: Tensor, *rest: Any) -> Tensor:
    bias, offsets, keep = rest[5], rest[9], rest[10]
    images, height, width, _ = receiver.shape
    return receiver.new_empty(
        (images, len(offsets) // 2, height, width, len(bias)) if keep else receiver.shape
    )


_ARGUMENTS = (
    "Tensor receiver, Tensor sender, Tensor cavity_weight, Tensor logits, Tensor reverse, Tensor weight, "
    "Tensor bias, Tensor scale, Tensor talking, int[] places, int[] offsets, bool keep"
)
register_operator(f"pass_edges({_ARGUMENTS}) -> Tensor", _forward, fake=_fake)
register_operator(
    f"pass_edges_backward(Tensor grad, {_ARGUMENTS}) -> ({', '.join(['Tensor'] * 7)})",
    _gradients,
    fake=lambda grad, *rest: tuple(like(values) for values in rest[:7]),
)
torch.library.register_autograd("messagenet::pass_edges", _backward, setup_context=_save)
refuse_second_derivatives("pass_edges_backward")
