"""Tagging sequences with learned messages, against the exact CRF (forward-backward) on the same features.

The sequences come from a hidden Markov model, so the CRF has the right form. It needs log Z at every training step;
messages train by plain classification and never compute it.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from messagenet import (
    BeliefPropagation,
    FitOptions,
    GraphExample,
    GraphMessagePassing,
    TypedGraph,
    batch_graphs,
    chain_graph,
    minimise,
    train_through_iterations,
)

TAGS, LENGTH = 4, 10
Sequences = tuple[Tensor, Tensor]  # symbols and tags, (count, length)


def sequences(count: int, seed: int) -> Sequences:
    """Tags tend to follow one another in a ring; each emits a symbol, which is often wrong."""
    generator = torch.Generator().manual_seed(seed)
    follow = 0.75 * torch.eye(TAGS).roll(1, 1) + 0.15 * torch.eye(TAGS) + 0.1 / TAGS
    tags = [torch.randint(TAGS, (count,), generator=generator)]
    for _ in range(LENGTH - 1):
        tags.append(torch.multinomial(follow[tags[-1]], 1, generator=generator)[:, 0])
    target = torch.stack(tags, 1)
    emit = 0.5 * torch.eye(TAGS)[target.flatten()] + 0.5 / TAGS
    return torch.multinomial(emit, 1, generator=generator).reshape(target.shape), target


def exact_crf(train: Sequences, symbols: Tensor, steps: int) -> Tensor:
    """Tags from maximum-likelihood training; on a chain, belief propagation is the forward-backward algorithm."""
    graph, engine = chain_graph([TAGS] * LENGTH), BeliefPropagation(max_iterations=LENGTH, tolerance=None)
    emission, transition = (nn.Parameter(torch.zeros(TAGS, TAGS)) for _ in range(2))

    def loss() -> Tensor:
        potentials = [emission[train[0]], transition[None]]
        return (engine.run(graph, potentials).log_z - graph.score(potentials, train[1])).mean()

    minimise([emission, transition], [loss], FitOptions(epochs=steps, learning_rate=0.1))
    return engine.run(graph, [emission[symbols], transition[None]]).marginals.argmax(-1)


def learned_messages(train: Sequences, symbols: Tensor, epochs: int) -> Tensor:
    """Tags from learned messages, with as many iterations as a sequence is long."""
    chain = TypedGraph.build(LENGTH, {"next": [[i, i + 1] for i in range(LENGTH - 1)]})
    head = GraphMessagePassing(TAGS, TAGS, {"next": 2}, hidden=32, iterations=LENGTH, initial="unary")
    examples = [
        GraphExample(batch_graphs([chain] * len(some)), one_hot(some.flatten(), TAGS).float(), tags.flatten())
        for some, tags in zip(*(part.split(100) for part in train), strict=True)
    ]
    train_through_iterations(head, examples, FitOptions(epochs, learning_rate=1e-2, weight_decay=0.1))
    result = head.run(one_hot(symbols.flatten(), TAGS).float(), batch_graphs([chain] * len(symbols)))
    return result.logits.argmax(1).reshape(symbols.shape)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Prints the accuracy of each method on unseen sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("count", 2000), ("epochs", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that the example runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.epochs = 100, 1
    torch.manual_seed(options.seed)
    train, (symbols, tags) = sequences(options.count, options.seed), sequences(2000, 1000 + options.seed)
    guesses = {"symbol alone": symbols, "exact CRF": exact_crf(train, symbols, 5 * options.epochs)}
    guesses["learned messages"] = learned_messages(train, symbols, options.epochs)
    scores = {name: float((guess == tags).float().mean()) for name, guess in guesses.items()}
    print(", ".join(f"{name} {score:.2%}" for name, score in scores.items()))
    return scores


if __name__ == "__main__":
    print(json.dumps(main()))
