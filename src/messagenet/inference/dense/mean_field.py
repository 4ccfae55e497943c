"""Mean field in a fully connected CRF (Krähenbühl & Koltun, NIPS 2011), differentiable, any number of images.

The CRF has a pairwise factor for every two pixels i < j of an image:

    log P(y) = Σ_i u_i(y_i) − Σ_{i<j} Σ_m k_m(i, j) M_m(y_i, y_j) − log Z,       M_m(k, l) = μ(k, l) w_m(l)

with compatibility μ (Potts: 1 − I), kernel weights w_m, per class or shared, and kernels k_m normalised as the graph
says. Starting from q = softmax(u), an iteration updates all pixels at once:

    gathered_i(l) = Σ_m w_m(l) Σ_j A_m(i, j) q_j(l)
    message_i(k)  = −Σ_l μ(k, l) gathered_i(l)
    q_i           ← softmax(u_i + message_i)

As in all published code the sum includes j = i. With μ = 1 − I and one weight per kernel these are the updates of
pydensecrf with `PottsCompatibility(w_m)`; with learned μ and w those of CRF-RNN (Zheng et al., ICCV 2015). The Potts
message is gathered_i(k) up to a constant over k, which a softmax ignores: no matrix is multiplied.

With g the gradient in the message and h_m = A_mᵀ g, all gradients follow from one transposed filter per kernel and q,
the only tensor that the forward pass stores:

    dq = −Σ_m (h_m μ) diag(w_m)      C_m(k, l) = Σ_i h_m,i(k) q_i(l)
    dμ = −Σ_m C_m diag(w_m)          dw_m(l)   = −Σ_k μ(k, l) C_m(k, l)

The lower bound leaves j = i out:

    log Z ≥ Σ_i E_q[u_i] + H(q_i) − ½ Σ_m Σ_{i≠j} k_m(i, j) q_iᵀ M_m q_j

It is the bound of the CRF above (of its symmetric part ½(M_m + M_mᵀ), since a pair of pixels has no order). With
`method="exact"` it holds for every q; with the fast filters up to their approximation of kernel and diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from messagenet.errors import InputError
from messagenet.inference.dense.filters import Filter, uses_numba
from messagenet.inference.dense.graph import DenseGraph, Filters, for_each_image
from messagenet.inference.engine import check_settings


def message_into(
    filters: Sequence[Filter], probabilities: Tensor, weights: Tensor, compatibility: Tensor | None, out: Tensor
) -> None:
    """Sets `out` to the message in one image, without a gradient; both are (N, K), weights (kernels, K)."""
    gathered = out if compatibility is None else torch.empty_like(out)
    _gather(filters, probabilities, weights, gathered)
    if compatibility is not None:
        torch.mm(gathered, -compatibility.T, out=out)


def _gather(filters: Sequence[Filter], values: Tensor, weights: Tensor, out: Tensor, transpose: bool = False) -> None:
    for index, (filter_, weight) in enumerate(zip(filters, weights, strict=True)):
        filter_.apply(values, weight, out, add=index > 0, transpose=transpose)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, probabilities: Tensor, weights: Tensor, compatibility: Tensor | None, filters: Filters
    ) -> Tensor:
        ctx.save_for_backward(probabilities, weights, compatibility)
        ctx.filters = filters
        out = torch.empty_like(probabilities)
        for_each_image(
            lambda image: message_into(filters[image], probabilities[image], weights, compatibility, out[image]), out
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        probabilities, weights, compatibility = ctx.saved_tensors
        _, for_weights, for_compatibility, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        if compatibility is None and not for_weights:
            return _transposed(ctx.filters, grad, weights), None, None, None
        to_probabilities, to_weights = torch.zeros_like(grad), torch.empty_like(weights)
        to_compatibility = torch.zeros_like(compatibility) if for_compatibility else None
        unit = torch.ones_like(weights[:1])
        for index, weight in enumerate(weights):
            back = _transposed([of_image[index : index + 1] for of_image in ctx.filters], grad, unit)
            pairs = back.flatten(0, 1).T @ probabilities.flatten(0, 1)  # (K, K)
            if compatibility is None:
                to_weights[index] = pairs.diagonal()
                to_probabilities.addcmul_(back, weight)
                continue
            to_weights[index] = -(compatibility * pairs).sum(0)
            if to_compatibility is not None:
                to_compatibility.addcmul_(pairs, weight, value=-1)
            to_probabilities.addcmul_(back @ compatibility, weight, value=-1)
        return to_probabilities, to_weights, to_compatibility, None


def _transposed(filters: Sequence[Sequence[Filter]], grad: Tensor, weights: Tensor) -> Tensor:
    """(B, N, K) Σ_m (A_mᵀ g) diag(w_m)."""
    out = torch.empty_like(grad)
    for_each_image(lambda image: _gather(filters[image], grad[image], weights, out[image], transpose=True), out)
    return out


def interact(filters: Filters, probabilities: Tensor, weights: Tensor, compatibility: Tensor | None) -> Tensor:
    """(B, N, K) message to every pixel, differentiable; weights are (kernels, K), compatibility None is Potts."""
    result: Tensor = _Interaction.apply(probabilities, weights, compatibility, filters)  # type: ignore[no-untyped-call]
    return result


def softmax_into(potentials: Tensor, message: Tensor | None, out: Tensor, *, compiled: bool) -> None:
    """Sets `out` to softmax(potentials + message), all (…, K) and contiguous, without a gradient."""
    if compiled and potentials.dtype == torch.float32:
        from messagenet.inference.dense.kernels import softmax_rows

        flat = potentials.view(-1).numpy()
        added = flat[:0] if message is None else message.view(-1).numpy()
        softmax_rows(flat, added, potentials.shape[-1], out.view(-1).numpy())
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
        from messagenet.inference.dense.kernels import softmax_gradient

        (probabilities,) = ctx.saved_tensors
        out = torch.empty_like(probabilities)
        values, gradient = probabilities.view(-1).numpy(), grad.contiguous().view(-1).numpy()
        softmax_gradient(values, gradient, out.shape[-1], out.view(-1).numpy())
        return out, out if ctx.needs_input_grad[1] else None


def softmax(potentials: Tensor, message: Tensor | None = None, *, compiled: bool) -> Tensor:
    """The probabilities, with a gradient that stores nothing else.

    >>> softmax(torch.tensor([[0.0, 0.0]]), compiled=False)
    tensor([[0.5000, 0.5000]])
    """
    if compiled and potentials.dtype == torch.float32:
        result: Tensor = _Softmax.apply(potentials.contiguous(), message)  # type: ignore[no-untyped-call]
        return result
    return torch.softmax(potentials if message is None else potentials + message, -1)


@dataclass(frozen=True, eq=False)
class DenseResult:
    """Beliefs of every pixel, in the words of `messagenet.inference.Result`; computed on first access.

    Attributes:
        logits: (B, K, H, W), or (K, H, W) for one image: log-marginals up to a constant per pixel.
        iterations: how many were run.
        converged: always False: the number of iterations is fixed and no change is measured.
        history: empty, for the same reason.
    """

    logits: Tensor
    iterations: int
    compute_log_z: Callable[[], Tensor] = field(repr=False)
    compute_messages: Callable[[], Tensor] = field(repr=False)
    converged: bool = False
    history: tuple[float, ...] = ()

    @cached_property
    def log_marginals(self) -> Tensor:
        """(B, K, H, W) normalised logs."""
        return self.logits.log_softmax(-3)

    @cached_property
    def marginals(self) -> Tensor:
        """(B, K, H, W) probabilities."""
        compiled = uses_numba("auto", self.logits.device)
        return softmax(self.logits.movedim(-3, -1), compiled=compiled).movedim(-1, -3)

    @property
    def map_state(self) -> Tensor:
        """(B, H, W) each pixel's most probable class."""
        return self.logits.argmax(-3)

    @cached_property
    def messages(self) -> Tensor:
        """(B, K, H, W) the last message to every pixel, logits less log-potentials."""
        return self.compute_messages()

    @cached_property
    def log_z(self) -> Tensor:
        """(B,) mean-field lower bound on log Z."""
        return self.compute_log_z()


