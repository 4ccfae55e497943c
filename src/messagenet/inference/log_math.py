"""Sums of exponentials for probabilities that may be zero: the log is −∞ there, and the gradient 0.

Written naively, log Σ exp of nothing but −∞ has a NaN gradient (∞ − ∞), and so has −∞ − −∞ in a cavity.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

INF = float("inf")


def safe_log(values: Tensor) -> Tensor:
    """log, with −∞ and no gradient at zero.

    >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> safe_log(x).exp().sum().backward(); x.grad
    tensor([0., 1.])
    """
    if values.numel() == 0 or float(values.detach().amin()) > 0:
        return values.log()
    zero = values == 0
    return values.masked_fill(zero, 1).log().masked_fill(zero, -INF)


def peak(logs: Tensor, dims: Sequence[int]) -> Tensor:
    """The maximum over `dims` (kept) to subtract before exp: finite even where all is −∞, constant to autograd."""
    return logs.detach().amax(tuple(dims), keepdim=True).clamp_min_(torch.finfo(logs.dtype).min)


def centre(logs: Tensor) -> Tensor:
    """Subtracts the maximum over the last axis, gradient included: its rounding error would grow in a loop."""
    return logs - logs.amax(-1, keepdim=True).clamp_min(torch.finfo(logs.dtype).min)


def logsumexp(logs: Tensor, dims: Sequence[int]) -> Tensor:
    """log Σ exp over `dims`, which are kept with size 1.

    >>> logsumexp(torch.tensor([[0.0, 0.0], [-INF, -INF]]), [1]).flatten()
    tensor([0.6931,   -inf])
    """
    if not dims:
        return logs
    top = peak(logs, dims)
    return safe_log(exp_fresh(logs - top).sum(tuple(dims), keepdim=True)) + top


def exp_fresh(temporary: Tensor) -> Tensor:
    """exp of a temporary tensor, in place where autograd allows: half the memory traffic."""
    return temporary.exp() if temporary.requires_grad else temporary.exp_()


def add_fresh(temporary: Tensor, term: Tensor) -> Tensor:
    """temporary + term, in place where autograd and the shapes allow."""
    tracked = temporary.requires_grad or term.requires_grad
    grows = term.ndim > temporary.ndim or any(
        size > room for size, room in zip(reversed(term.shape), reversed(temporary.shape), strict=False)
    )
    return temporary + term if tracked or grows else temporary.add_(term)


def log_normalise(logs: Tensor, dims: Sequence[int] = (-1,)) -> Tensor:
    """Logs of the distribution proportional to exp(logs); all −∞ stays all −∞."""
    return subtract(logs, logsumexp(logs, dims))


def subtract(logs: Tensor, taken: Tensor) -> Tensor:
    """logs − taken, with −∞ − −∞ = −∞: in a cavity no result depends on messages to an impossible state."""
    if taken.numel() == 0 or float(taken.detach().amin()) > -INF:
        return logs - taken
    impossible = logs == -INF
    finite = logs.masked_fill(impossible, 0) - taken.masked_fill(taken == -INF, 0)
    return finite.masked_fill(impossible, -INF)


def change(new: Tensor, old: Tensor) -> Tensor:
    """|new − old|, with no change between two impossible states."""
    both = (new == -INF) & (old == -INF)
    return (new - old).abs().masked_fill(both, 0)
