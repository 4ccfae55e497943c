"""Words from images of their letters: learned messages against a linear-chain CRF, on the same CNN.

The handwritten words of Kassel, as Taskar, Guestrin & Koller (NIPS 2003) use them: 6,877 words, letters of 16×8 pixels.
Fold 0 is for training, the other nine are tested. All of the 55 distinct words are in fold 0, so there are two splits:
by fold, and by word, where each of five groups of words in turn is left out of training, and only this group is tested.

    CNN alone            each letter by itself
    linear-chain CRF     emissions from the CNN, learned transitions; exact log Z at every training step
    learned messages     factors between letters up to `reach` apart, T iterations; plain classification, no log Z

python examples/words.py                                       draws its own letters; words from a Markov chain
python examples/words.py --file letters.npz --split word       `pixels`, `label`, `length` and `fold` in an npz file

By word, half of the training batches have their letters shuffled across words, which limits how far systems rely on
neighbours, and messages come from adjacent letters only. Both were chosen with --held-out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import messagenet as mn

LETTERS, IMPOSSIBLE = 26, -1e4
Word = tuple[Tensor, Tensor, int]  # images (length, 1, 16, 8), labels (length,), fold
Batch = tuple[Tensor, Tensor, tuple[int, ...]]  # images and labels of all letters, lengths of the words
System = tuple[nn.Module, Callable[[Batch], tuple[Tensor, Tensor]]]  # a model; its logits (letters, 26) and loss


def read_words(path: str) -> list[Word]:
    """Reads the words of an npz file."""
    names = ("pixels", "label", "length", "fold")
    try:
        with np.load(path, allow_pickle=False) as file:
            pixels, labels, lengths, folds = (file[name] for name in names)
        images = torch.from_numpy(np.unpackbits(pixels, axis=1)).float().reshape(-1, 1, 16, 8).split(lengths.tolist())
        words = list(zip(images, torch.from_numpy(labels).long().split(lengths.tolist()), folds.tolist(), strict=True))
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, EOFError, BadZipFile) as error:
        raise mn.InputError(
            f"{path} cannot be read as letters ({error}); give an npz file with {', '.join(names)}: a letter's 128 "
            "pixels as 16 packed bytes and its label, a word's length and its fold"
        ) from None
    if labels.size and not 0 <= labels.min() <= labels.max() < LETTERS:
        raise mn.InputError(f"{path} has labels from {labels.min()} to {labels.max()}; give 0 to {LETTERS - 1}")
    if not any(folds == 0) or all(folds == 0):
        raise mn.InputError(f"{path} needs words in fold 0, for training, and in others, for testing")
    return words


def draw_words(count: int, seed: int) -> list[Word]:
    """Draws words of 4 to 8 letters: random images, a third of the pixels flipped; three letters may follow each."""
    rng, words = np.random.default_rng(seed), []
    shapes, follow = rng.random((LETTERS, 1, 16, 8)) < 0.5, rng.integers(LETTERS, size=(LETTERS, 3))
    for index in range(count):
        labels = [int(rng.integers(LETTERS))]
        while len(labels) < 4 + index % 5:
            labels.append(int(rng.choice(follow[labels[-1]])))
        images = shapes[labels] ^ (rng.random((len(labels), 1, 16, 8)) < 0.33)
        words.append((torch.from_numpy(images).float(), torch.tensor(labels), index // 5 % 2))
    return words


def split_words(words: Sequence[Word], by_word: bool, held_out: bool) -> list[tuple[list[Word], list[Word]]]:
    """Training and test words. To choose settings on `held_out` words, the test words come from fold 0 as well."""
    order = {spelling: index for index, spelling in enumerate(sorted({tuple(word[1].tolist()) for word in words}))}
    groups = [(order[tuple(word[1].tolist())] if by_word else index) % 5 for index, word in enumerate(words)]
    splits = []
    for group in range(5 if by_word else 1):
        tested = (group + held_out) % 5
        unseen = {group, tested} if by_word else {tested} if held_out else set()
        train = [word for word, own in zip(words, groups, strict=True) if word[2] == 0 and own not in unseen]
        rest = [(word, own) for word, own in zip(words, groups, strict=True) if (word[2] == 0) == held_out]
        splits.append((train, [word for word, own in rest if own == tested or not unseen]))
    return splits


def batch_words(words: Sequence[Word], size: int) -> list[Batch]:
    """Joins at most `size` words to a batch."""
    count = -(-len(words) // size)
    parts = [list(zip(*words[start::count], strict=True)) for start in range(count)]
    return [(torch.cat(images), torch.cat(labels), tuple(map(len, labels))) for images, labels, _ in parts]


def encoder(outputs: int) -> nn.Sequential:
    """A CNN from letters (n, 1, 16, 8) to (n, outputs)."""
    layers = [nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(512, outputs))


def cnn_alone() -> System:
    """Each letter by itself."""
    cnn = encoder(LETTERS)
    return cnn, lambda batch: ((logits := cnn(batch[0])), cross_entropy(logits, batch[1]))


def chain_crf() -> System:
    """Maximum likelihood. State 26 stands before and after a word, so words of any length share one chain."""
    cnn = encoder(LETTERS)
    cnn.transition = nn.Parameter(torch.zeros(1, LETTERS + 1, LETTERS + 1))  # times 10: it learns faster

    def run(batch: Batch) -> tuple[Tensor, Tensor]:
        steps = torch.arange(max(batch[2]) + 2)
        inside = (steps > 0) & (steps <= torch.tensor(batch[2])[:, None])  # (words, steps)
        outside = torch.tensor([IMPOSSIBLE] * LETTERS + [0.0]).expand(*inside.shape, -1)
        emission = outside.masked_scatter(inside[..., None], pad(cnn(batch[0]), (0, 1), value=IMPOSSIBLE))
        target = torch.full(inside.shape, LETTERS).masked_scatter(inside, batch[1])
        graph, potentials = mn.chain_graph([LETTERS + 1] * len(steps)), [emission, 10 * cnn.transition]
        result = mn.Exact().run(graph, potentials)
        loss = (result.log_z - graph.score(potentials, target)).sum() / len(batch[1])
        return result.log_marginals[inside][:, :LETTERS], loss

    return cnn, run


def learned_messages(iterations: int, reach: int, hidden: int) -> System:
    """One factor type for each distance between two letters; the loss also scores the unary messages alone."""
    cnn, apart = encoder(64), {f"apart_{distance}": distance for distance in range(1, reach + 1)}
    sizes = {"hidden": hidden, "iterations": iterations}
    head = mn.GraphMessagePassing(64, LETTERS, dict.fromkeys(apart, 2), initial="unary", dependent="gate", **sizes)

    @cache
    def graph(lengths: tuple[int, ...]) -> mn.TypedGraph:
        pairs = [{name: [[i, i + d] for i in range(n - d)] for name, d in apart.items()} for n in lengths]
        return mn.batch_graphs(list(map(mn.TypedGraph.build, lengths, pairs)))

    def run(batch: Batch) -> tuple[Tensor, Tensor]:
        totals = head.trace(cnn(batch[0]), graph(batch[2]))[-1]
        logits = sum(totals.values())
        return logits, cross_entropy(logits, batch[1]) + 0.5 * cross_entropy(totals["unary"], batch[1])

    return nn.ModuleList([cnn, head]), run


def accuracy(system: System, train: Sequence[Word], test: Sequence[Word], fit: mn.FitOptions, shuffled: float) -> float:
    """The share of test letters that are read correctly, after training on words and on shuffled letters."""
    model, run = system

    def loss(batch: Batch) -> Tensor:
        order = torch.randperm(len(batch[1])) if torch.rand(()) < shuffled else slice(None)
        return run((batch[0][order], batch[1][order], batch[2]))[1]

    mn.minimise(model.train().parameters(), [partial(loss, batch) for batch in batch_words(train, 16)], fit)
    model.eval()
    with torch.no_grad():
        right = [run(batch)[0].argmax(1) == batch[1] for batch in batch_words(test, 100)]
    return float(torch.cat(right).float().mean())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Prints the share of letters that each system reads correctly; by word, the mean over the groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", help="npz file of letters; default: generated ones")
    parser.add_argument(
        "--split", choices=("fold", "word"), default="fold", help="test on unseen folds, or unseen words"
    )
    parser.add_argument("--held-out", action="store_true", help="test on a part of fold 0, to choose settings")
    parser.add_argument("--shuffled", type=float, help="share of batches with shuffled letters; default: 0.5 by word")
    parser.add_argument("--reach", type=int, help="letters apart; default: 3, 1 by word")
    for name, value, text in (
        ("count", 2000, "generated words"),
        ("epochs", 40, "passes over the training words"),
        ("iterations", 2, "T of the learned messages"),
        ("hidden", 64, "hidden units of their estimators"),
        ("seed", 0, "of everything random"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text}; default: {value}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that the example runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.epochs = 200, 1
    if options.reach is not None and options.reach < 1:
        parser.error("--reach is at least 1: letters that are adjacent")
    if not 0 <= (options.shuffled or 0) <= 1:
        parser.error("--shuffled is a share, from 0 to 1")
    by_word = options.split == "word"
    shuffled = (0.5 if by_word else 0.0) if options.shuffled is None else options.shuffled
    reach = (1 if by_word else 3) if options.reach is None else options.reach
    words = read_words(options.file) if options.file else draw_words(options.count, options.seed)
    messages = partial(learned_messages, options.iterations, reach, options.hidden)
    fit = mn.FitOptions(options.epochs, learning_rate=3e-3, weight_decay=0.05, seed=options.seed)
    splits, scores = split_words(words, by_word, options.held_out), {}
    for name, build in {"CNN alone": cnn_alone, "linear-chain CRF": chain_crf, "learned messages": messages}.items():
        torch.manual_seed(options.seed)
        scores[name] = statistics.mean(accuracy(build(), *split, fit, shuffled) for split in splits)
        print(f"{name}: {scores[name]:.2%} of the letters", flush=True)
    return scores


if __name__ == "__main__":
    try:
        print(json.dumps(main()))
    except mn.InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
