"""Words from images of their letters: learned messages against a linear-chain CRF, on the same CNN features.

The handwritten words of Kassel, as Taskar, Guestrin & Koller (NIPS 2003) use them: 6,877 words, letters of 16×8 pixels.
There are only 55 different words, so two splits are scored: by fold, where every word has been seen in other hands, and
by word, where none of the words to be read has been seen.

    CNN alone            each letter by itself
    linear-chain CRF     emissions from the CNN, 26×26 transitions; exact marginals and log Z at every training step
    learned messages     factors between letters up to REACH apart, T iterations; plain classification, no log Z

python examples/words.py letters.npz --split word     `pixels`, `label`, `length` and `fold` in an npz file
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import messagenet as mn

LETTERS, FEATURES, REACH, BATCH = 26, 64, 3, 64
Word = tuple[Tensor, Tensor]  # images (length, 1, 16, 8) and labels (length,)
Loss = Callable[[Sequence[Word]], Tensor]
Reader = Callable[[Word], Tensor]  # labels of a word


def read_words(path: str, split: str, part: int) -> tuple[list[Word], list[Word]]:
    """Training and test words; `part` says which tenth of the folds trains, or which fifth of the words is tested."""
    with np.load(path, allow_pickle=False) as file:
        pixels = torch.from_numpy(np.unpackbits(file["pixels"], axis=1)).float().reshape(-1, 1, 16, 8)
        labels, lengths, folds = torch.from_numpy(file["label"]).long(), file["length"].tolist(), file["fold"].tolist()
    words = list(zip(pixels.split(lengths), labels.split(lengths), strict=True))
    spelt = ["".join(chr(97 + letter) for letter in label.tolist()) for _, label in words]
    order = {word: index for index, word in enumerate(sorted(set(spelt)))}
    trains = [
        fold == part if split == "fold" else order[word] % 5 != part for fold, word in zip(folds, spelt, strict=True)
    ]
    return [w for w, t in zip(words, trains, strict=True) if t], [
        w for w, t in zip(words, trains, strict=True) if not t
    ]


def encoder(outputs: int) -> nn.Sequential:
    """A CNN from letters (n, 1, 16, 8) to (n, outputs)."""
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, outputs))


def cnn_alone() -> tuple[nn.Module, Loss, Reader]:
    """Each letter by itself."""
    cnn = encoder(LETTERS)

    def loss(words: Sequence[Word]) -> Tensor:
        return cross_entropy(cnn(torch.cat([image for image, _ in words])), torch.cat([label for _, label in words]))

    return cnn, loss, lambda word: cnn(word[0]).argmax(1)


def chain_crf() -> tuple[nn.Module, Loss, Reader]:
    """Maximum likelihood; on a chain, belief propagation is the forward-backward algorithm."""
    model = nn.ModuleDict({"emission": encoder(LETTERS)})
    model.register_parameter("transition", nn.Parameter(torch.zeros(1, LETTERS, LETTERS)))

    def run(images: Tensor, length: int) -> tuple[mn.FactorGraph, list[Tensor], mn.Result]:
        graph = mn.chain_graph([LETTERS] * length)
        potentials = [model["emission"](images).unflatten(0, (-1, length)), model.get_parameter("transition")]
        return graph, potentials, mn.Exact().run(graph, potentials)

    def loss(words: Sequence[Word]) -> Tensor:
        by_length = defaultdict(list)
        for word in words:
            by_length[len(word[1])].append(word)
        total = torch.zeros(())
        for length, some in by_length.items():
            graph, potentials, result = run(torch.cat([image for image, _ in some]), length)
            total = total + (result.log_z - graph.score(potentials, torch.stack([label for _, label in some]))).sum()
        return total / sum(len(label) for _, label in words)

    return model, loss, lambda word: run(word[0], len(word[1]))[2].marginals[0].argmax(-1)


def learned_messages(iterations: int, dependent: str) -> tuple[nn.Module, Loss, Reader]:
    """One factor type for each distance between two letters."""
    model = nn.ModuleDict({"encoder": encoder(FEATURES)})
    factors = {f"apart_{distance}": 2 for distance in range(1, REACH + 1)}
    model["head"] = mn.GraphMessagePassing(
        FEATURES, LETTERS, factors, hidden=64, iterations=iterations, initial="unary", dependent=dependent
    )

    def graph(length: int) -> mn.TypedGraph:
        apart = {f"apart_{d}": [[i, i + d] for i in range(length - d)] for d in range(1, REACH + 1)}
        return mn.TypedGraph.build(length, apart)

    def logits(words: Sequence[Word]) -> Tensor:
        features = model["encoder"](torch.cat([image for image, _ in words]))
        return model["head"](features, mn.batch_graphs([graph(len(label)) for _, label in words]))

    def loss(words: Sequence[Word]) -> Tensor:
        return cross_entropy(logits(words), torch.cat([label for _, label in words]))

    return model, loss, lambda word: logits([word]).argmax(1)


def accuracy(model: nn.Module, loss: Loss, read: Reader, train: list[Word], test: list[Word], epochs: int) -> float:
    """Trains, then counts the letters of the test words that are read correctly."""
    batches = [train[start :: -(-len(train) // BATCH)] for start in range(-(-len(train) // BATCH))]
    losses = [lambda words=words: loss(words) for words in batches]
    mn.minimise(model.train().parameters(), losses, mn.FitOptions(epochs, learning_rate=3e-3, weight_decay=0.05))
    model.eval()
    with torch.no_grad():
        right = torch.cat([read(word) == word[1] for word in test])
    return float(right.float().mean())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Prints the share of letters that each system reads correctly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", help="npz file of letters")
    parser.add_argument("--split", choices=("fold", "word"), default="fold")
    for name, default in (("part", 0), ("epochs", 20), ("iterations", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dependent", default="gate", help="how beliefs enter a message: gate or sum")
    options = parser.parse_args(arguments)
    train, test = read_words(options.file, options.split, options.part)
    builders = {
        "CNN alone": cnn_alone,
        "linear-chain CRF": chain_crf,
        "learned messages": lambda: learned_messages(options.iterations, options.dependent),
    }
    scores = {}
    for name, build in builders.items():
        torch.manual_seed(options.seed)
        scores[name] = accuracy(*build(), train, test, options.epochs)
        print(f"{name}: {scores[name]:.2%} of the letters", flush=True)
    return scores


if __name__ == "__main__":
    print(json.dumps(main()))
