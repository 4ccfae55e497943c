"""Filters of a fully connected CRF: the matrix of one kernel on one image, never written out.

    A = diag(post) · k · diag(pre)        k(i, j) = exp(−|f_i − f_j|² / 2) between all pixels, the diagonal included

The normalisation sets the scales on either side of the kernel, with d = k·1 its row sums:

| name      | pre   | post  | used by                                                |
|-----------|-------|-------|--------------------------------------------------------|
| symmetric | d^−½  | d^−½  | Krähenbühl & Koltun's second paper (2013), pydensecrf  |
| after     | 1     | 1/d   | weighted means; CRF-RNN                                |
| before    | 1/d   | 1     | the transpose of `after`                               |
| none      | 1     | 1     | Krähenbühl & Koltun 2011 as written                    |

`ExactFilter` is the O(N²) reference. `SpatialFilter` is the separable kernel exp(−dy² / 2σ²) · exp(−dx² / 2σ²) on a
grid of pixels; its row sums and scales are separable, too. Distances beyond 4σ are left out: less than 1e-4 of the
kernel's sum, where the lattice is off by several per cent. It costs 2·(8σ + 1) multiply-adds per pixel and class.

`LatticeFilter` is any kernel through the permutohedral lattice, in time linear in the pixels (Adams, Baek & Davis,
"Fast high-dimensional filtering using the permutohedral lattice", Eurographics 2010):

    A ≈ diag(post) · Sᵀ B_d ⋯ B_1 B_0 S · diag(pre) / (1 + 2^−d)

S splats every pixel onto the d + 1 vertices of its simplex with barycentric weights, B_j blurs along axis j with
(½, 1, ½), Sᵀ slices (reads the vertices back); the last factor makes the diagonal 1 for a pixel on a vertex. The
transpose blurs in reverse order. Absent vertices pass nothing on, so A is not quite symmetric. Largest difference of a
marginal on a 32×40 image with 5 classes (σ_p = 20, σ_c = 13, and a spatial kernel with σ_p = 3); no label differs:

| mean-field iterations                      | 1      | 5      | 10     |
|--------------------------------------------|--------|--------|--------|
| to the exact kernels                       | 0.025  | 0.0009 | 0.0009 |
| to pydensecrf, spatial kernel as here      | 0.0043 | 0.0002 | 0.0002 |
| to pydensecrf, spatial kernel on a lattice | 2e-7   | 2e-7   | 2e-7   |

The lattice A*_d tiles d-dimensional space with simplices of d + 1 vertices. It is written in d + 1 coordinates that sum
to zero; vertices have integer ones, all congruent modulo d + 1. To locate features f:

1. elevate them to that hyperplane, y = E·f, so stretched that the blur has standard deviation 1 (§3.1);
2. round every y_i to the nearest multiple of d + 1, and rank the remainders; moving the coordinates with the extreme
   ranks by d + 1 until the sum is zero gives the nearest vertex with remainder 0;
3. that vertex and the ranks give the simplex; differences of consecutive remainders are the barycentric weights.

Only vertices of simplices with a pixel in them exist. A vertex is one integer, its first d coordinates in mixed radix;
a neighbour's integer is its own plus a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.errors import InputError

Normalisation = Literal["symmetric", "after", "before", "none"]
FilterBackend = Literal["auto", "numba", "torch"]


class Filter(Protocol):
    """A linear operator on the pixels of one image, the same for every class."""

    def apply(
        self, values: Tensor, weights: Tensor, out: Tensor, *, add: bool = False, transpose: bool = False
    ) -> None:
        """Sets out = (A·values)·diag(weights), both (N, K) and contiguous, or adds it; with `transpose` for Aᵀ."""
        ...

    def diagonal(self) -> Tensor:
        """(N,) the diagonal of A: the weight of a pixel in its own sum."""
        ...


def scales(normalisation: Normalisation, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The factors before and after a kernel with these row sums.

    >>> scales("symmetric", torch.tensor([4.0]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    one = torch.ones_like(sums)
    if normalisation == "symmetric":
        root = sums.rsqrt()
        return root, root
    if normalisation == "after":
        return one, sums.reciprocal()
    if normalisation == "before":
        return sums.reciprocal(), one
    return one, one


def uses_numba(backend: FilterBackend, device: torch.device) -> bool:
    """Whether the compiled kernels run: by default on the CPU."""
    return backend == "numba" or (backend == "auto" and device.type == "cpu")


ENTRIES = 1 << 22  # of the kernel, in memory at once


class ExactFilter:
    """One kernel on one image; features are (N, d).

    >>> line = ExactFilter(torch.tensor([[0.0], [2.0]]), "none")
    >>> line.apply(torch.eye(2), torch.ones(2), out := torch.empty(2, 2))
    >>> out
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """

    def __init__(self, features: Tensor, normalisation: Normalisation) -> None:
        self.features = features
        ones = features.new_ones(len(features), 1)
        self.pre = self.post = ones[:, 0]
        sums = torch.empty_like(ones)
        self.apply(ones, ones[0], sums)
        self.pre, self.post = scales(normalisation, sums[:, 0])

    def apply(
        self, values: Tensor, weights: Tensor, out: Tensor, *, add: bool = False, transpose: bool = False
    ) -> None:
        """See `Filter.apply`."""
        pre, post = (self.post, self.pre) if transpose else (self.pre, self.post)
        weighted = values * pre[:, None] * weights  # (N, K)
        rows = max(1, ENTRIES // len(values))
        for start in range(0, len(values), rows):
            block = slice(start, start + rows)
            distance = torch.cdist(self.features[block], self.features, compute_mode="donot_use_mm_for_euclid_dist")
            part = (-0.5 * distance.square()).exp() @ weighted * post[block, None]
            out[block] = out[block] + part if add else part

    def diagonal(self) -> Tensor:
        """See `Filter.diagonal`."""
        return self.pre * self.post


MAX_DEVIATIONS = 4.0  # distance at which the spatial kernel ends


class SpatialFilter:
    """The Gaussian kernel on images of one size; `compiled` runs Numba's loops, otherwise two matrix products.

    >>> row = SpatialFilter((1, 3), 1.0, "after", torch.zeros(0), compiled=False)
    >>> row.apply(torch.tensor([[1.0], [0.0], [0.0]]), torch.ones(1), out := torch.empty(3, 1))
    >>> out.flatten()
    tensor([0.5741, 0.2741, 0.0777])
    """

    def __init__(
        self, size: tuple[int, int], position: float, normalisation: Normalisation, ref: Tensor, compiled: bool
    ) -> None:
        self.compiled = compiled
        self.size = size
        self.rows, self.columns = (_Axis(length, position, normalisation, ref) for length in size)

    def apply(
        self, values: Tensor, weights: Tensor, out: Tensor, *, add: bool = False, transpose: bool = False
    ) -> None:
        """See `Filter.apply`."""
        if self.compiled:
            self._convolve(values, weights, out, add, transpose)
            return
        height, width = self.size
        rows, columns = self.rows.matrix, self.columns.matrix
        if transpose:
            rows, columns = rows.T, columns.T
        moved = (rows @ (values * weights).view(height, -1)).view(height, width, -1)
        result = (columns @ moved).view_as(values)
        out.copy_(out + result if add else result)

    def _convolve(self, values: Tensor, weights: Tensor, out: Tensor, add: bool, transpose: bool) -> None:
        from messagenet.inference.dense.kernels import horizontal, vertical

        down, across = self.rows.scales, self.columns.scales
        if transpose:
            down, across = down[::-1], across[::-1]
        before = torch.outer(across[0], weights).view(-1).numpy()  # (W·K,)
        after = across[1].repeat_interleave(values.shape[1]).numpy()
        between = torch.empty_like(values).view(-1).numpy()
        flat, target = values.view(-1).numpy(), out.view(-1).numpy()
        horizontal(flat, self.columns.taps.numpy(), values.shape[1], down[0].numpy(), before, between)
        vertical(between, self.rows.taps.numpy(), down[1].numpy(), after, add, target)

    def diagonal(self) -> Tensor:
        """See `Filter.diagonal`."""
        return torch.outer(self.rows.diagonal, self.columns.diagonal).flatten()


class _Axis:
    """The kernel along one direction: values at distances 0, 1, …, and the scales before and after it."""

    def __init__(self, length: int, position: float, normalisation: Normalisation, ref: Tensor) -> None:
        radius = min(math.ceil(MAX_DEVIATIONS * position), length - 1)
        distance = torch.arange(radius + 1, dtype=torch.float64, device=ref.device)
        taps = (-0.5 * (distance / position).square()).exp()
        one_sided = taps.cumsum(0)
        positions = torch.arange(length, device=ref.device)
        behind, ahead = positions.clamp_max(radius), (length - 1 - positions).clamp_max(radius)
        pre, post = scales(normalisation, one_sided[behind] + one_sided[ahead] - taps[0])
        self.length = length
        self.taps = taps.to(ref)
        self.scales = (pre.to(ref), post.to(ref))
        self.diagonal = (pre * post).to(ref)

    @cached_property
    def matrix(self) -> Tensor:
        """(length, length) the kernel between all positions, scaled."""
        positions = torch.arange(self.length, device=self.taps.device)
        apart = (positions[:, None] - positions).abs()
        reached = functional.pad(self.taps, (0, self.length - len(self.taps)))
        return self.scales[1][:, None] * reached[apart] * self.scales[0]


@dataclass(frozen=True, eq=False)
class Lattice:
    """A lattice around the pixels of one image."""

    vertices: Tensor  # (N, d + 1) int32 indices of the vertices of each pixel's simplex
    weights: Tensor  # (N, d + 1) float64 barycentric weights: positive, summing to 1
    neighbours: Tensor  # (d + 1, 2, vertices) int32 vertices ahead and behind on every axis; their count if absent

    @property
    def size(self) -> int:
        """How many vertices there are."""
        return self.neighbours.shape[2]


def build_lattice(features: Tensor, *, compiled: bool) -> Lattice:
    """The lattice of features (N, d) in float64, by Numba's kernel or in plain torch: the same but for vertex order.

    >>> lattice = build_lattice(torch.zeros(4, 2, dtype=torch.float64), compiled=False)
    >>> lattice.size, lattice.weights[0].tolist()
    (3, [1.0, 0.0, 0.0])
    """
    dimensions = features.shape[1]
    deviation = math.sqrt(2 / 3) * (dimensions + 1)  # of the blur, in the lattice's own units
    axes = torch.arange(dimensions, dtype=torch.float64, device=features.device)
    scale = deviation / ((axes + 1) * (axes + 2)).sqrt()
    low, strides = _packing(_elevate(_corners_of_box(features), scale))
    ahead = (dimensions + 1) * strides - strides.sum()  # one step on an axis: +d there, −1 on the others
    if compiled:
        return _compiled_lattice(features, scale, low, strides, ahead)
    keys, weights = locate(features, scale, low, strides)
    known, vertices = torch.unique(keys, return_inverse=True)
    found = torch.stack([torch.stack([_find(known, known + step), _find(known, known - step)]) for step in ahead])
    return Lattice(vertices.int(), weights, found.int())


def _compiled_lattice(features: Tensor, scale: Tensor, low: Tensor, strides: Tensor, ahead: Tensor) -> Lattice:
    from messagenet.inference.dense.kernels import find_neighbours, locate_pixels

    pixels, corners = len(features), len(strides)
    vertices = torch.empty(pixels, corners, dtype=torch.int32)
    weights = torch.empty(pixels, corners, dtype=torch.float64)
    arguments = [part.numpy() for part in (features.T.contiguous(), scale, low, strides, vertices, weights)]
    table, keys = locate_pixels(*arguments)
    neighbours = torch.empty(corners, 2, len(keys), dtype=torch.int32)
    find_neighbours(table, keys, ahead.numpy(), neighbours.numpy())
    return Lattice(vertices, weights, neighbours)


def _find(known: Tensor, wanted: Tensor) -> Tensor:
    """The indices of `wanted` integers in the sorted `known` ones; their count where absent."""
    index = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
    return torch.where(known[index] == wanted, index, len(known))


def _corners_of_box(features: Tensor) -> Tensor:
    """(2^d, d) the corners of the smallest box around the features."""
    return torch.cartesian_prod(*torch.stack([features.amin(0), features.amax(0)], 1)).view(-1, features.shape[1])


def _packing(extremes: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets and factors that pack the d + 1 coordinates of a vertex, and of its neighbours, into one integer."""
    corners = extremes.shape[1]
    low = extremes.amin(0).floor().long() - 3 * corners
    extent = extremes.amax(0).ceil().long() + 3 * corners - low
    factors = [1]
    for length in extent[:-1].tolist():
        factors.append(factors[-1] * length)
    if factors[-1] >= 1 << 62:
        raise InputError(
            "the image spans too many standard deviations of the kernel for a lattice; "
            'give larger ones (position, colour) or use method="exact"'
        )
    factors[-1] = 0  # the last coordinate follows from the others
    return low, torch.tensor(factors, device=extremes.device)


