"""CPU kernels of the lattice filter, compiled by Numba on first use and cached on disk.

Values are flat buffers of (pixels, classes) and (vertices + 1, classes), classes last: the innermost loops run over
contiguous numbers, and the lattice of a photograph is small enough for the processor's cache. The last row of the
lattice is zero and stands for every absent neighbour. `starts` say where in the lattice's buffer the rows begin of
the vertices around a pixel.
"""

# Numba reads these functions, mypy cannot: their arguments are numpy arrays and integers.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from numba import njit, uint64

# Indices are unsigned: Numba then leaves out its test for negative ones, and the loops vectorise.
_compiled = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_compiled
def splat(values, starts, weights, classes, lattice):
    """lattice[starts[p, c] + k] += weights[p, c] · values[p, k] for the corners c of every pixel p's simplex."""
    for p in range(starts.shape[0]):
        i = uint64(p * classes)
        for c in range(starts.shape[1]):
            weight, j = weights[uint64(p), uint64(c)], uint64(starts[uint64(p), uint64(c)])
            for k in range(classes):
                lattice[j + uint64(k)] += weight * values[i + uint64(k)]


@_compiled
def blur(source, ahead, behind, classes, target):
    """target[v] = source[v] + (source[ahead[v]] + source[behind[v]]) / 2 for every vertex v."""
    half = source.dtype.type(0.5)
    for v in range(ahead.size):
        i = uint64(v * classes)
        i_ahead, i_behind = uint64(ahead[uint64(v)] * classes), uint64(behind[uint64(v)] * classes)
        for k in range(classes):
            j = uint64(k)
            target[i + j] = source[i + j] + half * (source[i_ahead + j] + source[i_behind + j])


@_compiled
def slice_back(lattice, starts, weights, classes, add, out):
    """out[p, k] = Σ_c weights[p, c] · lattice[starts[p, c] + k], or adds it to what is there.

    The six corners of five dimensions are read in one sweep.
    """
    corners = starts.shape[1]
    together = corners - corners % 6
    for p in range(starts.shape[0]):
        i, row = uint64(p * classes), uint64(p)
        if not add:
            for k in range(classes):
                out[i + uint64(k)] = 0
        for c in range(0, together, 6):
            c0, c1, c2 = uint64(c), uint64(c + 1), uint64(c + 2)
            c3, c4, c5 = uint64(c + 3), uint64(c + 4), uint64(c + 5)
            i0, i1, i2 = uint64(starts[row, c0]), uint64(starts[row, c1]), uint64(starts[row, c2])
            i3, i4, i5 = uint64(starts[row, c3]), uint64(starts[row, c4]), uint64(starts[row, c5])
            w0, w1, w2 = weights[row, c0], weights[row, c1], weights[row, c2]
            w3, w4, w5 = weights[row, c3], weights[row, c4], weights[row, c5]
            for k in range(classes):
                j = uint64(k)
                first = w0 * lattice[i0 + j] + (w1 * lattice[i1 + j] + w2 * lattice[i2 + j])
                last = w3 * lattice[i3 + j] + (w4 * lattice[i4 + j] + w5 * lattice[i5 + j])
                out[i + j] += first + last
        for c in range(together, corners):
            weight, start = weights[row, uint64(c)], uint64(starts[row, uint64(c)])
            for k in range(classes):
                out[i + uint64(k)] += weight * lattice[start + uint64(k)]
