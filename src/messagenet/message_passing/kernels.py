"""CPU kernels of sums over a range box, compiled by Numba on first use and cached on disk.

`accumulate` is the fused sum, `sum_boxes` the plain sum over rectangles by running totals.

With channels last, a row of the map is one contiguous run of W·C numbers, and a shift by dx cells is a shift by dx·C
numbers. A sum over the offsets (dy, dx_1), …, (dy, dx_n) is therefore a vector loop with n shifted readers. In the
four modes, with a read in place and b, w at the offsets,

    RELU        out[i] += Σ_j relu(a[i] + b[i + dx_j·C])                   the message sum
    GATED_RELU  out[i] += Σ_j w[i + dx_j·C] · relu(a[i] + b[i + dx_j·C])   with a gate; its gradient for the gate
    COUNT       out[i] += Σ_j 1[a[i] + b[i + dx_j·C] > 0]                  the gradient for receivers / G
    GATHER      out[i] += Σ_j w[i + dx_j·C] · 1[a[i] + b[i + dx_j·C] > 0]  for senders; with a gate, for receivers / G

Several readers share one pass over `out`, so the loop is bound by arithmetic, not by memory. Nodes outside the map are
never read: a group of readers runs over the columns where all are inside; the others are added reader by reader.

Indices are unsigned: Numba then leaves out its test for negative ones, and the loops vectorise. Sums are written
x · one + y, with one = 1 known only at run time: exact, and a third faster than additions alone, because multiply-adds
run on the multipliers while the adders form p + q. mypy cannot read the functions that Numba compiles, whose arguments
are flat numpy arrays and integers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit, uint64

RELU, COUNT, GATHER, GATED_RELU, RELU_OF_THREE = 0, 1, 2, 3, 4

_compiled = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_compiled
def _one_reader(mode, a, b, w, out, i, j, size, one):
    zero = a.dtype.type(0)
    if mode == RELU:
        for k in range(size):
            t = a[uint64(i + k)] + b[uint64(j + k)]
            out[uint64(i + k)] += t if t > 0 else zero
    elif mode == COUNT:
        for k in range(size):
            out[uint64(i + k)] += one if a[uint64(i + k)] + b[uint64(j + k)] > 0 else zero
    elif mode == GATED_RELU:
        for k in range(size):
            t = a[uint64(i + k)] + b[uint64(j + k)]
            out[uint64(i + k)] += (t if t > 0 else zero) * w[uint64(j + k)]
    else:
        for k in range(size):
            out[uint64(i + k)] += w[uint64(j + k)] if a[uint64(i + k)] + b[uint64(j + k)] > 0 else zero


@_compiled
def _several_readers(mode, a, b, w, out, i, j0, j1, j2, j3, size, one):
    zero = a.dtype.type(0)
    if mode == RELU:
        for k in range(size):
            x = a[uint64(i + k)]
            t0, t1 = x + b[uint64(j0 + k)], x + b[uint64(j1 + k)]
            t2, t3 = x + b[uint64(j2 + k)], x + b[uint64(j3 + k)]
            low = (t0 if t0 > 0 else zero) * one + (t1 if t1 > 0 else zero)
            high = (t2 if t2 > 0 else zero) * one + (t3 if t3 > 0 else zero)
            out[uint64(i + k)] = (low * one + high) * one + out[uint64(i + k)]
    elif mode == RELU_OF_THREE:
        for k in range(size):
            x = a[uint64(i + k)]
            t0, t1, t2 = x + b[uint64(j0 + k)], x + b[uint64(j1 + k)], x + b[uint64(j2 + k)]
            low = (t0 if t0 > 0 else zero) * one + (t1 if t1 > 0 else zero)
            high = (t2 if t2 > 0 else zero) * one + out[uint64(i + k)]
            out[uint64(i + k)] = low * one + high
    elif mode == COUNT:
        for k in range(size):
            x = a[uint64(i + k)]
            low = (one if x + b[uint64(j0 + k)] > 0 else zero) * one + (one if x + b[uint64(j1 + k)] > 0 else zero)
            high = (one if x + b[uint64(j2 + k)] > 0 else zero) * one + (one if x + b[uint64(j3 + k)] > 0 else zero)
            out[uint64(i + k)] = (low * one + high) * one + out[uint64(i + k)]
    elif mode == GATED_RELU:
        for k in range(size):
            x = a[uint64(i + k)]
            t0, t1 = x + b[uint64(j0 + k)], x + b[uint64(j1 + k)]
            t2, t3 = x + b[uint64(j2 + k)], x + b[uint64(j3 + k)]
            low = (t0 if t0 > 0 else zero) * w[uint64(j0 + k)] + out[uint64(i + k)]
            high = (t2 if t2 > 0 else zero) * w[uint64(j2 + k)]
            low = (t1 if t1 > 0 else zero) * w[uint64(j1 + k)] + low
            out[uint64(i + k)] = (t3 if t3 > 0 else zero) * w[uint64(j3 + k)] + high + low
    else:
        for k in range(size):
            x = a[uint64(i + k)]
            low = (w[uint64(j0 + k)] if x + b[uint64(j0 + k)] > 0 else zero) * one + out[uint64(i + k)]
            high = w[uint64(j2 + k)] if x + b[uint64(j2 + k)] > 0 else zero
            low = (w[uint64(j1 + k)] if x + b[uint64(j1 + k)] > 0 else zero) * one + low
            high = (w[uint64(j3 + k)] if x + b[uint64(j3 + k)] > 0 else zero) * one + high
            out[uint64(i + k)] = low * one + high


@_compiled
def accumulate(mode, a, b, w, height, width, channels, rows, starts, columns, out, one, first, last):
    """Sets the rows first ≤ r < last of `out` to their sums over all offsets.

    a, b, w and out are flat buffers of (images · height, width, channels); RELU and COUNT do not read w. The offsets
    are (rows[j], columns[k]) for starts[j] ≤ k < starts[j + 1], ascending. `one` is the number 1, of the arrays' type.
    """
    row = width * channels
    for r in range(first, last):
        for i in range(r * row, (r + 1) * row):
            out[uint64(i)] = 0
        for group in range(rows.size):
            if not 0 <= r % height + rows[group] < height:
                continue
            origin = (r + rows[group]) * row
            count = starts[group + 1] - starts[group]
            parts = (count + 3) // 4
            for part in range(parts):
                k, end = starts[group] + 4 * part, min(starts[group] + 4 * part + 4, starts[group + 1])
                if mode == RELU:  # three or four readers each, so that none is left alone
                    k, end = (starts[group] + count * part // parts, starts[group] + count * (part + 1) // parts)
                start = stop = width
                together = end == k + 4 or (mode == RELU and end == k + 3)
                if together and max(0, -columns[k]) < min(width, width - columns[end - 1]):
                    start, stop = max(0, -columns[k]), min(width, width - columns[end - 1])
                    i, size = r * row + start * channels, (stop - start) * channels
                    at = origin + start * channels
                    j0, j1 = at + columns[k] * channels, at + columns[k + 1] * channels
                    j2, j3 = at + columns[k + 2] * channels, at + columns[end - 1] * channels
                    kind = mode if end == k + 4 else RELU_OF_THREE
                    _several_readers(kind, a, b, w, out, i, j0, j1, j2, j3, size, one)
                for reader in range(k, end):
                    for side in range(2):  # the columns left over before and after the shared ones
                        lo, hi = max(0, -columns[reader]), min(width, width - columns[reader])
                        lo, hi = (lo, min(start, hi)) if side == 0 else (max(stop, lo), hi)
                        j = origin + (lo + columns[reader]) * channels
                        _one_reader(mode, a, b, w, out, r * row + lo * channels, j, (hi - lo) * channels, one)


@_compiled
def sum_boxes(values, images, height, width, channels, box, out, first, last):
    """Sets the channels first ≤ c < last of `out` to the sums over all (y + dy, x + dx) inside the map.

    values and out are flat buffers (images, height, width, channels); box is (top, bottom, left, right), the ranges of
    dy and dx. Totals of columns slide down the map, their sums slide along its rows: four additions for each number.
    """
    top, bottom, left, right = box
    n = last - first
    columns, total = np.empty(width * n, values.dtype), np.empty(n, values.dtype)
    for image in range(images):
        columns[:] = 0
        for y in range(height):
            for r in range(max(top, 0) if y == 0 else max(y + bottom, 0), min(y + bottom, height - 1) + 1):
                at = (image * height + r) * width * channels + first
                for x in range(width):
                    for c in range(n):
                        columns[uint64(x * n + c)] += values[uint64(at + c)]
                    at += channels
            if y > 0 and 0 <= y + top - 1 < height:
                at = (image * height + y + top - 1) * width * channels + first
                for x in range(width):
                    for c in range(n):
                        columns[uint64(x * n + c)] -= values[uint64(at + c)]
                    at += channels
            total[:] = 0
            at = (image * height + y) * width * channels + first
            for x in range(width):
                for u in range(max(left, 0) if x == 0 else max(x + right, 0), min(x + right, width - 1) + 1):
                    for c in range(n):
                        total[uint64(c)] += columns[uint64(u * n + c)]
                if x > 0 and 0 <= x + left - 1 < width:
                    u = x + left - 1
                    for c in range(n):
                        total[uint64(c)] -= columns[uint64(u * n + c)]
                for c in range(n):
                    out[uint64(at + c)] = total[uint64(c)]
                at += channels