def _elevate(features: Tensor, scale: Tensor) -> Tensor:
    """(N, d + 1) coordinates in the hyperplane: y_j = Σ_{i ≥ j} s_i f_i − j·s_{j−1} f_{j−1}."""
    total = torch.zeros_like(features[:, 0])
    columns = []
    for j in range(features.shape[1], 0, -1):
        step = features[:, j - 1] * scale[j - 1]
        columns.append(total - j * step)
        total = total + step
    return torch.stack([total, *reversed(columns)], 1)


def locate(features: Tensor, scale: Tensor, low: Tensor, strides: Tensor) -> tuple[Tensor, Tensor]:
    """(N, d + 1) the integers of the vertices around every pixel, by remainder 0, …, d, and their weights."""
    elevated = _elevate(features, scale)
    corners = elevated.shape[1]
    multiple = (elevated / corners + 0.5).floor().long()
    nearest = multiple * corners
    residual = elevated - nearest
    rank = multiple.sum(1, keepdim=True).expand_as(nearest).clone()
    for i in range(corners):
        for j in range(i + 1, corners):
            smaller = residual[:, i] < residual[:, j]
            rank[:, i] += smaller
            rank[:, j] += ~smaller
    moved = (rank < 0).long() - (rank >= corners).long()
    rank, nearest = rank + corners * moved, nearest + corners * moved
    part = (elevated - nearest) / corners
    weights = part.new_zeros(len(part), corners + 1)
    weights.scatter_add_(1, corners - 1 - rank, part)
    weights.scatter_add_(1, corners - rank, -part)
    weights[:, 0] += 1.0 + weights[:, corners]
    first = ((nearest - low) * strides).sum(1, keepdim=True)
    by_rank = torch.zeros_like(rank).scatter_(1, rank, strides.expand_as(rank))
    steps = strides.sum() - corners * by_rank.flip(1)[:, :-1]  # from the vertex of one remainder to the next
    return torch.cat([first, first + steps.cumsum(1)], 1), weights[:, :corners]


