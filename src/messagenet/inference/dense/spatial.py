"""The spatial kernel on a grid of pixels: one direction after the other.

    exp(−(dy² + dx²) / 2σ²) = exp(−dy² / 2σ²) · exp(−dx² / 2σ²)

so the kernel, its row sums and the scales of any normalisation are products of a vertical and a horizontal part.
Distances beyond 4σ are left out: less than 1e-4 of the kernel's sum, where the permutohedral lattice is off by
several per cent. One filter costs 2·(8σ + 1) multiply-adds per pixel and class, never more than 2·(H + W).
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.inference.dense.filters import Normalisation, scales

REACH = 4.0  # standard deviations


class SpatialFilter:
    """The Gaussian kernel on images of one size; `compiled` runs Numba's loops, otherwise two matrix products.

    >>> row = SpatialFilter((1, 3), 1.0, "after", torch.zeros(0), compiled=False)
    >>> row.apply(torch.tensor([[1.0], [0.0], [0.0]]), torch.ones(1), out := torch.empty(3, 1))
    >>> out.flatten()
    tensor([0.5741, 0.2741, 0.0777])
    """

    def __init__(
        self,
        size: tuple[int, int],
        position: float,
        normalisation: Normalisation,
        like: Tensor,
        compiled: bool,
    ) -> None:
        self.compiled = compiled
        self.size = size
        self.rows, self.columns = (_Axis(length, position, normalisation, like) for length in size)

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
        from messagenet.inference.dense.spatial_loops import horizontal, vertical

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
    """The kernel along one direction: its values at distances 0, 1, …, and the scales before and after it."""

    def __init__(self, length: int, position: float, normalisation: Normalisation, like: Tensor) -> None:
        radius = min(math.ceil(REACH * position), length - 1)
        distance = torch.arange(radius + 1, dtype=torch.float64, device=like.device)
        taps = (-0.5 * (distance / position).square()).exp()
        one_sided = taps.cumsum(0)
        places = torch.arange(length, device=like.device)
        behind, ahead = places.clamp_max(radius), (length - 1 - places).clamp_max(radius)
        pre, post = scales(normalisation, one_sided[behind] + one_sided[ahead] - taps[0])
        self.length = length
        self.taps = taps.to(like)
        self.scales = (pre.to(like), post.to(like))
        self.diagonal = (pre * post).to(like)

    @cached_property
    def matrix(self) -> Tensor:
        """(length, length) the kernel between all places, scaled."""
        places = torch.arange(self.length, device=self.taps.device)
        apart = (places[:, None] - places).abs()
        reached = functional.pad(self.taps, (0, self.length - len(self.taps)))
        return self.scales[1][:, None] * reached[apart] * self.scales[0]
