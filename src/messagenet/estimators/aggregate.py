"""The fused sum over a range box: the heart of one-iteration message passing.

A two-layer estimator on [receiver; sender] features splits in its first layer and is linear in its last, so

    P = A f + b,   Q = B f                                          two products per node, none per edge
    Σ_q [W₂ relu(P_p + Q_q) + b₂] = W₂ S_p + n_p b₂,     S_p = Σ_q relu(P_p + Q_q)

and no tensor over edges exists. `relu_sum` computes S as one registered operator with an exact gradient that
recomputes the signs of P + Q, so that it stores nothing beyond its inputs and composes with `torch.compile`
and `torch.export`. A sender that must stay silent (padding) has Q = −∞: relu(P − ∞) = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from messagenet.estimators.backends import Offsets, backend_for
from messagenet.estimators.operators import (
    like,
    refuse_second_derivatives,
    register_operator,
    remembered,
    working_dtype,
)


def relu_sum(receiver: Tensor, sender: Tensor, offsets: Offsets) -> Tensor:
    """S_p = Σ_{o ∈ offsets} relu(receiver_p + sender_{p+o}), over the senders inside the map.

    Half-precision inputs are summed in float32.

    Args:
        receiver: P, (B, H, W, C).
        sender: Q, (B, H, W, C).
        offsets: The (dy, dx) of the senders.

    >>> ones = torch.ones(1, 2, 2, 1)
    >>> relu_sum(ones, ones, ((0, 1), (1, 0))).flatten().tolist()      # right and below neighbours
    [4.0, 2.0, 2.0, 0.0]
    """
    dtype = working_dtype(receiver, sender)
    total: Tensor = torch.ops.messagenet.relu_sum(receiver.to(dtype), sender.to(dtype), as_runs(offsets))
    return total.to(receiver.dtype)


@remembered
def as_runs(offsets: Offsets) -> list[int]:
    """Offsets as runs (dy, first dx, last dx), flat: far fewer numbers for an operator to be called with.

    >>> as_runs(((0, 1), (-1, 0), (0, -1), (-1, 1)))
    [-1, 0, 1, 0, -1, -1, 0, 1, 1]
    """
    runs: list[list[int]] = []
    for dy, dx in sorted(offsets):
        if runs and runs[-1][0] == dy and runs[-1][2] == dx - 1:
            runs[-1][2] = dx
        else:
            runs.append([dy, dx, dx])
    return [number for run in runs for number in run]


@lru_cache(maxsize=512)
def from_runs(runs: tuple[int, ...]) -> Offsets:
    """The offsets that `as_runs` wrote, in ascending order."""
    rows = zip(runs[::3], runs[1::3], runs[2::3], strict=True)
    return tuple((dy, dx) for dy, first, last in rows for dx in range(first, last + 1))


def _total(receiver: Tensor, sender: Tensor, runs: Sequence[int]) -> Tensor:
    return backend_for(receiver).total(receiver.contiguous(), sender.contiguous(), from_runs(tuple(runs)))


def _gradients(grad: Tensor, receiver: Tensor, sender: Tensor, runs: Sequence[int]) -> tuple[Tensor, Tensor]:
    grad, receiver, sender = grad.contiguous(), receiver.contiguous(), sender.contiguous()
    return backend_for(receiver).gradients(grad, receiver, sender, from_runs(tuple(runs)))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Sequence[int]], output: Tensor) -> None:
    receiver, sender, ctx.runs = inputs
    ctx.save_for_backward(receiver, sender)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    to_receiver, to_sender = torch.ops.messagenet.relu_sum_backward(grad, *ctx.saved_tensors, ctx.runs)
    return to_receiver, to_sender, None


register_operator(
    "relu_sum(Tensor receiver, Tensor sender, int[] runs) -> Tensor",
    _total,
    fake=lambda receiver, sender, runs: like(receiver),
)
register_operator(
    "relu_sum_backward(Tensor grad, Tensor receiver, Tensor sender, int[] runs) -> (Tensor, Tensor)",
    _gradients,
    fake=lambda grad, receiver, sender, runs: (like(receiver), like(sender)),
)
torch.library.register_autograd("messagenet::relu_sum", _backward, setup_context=_keep)
refuse_second_derivatives("relu_sum_backward")
