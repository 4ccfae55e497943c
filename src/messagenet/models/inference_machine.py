"""Inference machines: message passing with a classifier for a message (Ross, Munoz, Hebert & Bagnell, CVPR 2011).

    m_{p→s} = softmax( W x_p + b + Σ_{i ≠ s} U_i m_i )            the message of p to its neighbour s
    P(y_p)  = softmax( W x_p + b + Σ_i U_i m_i )                  the belief of p

m_i, K probabilities, is the message of neighbour i to p one iteration ago. The number of neighbours is fixed, and the
predictor is a logistic regression on [x_p; m_1 … m_n]. The message to s leaves out what s sent (belief propagation);
with cavity "none", p sends its belief to all neighbours (mean field). A missing message is uniform. What enters is
m − 1/K, which moves only b, so a missing message is zero.

The first of T predictions has received no messages; the belief after the last is the result. Training is stage by
stage, by data aggregation (`training.inference_machine`), or by back-propagation through all iterations.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError, nearest
from messagenet.graph import Offset, Relation, window
from messagenet.message_passing.estimator import CavityMode
from messagenet.models.backbones.hand_crafted import POSITIONS, positions
from messagenet.models.base import Head, zero_padding
from messagenet.settings import register

# The four nearest, and four further up and down.
NEIGHBOURS = Relation("neighbours", offsets=((-8, 0), (-4, 0), (-1, 0), (0, -1), (0, 1), (1, 0), (4, 0), (8, 0)))


class LogisticPredictor(nn.Module):
    """A logistic regression on a node's features and its neighbours' messages; it starts at zero (uniform beliefs)."""

    def __init__(self, in_channels: int, num_classes: int, neighbours: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_channels, num_classes)
        self.others = nn.Linear(neighbours * num_classes, num_classes, bias=False) if neighbours else None
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def belief(self, own: Tensor, incoming: Tensor) -> Tensor:
        """Logits of the beliefs, (…, K), from features (…, r) and messages less 1/K (…, n, K)."""
        logits: Tensor = self.own(own)
        return logits if self.others is None else logits + self.others(incoming.flatten(-2))

    def replies(self, own: Tensor, incoming: Tensor) -> Tensor:
        """Logits of the reply to each neighbour, without its own message, (…, n, K)."""
        belief = self.belief(own, incoming).unsqueeze(-2)
        if self.others is None:
            return belief.expand(incoming.shape)
        weight = self.others.weight.unflatten(1, incoming.shape[-2:])  # (K, n, K)
        return belief - torch.einsum("...sk,jsk->...sj", incoming, weight)


@register("head", "inference_machine")
class InferenceMachine(Head):
    """An inference machine.

    >>> machine = InferenceMachine(16, 5)
    >>> machine(torch.randn(2, 16, 12, 15)).shape
    torch.Size([2, 5, 12, 15])

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        neighbours: Who sends, with a size that does not depend on the map.
        iterations: T, the number of predictions; after the first, each receives the messages of the one before.
        tied: One predictor for all iterations, or one for each.
        cavity: "factor" leaves a neighbour's own message out of the reply to it; "none" does not.
        position: Whether x_p includes where p is in its image.
    """

    takes_neck = False

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        neighbours: Relation = NEIGHBOURS,
        iterations: int = 3,
        tied: bool = True,
        cavity: CavityMode = "factor",
        position: bool = True,
    ) -> None:
        super().__init__(in_channels, num_classes)
        if type(iterations) is not int or iterations < 1:
            raise InputError(f"iterations is {iterations!r}; give at least 1")
        if cavity not in get_args(CavityMode):
            raise InputError(f"unknown cavity {cavity!r}; {nearest(cavity, get_args(CavityMode))}")
        if neighbours.fraction is not None:
            raise InputError(
                f"relation {neighbours.name!r} has as many neighbours as the map allows; an inference machine needs a "
                "fixed number: give its size in cells or its offsets"
            )
        self.offsets: tuple[Offset, ...] = neighbours.offsets_on(1, 1)
        self.iterations = iterations
        self.tied = tied
        self.cavity = cavity
        self.position = position
        channels = in_channels + (POSITIONS if position else 0)
        receives = [iterations > 1] if tied else [step > 0 for step in range(iterations)]
        self.predictors = nn.ModuleList(
            LogisticPredictor(channels, num_classes, len(self.offsets) if each else 0) for each in receives
        )

    @property
    def reverse(self) -> tuple[int | None, ...]:
        """For each neighbour, p's index among that neighbour's own; None where its message does not leave p out."""
        indices = {offset: i for i, offset in enumerate(self.offsets)}
        return tuple(indices.get((-dy, -dx)) if self.cavity == "factor" else None for dy, dx in self.offsets)

    def predictor(self, step: int) -> LogisticPredictor:
        """The predictor of an iteration, counted from 0."""
        predictor = self.predictors[0 if self.tied else step]
        assert isinstance(predictor, LogisticPredictor)
        return predictor

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the beliefs after the last iteration, (B, K, h, w); 0 at nodes that do not exist."""
        own = self.own_features(features, mask)
        incoming = self.initial_messages(own)
        for step in range(self.iterations - 1):
            incoming = self.exchange(step, own, incoming, mask)
        logits = self.predictor(self.iterations - 1).belief(own, incoming)
        return zero_padding(logits.permute(0, 3, 1, 2), mask)

    def own_features(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """x_p, (B, h, w, r), with the position appended if the machine uses it."""
        nodes = self.channels_last(zero_padding(features, mask))
        if not self.position:
            return nodes
        present = nodes.new_ones(nodes.shape[:3], dtype=torch.bool) if mask is None else mask.bool()
        return torch.cat([nodes, positions(present).to(nodes.dtype)], -1)

    def initial_messages(self, own: Tensor) -> Tensor:
        """The messages before the first iteration, less 1/K: (B, h, w, n, K)."""
        return own.new_zeros(*own.shape[:3], len(self.offsets), self.num_classes)

    def exchange(self, step: int, own: Tensor, incoming: Tensor, mask: Tensor | None = None) -> Tensor:
        """The messages that every node receives in an iteration, less 1/K: (B, h, w, n, K)."""
        predictor, reverse = self.predictor(step), self.reverse
        belief = predictor.belief(own, incoming)
        replies = predictor.replies(own, incoming) if any(index is not None for index in reverse) else None
        received = []
        for offset, index in zip(self.offsets, reverse, strict=True):
            sent = belief if index is None or replies is None else replies[..., index, :]
            received.append(self.receive(torch.softmax(sent, -1) - 1 / self.num_classes, offset, mask))
        return torch.stack(received, -2)

    def receive(self, sent: Tensor, offset: Offset, mask: Tensor | None = None) -> Tensor:
        """The values (B, h, w, C) of the node at an offset from each; 0 where there is no such node."""
        (height, width), (dy, dx) = sent.shape[1:3], offset
        if mask is not None:
            sent = torch.where(mask.bool()[..., None], sent, 0)
        if (w := window((height, width), offset)) is None:
            return torch.zeros_like(sent)
        return functional.pad(sent[w.senders], (0, 0, max(0, -dx), max(0, dx), max(0, -dy), max(0, dy)))
