"""CPU kernels of the spatial filter, compiled by Numba on first use and cached on disk.

Values are flat buffers of (rows, columns, classes). One row is a contiguous run of numbers, and a shift by dx
columns is a shift by dx·classes numbers, so both directions are plain vector loops. What limits them is reading:
the horizontal pass adds three pairs of taps in each sweep over a block in cache, the vertical one takes four rows
to four rows, sixteen multiply-adds for eight numbers read.
"""

# Numba reads these functions, mypy cannot: their arguments are flat numpy arrays and integers.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

from __future__ import annotations

import numpy as np
from numba import njit, uint64

# Indices are unsigned: Numba then leaves out its test for negative ones, and the loops vectorise.
_compiled = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")

BLOCK = 1024  # numbers of a row that stay in the innermost cache while all taps are added


@_compiled
def _pair(line, left, right, size, tap, total):
    for k in range(size):
        j = uint64(k)
        total[j] += tap * (line[left + j] + line[right + j])


@_compiled
def _three_pairs(line, l0, r0, l1, r1, l2, r2, size, w0, w1, w2, total):
    for k in range(size):
        j = uint64(k)
        near = w0 * (line[l0 + j] + line[r0 + j]) + total[j]
        total[j] = w2 * (line[l2 + j] + line[r2 + j]) + (w1 * (line[l1 + j] + line[r1 + j]) + near)


@_compiled
def horizontal(values, taps, classes, row_scale, tile, out):
    """out[y, x] = Σ_t taps[|t|] · line[x + t] with line[x] = row_scale[y] · tile[x] · values[y, x].

    Args:
        values: Flat (rows, columns, classes).
        taps: The kernel at distances 0, 1, …, radius.
        classes: Their number.
        row_scale: A factor for every row of the input.
        tile: Flat (columns, classes): a factor for every number of a row of the input.
        out: Flat, like values.
    """
    run, radius = tile.size, taps.size - 1
    border = radius * classes
    line, total = np.zeros(run + 2 * border, values.dtype), np.empty(BLOCK, values.dtype)
    for y in range(row_scale.size):
        origin, factor = uint64(y * run), row_scale[y]
        for k in range(run):
            line[uint64(border + k)] = factor * tile[uint64(k)] * values[origin + uint64(k)]
        for start in range(0, run, BLOCK):
            size = min(BLOCK, run - start)
            i = border + start
            centre = taps[0]
            for k in range(size):
                total[uint64(k)] = centre * line[uint64(i + k)]
            for t in range(1, radius - 1, 3):
                d0, d1, d2 = t * classes, (t + 1) * classes, (t + 2) * classes
                _three_pairs(
                    line, uint64(i - d0), uint64(i + d0), uint64(i - d1), uint64(i + d1), uint64(i - d2),
                    uint64(i + d2), size, taps[t], taps[t + 1], taps[t + 2], total,
                )  # fmt: skip
            for t in range(radius - radius % 3 + 1, radius + 1):
                d0 = t * classes
                _pair(line, uint64(i - d0), uint64(i + d0), size, taps[t], total)
            for k in range(size):
                out[origin + uint64(start + k)] = total[uint64(k)]


@_compiled
def _rows_to_rows(values, i, run, size, taps, c, total):
    """Adds four rows of the input to four rows of the output; tap c is the one between the first of both."""
    b3, b2, b1, w0, f1, f2, f3 = (
        taps[c - 3], taps[c - 2], taps[c - 1], taps[c], taps[c + 1], taps[c + 2], taps[c + 3],
    )  # fmt: skip
    i1, i2, i3 = i + uint64(run), i + uint64(2 * run), i + uint64(3 * run)
    t1, t2, t3 = uint64(BLOCK), uint64(2 * BLOCK), uint64(3 * BLOCK)
    for k in range(size):
        j = uint64(k)
        x0, x1, x2, x3 = values[i + j], values[i1 + j], values[i2 + j], values[i3 + j]
        total[j] = w0 * x0 + (f1 * x1 + (f2 * x2 + (f3 * x3 + total[j])))
        total[t1 + j] = b1 * x0 + (w0 * x1 + (f1 * x2 + (f2 * x3 + total[t1 + j])))
        total[t2 + j] = b2 * x0 + (b1 * x1 + (w0 * x2 + (f1 * x3 + total[t2 + j])))
        total[t3 + j] = b3 * x0 + (b2 * x1 + (b1 * x2 + (w0 * x3 + total[t3 + j])))


@_compiled
def vertical(values, taps, row_scale, tile, add, out):
    """out[y, x] = row_scale[y] · tile[x] · Σ_t taps[|t|] · values[y + t, x], or adds it to what is there.

    Args:
        values: Flat (rows, columns, classes).
        taps: The kernel at distances 0, 1, …, radius.
        row_scale: A factor for every row of the output.
        tile: Flat (columns, classes): a factor for every number of a row of the output.
        add: Whether to add.
        out: Flat, like values.
    """
    height, run, radius = row_scale.size, tile.size, taps.size - 1
    both = np.zeros(2 * radius + 7, taps.dtype)  # the taps of both sides, and zeros for rows out of reach
    for t in range(-radius, radius + 1):
        both[t + radius + 3] = taps[abs(t)]
    total = np.empty(4 * BLOCK, values.dtype)
    for start in range(0, run, BLOCK):
        size = min(BLOCK, run - start)
        for y in range(0, height, 4):
            for k in range(4 * BLOCK):
                total[uint64(k)] = 0
            z, end = max(0, y - radius), min(height, y + 4 + radius)
            while z + 4 <= end:
                _rows_to_rows(values, uint64(z * run + start), run, size, both, z - y + radius + 3, total)
                z += 4
            for z_left in range(z, end):
                i = uint64(z_left * run + start)
                for r in range(4):
                    weight, t = both[z_left - y + radius + 3 - r], uint64(r * BLOCK)
                    for k in range(size):
                        total[t + uint64(k)] += weight * values[i + uint64(k)]
            for r in range(min(4, height - y)):
                i, t, factor = uint64((y + r) * run + start), uint64(r * BLOCK), row_scale[y + r]
                if add:
                    for k in range(size):
                        j = uint64(k)
                        out[i + j] += factor * tile[uint64(start) + j] * total[t + j]
                else:
                    for k in range(size):
                        j = uint64(k)
                        out[i + j] = factor * tile[uint64(start) + j] * total[t + j]
