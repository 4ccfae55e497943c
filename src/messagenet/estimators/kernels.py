"""CPU kernel of the fused sum over a range box, compiled by Numba on first use and cached on disk.

With channels last, one row of the map is one contiguous run of W·C numbers, and moving a row by dx cells
moves it by dx·C numbers. A sum over the offsets (dy, dx_1), …, (dy, dx_n) of one row distance is therefore a
plain vector loop with n shifted readers. In the three modes, with a read in place and b, w at the offsets,

    RELU     out[i] += Σ_j relu(a[i] + b[i + dx_j·C])                   the message sum
    COUNT    out[i] += Σ_j 1[a[i] + b[i + dx_j·C] > 0]                  its gradient for receivers / G
    GATHER   out[i] += Σ_j w[i + dx_j·C] · 1[a[i] + b[i + dx_j·C] > 0]  its gradient for senders

Several readers share one pass over `out`, so that the arithmetic units and not the memory set the pace. Nodes
outside the map are never read: a group of four runs over the columns where all four are inside, and the few
columns left over are added reader by reader. Nothing is padded, nothing is allocated, no mask is stored.
"""

# Numba reads these functions, mypy cannot: their arguments are flat numpy arrays and integers.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from numba import njit, uint64

RELU, COUNT, GATHER = 0, 1, 2

# Indices are unsigned below: Numba then leaves out its test for negative ones, and the loops vectorise.
# Sums are written x · one + y with one = 1 known only at run time: exact, and, fused into multiply-adds, they
# run on the multipliers while the adders form p + q, a third faster than additions alone.
_compiled = njit(nogil=True, cache=True, fastmath={"contract"})


@_compiled
def _relu_one(a, b, out, i, j, size):
    zero = a.dtype.type(0)
    for k in range(size):
        t = a[uint64(i + k)] + b[uint64(j + k)]
        out[uint64(i + k)] += t if t > 0 else zero


@_compiled
def _relu_four(a, b, out, i, j0, j1, j2, j3, size, one):
    zero = a.dtype.type(0)
    for k in range(size):
        x = a[uint64(i + k)]
        t0, t1 = x + b[uint64(j0 + k)], x + b[uint64(j1 + k)]
        t2, t3 = x + b[uint64(j2 + k)], x + b[uint64(j3 + k)]
        low = (t0 if t0 > 0 else zero) * one + (t1 if t1 > 0 else zero)
        high = (t2 if t2 > 0 else zero) * one + (t3 if t3 > 0 else zero)
        out[uint64(i + k)] = (low * one + high) * one + out[uint64(i + k)]


@_compiled
def _count_one(a, b, out, i, j, size):
    zero, one = a.dtype.type(0), a.dtype.type(1)
    for k in range(size):
        out[uint64(i + k)] += one if a[uint64(i + k)] + b[uint64(j + k)] > 0 else zero


@_compiled
def _count_four(a, b, out, i, j0, j1, j2, j3, size, one):
    zero = a.dtype.type(0)
    for k in range(size):
        x = a[uint64(i + k)]
        low = (one if x + b[uint64(j0 + k)] > 0 else zero) * one + (
            one if x + b[uint64(j1 + k)] > 0 else zero
        )
        high = (one if x + b[uint64(j2 + k)] > 0 else zero) * one + (
            one if x + b[uint64(j3 + k)] > 0 else zero
        )
        out[uint64(i + k)] = (low * one + high) * one + out[uint64(i + k)]


@_compiled
def _gather_one(a, b, w, out, i, j, size):
    zero = a.dtype.type(0)
    for k in range(size):
        out[uint64(i + k)] += w[uint64(j + k)] if a[uint64(i + k)] + b[uint64(j + k)] > 0 else zero


@_compiled
def _gather_two(a, b, w, out, i, j0, j1, size, one):
    zero = a.dtype.type(0)
    for k in range(size):
        x = a[uint64(i + k)]
        low = w[uint64(j0 + k)] if x + b[uint64(j0 + k)] > 0 else zero
        high = w[uint64(j1 + k)] if x + b[uint64(j1 + k)] > 0 else zero
        out[uint64(i + k)] = (low * one + high) * one + out[uint64(i + k)]


@_compiled
def accumulate(mode, a, b, w, shape, rows, starts, columns, out, one, first, last):
    """Sets the rows first ≤ r < last of `out` to their sums over all offsets.

    Args:
        mode: RELU, COUNT or GATHER.
        a: What is read in place: the flat buffer of (images · height, width, channels).
        b: What is read at the offsets, likewise.
        w: The weights read at the offsets, for GATHER; any such buffer otherwise.
        shape: (height, width, channels) of one image.
        rows, starts, columns: The offsets (rows[j], columns[k]), starts[j] ≤ k < starts[j + 1], ascending.
        out: The sums.
        one: The number 1, of the arrays' type.
        first, last: The rows to compute.
    """
    height, width, channels = shape
    row = width * channels
    for r in range(first, last):
        out[r * row : (r + 1) * row] = 0
        for group in range(rows.size):
            if not 0 <= r % height + rows[group] < height:
                continue
            origin = (r + rows[group]) * row
            for k in range(starts[group], starts[group + 1], 4):
                end = min(k + 4, starts[group + 1])
                start = stop = width
                if end == k + 4 and max(0, -columns[k]) < min(width, width - columns[k + 3]):
                    start, stop = max(0, -columns[k]), min(width, width - columns[k + 3])
                    i, size = r * row + start * channels, (stop - start) * channels
                    j0, j1 = (
                        origin + (start + columns[k]) * channels,
                        origin + (start + columns[k + 1]) * channels,
                    )
                    j2, j3 = (
                        origin + (start + columns[k + 2]) * channels,
                        origin + (start + columns[k + 3]) * channels,
                    )
                    if mode == RELU:
                        _relu_four(a, b, out, i, j0, j1, j2, j3, size, one)
                    elif mode == COUNT:
                        _count_four(a, b, out, i, j0, j1, j2, j3, size, one)
                    else:
                        _gather_two(a, b, w, out, i, j0, j1, size, one)
                        _gather_two(a, b, w, out, i, j2, j3, size, one)
                for reader in range(k, end):
                    inside = max(0, -columns[reader]), min(width, width - columns[reader])
                    for lo, hi in ((inside[0], min(start, inside[1])), (max(stop, inside[0]), inside[1])):
                        i, size = r * row + lo * channels, (hi - lo) * channels
                        j = origin + (lo + columns[reader]) * channels
                        if mode == RELU:
                            _relu_one(a, b, out, i, j, size)
                        elif mode == COUNT:
                            _count_one(a, b, out, i, j, size)
                        else:
                            _gather_one(a, b, w, out, i, j, size)
