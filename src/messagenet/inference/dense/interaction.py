"""What all pixels say to each pixel, and how it depends on what they say, the weights and the compatibility.

    gathered_i(l) = Σ_m w_m(l) Σ_j A_m(i, j) q_j(l)
    message_i(k)  = −Σ_l μ(k, l) gathered_i(l)                    to be added to the log-potentials

With Potts compatibility, μ = 1 − I, the message is gathered_i(k) less a number that is the same for all classes k,
which a softmax ignores: it is left out, and no matrix is multiplied.

The message is linear in q, and the filters A_m act on pixels while w and μ act on classes. So with g the gradient
for the message and h_m = A_mᵀ g, every other gradient follows from one transposed filter per kernel and q itself:

    dq = −Σ_m (h_m μ) diag(w_m)      C_m(k, l) = Σ_i h_m,i(k) q_i(l)
    dμ = −Σ_m C_m diag(w_m)          dw_m(l)   = −Σ_k μ(k, l) C_m(k, l)

Only q is kept from the forward pass, and the softmax that made it keeps that very tensor already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from messagenet.inference.dense.filters import Filter

WORTH_A_THREAD = 1 << 16  # numbers in a batch
Filters = tuple[tuple[Filter, ...], ...]  # by image, by kernel


def for_each_image(work: Callable[[int], None], batch: Tensor) -> None:
    """Calls `work` with the number of every image of a batch, without gradients.

    Images are shared out to as many threads as torch may use, unless they are too small to be worth it.
    """

    def quietly(image: int) -> None:
        with torch.no_grad():  # every thread has a switch of its own
            work(image)

    threads = min(torch.get_num_threads(), len(batch)) if batch.numel() > WORTH_A_THREAD else 1
    if threads == 1:
        for image in range(len(batch)):
            quietly(image)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="messagenet") as pool:
        list(pool.map(quietly, range(len(batch))))


def message_into(
    filters: Sequence[Filter],
    probabilities: Tensor,
    weights: Tensor,
    compatibility: Tensor | None,
    out: Tensor,
) -> None:
    """Sets `out` to the message in one image, without a gradient; both are (N, K), weights (kernels, K)."""
    gathered = out if compatibility is None else torch.empty_like(out)
    _gather(filters, probabilities, weights, gathered)
    if compatibility is not None:
        torch.mm(gathered, -compatibility.T, out=out)


def _gather(
    filters: Sequence[Filter], values: Tensor, weights: Tensor, out: Tensor, transpose: bool = False
) -> None:
    for number, (filter_, weight) in enumerate(zip(filters, weights, strict=True)):
        filter_.apply(values, weight, out, add=number > 0, transpose=transpose)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, probabilities: Tensor, weights: Tensor, compatibility: Tensor | None, filters: Filters
    ) -> Tensor:
        ctx.save_for_backward(probabilities, weights, compatibility)
        ctx.filters = filters
        out = torch.empty_like(probabilities)
        for_each_image(
            lambda image: message_into(
                filters[image], probabilities[image], weights, compatibility, out[image]
            ),
            out,
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        probabilities, weights, compatibility = ctx.saved_tensors
        _, for_weights, for_compatibility, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        if compatibility is None and not for_weights:
            return _sent_back(ctx.filters, grad, weights), None, None, None

        to_probabilities, to_weights = torch.zeros_like(grad), torch.empty_like(weights)
        to_compatibility = torch.zeros_like(compatibility) if for_compatibility else None
        plain = torch.ones_like(weights[:1])
        for number, weight in enumerate(weights):
            back = _sent_back([of_image[number : number + 1] for of_image in ctx.filters], grad, plain)
            pairs = back.flatten(0, 1).T @ probabilities.flatten(0, 1)  # (K, K)
            if compatibility is None:
                to_weights[number] = pairs.diagonal()
                to_probabilities.addcmul_(back, weight)
                continue
            to_weights[number] = -(compatibility * pairs).sum(0)
            if to_compatibility is not None:
                to_compatibility.addcmul_(pairs, weight, value=-1)
            to_probabilities.addcmul_(back @ compatibility, weight, value=-1)
        return to_probabilities, to_weights, to_compatibility, None


def _sent_back(filters: Sequence[Sequence[Filter]], grad: Tensor, weights: Tensor) -> Tensor:
    """(B, N, K) Σ_m (A_mᵀ g) diag(w_m)."""
    out = torch.empty_like(grad)
    for_each_image(
        lambda image: _gather(filters[image], grad[image], weights, out[image], transpose=True), out
    )
    return out


def interact(
    filters: Filters, probabilities: Tensor, weights: Tensor, compatibility: Tensor | None
) -> Tensor:
    """(B, N, K) the message to every pixel, differentiable in the three tensors.

    Args:
        filters: by image, by kernel.
        probabilities: (B, N, K).
        weights: (kernels, K).
        compatibility: (K, K), or None for Potts.
    """
    result: Tensor = _Interaction.apply(probabilities, weights, compatibility, filters)  # type: ignore[no-untyped-call]
    return result
