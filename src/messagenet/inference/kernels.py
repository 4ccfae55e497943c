"""Numba kernels of inference on factor graphs."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def colour_grid(colours: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
    """Greedy colours of a grid (height, width), rows first; `steps` (n, 2) are the offsets to earlier neighbours."""
    height, width = colours.shape
    taken = np.zeros(len(steps) + 1, dtype=np.bool_)
    for y in range(height):
        for x in range(width):
            taken[:] = False
            for step in range(len(steps)):
                near_y, near_x = y + steps[step, 0], x + steps[step, 1]
                if 0 <= near_y < height and 0 <= near_x < width:
                    taken[colours[near_y, near_x]] = True
            choice = 0
            while taken[choice]:
                choice += 1
            colours[y, x] = choice


@numba.njit(cache=True, nogil=True)
def grow_forest(
    flat: NDArray[np.int64],
    ends: NDArray[np.int64],
    order: NDArray[np.int64],
    parent: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Adds factors in `order` unless they close a cycle (Kruskal); scope f is flat[ends[f - 1] : ends[f]]."""
    for factor in order:
        start = ends[factor - 1] if factor > 0 else 0
        roots = flat[start : ends[factor]].copy()
        for position in range(len(roots)):
            item = roots[position]
            while parent[item] != item:
                parent[item] = parent[parent[item]]
                item = parent[item]
            roots[position] = item
        closes = False
        for position in range(1, len(roots)):
            for earlier in range(position):
                closes = closes or roots[position] == roots[earlier]
        if not closes:
            parent[roots] = roots[0]
            counts[factor] += 1
