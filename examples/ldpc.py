"""Decoding a short LDPC code by belief propagation, and by belief propagation with learned corrections.

A short code has many short cycles, on which belief propagation errs. The head starts as it and learns what to add.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.typed import TypedGraph, batch_graphs
from messagenet.inference import BeliefPropagation
from messagenet.message_passing import GraphMessagePassing
from messagenet.models.computed_messages import table_messages
from messagenet.training.graphs import Fit, minimise

HALF, FRAMES = 24, 60  # as many parity bits as bits of information; frames at once
MIXED = torch.tensor([[i, (5 * i + 3) % HALF, (7 * i + 10) % HALF] for i in range(HALF)])  # by each check
CHECKS = [[*bits, HALF + i] + [HALF + i - 1] * (i > 0) for i, bits in enumerate(MIXED.tolist())]
EVEN = {n: torch.cartesian_prod(*[torch.arange(2)] * n).sum(1) % 2 == 0 for n in (4, 5)}
TABLES = {n: torch.where(even, 0.0, -torch.inf).reshape(1, *[2] * n) for n, even in EVEN.items()}  # parity


def receive(decibel: float) -> tuple[Tensor, Tensor]:
    """Random codewords, (frames, bits), and what a Gaussian channel says of each bit: 0, log P(1) / P(0)."""
    bits = torch.randint(2, (FRAMES, HALF))
    words = torch.cat([bits, bits[:, MIXED].sum(-1).cumsum(1) % 2], 1)
    noise = 10 ** (-decibel / 20)
    ratio = 2 * (2.0 * words - 1 + noise * torch.randn(words.shape)) / noise**2
    return words, torch.stack([torch.zeros_like(ratio), ratio], -1)


class Corrected(nn.Module):
    """Belief propagation with corrections: a head, and what it learns of the place of each bit in the code."""

    def __init__(self, iterations: int) -> None:
        super().__init__()
        options = {"iterations": iterations, "tied": False, "initial": "unary", "known": ["unary", "parity"]}
        self.head = GraphMessagePassing(9, 2, {"parity": None}, hidden=32, **options)
        self.places = nn.Parameter(torch.randn(2 * HALF, 8))
        self.graph = batch_graphs([TypedGraph.build(2 * HALF, {"parity": CHECKS})] * FRAMES)

    def forward(self, channel: Tensor) -> Tensor:
        """Logits of all bits, (frames, bits, 2)."""
        features = torch.cat([channel[..., 1].reshape(-1, 1) / 4, self.places.repeat(FRAMES, 1)], 1)
        known = {"unary": channel.flatten(0, 1), "parity": table_messages(TABLES)}
        return self.head(features, self.graph, known=known).reshape(channel.shape)

    def loss(self) -> Tensor:
        """The share of wrong bits and of wrong frames, made smooth, on new codewords."""
        words, channel = receive(1.5 + 2.5 * float(torch.rand(())))
        losses = cross_entropy(self(channel).movedim(2, 1), words, reduction="none")  # (frames, bits)
        return losses.mean() + (1 - torch.exp(-losses.sum(1))).mean()


def main(arguments: list[str] | None = None) -> Tensor:
    """Prints the share of frames that each decoder gets wrong at three noise levels."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("iterations", 5), ("steps", 1500), ("batches", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    decoder, wrong = Corrected(options.iterations), torch.zeros(3, 2)
    minimise(decoder.parameters(), [decoder.loss], Fit(epochs=options.steps, learning_rate=3e-3))
    graph = FactorGraph.from_scopes([2] * 2 * HALF, [[bit] for bit in range(2 * HALF)] + CHECKS)
    engine = BeliefPropagation(max_iterations=options.iterations, tolerance=None)
    for row, decibel in enumerate((2, 3, 4)):
        for words, channel in (receive(decibel) for _ in range(options.batches)):
            computed = engine.run(graph, [channel, *TABLES.values()]).log_marginals
            for column, beliefs in enumerate((computed, decoder(channel))):
                wrong[row, column] += (beliefs.argmax(-1) != words).any(1).float().mean() / options.batches
        print("{} dB: {:.2%} of frames wrong, {:.2%} with corrections".format(decibel, *wrong[row]))
    return wrong


if __name__ == "__main__":
    main()
