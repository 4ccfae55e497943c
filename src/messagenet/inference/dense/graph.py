"""The fully connected graph of a batch of images: every pixel tied to every other, by Gaussian kernels.

The graph holds what does not change between runs (the images' filters) apart from what does (potentials, weights,
compatibility): building a lattice costs more than an iteration of mean field.

What all pixels say to each pixel, and how it depends on what they say, the weights and the compatibility.

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
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from messagenet.errors import InputError, nearest
from messagenet.inference.dense.filters import (
    BACKENDS,
    NORMALISATIONS,
    Backend,
    Bilateral,
    ExactFilter,
    Filter,
    Gaussian,
    Kernel,
    Lattice,
    LatticeFilter,
    Normalisation,
    SpatialFilter,
    build_lattice,
    uses_numba,
)

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


Method = Literal["fast", "exact"]
METHODS: tuple[Method, ...] = ("fast", "exact")
DEEPLAB = (Gaussian(), Bilateral())


class DenseGraph:
    """The pixels of some images of one size, and how strongly each two of an image are tied.

    Filters are built on the first run and used again by later ones, whatever their weights; the images must not be
    written to before.

    >>> graph = DenseGraph(torch.zeros(2, 3, 4, 5))
    >>> graph.num_images, graph.size, len(graph.kernels)
    (2, (4, 5), 2)

    Attributes:
        kernels: what ties two pixels.
        num_images: images in the batch.
        size: height and width of each.
        batched: whether a batch was given, rather than one image.
        device: where the images are, and the potentials have to be.
        compiled: whether filters run in Numba's loops.
    """

    def __init__(
        self,
        images: Tensor,
        kernels: Sequence[Kernel] = DEEPLAB,
        *,
        method: Method = "fast",
        normalisation: Normalisation = "symmetric",
        backend: Backend = "auto",
    ) -> None:
        """Checks the arguments and keeps the images; nothing is computed yet.

        Args:
            images: (B, 3, H, W) or (3, H, W), floating point, in 0..1.
            kernels: one or more of `Gaussian` and `Bilateral`.
            method: "fast" (linear in the pixels) or "exact" (quadratic: a reference for small images).
            normalisation: "symmetric" (as pydensecrf), "after", "before" or "none": see `filters`.
            backend: "numba" or "torch" to force the fast filters' code; "auto" takes Numba on the CPU.
        """
        for name, value, known in (
            ("method", method, METHODS),
            ("normalisation", normalisation, NORMALISATIONS),
            ("backend", backend, BACKENDS),
        ):
            if value not in known:
                raise InputError(f'{name} "{value}" is not known; {nearest(value, known)}')
        _check_images(images)
        self.kernels = tuple(kernels)
        if not self.kernels or not all(isinstance(kernel, get_args(Kernel)) for kernel in self.kernels):
            raise InputError("kernels must be one or more of Gaussian(...) and Bilateral(...)")
        self.batched = images.ndim == 4
        self._images = (images if self.batched else images[None]).detach()
        self.num_images = len(self._images)
        self.size = (images.shape[-2], images.shape[-1])
        self.device = images.device
        self.method: Method = method
        self.normalisation: Normalisation = normalisation
        self.compiled = uses_numba(backend, self.device)
        if self.compiled and self.device.type != "cpu":
            raise InputError(f'backend "numba" runs on the CPU, the images are on {self.device}; use "auto"')
        self._lattices: dict[tuple[int, Kernel], Lattice] = {}
        self._filters: dict[torch.dtype, Filters] = {}

    def filters(self, dtype: torch.dtype) -> Filters:
        """The operators of every kernel, by image, for values of this dtype."""
        if dtype not in self._filters:
            like = torch.empty(0, dtype=dtype, device=self.device)
            shared: dict[Kernel, Filter] = {
                kernel: SpatialFilter(self.size, kernel.position, self.normalisation, like, self.compiled)
                for kernel in self.kernels
                if isinstance(kernel, Gaussian) and self.method == "fast"
            }
            built: dict[int, tuple[Filter, ...]] = {}

            def work(image: int) -> None:
                built[image] = tuple(
                    shared.get(kernel) or self._filter(image, kernel, like) for kernel in self.kernels
                )

            for_each_image(work, self._images)
            self._filters[dtype] = tuple(built[image] for image in range(self.num_images))
        return self._filters[dtype]

    def _filter(self, image: int, kernel: Kernel, like: Tensor) -> Filter:
        features = kernel.features(self._images[image])
        if self.method == "exact":
            return ExactFilter(features.to(like), self.normalisation)
        if (image, kernel) not in self._lattices:
            self._lattices[image, kernel] = build_lattice(features, compiled=self.compiled)
        return LatticeFilter(self._lattices[image, kernel], self.normalisation, like, self.compiled)


def _check_images(images: Tensor) -> None:
    if images.ndim not in (3, 4) or images.shape[-3] != 3 or images.numel() == 0:
        raise InputError(
            f"images have shape {tuple(images.shape)}; give (batch, 3, height, width) or (3, height, width)"
        )
    if not images.is_floating_point():
        raise InputError(f"images are {images.dtype}; convert them to floating point in 0..1 (divide by 255)")
    low, high = (float(extreme) for extreme in torch.aminmax(images.detach()))
    if not (low >= -0.01 and high <= 1.01):  # a resized image may overshoot a little; NaN fails too
        raise InputError(f"images range from {low:g} to {high:g}; bring them to 0..1 (divide 0..255 by 255)")
