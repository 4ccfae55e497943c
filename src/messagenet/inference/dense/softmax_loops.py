"""CPU kernels of the softmax over few classes in float32, compiled by Numba on first use and cached on disk.

    exp(x) = 2^n · exp(f),    n = round(x / ln 2),    f = x − n·ln 2,    |f| ≤ ln(2) / 2

with a polynomial for exp(f) (relative error 1e-7) and 2^n written straight into the exponent's bits: nothing but
additions, multiplications and shifts over long contiguous runs, whatever the number of classes. For 21 classes, whose
rows do not fill whole vector registers, it takes half the time of torch's.
"""

# Numba reads these functions, mypy cannot: their arguments are flat numpy arrays and integers.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import float32, int32, njit, uint64

_compiled = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
# Sums and maxima over classes may be taken in any order; the logits are finite.
_reordered = njit(
    nogil=True, cache=True, fastmath={"contract", "reassoc", "nnan", "ninf", "nsz"}, error_model="numpy"
)

PIXELS = 64  # at a time: their logits stay in the innermost cache
LOWEST = np.float32(-60.0)  # no probability below exp(-60): numbers without leading digits are slow to add
SHIFTER = np.float32(3 << 22)  # adding it leaves the nearest integer in the lowest bits
LOG2_E = np.float32(1 / np.log(2))
LN2_HIGH = np.float32(0.693359375)  # exact in few bits, so that n · LN2_HIGH is exact
LN2_LOW = np.float32(np.log(2) - 0.693359375)
C2, C3, C4, C5, C6 = (np.float32(c) for c in (0.5, 0.16666667, 0.041666426, 0.008333133, 0.0013940343))


@_reordered
def _less_maximum(values, pixels, classes):
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
def _shares(values, pixels, classes, out, start):
    for p in range(pixels):
        i, j = uint64(p * classes), uint64(start + p * classes)
        total = float32(0)
        for k in range(classes):
            total += values[i + uint64(k)]
        factor = float32(1) / total
        for k in range(classes):
            out[j + uint64(k)] = factor * values[i + uint64(k)]


@_compiled
def softmax(potentials, message, classes, out):
    """out = softmax(potentials + message) over the classes of every pixel.

    Args:
        potentials: Flat (pixels, classes), float32.
        message: Likewise; an empty array for zero.
        classes: Their number.
        out: Likewise.
    """
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
        _less_maximum(values, size // classes, classes)
        _exponential(values, size, powers, bits)
        _shares(values, size // classes, classes, out, start)


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
