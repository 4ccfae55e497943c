"""Snakes: label every cell with its position along a snake, from the direction the snake takes there.

The benchmark of Decision Tree Fields (Nowozin, Rother, Bagon, Sharp, Yao & Kohli, ICCV 2011). A snake is a path of
ten cells that never meets itself, labelled 1 to 10 from its head, on background labelled 0. A cell shows the step that
leads on from it (the tenth looks at a background cell), so a label is decided by cells up to nine steps away, and by
nothing nearer: a test of how far messages carry.

    shown      0 background    1 up    2 right    3 down    4 left
    colours    blue            red     yellow     green     cyan          in the published images

Turning a picture turns what its cells show as well (`turned`). Pictures end one cell beyond the snake. They are padded
to squares of a common size with background, which changes nothing a cell could be told; padding is labelled void.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from messagenet.data.classes import VOID
from messagenet.data.sampling import random_stream
from messagenet.errors import InputError

LENGTH = 10
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: shown as 1, 2, 3, 4
COLOURS = ((0, 0, 255), (255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255))


class Snakes(NamedTuple):
    """Pictures of one size.

    Attributes:
        shown: (pictures, size, size) what each cell shows, 0 to 4.
        labels: (pictures, size, size) position along the snake, 0 for background, 255 for padding.
    """

    shown: NDArray[np.int64]
    labels: NDArray[np.int64]


def draw_snakes(count: int, *, seed: int = 0, size: int = 12) -> Snakes:
    """Draws snakes that start anywhere and take every free step with equal chance.

    >>> draw_snakes(3).shown.shape
    (3, 12, 12)

    Args:
        count: How many.
        seed: Another seed gives other snakes.
        size: Edge of the padded pictures; 12 holds any snake.
    """
    if size < LENGTH + 2:
        raise InputError(f"size is {size}; a straight snake and its border need {LENGTH + 2}")
    pictures = [_draw(random_stream("snakes", seed, number)) for number in range(count)]
    return _padded(pictures, size)


def read_snakes(path: str | Path, split: str = "train", *, size: int = 12) -> Snakes:
    """Reads the published snakes from an npz file with `x_<split>`, `y_<split>` and `size_<split>`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels, sizes = (file[f"{part}_{split}"] for part in ("x", "y", "size"))
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} is no file of snakes with a split {split!r}: {error}") from None
    pictures = []
    for image, own, (height, width) in zip(images, labels, sizes, strict=True):
        inside = image[:height, :width]
        matches = (inside[:, :, None] == np.array(COLOURS)).all(-1)  # (height, width, 5)
        if not matches.any(-1).all():
            raise InputError(f"{path} has a cell whose colour shows no direction; give the original images")
        pictures.append((matches.argmax(-1), own[:height, :width].astype(np.int64)))
    return _padded(pictures, size)


def turned(snakes: Snakes, quarters: int, *, mirrored: bool = False) -> Snakes:
    """The snakes turned to the left by so many quarters, after being mirrored left to right if asked for.

    >>> snakes = draw_snakes(2)
    >>> again = turned(turned(snakes, 1, mirrored=True), 1, mirrored=True)
    >>> bool((again.shown == snakes.shown).all())
    True
    """
    mirror = np.array([0, 1, 4, 3, 2]) if mirrored else np.arange(5)
    turn = np.array([0, *(1 + (step - quarters) % 4 for step in range(4))])
    shown, labels = ((values[:, :, ::-1] if mirrored else values) for values in snakes)
    shown, labels = (np.rot90(values, quarters, axes=(1, 2)) for values in (shown, labels))
    return Snakes(np.ascontiguousarray(turn[mirror[shown]]), np.ascontiguousarray(labels))


def _draw(random: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What is shown and the labels of one snake, cut out with a border of one cell."""
    while True:
        path: list[tuple[int, int]] = [(0, 0)]
        steps: list[int] = []
        while len(steps) < LENGTH:
            y, x = path[-1]
            free = [i for i, (dy, dx) in enumerate(STEPS) if (y + dy, x + dx) not in path]
            if not free:
                break
            steps.append(int(random.choice(free)))
            dy, dx = STEPS[steps[-1]]
            path.append((y + dy, x + dx))
        if len(steps) == LENGTH:
            break
    cells = np.array(path[:LENGTH])
    cells = cells - cells.min(0) + 1
    shown, labels = (np.zeros(cells.max(0) + 2, np.int64) for _ in range(2))
    shown[tuple(cells.T)] = 1 + np.array(steps)
    labels[tuple(cells.T)] = 1 + np.arange(LENGTH)
    return shown, labels


def _padded(pictures: list[tuple[NDArray[np.int64], NDArray[np.int64]]], size: int) -> Snakes:
    shown = np.zeros((len(pictures), size, size), np.int64)
    labels = np.full((len(pictures), size, size), VOID, np.int64)
    for number, (seen, truth) in enumerate(pictures):
        height, width = seen.shape
        if max(height, width) > size:
            raise InputError(
                f"a picture of {height}×{width} cells does not fit size={size}; give a larger size"
            )
        shown[number, :height, :width] = seen
        labels[number, :height, :width] = truth
    return Snakes(shown, labels)
