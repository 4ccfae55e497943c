"""Forward training: one iteration after another, those before it fixed (Ross, Munoz, Hebert & Bagnell, CVPR 2011).

    for t = 1 … T:    min_{θ_t}  J( softmax(L^t) ),     L^t from the messages of iterations 1 … t−1, no longer learned

Each stage is trained on exactly the messages that it will see in use, and no gradient passes through more than one
iteration. It needs estimators of their own for each iteration (tied=False).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.estimators.any_graph import GraphMessagePassing
from messagenet.estimators.beliefs import Beliefs
from messagenet.learning.fitting import Fit, minimise
from messagenet.learning.graph_examples import GraphExample, node_cross_entropy


def stage_loss(
    head: GraphMessagePassing, stage: int, example: GraphExample, before: Beliefs | None
) -> Tensor:
    """The loss after one iteration from given beliefs; None stands for those before the first iteration."""
    field = example.field(head)
    beliefs = head.step(field, stage, before or head.initial_beliefs(field), keep=False)
    return node_cross_entropy(field.masked(beliefs.logits), example.labels)


def train_stage_by_stage(
    head: GraphMessagePassing, examples: Sequence[GraphExample], fit: Fit | None = None
) -> list[list[float]]:
    """Trains each iteration's estimators in turn; returns the losses of every stage's epochs."""
    if head.rules.tied and head.rules.iterations > 1:
        raise InputError("stages are trained one by one: build the head with tied=False")
    states: list[Beliefs | None] = [None] * len(examples)
    history = []
    for stage in range(head.rules.iterations):
        losses = [
            partial(stage_loss, head, stage, example, before)
            for example, before in zip(examples, states, strict=True)
        ]
        history.append(minimise(head.estimators[stage].parameters(), losses, fit or Fit()))
        states = [
            _advanced(head, stage, example, before) for example, before in zip(examples, states, strict=True)
        ]
    return history


@torch.no_grad()
def _advanced(
    head: GraphMessagePassing, stage: int, example: GraphExample, before: Beliefs | None
) -> Beliefs:
    field = example.field(head)
    return head.step(field, stage, before or head.initial_beliefs(field), keep=True)
