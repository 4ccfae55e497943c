"""How far do messages carry? Every cell of a snake learns its position along it, ten cells from head to tail.

python examples/snakes.py                       draws its own snakes
python examples/snakes.py --file snakes.npz     the published ones (Decision Tree Fields, ICCV 2011)
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from messagenet import MessagePassing, above, below, left, right
from messagenet.data.classes import VOID
from messagenet.data.snakes import LENGTH, Snakes, draw_snakes, read_snakes, turned
from messagenet.training.graphs import Fit, minimise


def tensors(snakes: Snakes) -> tuple[Tensor, Tensor]:
    """Features (B, 5, H, W), one channel for all that a cell can show, and labels (B, H, W)."""
    shown = one_hot(torch.from_numpy(snakes.shown), 5).permute(0, 3, 1, 2).float()
    return shown, torch.from_numpy(snakes.labels)


def train(snakes: Snakes, *, iterations: int, epochs: int, seed: int) -> MessagePassing:
    """Learns from turned and mirrored pictures; keeps the version that is best on a fifth held out."""
    torch.manual_seed(seed)
    dice = np.random.default_rng(seed)
    relations = [above(cells=1), below(cells=1), left(cells=1), right(cells=1)]
    head = MessagePassing(5, LENGTH + 1, relations, hidden=64, iterations=iterations, aggregation="sum")
    order = dice.permutation(len(snakes.shown))
    held_out, rest = (Snakes(snakes.shown[i], snakes.labels[i]) for i in np.split(order, [len(order) // 5]))

    def loss() -> Tensor:
        """Of eight pictures, turned in some way, averaged over iterations."""
        some = dice.choice(len(rest.shown), 8, replace=False)
        pictures = Snakes(rest.shown[some], rest.labels[some])
        features, labels = tensors(turned(pictures, int(dice.integers(4)), mirrored=bool(dice.integers(2))))
        steps = [torch.stack(list(totals.values())).sum(0) for totals in head.trace(features)]
        return torch.stack([cross_entropy(logits, labels, ignore_index=VOID) for logits in steps]).mean()

    @torch.no_grad()
    def judge() -> float:
        features, labels = tensors(held_out)
        return float(cross_entropy(head(features), labels, ignore_index=VOID))

    losses = [loss] * (len(rest.shown) // 8)
    minimise(
        head.parameters(), losses, Fit(epochs, learning_rate=1e-2, weight_decay=1e-2, patience=12), judge
    )
    return head


def main(arguments: list[str] | None = None) -> list[tuple[float, float]]:
    """Trains one head for each number of iterations and prints its scores on unseen snakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file")
    for name, default in (("count", 200), ("epochs", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 10])
    options = parser.parse_args(arguments)
    sets = [draw_snakes(options.count), draw_snakes(options.count // 2, seed=1)]
    if options.file:
        sets = [read_snakes(options.file, split) for split in ("train", "test")]
    features, labels = tensors(sets[1])
    scores = []
    for count in options.iterations:
        head = train(sets[0], iterations=count, epochs=options.epochs, seed=options.seed)
        correct = (head(features).argmax(1) == labels).float()
        scores.append((float(correct[labels != VOID].mean()), float(correct[labels % VOID > 0].mean())))
        print("T = {}: {:.2%} of all cells, {:.2%} of snake cells".format(count, *scores[-1]), flush=True)
    return scores


if __name__ == "__main__":
    main()
