"""Data aggregation: one predictor, trained on the messages that its earlier versions produced.

    D ← ∅
    repeat:   pass messages with the current predictor; add the input of every iteration to D
              train the predictor on all of D: from these messages, one iteration should give the truth
    return the version that was best

(DAgger, Ross, Gordon & Bagnell, AISTATS 2011; for inference machines Ross, Munoz, Hebert & Bagnell, CVPR 2011.) Tied
estimators thus learn to improve the beliefs they meet in use, those of their own mistakes included, by plain
classification; no gradient passes through more than one iteration. D holds T · rounds sets of messages per example.

Back-propagation through all iterations, with the loss on the last or on every one of them.

    J = Σ_t w_t J_t,      J_t = − mean_p log softmax(L_p^t)[ŷ_p]

The last iteration alone (w = 0, …, 0, 1) is the paper's budget; a loss on every iteration ("deep supervision",
Lee et al., AISTATS 2015) gives early iterations a gradient of their own and makes their beliefs usable.
Memory grows by the messages kept per iteration, not by hidden units (see `estimators.any_graph.slot_messages`).

The plainest training there is: Adam over a list of losses, in a new order every epoch, stopped early if asked.

Labelled graphs, and the loss of beliefs on them.

    J = − mean_p log P(ŷ_p | x),      P(y_p | x) = softmax( L_p )

As on images: plain classification of every labelled variable, whatever the graph.

Forward training: one iteration after another, those before it fixed (Ross, Munoz, Hebert & Bagnell, CVPR 2011).

    for t = 1 … T:    min_{θ_t}  J( softmax(L^t) ),     L^t from the messages of iterations 1 … t−1, no longer learned

Each stage is trained on exactly the messages that it will see in use, and no gradient passes through more than one
iteration. It needs estimators of their own for each iteration (tied=False).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.graph.typed import TypedGraph
from messagenet.message_passing import GraphField, GraphMessagePassing, Known
from messagenet.message_passing.grid import Beliefs


@dataclass(frozen=True)
class Fit:
    """How long and how fast to learn.

    Attributes:
        epochs: Times that every loss is used, at most.
        learning_rate: The highest; it rises for a tenth of the steps and falls to nothing along half a cosine.
        weight_decay: λ, decoupled from the gradient.
        clip: Longer gradients are shortened to this length: back-propagation through many iterations needs it.
        patience: Epochs without a better judgement after which to stop, where there is a judge.
        seed: Of the order of the losses.
    """

    epochs: int = 20
    learning_rate: float = 1e-2
    weight_decay: float = 0.0
    clip: float = 1.0
    patience: int = 10
    seed: int = 0


def minimise(
    parameters: Iterable[nn.Parameter],
    losses: Sequence[Callable[[], Tensor]],
    fit: Fit,
    judge: Callable[[], float] | None = None,
) -> list[float]:
    """Takes one step per loss and epoch; returns the mean loss of every epoch.

    >>> x = nn.Parameter(torch.tensor(3.0))
    >>> history = minimise([x], [lambda: (x - 1) ** 2], Fit(epochs=200, learning_rate=0.1))
    >>> abs(float(x.detach()) - 1) < 0.05 and history[-1] < history[0]
    True

    Args:
        parameters: What to change.
        losses: What to make small; each is called once per epoch and may draw new data every time.
        fit: How.
        judge: Called after every epoch, such as the loss on held-out data: the parameters are left at its lowest.
    """
    if not losses:
        raise InputError("there is nothing to learn from: give at least one example")
    learned = list(parameters)
    optimiser = torch.optim.AdamW(learned, lr=fit.learning_rate, weight_decay=fit.weight_decay)
    pace = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _pace(step, fit.epochs * len(losses)))
    generator = torch.Generator().manual_seed(fit.seed)
    history: list[float] = []
    best, kept, waiting = math.inf, [value.detach().clone() for value in learned], 0
    while len(history) < fit.epochs and waiting < fit.patience:
        total = 0.0
        for number in torch.randperm(len(losses), generator=generator).tolist():
            optimiser.zero_grad(set_to_none=True)
            loss = losses[number]()
            loss.backward()
            nn.utils.clip_grad_norm_(learned, fit.clip)
            optimiser.step()
            pace.step()
            total += float(loss.detach())
        history.append(total / len(losses))
        if judge is not None:
            judged = judge()
            waiting = 0 if judged < best else waiting + 1
            if judged < best:
                best, kept = judged, [value.detach().clone() for value in learned]
    if judge is not None:
        with torch.no_grad():
            for value, best_value in zip(learned, kept, strict=True):
                value.copy_(best_value)
    return history


def _pace(step: int, steps: int) -> float:
    """The learning rate of a step, as a part of the highest.

    >>> [round(_pace(step, 20), 2) for step in (0, 1, 10, 20)]
    [0.5, 0.99, 0.5, 0.0]
    """
    rising = min(1.0, (step + 1) / max(1.0, 0.1 * steps))
    return rising * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class GraphExample:
    """A graph (or several joined), its features and its truth.

    Attributes:
        graph: Who is tied to whom.
        features: (variables, r).
        labels: (variables,) class of each variable; -1 where it is not known.
        factor_features: For factor types that have them, (factors, e).
        known: Computed messages, for a head that corrects them.
    """

    graph: TypedGraph
    features: Tensor
    labels: Tensor
    factor_features: Mapping[str, Tensor] | None = None
    known: Known | None = None

    def field(self, head: GraphMessagePassing) -> GraphField:
        """What the head passes messages over."""
        return head.field(self.features, self.graph, self.factor_features, self.known)


def node_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss over labelled variables; 0 where nothing is labelled.

    >>> import torch
    >>> node_cross_entropy(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, -1]))
    tensor(0.6931)
    """
    if labels.shape != logits.shape[:1]:
        raise InputError(
            f"labels have shape {tuple(labels.shape)}; give one for each of {len(logits)} variables"
        )
    total = functional.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum")
    return total / (labels != UNLABELLED).sum().clamp(min=1)


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