@dataclass(frozen=True)
class DenseMeanField:
    """Settings of mean field on a dense graph.

    >>> graph = DenseGraph(torch.zeros(3, 1, 2))
    >>> potentials = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])  # (2, 1, 2): the pixels disagree
    >>> DenseMeanField(iterations=5).run(graph, potentials).map_state
    tensor([[0, 0]])

    Attributes:
        iterations: how often all pixels are updated.
    """

    iterations: int = 10

    def __post_init__(self) -> None:
        check_settings(self)

    def run(
        self,
        graph: DenseGraph,
        log_potentials: Tensor,
        *,
        weights: Tensor | None = None,
        compatibility: Tensor | None = None,
    ) -> DenseResult:
        """Infers the marginals of all pixels; gradients flow to the three tensors, not to the images.

        Args:
            graph: the images and kernels.
            log_potentials: (B, K, H, W), or (K, H, W) for one image; higher is more probable (minus the energy).
                Fastest in `channels_last` memory format, which is how logits are returned.
            weights: (kernels,) or (kernels, K), in place of the kernels' own.
            compatibility: (K, K) the cost μ(k, l) of class k given a neighbour of class l; Potts if None.
        """
        problem = _problem(graph, log_potentials, weights, compatibility)
        if problem.needs_gradient:
            logits = problem.iterate(self.iterations)
        else:
            problem = problem.detached()
            logits = problem.iterate_in_place(self.iterations)
        return DenseResult(
            problem.to_user_layout(logits),
            self.iterations,
            compute_log_z=lambda: problem.bound(logits),
            compute_messages=lambda: problem.to_user_layout(logits - problem.potentials),
        )