class LatticeFilter:
    """One kernel on one image by its lattice, in `ref`'s dtype and on its device; `compiled` runs Numba's loops."""

    def __init__(self, lattice: Lattice, normalisation: Normalisation, ref: Tensor, compiled: bool) -> None:
        self.compiled = compiled
        self.lattice = lattice
        self._starts: tuple[int, Tensor] | None = None
        corners = lattice.weights.shape[1]
        weights = lattice.weights.to(ref) / (1 + 2.0 ** (1 - corners)) ** 0.5
        self.splatting = self.slicing = weights
        ones = torch.ones_like(weights[:, :1])
        sums = torch.empty_like(ones)
        self.apply(ones, ones[0], sums)
        pre, post = scales(normalisation, sums)
        self.splatting = weights * pre
        self.slicing = self.splatting if pre is post else weights * post

    def apply(
        self, values: Tensor, weights: Tensor, out: Tensor, *, add: bool = False, transpose: bool = False
    ) -> None:
        """See `Filter.apply`."""
        splatting, slicing = (self.slicing, self.splatting) if transpose else (self.splatting, self.slicing)
        neighbours = self.lattice.neighbours.flip(0) if transpose else self.lattice.neighbours
        classes, vertices = values.shape[1], self.lattice.vertices
        lattice = values.new_zeros(self.lattice.size + 1, classes)
        if self.compiled:
            from messagenet.inference.dense.kernels import blur, slice_back, splat

            starts = self._rows(classes).numpy()
            blurred = torch.empty_like(lattice)
            blurred[-1] = 0
            splat(values.view(-1).numpy(), starts, splatting.numpy(), classes, lattice.view(-1).numpy())
            for ahead, behind in neighbours:
                blur(lattice.view(-1).numpy(), ahead.numpy(), behind.numpy(), classes, blurred.view(-1).numpy())
                lattice, blurred = blurred, lattice
            lattice *= weights
            slice_back(lattice.view(-1).numpy(), starts, slicing.numpy(), classes, add, out.view(-1).numpy())
            return
        for corner, weight in zip(vertices.T, splatting.T, strict=True):
            lattice.index_add_(0, corner, weight[:, None] * values)
        for ahead, behind in neighbours:
            lattice[:-1] += 0.5 * (lattice.index_select(0, ahead) + lattice.index_select(0, behind))
        lattice *= weights
        if not add:
            out.zero_()
        for corner, weight in zip(vertices.T, slicing.T, strict=True):
            out.addcmul_(weight[:, None], lattice.index_select(0, corner))

    def _rows(self, classes: int) -> Tensor:
        """(N, d + 1) where the vertices' rows begin in a flat buffer; cached for one number of classes."""
        if self._starts is None or self._starts[0] != classes:
            dtype = torch.int32 if (self.lattice.size + 1) * classes < 1 << 31 else torch.int64
            self._starts = (classes, self.lattice.vertices.to(dtype) * classes)
        return self._starts[1]

    def diagonal(self) -> Tensor:
        """See `Filter.diagonal`; exact where no vertex within reach of the blur is absent."""
        corners = self.lattice.weights.shape[1]
        remainder = torch.arange(corners, dtype=torch.float64, device=self.splatting.device)
        apart = (remainder[:, None] - remainder).abs()
        # The blur goes s steps ahead or d + 1 − s behind, each step worth ½; to itself also round the other way.
        paths = 0.5**apart + 0.5 ** (corners - apart) + (apart == 0) * 0.5**corners
        return torch.einsum("nc,cd,nd->n", self.splatting, paths.to(self.splatting), self.slicing)
