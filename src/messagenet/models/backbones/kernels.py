"""CPU kernel of the gradient of a 5×5 depthwise convolution, compiled by Numba on first use and cached on disk.

    dW[i, j, c] = Σ_{b, y, x} G[b, y, x, c] · X[b, s·y + i − p, s·x + j − p, c]

With channels last, the five taps of a kernel's row are five vector multiply-adds for each vector of G that is read.
oneDNN has no fast kernel for this gradient; for 3×3 it has. See message_passing/kernels.py for the unsigned indices.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from numba import njit, uint64

_SIDE = 5


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def sum_over_nodes(grad, maps, images, height, width, rows, columns, channels, stride, padding, out, first, last):
    """Sets the channels first ≤ c < last of `out`, (25, channels), to dW.

    grad (images, height, width, channels), maps (images, rows, columns, channels) and out are flat buffers.
    """
    n = last - first
    for tap in range(_SIDE * _SIDE):
        for c in range(n):
            out[uint64(tap * channels + first + c)] = 0
    start = min((padding + stride - 1) // stride, width)  # the nodes start ≤ x < stop have all five taps in the map
    stop = max(min((columns - _SIDE + padding) // stride + 1, width), start)
    for image in range(images):
        for y in range(height):
            for i in range(_SIDE):
                row = stride * y + i - padding
                if not 0 <= row < rows:
                    continue
                o0 = i * _SIDE * channels + first
                o1, o2, o3, o4 = o0 + channels, o0 + 2 * channels, o0 + 3 * channels, o0 + 4 * channels
                above = (image * rows + row) * columns
                at = (image * height + y) * width
                for x in range(start, stop):
                    g, m = (at + x) * channels + first, (above + stride * x - padding) * channels + first
                    for c in range(n):
                        upstream = grad[uint64(g + c)]
                        out[uint64(o0 + c)] += upstream * maps[uint64(m + c)]
                        out[uint64(o1 + c)] += upstream * maps[uint64(m + channels + c)]
                        out[uint64(o2 + c)] += upstream * maps[uint64(m + 2 * channels + c)]
                        out[uint64(o3 + c)] += upstream * maps[uint64(m + 3 * channels + c)]
                        out[uint64(o4 + c)] += upstream * maps[uint64(m + 4 * channels + c)]
                for side in range(2):  # the nodes at the left and at the right edge
                    for x in range(0 if side == 0 else stop, start if side == 0 else width):
                        for j in range(_SIDE):
                            column = stride * x + j - padding
                            if 0 <= column < columns:
                                g, m = (at + x) * channels + first, (above + column) * channels + first
                                for c in range(n):
                                    out[uint64(o0 + j * channels + c)] += grad[uint64(g + c)] * maps[uint64(m + c)]