@dataclass(frozen=True, eq=False)
class _Problem:
    """The mean-field equations of one run, pixels in one axis and classes last."""

    graph: DenseGraph
    potentials: Tensor  # (B, N, K)
    weights: Tensor  # (kernels, K)
    compatibility: Tensor | None  # (K, K), or None for Potts

    @property
    def needs_gradient(self) -> bool:
        tensors = (self.potentials, self.weights, self.compatibility)
        return torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in tensors)

    def detached(self) -> _Problem:
        compatibility = None if self.compatibility is None else self.compatibility.detach()
        return _Problem(self.graph, self.potentials.detach(), self.weights.detach(), compatibility)

    def iterate(self, iterations: int) -> Tensor:
        """(B, N, K) logits, differentiable; the probabilities of every iteration are stored for the gradient."""
        filters, compiled = self.graph.filters(self.potentials.dtype), self.graph.compiled
        message = None
        for _ in range(iterations):
            q = softmax(self.potentials, message, compiled=compiled)
            message = interact(filters, q, self.weights, self.compatibility)
        return self.potentials if message is None else self.potentials + message

    def iterate_in_place(self, iterations: int) -> Tensor:
        """The same without a gradient, image by image, so that one image's values stay in the cache."""
        filters, compiled = self.graph.filters(self.potentials.dtype), self.graph.compiled
        out = torch.empty_like(self.potentials)

        def work(image: int) -> None:
            potentials, message = self.potentials[image], out[image]
            q = torch.empty_like(message)
            for iteration in range(iterations):
                softmax_into(potentials, message if iteration > 0 else None, q, compiled=compiled)
                message_into(filters[image], q, self.weights, self.compatibility, message)
            message += potentials

        for_each_image(work, out)
        return out

    def to_user_layout(self, values: Tensor) -> Tensor:
        """(B, N, K) as (B, K, H, W), in `channels_last` memory format; without B for one image."""
        shaped = values.view(len(values), *self.graph.size, -1).permute(0, 3, 1, 2)
        return shaped if self.graph.batched else shaped[0]

    def bound(self, logits: Tensor) -> Tensor:
        """(B,) the lower bound on log Z, or a number for one image."""
        filters = self.graph.filters(self.potentials.dtype)
        log_q = logits.log_softmax(-1)
        q = log_q.exp()
        gathered = interact(filters, q, self.weights, None)
        for index, weight in enumerate(self.weights):
            own = torch.stack([of_image[index].diagonal() for of_image in filters])  # (B, N)
            gathered = gathered - own[..., None] * q * weight
        compatibility = self.compatibility
        if compatibility is None:
            compatibility = 1 - torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
        bound = (q * (self.potentials - log_q - 0.5 * gathered @ compatibility.T)).sum((1, 2))
        return bound if self.graph.batched else bound[0]


def _problem(
    graph: DenseGraph, log_potentials: Tensor, weights: Tensor | None, compatibility: Tensor | None
) -> _Problem:
    """Checks that everything fits together and puts classes last."""
    expected = (graph.num_images,) if graph.batched else ()
    shape = tuple(log_potentials.shape)
    if len(shape) != len(expected) + 3 or shape[:-3] != expected or shape[-2:] != graph.size or shape[-3] < 1:
        wanted = ", ".join(map(str, (*expected, "classes", *graph.size)))
        raise InputError(f"log_potentials have shape {shape}; for these images give ({wanted})")
    classes, kernels = shape[-3], len(graph.kernels)
    if weights is None:
        weights = torch.tensor([kernel.weight for kernel in graph.kernels], dtype=torch.float64, device=graph.device)
    if tuple(weights.shape) not in ((kernels,), (kernels, classes)):
        raise InputError(f"weights have shape {tuple(weights.shape)}; give ({kernels},) or ({kernels}, {classes})")
    if compatibility is not None and tuple(compatibility.shape) != (classes, classes):
        raise InputError(
            f"compatibility has shape {tuple(compatibility.shape)}; for {classes} classes give ({classes}, {classes})"
        )
    named = {"log_potentials": log_potentials, "weights": weights, "compatibility": compatibility}
    for name, values in named.items():
        if values is None:
            continue
        if values.device != graph.device:
            raise InputError(f"{name} are on {values.device}, the images on {graph.device}; move them there")
        if not (values.is_floating_point() and bool(torch.stack(values.detach().aminmax()).isfinite().all())):
            fix = "; clamp them to at least -1e4" if name == "log_potentials" else ""
            raise InputError(f"{name} must be finite floating-point numbers{fix}")
    dtype = torch.float64 if log_potentials.dtype == torch.float64 else torch.float32
    batch = log_potentials if graph.batched else log_potentials[None]
    flat = batch.to(dtype).permute(0, 2, 3, 1).flatten(1, 2).contiguous()  # (B, N, K)
    spread = (weights if weights.ndim == 2 else weights[:, None]).to(dtype).expand(kernels, classes)
    return _Problem(graph, flat, spread, None if compatibility is None else compatibility.to(dtype))
