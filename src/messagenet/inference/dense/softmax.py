"""Probabilities from log-potentials and messages: a softmax over classes with a gradient.

    q = softmax(u + message)

`compiled` asks for the CPU kernel, which is for float32; anything else goes through torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def softmax_into(potentials: Tensor, message: Tensor | None, out: Tensor, *, compiled: bool) -> None:
    """Sets `out` to the probabilities, without a gradient; all are (…, K) and contiguous."""
    if compiled and potentials.dtype == torch.float32:
        from messagenet.inference.dense import softmax_loops

        flat = potentials.view(-1).numpy()
        added = flat[:0] if message is None else message.view(-1).numpy()
        softmax_loops.softmax(flat, added, potentials.shape[-1], out.view(-1).numpy())
    else:
        torch.softmax(potentials if message is None else potentials + message, -1, out=out)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, potentials: Tensor, message: Tensor | None) -> Tensor:
        out = torch.empty_like(potentials)
        softmax_into(potentials, message, out, compiled=True)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        from messagenet.inference.dense import softmax_loops

        (probabilities,) = ctx.saved_tensors
        out = torch.empty_like(probabilities)
        values, gradient = probabilities.view(-1).numpy(), grad.contiguous().view(-1).numpy()
        softmax_loops.softmax_gradient(values, gradient, out.shape[-1], out.view(-1).numpy())
        return out, out if ctx.needs_input_grad[1] else None


def softmax(potentials: Tensor, message: Tensor | None = None, *, compiled: bool) -> Tensor:
    """The probabilities, with a gradient for which only they themselves are kept.

    >>> softmax(torch.tensor([[0.0, 0.0]]), compiled=False)
    tensor([[0.5000, 0.5000]])
    """
    if compiled and potentials.dtype == torch.float32:
        result: Tensor = _Softmax.apply(potentials.contiguous(), message)  # type: ignore[no-untyped-call]
        return result
    return torch.softmax(potentials if message is None else potentials + message, -1)
