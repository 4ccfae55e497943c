"""CPU kernels of the dense CRF, compiled by Numba on first use and cached on disk.

All values are flat buffers with classes last, so that the innermost loops run over contiguous numbers.

**Locating pixels** repeats the arithmetic of `filters.locate` operation by operation, so that both find the same
vertices even on the border of two simplices. Vertices are packed into one integer each, in a hash table with open
addressing, and listed in the order in which pixels meet them, which puts those of neighbouring pixels close together.

**Lattice filter.** The lattice is (vertices + 1, classes); its last row is zero and stands for every absent neighbour.
`starts` are the offsets in that buffer of the vertices around a pixel.

**Spatial filter.** A shift by dx columns is a shift by dx·classes numbers, so both passes are vector loops limited by
reading: the horizontal one adds three pairs of taps per sweep, the vertical one takes four rows to four rows.

**Softmax** over few classes in float32:

    exp(x) = 2^n · exp(f),    n = round(x / ln 2),    f = x − n·ln 2,    |f| ≤ ln(2) / 2

with a polynomial for exp(f) (relative error 1e-7) and 2^n written into the exponent's bits. For 21 classes, whose rows
do not fill whole vector registers, it takes half the time of torch's.

Indices are unsigned: Numba then leaves out its test for negative ones, and the loops vectorise. mypy cannot read the
functions that Numba compiles, whose arguments are numpy arrays and integers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

from __future__ import annotations

import numpy as np
from numba import float32, int32, njit, uint64

_compiled = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
# A contracted multiply-add rounds differently, and could name another vertex.
_no_contraction = njit(nogil=True, cache=True, error_model="numpy")
# Sums and maxima over classes may be taken in any order; the logits are finite.
_reordered = njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nnan", "ninf", "nsz"}, error_model="numpy")

BLOCK = 128  # pixels located at a time: they stay in the innermost cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads neighbouring keys over the table
ROW_BLOCK = 1024  # numbers of a row that stay in the innermost cache while all taps are added
PIXELS = 64  # of the softmax at a time: their logits stay in the innermost cache
LOWEST = np.float32(-60.0)  # no probability below exp(-60): denormal numbers are slow to add
SHIFTER = np.float32(3 << 22)  # adding it leaves the nearest integer in the lowest bits
LOG2_E = np.float32(1 / np.log(2))
LN2_HIGH = np.float32(0.693359375)  # exact in few bits, so that n · LN2_HIGH is exact
LN2_LOW = np.float32(np.log(2) - 0.693359375)
C2, C3, C4, C5, C6 = (np.float32(c) for c in (0.5, 0.16666667, 0.041666426, 0.008333133, 0.0013940343))


@_no_contraction
def _slot(table, keys, key):
    """Where a key is in the table (its size a power of two, -1 for free entries), or the free entry for it."""
    mask = table.size - 1
    slot = np.int64((uint64(key) * _GOLDEN) >> uint64(32)) & mask
    while table[slot] >= 0 and keys[table[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@_no_contraction
def _enlarge(table, keys, count):
    table = np.full(table.size * 4, -1, np.int32)
    for index in range(count):
        table[_slot(table, keys, keys[index])] = index
    longer = np.empty(table.size // 2, np.int64)
    for index in range(count):
        longer[index] = keys[index]
    return table, longer


@_no_contraction
def _round(features, scale, start, size, elevated, nearest, rank):
    """(d + 1, BLOCK) coordinates of pixels in the hyperplane, their nearest vertex with remainder 0, their ranks."""
    corners = elevated.shape[0]
    d = corners - 1
    for p in range(size):
        elevated[0, p] = 0.0
        rank[d, p] = 0.0
    for j in range(d, 0, -1):
        for p in range(size):
            step = features[j - 1, start + p] * scale[j - 1]
            elevated[j, p] = elevated[0, p] - j * step
            elevated[0, p] += step
    for i in range(corners):
        for p in range(size):
            multiple = np.floor(elevated[i, p] / corners + 0.5)
            rank[d, p] += multiple
            nearest[i, p] = multiple * corners
    for i in range(d):
        for p in range(size):
            rank[i, p] = rank[d, p]
    for i in range(d):
        for j in range(i + 1, corners):
            for p in range(size):
                smaller = elevated[i, p] - nearest[i, p] < elevated[j, p] - nearest[j, p]
                rank[i, p] += 1.0 if smaller else 0.0
                rank[j, p] += 0.0 if smaller else 1.0
    for i in range(corners):
        for p in range(size):
            moved = (corners if rank[i, p] < 0 else 0.0) - (corners if rank[i, p] > d else 0.0)
            rank[i, p] += moved
            nearest[i, p] += moved


@_no_contraction
def locate_pixels(features, scale, low, strides, vertices, weights):
    """Fills the (N, d + 1) vertex indices and barycentric weights of pixels with features (d, N).

    A vertex is packed as (coordinates − low) · strides, (d + 1,) each. Returns the hash table and the packed vertices.
    """
    d, pixels = features.shape
    corners = d + 1
    table, keys, count = np.full(1 << 16, -1, np.int32), np.empty(1 << 15, np.int64), 0
    elevated, nearest = np.empty((corners, BLOCK)), np.empty((corners, BLOCK))
    ranks = np.empty((corners, BLOCK))
    by_rank, bary = np.empty(corners, np.int64), np.empty(corners + 1)
    last_key, last_index = np.full(corners, -1, np.int64), np.zeros(corners, np.int32)
    total = strides.sum()
    for start in range(0, pixels, BLOCK):
        size = min(BLOCK, pixels - start)
        _round(features, scale, start, size, elevated, nearest, ranks)
        for p in range(size):
            for c in range(corners + 1):
                bary[c] = 0.0
            key = 0
            for i in range(corners):
                rank = np.int64(ranks[i, p])
                part = (elevated[i, p] - nearest[i, p]) / corners
                bary[d - rank] += part
                bary[corners - rank] -= part
                by_rank[rank] = strides[i]
                key += (np.int64(nearest[i, p]) - low[i]) * strides[i]
            bary[0] += 1.0 + bary[corners]
            for r in range(corners):
                if r > 0:
                    key += total - corners * by_rank[corners - r]
                if key != last_key[r]:
                    slot = _slot(table, keys, key)
                    if table[slot] < 0:
                        if count == keys.size:
                            table, keys = _enlarge(table, keys, count)
                            slot = _slot(table, keys, key)
                        table[slot] = count
                        keys[count] = key
                        count += 1
                    last_key[r], last_index[r] = key, table[slot]
                vertices[start + p, r] = last_index[r]
                weights[start + p, r] = bary[r]
    return table, keys[:count]


@_no_contraction
def find_neighbours(table, keys, offsets, found):
    """Fills `found` (d + 1, 2, vertices): the vertices one step ahead and behind on every axis, or their count."""
    count = keys.size
    found[:] = count
    for axis in range(offsets.size):
        for vertex in range(count):
            ahead = table[_slot(table, keys, keys[vertex] + offsets[axis])]
            if ahead >= 0:
                found[axis, 0, vertex] = ahead
                found[axis, 1, ahead] = vertex


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
    """out[p, k] (+)= Σ_c weights[p, c] · lattice[starts[p, c] + k]; the six corners of five dimensions in one sweep."""
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
    """out[y, x] = Σ_t taps[|t|] · line[x + t] with line[x] = row_scale[y] · tile[x] · values[y, x]."""
    run, radius = tile.size, taps.size - 1
    border = radius * classes
    line, total = np.zeros(run + 2 * border, values.dtype), np.empty(ROW_BLOCK, values.dtype)
    for y in range(row_scale.size):
        origin, factor = uint64(y * run), row_scale[y]
        for k in range(run):
            line[uint64(border + k)] = factor * tile[uint64(k)] * values[origin + uint64(k)]
        for start in range(0, run, ROW_BLOCK):
            size = min(ROW_BLOCK, run - start)
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
    t1, t2, t3 = uint64(ROW_BLOCK), uint64(2 * ROW_BLOCK), uint64(3 * ROW_BLOCK)
    for k in range(size):
        j = uint64(k)
        x0, x1, x2, x3 = values[i + j], values[i1 + j], values[i2 + j], values[i3 + j]
        total[j] = w0 * x0 + (f1 * x1 + (f2 * x2 + (f3 * x3 + total[j])))
        total[t1 + j] = b1 * x0 + (w0 * x1 + (f1 * x2 + (f2 * x3 + total[t1 + j])))
        total[t2 + j] = b2 * x0 + (b1 * x1 + (w0 * x2 + (f1 * x3 + total[t2 + j])))
        total[t3 + j] = b3 * x0 + (b2 * x1 + (b1 * x2 + (w0 * x3 + total[t3 + j])))


@_compiled
def vertical(values, taps, row_scale, tile, add, out):
    """out[y, x] (+)= row_scale[y] · tile[x] · Σ_t taps[|t|] · values[y + t, x]; all flat, tile (columns, classes)."""
    height, run, radius = row_scale.size, tile.size, taps.size - 1
    both = np.zeros(2 * radius + 7, taps.dtype)  # the taps of both sides, and zeros for rows out of reach
    for t in range(-radius, radius + 1):
        both[t + radius + 3] = taps[abs(t)]
    total = np.empty(4 * ROW_BLOCK, values.dtype)
    for start in range(0, run, ROW_BLOCK):
        size = min(ROW_BLOCK, run - start)
        for y in range(0, height, 4):
            for k in range(4 * ROW_BLOCK):
                total[uint64(k)] = 0
            z, end = max(0, y - radius), min(height, y + 4 + radius)
            while z + 4 <= end:
                _rows_to_rows(values, uint64(z * run + start), run, size, both, z - y + radius + 3, total)
                z += 4
            for z_left in range(z, end):
                i = uint64(z_left * run + start)
                for r in range(4):
                    weight, t = both[z_left - y + radius + 3 - r], uint64(r * ROW_BLOCK)
                    for k in range(size):
                        total[t + uint64(k)] += weight * values[i + uint64(k)]
            for r in range(min(4, height - y)):
                i, t, factor = uint64((y + r) * run + start), uint64(r * ROW_BLOCK), row_scale[y + r]
                if add:
                    for k in range(size):
                        j = uint64(k)
                        out[i + j] += factor * tile[uint64(start) + j] * total[t + j]
                else:
                    for k in range(size):
                        j = uint64(k)
                        out[i + j] = factor * tile[uint64(start) + j] * total[t + j]


@_reordered
def _subtract_maximum(values, pixels, classes):
    for p in range(pixels):
        i = uint64(p * classes)
        largest = values[i]
        for k in range(1, classes):
            largest = max(largest, values[i + uint64(k)])
        for k in range(classes):
            values[i + uint64(k)] -= largest


@_compiled
def _exponential(values, size, powers, bits):
    """values ← exp(values) for values ≤ 0; `powers` and `bits` are one buffer, as float32 and as int32."""
    for k in range(size):
        j = uint64(k)
        x = max(values[j], LOWEST)
        shifted = x * LOG2_E + SHIFTER
        n = shifted - SHIFTER
        f = (x - n * LN2_HIGH) - n * LN2_LOW
        powers[j] = shifted
        values[j] = ((((C6 * f + C5) * f + C4) * f + C3) * f + C2) * f * f + (f + float32(1))
    for k in range(size):
        bits[uint64(k)] = (bits[uint64(k)] + int32(127)) << int32(23)
    for k in range(size):
        values[uint64(k)] *= powers[uint64(k)]


@_reordered
def _divide_by_sum(values, pixels, classes, out, start):
    for p in range(pixels):
        i, j = uint64(p * classes), uint64(start + p * classes)
        total = float32(0)
        for k in range(classes):
            total += values[i + uint64(k)]
        factor = float32(1) / total
        for k in range(classes):
            out[j + uint64(k)] = factor * values[i + uint64(k)]


@_compiled
def softmax_rows(potentials, message, classes, out):
    """out = softmax(potentials + message), all flat (pixels, classes) in float32; an empty message stands for zero."""
    values, bits = np.empty(PIXELS * classes, np.float32), np.empty(PIXELS * classes, np.int32)
    powers = bits.view(np.float32)
    for start in range(0, potentials.size, PIXELS * classes):
        size = min(PIXELS * classes, potentials.size - start)
        if message.size > 0:
            for k in range(size):
                j = uint64(start + k)
                values[uint64(k)] = potentials[j] + message[j]
        else:
            for k in range(size):
                values[uint64(k)] = potentials[uint64(start + k)]
        _subtract_maximum(values, size // classes, classes)
        _exponential(values, size, powers, bits)
        _divide_by_sum(values, size // classes, classes, out, start)


@_reordered
def softmax_gradient(probabilities, gradient, classes, out):
    """out = q ⊙ (g − q·g) for every pixel: the gradient for the logits."""
    for p in range(probabilities.size // classes):
        i = uint64(p * classes)
        total = float32(0)
        for k in range(classes):
            total += probabilities[i + uint64(k)] * gradient[i + uint64(k)]
        for k in range(classes):
            j = i + uint64(k)
            out[j] = probabilities[j] * (gradient[j] - total)