Supervision = Literal["last", "every"] | Sequence[float]


def iteration_weights(supervision: Supervision, iterations: int) -> list[float]:
    """w_t of each iteration.

    >>> iteration_weights("last", 3), iteration_weights("every", 2), iteration_weights([1, 3], 2)
    ([0.0, 0.0, 1.0], [0.5, 0.5], [0.25, 0.75])
    """
    if isinstance(supervision, str):
        named = {"last": [0.0] * (iterations - 1) + [1.0], "every": [1 / iterations] * iterations}
        if supervision not in named:
            raise InputError(
                f'unknown supervision {supervision!r}; choose "last", "every" or a list of weights'
            )
        return named[supervision]
    total = float(sum(supervision))
    if len(supervision) != iterations or min(supervision) < 0 or total == 0:
        raise InputError(f"give {iterations} weights, one per iteration, none negative and not all 0")
    return [weight / total for weight in supervision]


def supervised_loss(
    head: GraphMessagePassing, example: GraphExample, supervision: Supervision = "last"
) -> Tensor:
    """The weighted loss of all iterations on one example."""
    weights = iteration_weights(supervision, head.rules.iterations)
    field = example.field(head)
    loss = example.features.new_zeros(())
    for weight, beliefs in zip(weights, head.iterate(field), strict=True):
        if weight:
            loss = loss + weight * node_cross_entropy(field.masked(beliefs.logits), example.labels)
    return loss


def train_through_iterations(
    head: GraphMessagePassing,
    examples: Sequence[GraphExample],
    fit: Fit | None = None,
    supervision: Supervision = "last",
) -> list[float]:
    """Trains by back-propagation through all iterations; returns the mean loss of every epoch."""
    losses = [partial(supervised_loss, head, example, supervision) for example in examples]
    return minimise(head.parameters(), losses, fit or Fit())
