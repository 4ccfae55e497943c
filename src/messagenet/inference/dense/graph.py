"""The fully connected graph of a batch of images: every pixel tied to every other, by Gaussian kernels.

The graph holds what does not change between runs (the images' filters) apart from what does (potentials, weights,
compatibility): building a lattice costs more than an iteration of mean field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.inference.dense.exact import ExactFilter
from messagenet.inference.dense.filters import (
    BACKENDS,
    NORMALISATIONS,
    Backend,
    Filter,
    Normalisation,
    uses_numba,
)
from messagenet.inference.dense.interaction import Filters, for_each_image
from messagenet.inference.dense.kernel import Bilateral, Gaussian, Kernel
from messagenet.inference.dense.lattice import Lattice, build_lattice
from messagenet.inference.dense.lattice_filter import LatticeFilter
from messagenet.inference.dense.spatial import SpatialFilter

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
