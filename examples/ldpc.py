"""Decoding a short LDPC code by belief propagation, and by belief propagation with learned corrections.

A short code has many short cycles, on which belief propagation is inexact. The head starts as belief propagation and
learns corrections to its messages.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from messagenet import (
    BeliefPropagation,
    FactorGraph,
    FitOptions,
    GraphMessagePassing,
    TypedGraph,
    batch_graphs,
    minimise,
    table_messages,
)

HALF, FRAMES = 24, 60  # as many parity bits as bits of information; frames at once
MIXED = torch.tensor([[i, (5 * i + 3) % HALF, (7 * i + 10) % HALF] for i in range(HALF)])  # by each check
CHECKS = [[*bits, HALF + i] + [HALF + i - 1] * (i > 0) for i, bits in enumerate(MIXED.tolist())]
EVEN = {n: torch.cartesian_prod(*[torch.arange(2)] * n).sum(1) % 2 == 0 for n in (4, 5)}
TABLES = {n: torch.where(even, 0.0, -torch.inf).reshape(1, *[2] * n) for n, even in EVEN.items()}  # parity


def receive(decibel: float) -> tuple[Tensor, Tensor]:
    """Random codewords (frames, bits), and log-potentials of each bit from a Gaussian channel: 0, log P(1) / P(0)."""
    bits = torch.randint(2, (FRAMES, HALF))
    words = torch.cat([bits, bits[:, MIXED].sum(-1).cumsum(1) % 2], 1)
    noise = 10 ** (-decibel / 20)
    ratio = 2 * (2.0 * words - 1 + noise * torch.randn(words.shape)) / noise**2
    return words, torch.stack([torch.zeros_like(ratio), ratio], -1)


class Corrected(nn.Module):
    """Belief propagation with corrections: a head, and an embedding of each bit's position in the code."""

    def __init__(self, iterations: int) -> None:
        super().__init__()
        self.head = GraphMessagePassing(
            9,
            2,
            {"parity": None},
            hidden=32,
            iterations=iterations,
            tied=False,
            initial="unary",
            computed=["unary", "parity"],
        )
        self.positions = nn.Parameter(torch.randn(2 * HALF, 8))
        self.graph = batch_graphs([TypedGraph.build(2 * HALF, {"parity": CHECKS})] * FRAMES)

    def forward(self, channel: Tensor) -> Tensor:
        """Logits of all bits, (frames, bits, 2)."""
        features = torch.cat([channel[..., 1].reshape(-1, 1) / 4, self.positions.repeat(FRAMES, 1)], 1)
        computed = {"unary": channel.flatten(0, 1), "parity": table_messages(TABLES)}
        logits: Tensor = self.head(features, self.graph, computed=computed)
        return logits.reshape(channel.shape)

    def loss(self) -> Tensor:
        """A smooth form of the bit error rate plus the frame error rate, on new codewords."""
        words, channel = receive(1.5 + 2.5 * float(torch.rand(())))
        losses = cross_entropy(self(channel).movedim(2, 1), words, reduction="none")  # (frames, bits)
        return losses.mean() + (1 - torch.exp(-losses.sum(1))).mean()


def main(arguments: list[str] | None = None) -> Tensor:
    """Prints the frame error rate of each decoder at three noise levels."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("iterations", 5), ("steps", 1500), ("batches", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that the example runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.batches = 1, 1
    torch.manual_seed(options.seed)
    decoder, wrong = Corrected(options.iterations), torch.zeros(3, 2)
    minimise(decoder.parameters(), [decoder.loss], FitOptions(epochs=options.steps, learning_rate=3e-3))
    graph = FactorGraph([2] * 2 * HALF, [[bit] for bit in range(2 * HALF)] + CHECKS)
    engine = BeliefPropagation(max_iterations=options.iterations, tolerance=None)
    for row, decibel in enumerate((2, 3, 4)):
        for words, channel in (receive(decibel) for _ in range(options.batches)):
            computed = engine.run(graph, [channel, *TABLES.values()]).log_marginals
            for column, beliefs in enumerate((computed, decoder(channel))):
                wrong[row, column] += (beliefs.argmax(-1) != words).any(1).float().mean() / options.batches
        print("{} dB: {:.2%} of frames wrong, {:.2%} with corrections".format(decibel, *wrong[row]))
    names = [f"{name}_{decibel}dB" for decibel in (2, 3, 4) for name in ("computed", "corrected")]
    print(json.dumps(dict(zip(names, wrong.flatten().tolist(), strict=True))))
    return wrong


if __name__ == "__main__":
    main()
