"""Colours of a grid's nodes: no two nodes of one colour are neighbours.

Node after node, rows first, takes the first colour that none of its neighbours has, as `mean_field.colour_classes`
does on any graph. On a 4-connected grid that is a chessboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numba
import numpy as np
from numpy.typing import NDArray

from messagenet.graph.relations import Offset


@lru_cache(maxsize=64)
def grid_colours(height: int, width: int, offsets: Sequence[Offset]) -> NDArray[np.int64]:
    """(height, width) colour of every node, neighbours being p ± o for the offsets o.

    >>> grid_colours(2, 3, ((0, 1), (1, 0)))
    array([[0, 1, 0],
           [1, 0, 1]])
    """
    earlier = sorted({min((dy, dx), (-dy, -dx)) for dy, dx in offsets})
    steps = np.array(earlier, dtype=np.int64).reshape(-1, 2)
    colours = np.zeros((height, width), dtype=np.int64)
    _colour(colours, steps)
    return colours


@numba.njit(cache=True, nogil=True)
def _colour(colours: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
    """Fills in the colours, rows first.

    Args:
        colours: (height, width).
        steps: (neighbours, 2) offsets to the neighbours that come earlier.
    """
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
