"""The fully connected graph of a batch of images: every pixel is a neighbour of every other, through Gaussian kernels.

    Gaussian     k(i, j) = exp(−|p_i − p_j|² / 2σ_p²)                              smoothness
    Bilateral    k(i, j) = exp(−|p_i − p_j|² / 2σ_p² − |c_i − c_j|² / 2σ_c²)       appearance

with positions p in pixels and colours c in 0..255 (Krähenbühl & Koltun, "Efficient inference in fully connected CRFs
with Gaussian edge potentials", NIPS 2011, eq. 3). Every kernel is exp(−|f_i − f_j|² / 2) of features f, so a sum over
all pixels is a Gaussian filter in feature space. The graph holds the filters, which cost more to build than an
iteration of mean field; potentials, weights and compatibility belong to a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.inference.dense.filters import (
    ExactFilter,
    Filter,
    FilterBackend,
    Lattice,
    LatticeFilter,
    Normalisation,
    SpatialFilter,
    build_lattice,
    uses_numba,
)


@dataclass(frozen=True)
class Gaussian:
    """Pixels near each other agree; the defaults are DeepLab's.

    Attributes:
        weight: of the kernel; `DenseMeanField.run(weights=…)` overrides it.
        position: σ_p, in pixels.
    """

    weight: float = 3.0
    position: float = 3.0

    def __post_init__(self) -> None:
        _check(self, "position")

    def features(self, image: Tensor) -> Tensor:
        """(H·W, 2) features of the pixels of an image (3, H, W), x first, in float64."""
        return (_positions(image) / self.position).T


@dataclass(frozen=True)
class Bilateral:
    """Pixels near each other and of similar colour agree; the defaults are DeepLab's.

    Attributes:
        weight: of the kernel; `DenseMeanField.run(weights=…)` overrides it.
        position: σ_p, in pixels.
        colour: σ_c, in units of 0..255 although images are 0..1, as in the literature.
    """

    weight: float = 10.0
    position: float = 80.0
    colour: float = 13.0

    def __post_init__(self) -> None:
        _check(self, "position", "colour")

    def features(self, image: Tensor) -> Tensor:
        """(H·W, 5) features of the pixels of an image (3, H, W) in 0..1: x, y, red, green, blue, in float64."""
        colours = image.detach().double().flatten(1) * (255 / self.colour)  # (3, N)
        return torch.cat([_positions(image) / self.position, colours]).T


Kernel = Gaussian | Bilateral


def _check(kernel: Kernel, *lengths: str) -> None:
    for name in lengths:
        if not (getattr(kernel, name) > 0 and math.isfinite(getattr(kernel, name))):
            raise InputError(
                f"{name} of {type(kernel).__name__} is {getattr(kernel, name)}; give a positive standard deviation"
            )
    if not math.isfinite(kernel.weight):
        raise InputError(f"weight of {type(kernel).__name__} is {kernel.weight}; give a finite number")


def _positions(image: Tensor) -> Tensor:
    """(2, H·W) x and y of every pixel, rows first."""
    height, width = image.shape[-2:]
    rows = torch.arange(height, dtype=torch.float64, device=image.device)
    columns = torch.arange(width, dtype=torch.float64, device=image.device)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()])


WORTH_A_THREAD = 1 << 16  # entries of a batch
Filters = tuple[tuple[Filter, ...], ...]  # by image, by kernel


def for_each_image(work: Callable[[int], None], batch: Tensor) -> None:
    """Calls `work` with the index of every image, without gradients; large batches run in as many threads as torch."""

    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad

    def work_without_grad(image: int) -> None:
        with mode():  # it belongs to a thread
            work(image)

    threads = min(torch.get_num_threads(), len(batch)) if batch.numel() > WORTH_A_THREAD else 1
    if threads == 1:
        for image in range(len(batch)):
            work_without_grad(image)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="messagenet") as pool:
        list(pool.map(work_without_grad, range(len(batch))))


DenseMethod = Literal["fast", "exact"]
DEEPLAB = (Gaussian(), Bilateral())


class DenseGraph:
    """The pixels of some images of one size, and the kernels between every two pixels of an image.

    Filters are built on the first run, before which the images must not be modified, and reused for any weights.

    >>> graph = DenseGraph(torch.zeros(2, 3, 4, 5))
    >>> graph.num_images, graph.size, len(graph.kernels)
    (2, (4, 5), 2)

    Attributes:
        kernels: between every two pixels.
        num_images: images in the batch.
        size: height and width of each.
        batched: whether a batch was given, rather than one image.
        device: of the images; the potentials must be there, too.
        compiled: whether filters run in Numba's kernels.
    """

    def __init__(
        self,
        images: Tensor,
        kernels: Sequence[Kernel] = DEEPLAB,
        *,
        method: DenseMethod = "fast",
        normalisation: Normalisation = "symmetric",
        backend: FilterBackend = "auto",
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
            ("method", method, get_args(DenseMethod)),
            ("normalisation", normalisation, get_args(Normalisation)),
            ("backend", backend, get_args(FilterBackend)),
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
        self.method: DenseMethod = method
        self.normalisation: Normalisation = normalisation
        self.compiled = uses_numba(backend, self.device)
        if self.compiled and self.device.type != "cpu":
            raise InputError(f'backend "numba" runs on the CPU, the images are on {self.device}; use "auto"')
        self._lattices: dict[tuple[int, Kernel], Lattice] = {}
        self._filters: dict[torch.dtype, Filters] = {}

    def filters(self, dtype: torch.dtype) -> Filters:
        """The operators of every kernel, by image, for values of this dtype."""
        if dtype not in self._filters:
            ref = torch.empty(0, dtype=dtype, device=self.device)
            shared: dict[Kernel, Filter] = {
                kernel: SpatialFilter(self.size, kernel.position, self.normalisation, ref, self.compiled)
                for kernel in self.kernels
                if isinstance(kernel, Gaussian) and self.method == "fast"
            }
            built: dict[int, tuple[Filter, ...]] = {}

            def work(image: int) -> None:
                built[image] = tuple(shared.get(kernel) or self._filter(image, kernel, ref) for kernel in self.kernels)

            for_each_image(work, self._images)
            self._filters[dtype] = tuple(built[image] for image in range(self.num_images))
        return self._filters[dtype]

    def _filter(self, image: int, kernel: Kernel, ref: Tensor) -> Filter:
        features = kernel.features(self._images[image])
        if self.method == "exact":
            return ExactFilter(features.to(ref), self.normalisation)
        if (image, kernel) not in self._lattices:
            self._lattices[image, kernel] = build_lattice(features, compiled=self.compiled)
        return LatticeFilter(self._lattices[image, kernel], self.normalisation, ref, self.compiled)


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
