"""Where pixels lie in the permutohedral lattice (Adams, Baek & Davis, "Fast high-dimensional filtering using the
permutohedral lattice", Eurographics 2010).

The lattice A*_d tiles d-dimensional space with simplices of one shape, d + 1 vertices each. It is written in d + 1
coordinates that sum to zero; vertices have integer ones, all congruent modulo d + 1. To place features f:

1. elevate them to that hyperplane, y = E·f, so stretched that the blur below has standard deviation 1 (§3.1);
2. round every y_i to the nearest multiple of d + 1, and rank the remainders; moving the coordinates with the
   extreme ranks by d + 1 until the sum is zero gives the nearest vertex with remainder 0;
3. that vertex and the ranks name the simplex; the differences of consecutive remainders are the barycentric
   weights of its vertices.

The lattice is sparse: only vertices of simplices with a pixel in them exist. A vertex is one integer, its first d
coordinates in a mixed radix, so that a neighbour's integer is its own plus a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError


@dataclass(frozen=True, eq=False)
class Lattice:
    """A lattice around the pixels of one image.

    Attributes:
        vertices: (N, d + 1) int32 numbers of the vertices of each pixel's simplex.
        weights: (N, d + 1) float64 barycentric weights: positive, summing to 1.
        neighbours: (d + 1, 2, vertices) int32 the vertices ahead and behind on every axis; their count if absent.
    """

    vertices: Tensor
    weights: Tensor
    neighbours: Tensor

    @property
    def size(self) -> int:
        """How many vertices there are."""
        return self.neighbours.shape[2]


def build_lattice(features: Tensor, *, compiled: bool) -> Lattice:
    """The lattice of features (N, d) in float64, by Numba's kernel or in plain torch: the same up to numbering.

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
    found = torch.stack(
        [torch.stack([_find(known, known + step), _find(known, known - step)]) for step in ahead]
    )
    return Lattice(vertices.int(), weights, found.int())


def _compiled_lattice(
    features: Tensor, scale: Tensor, low: Tensor, strides: Tensor, ahead: Tensor
) -> Lattice:
    from messagenet.inference.dense import simplices

    pixels, corners = len(features), len(strides)
    vertices = torch.empty(pixels, corners, dtype=torch.int32)
    weights = torch.empty(pixels, corners, dtype=torch.float64)
    arguments = [part.numpy() for part in (features.T.contiguous(), scale, low, strides, vertices, weights)]
    table, keys = simplices.locate(*arguments)
    neighbours = torch.empty(corners, 2, len(keys), dtype=torch.int32)
    simplices.neighbours(table, keys, ahead.numpy(), neighbours.numpy())
    return Lattice(vertices, weights, neighbours)


def _find(known: Tensor, wanted: Tensor) -> Tensor:
    """The places of `wanted` numbers in the sorted `known` ones; their count where absent."""
    place = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
    return torch.where(known[place] == wanted, place, len(known))


def _corners_of_box(features: Tensor) -> Tensor:
    """(2^d, d) the corners of the smallest box around the features."""
    return torch.cartesian_prod(*torch.stack([features.amin(0), features.amax(0)], 1)).view(
        -1, features.shape[1]
    )


def _packing(extremes: Tensor) -> tuple[Tensor, Tensor]:
    """What to subtract from the d + 1 coordinates of a vertex, and their factors in its integer.

    Vertices are within d + 1 of an elevated point, and their neighbours within another d + 1.
    """
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
