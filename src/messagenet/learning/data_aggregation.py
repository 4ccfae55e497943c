"""Data aggregation: one predictor, trained on the messages that its earlier versions produced.

    D ← ∅
    repeat:   pass messages with the current predictor; add the input of every iteration to D
              train the predictor on all of D: from these messages, one iteration should give the truth
    return the version that was best

(DAgger, Ross, Gordon & Bagnell, AISTATS 2011; for inference machines Ross, Munoz, Hebert & Bagnell, CVPR 2011.) Tied
estimators thus learn to improve the beliefs they meet in use, those of their own mistakes included, by plain
classification; no gradient passes through more than one iteration. D holds T · rounds sets of messages per example.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch

from messagenet.errors import InputError
from messagenet.estimators.any_graph import GraphMessagePassing
from messagenet.estimators.beliefs import Beliefs
from messagenet.learning.fitting import Fit, minimise
from messagenet.learning.graph_examples import GraphExample, node_cross_entropy
from messagenet.learning.stage_wise import stage_loss


@torch.no_grad()
def iteration_inputs(head: GraphMessagePassing, example: GraphExample) -> list[Beliefs]:
    """The beliefs before each iteration, as the head now makes them."""
    field = example.field(head)
    return [head.initial_beliefs(field), *head.iterate(field)][: head.rules.iterations]


@torch.no_grad()
def mean_loss(head: GraphMessagePassing, examples: Sequence[GraphExample]) -> float:
    """The loss after all iterations, averaged over examples."""
    losses = [
        node_cross_entropy(head(e.features, e.graph, e.factor_features, e.known), e.labels) for e in examples
    ]
    return float(torch.stack(losses).mean())


def train_by_aggregation(
    head: GraphMessagePassing,
    examples: Sequence[GraphExample],
    fit: Fit | None = None,
    *,
    rounds: int = 5,
    held_out: Sequence[GraphExample] = (),
) -> list[float]:
    """Trains tied estimators by data aggregation; the head is left at its best version.

    Args:
        head: The head to train.
        examples: What to learn from.
        fit: The training of one round.
        rounds: How often messages are collected and the predictor trained on all of them.
        held_out: What to choose the best version on; by default the examples themselves.

    Returns:
        The loss after all T iterations on the chosen examples, before training and after each round.
    """
    if not head.rules.tied:
        raise InputError("data aggregation trains one predictor for all iterations: build it with tied=True")
    judge = held_out or examples
    collected: list[tuple[GraphExample, Beliefs]] = []
    history = [mean_loss(head, judge)]
    best = copy.deepcopy(head.state_dict())
    for _ in range(rounds):
        collected += [(example, state) for example in examples for state in iteration_inputs(head, example)]
        losses = [partial(stage_loss, head, 0, example, state) for example, state in collected]
        minimise(head.parameters(), losses, fit or Fit())
        history.append(mean_loss(head, judge))
        if history[-1] == min(history):
            best = copy.deepcopy(head.state_dict())
    head.load_state_dict(best)
    return history
