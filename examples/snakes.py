"""How far do messages carry? Every cell of a snake infers its position along it, ten cells from head to tail.

The benchmark of Decision Tree Fields (Nowozin, Rother, Bagon, Sharp, Yao & Kohli, ICCV 2011). A snake is a
self-avoiding path of ten cells, labelled 1 to 10 from its head, on background labelled 0. A cell shows the step that
leads on from it (the tenth points at a background cell), so its label depends on cells up to nine steps away.

    shown      0 background    1 up    2 right    3 down    4 left
    colours    blue            red     yellow     green     cyan          in the published images

Images end one cell beyond the snake. They are padded to squares of a common size with background, which adds no
information; padding is labelled void.

python examples/snakes.py                       draws its own snakes
python examples/snakes.py --file snakes.npz     the published ones
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from messagenet import VOID, FitOptions, InputError, MessagePassing, above, below, left, minimise, random_stream, right

LENGTH = 10
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: shown as 1, 2, 3, 4
COLOURS = ((0, 0, 255), (255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255))


class Snakes(NamedTuple):
    """Images of one size.

    Attributes:
        shown: (images, size, size) what each cell shows, 0 to 4.
        labels: (images, size, size) position along the snake, 0 for background, 255 for padding.
    """

    shown: NDArray[np.int64]
    labels: NDArray[np.int64]


def draw_snakes(count: int, *, seed: int = 0, size: int = 12) -> Snakes:
    """Draws snakes that start anywhere and take every free step with equal probability, padded to `size` cells."""
    if size < LENGTH + 2:
        raise InputError(f"size is {size}; a straight snake and its border need {LENGTH + 2}")
    return _pad([_draw(random_stream("snakes", seed, index)) for index in range(count)], size)


def read_snakes(path: str | Path, split: str = "train", *, size: int = 12) -> Snakes:
    """Reads the published snakes from an npz file with `x_<split>`, `y_<split>` and `size_<split>`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels, sizes = (file[f"{part}_{split}"] for part in ("x", "y", "size"))
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} cannot be read as snakes ({error}); give an npz file of snakes") from None
    cells = []
    for image, own, (height, width) in zip(images, labels, sizes, strict=True):
        matches = (image[:height, :width, None] == np.array(COLOURS)).all(-1)  # (height, width, 5)
        if not matches.any(-1).all():
            raise InputError(f"{path} has a cell whose colour shows no direction; give the original images")
        cells.append((matches.argmax(-1), own[:height, :width].astype(np.int64)))
    return _pad(cells, size)


def rotate(snakes: Snakes, quarters: int, *, mirror: bool = False) -> Snakes:
    """Mirrors the snakes left to right if asked to, then rotates them to the left; what cells show turns as well."""
    flip = np.array([0, 1, 4, 3, 2]) if mirror else np.arange(5)
    turn = np.array([0, *(1 + (step - quarters) % 4 for step in range(4))])
    shown, labels = ((values[:, :, ::-1] if mirror else values) for values in snakes)
    shown, labels = (np.rot90(values, quarters, axes=(1, 2)) for values in (shown, labels))
    return Snakes(np.ascontiguousarray(turn[flip[shown]]), np.ascontiguousarray(labels))


def _draw(rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What is shown and the labels of one snake, cut out with a border of one cell."""
    while True:
        path: list[tuple[int, int]] = [(0, 0)]
        steps: list[int] = []
        while len(steps) < LENGTH:
            y, x = path[-1]
            free = [i for i, (dy, dx) in enumerate(STEPS) if (y + dy, x + dx) not in path]
            if not free:
                break
            steps.append(int(rng.choice(free)))
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


def _pad(images: list[tuple[NDArray[np.int64], NDArray[np.int64]]], size: int) -> Snakes:
    shown = np.zeros((len(images), size, size), np.int64)
    labels = np.full((len(images), size, size), VOID, np.int64)
    for index, (cells, target) in enumerate(images):
        height, width = cells.shape
        if max(height, width) > size:
            raise InputError(f"an image of {height}×{width} cells does not fit size={size}; give a larger size")
        shown[index, :height, :width] = cells
        labels[index, :height, :width] = target
    return Snakes(shown, labels)


def tensors(snakes: Snakes) -> tuple[Tensor, Tensor]:
    """Features (B, 5, H, W), one-hot in what a cell shows, and labels (B, H, W)."""
    shown = one_hot(torch.from_numpy(snakes.shown), 5).permute(0, 3, 1, 2).float()
    return shown, torch.from_numpy(snakes.labels)


def train(snakes: Snakes, *, iterations: int, epochs: int, seed: int, gated: bool = False) -> MessagePassing:
    """Trains on rotated and mirrored images; keeps the weights that are best on a held-out fifth."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    relations = [above(cells=1), below(cells=1), left(cells=1), right(cells=1)]
    gate = {"dependent": "gate", "initial": "unary"} if gated else {}
    head = MessagePassing(5, LENGTH + 1, relations, hidden=64, iterations=iterations, aggregation="sum", **gate)
    order = rng.permutation(len(snakes.shown))
    held_out, rest = (Snakes(snakes.shown[i], snakes.labels[i]) for i in np.split(order, [len(order) // 5]))

    def loss() -> Tensor:
        """Cross-entropy of eight randomly rotated images, averaged over iterations."""
        some = rng.choice(len(rest.shown), 8, replace=False)
        images = Snakes(rest.shown[some], rest.labels[some])
        features, labels = tensors(rotate(images, int(rng.integers(4)), mirror=bool(rng.integers(2))))
        steps = [torch.stack(list(totals.values())).sum(0) for totals in head.trace(features)]
        return torch.stack([cross_entropy(logits, labels, ignore_index=VOID) for logits in steps]).mean()

    @torch.no_grad()
    def validation_loss() -> float:
        features, labels = tensors(held_out)
        return float(cross_entropy(head(features), labels, ignore_index=VOID))

    losses = [loss] * (len(rest.shown) // 8)
    fit = FitOptions(epochs, learning_rate=1e-2, weight_decay=1e-2, patience=12)
    minimise(head.parameters(), losses, fit, validation_loss)
    return head


def main(arguments: list[str] | None = None) -> list[tuple[float, float]]:
    """Trains one head for each number of iterations and prints its scores on unseen snakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", help="published snakes (snakes.npz); without it, own ones are drawn")
    for name, default, text in (
        ("count", 200, "how many snakes are drawn for training"),
        ("epochs", 60, "passes over them, at most"),
        ("seed", 0, "of weights and order"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default {default})")
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 10], help="values of T (default 1 10)")
    parser.add_argument("--gate", action="store_true", help="beliefs of senders multiply the hidden units")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that the example runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.epochs = 20, 1
    sets = [draw_snakes(options.count), draw_snakes(options.count // 2, seed=1)]
    if options.file:
        sets = [read_snakes(options.file, split) for split in ("train", "test")]
    features, labels = tensors(sets[1])
    scores: list[tuple[float, float]] = []
    results: dict[str, float] = {}
    for count in options.iterations:
        head = train(sets[0], iterations=count, epochs=options.epochs, seed=options.seed, gated=options.gate)
        correct = (head(features).argmax(1) == labels).float()
        scores.append((float(correct[labels != VOID].mean()), float(correct[labels % VOID > 0].mean())))
        print("T = {}: {:.2%} of all cells, {:.2%} of snake cells".format(count, *scores[-1]), flush=True)
        results |= {f"cells_T{count}": scores[-1][0], f"snake_cells_T{count}": scores[-1][1]}
    print(json.dumps(results))
    return scores


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
