"""CPU kernel that finds the simplex of every pixel, compiled by Numba on first use and cached on disk.

`lattice.locate` says what is computed; the arithmetic here is the same, operation by operation, so that both name
the same vertices even for a pixel on the border of two simplices. Vertices are kept in a hash table with open
addressing under one integer each and are numbered in the order in which pixels meet them, which puts the vertices
of neighbouring pixels near each other. Pixels beside each other often share vertices: those are not looked up again.
"""

# Numba reads these functions, mypy cannot: their arguments are numpy arrays and integers.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

from __future__ import annotations

import numpy as np
from numba import njit, uint64

# No fast mathematics: a contracted multiply-add rounds differently, and could name another vertex.
_compiled = njit(nogil=True, cache=True, error_model="numpy")

BLOCK = 128  # pixels at a time: what is known of them stays in the innermost cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads neighbouring keys over the table


@_compiled
def _slot(table, keys, key):
    """Where a key is in the table (a power of two of key numbers, -1 for free), or the free place for it."""
    mask = table.size - 1
    slot = np.int64((uint64(key) * _GOLDEN) >> uint64(32)) & mask
    while table[slot] >= 0 and keys[table[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@_compiled
def _enlarged(table, keys, count):
    table = np.full(table.size * 4, -1, np.int32)
    for number in range(count):
        table[_slot(table, keys, keys[number])] = number
    longer = np.empty(table.size // 2, np.int64)
    for number in range(count):
        longer[number] = keys[number]
    return table, longer


@_compiled
def _round(features, scale, start, size, elevated, nearest, rank):
    """Coordinates of some pixels in the hyperplane, their nearest vertex with remainder 0, and their ranks.

    All are (d + 1, BLOCK) in float64, pixels last, so that the loops over pixels vectorise.
    """
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


@_compiled
def locate(features, scale, low, strides, vertices, weights):
    """Fills the vertex numbers and the barycentric weights of every pixel.

    Args:
        features: (d, N) what places a pixel.
        scale: (d,) lengths of the lattice's axes.
        low: (d + 1,) subtracted from a vertex's coordinates before they are packed into one integer.
        strides: (d + 1,) the factors of the coordinates in that integer.
        vertices: (N, d + 1) numbers of the vertices, to be filled.
        weights: (N, d + 1) barycentric weights, to be filled.

    Returns:
        The hash table and the packed coordinates of the vertices by number, for `neighbours`.
    """
    d, pixels = features.shape
    corners = d + 1
    table, keys, count = np.full(1 << 16, -1, np.int32), np.empty(1 << 15, np.int64), 0
    elevated, nearest = np.empty((corners, BLOCK)), np.empty((corners, BLOCK))
    ranks = np.empty((corners, BLOCK))
    by_rank, bary = np.empty(corners, np.int64), np.empty(corners + 1)
    last_key, last_number = np.full(corners, -1, np.int64), np.zeros(corners, np.int32)
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
                            table, keys = _enlarged(table, keys, count)
                            slot = _slot(table, keys, key)
                        table[slot] = count
                        keys[count] = key
                        count += 1
                    last_key[r], last_number[r] = key, table[slot]
                vertices[start + p, r] = last_number[r]
                weights[start + p, r] = bary[r]
    return table, keys[:count]


@_compiled
def neighbours(table, keys, offsets, found):
    """Fills `found` (d + 1, 2, vertices): the vertices one step ahead and behind on every axis, or their count."""
    count = keys.size
    found[:] = count
    for axis in range(offsets.size):
        for vertex in range(count):
            ahead = table[_slot(table, keys, keys[vertex] + offsets[axis])]
            if ahead >= 0:
                found[axis, 0, vertex] = ahead
                found[axis, 1, ahead] = vertex
