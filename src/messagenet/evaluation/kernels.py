"""Numba kernels of the exact distance transform over label maps; see `boundary`."""

from __future__ import annotations

import numba
import numpy as np

from messagenet.evaluation.confusion import FloatArray, IntArray


@numba.njit(cache=True, nogil=True)
def column_distance_squared(labels: IntArray) -> FloatArray:
    """Squared distance to the nearest other label in the same column, inf if there is none."""
    height, width = labels.shape
    near = np.full((height, width), np.inf)
    for y in range(1, height):
        for x in range(width):
            near[y, x] = 1.0 if labels[y, x] != labels[y - 1, x] else near[y - 1, x] + 1.0
    for y in range(height - 2, -1, -1):
        for x in range(width):
            back = 1.0 if labels[y, x] != labels[y + 1, x] else near[y + 1, x] + 1.0
            near[y, x] = min(near[y, x], back)
    squared: FloatArray = near * near
    return squared


@numba.njit(cache=True, nogil=True)
def distance_squared(labels: IntArray, column_squared: FloatArray) -> FloatArray:
    """Lower envelope of the parabolas (x − v)² + h(v) over each run of equal labels in each row."""
    rows, columns = labels.shape
    result = np.empty((rows, columns))
    vertex = np.empty(columns + 2, np.int64)  # v of the parabolas on the envelope
    lift = np.empty(columns + 2)  # h(v)
    since = np.empty(columns + 2)  # the x from which each is lowest
    for y in range(rows):
        start = 0
        while start < columns:
            stop = start
            while stop < columns and labels[y, stop] == labels[y, start]:
                stop += 1
            last = -1
            for v in range(max(start - 1, 0), min(stop + 1, columns)):
                h = column_squared[y, v] if start <= v < stop else 0.0
                if h == np.inf:
                    continue
                cross = -np.inf
                while last >= 0:
                    u = vertex[last]
                    cross = ((h + v * v) - (lift[last] + u * u)) / (2.0 * (v - u))
                    if cross > since[last]:
                        break
                    last -= 1
                    cross = -np.inf
                last += 1
                vertex[last], lift[last], since[last] = v, h, cross
            if last < 0:
                result[y, start:stop] = np.inf
            else:
                lowest = 0
                for x in range(start, stop):
                    while lowest < last and since[lowest + 1] < x:
                        lowest += 1
                    result[y, x] = (x - vertex[lowest]) ** 2 + lift[lowest]
            start = stop
    return result
