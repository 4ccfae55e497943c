"""Training of graph heads on labelled graphs: classification of every labelled variable, whatever the graph.

    J = − mean_p log P(ŷ_p | x),      P(y_p | x) = softmax( L_p )

    through iterations   J = Σ_t w_t J_t / Σ_t w_t: back-propagation through all iterations, with the loss on the last
                         (as in the paper) or on every one (deep supervision, Lee et al., AISTATS 2015). Memory grows
                         by the messages stored per iteration, not by hidden units.
    stage by stage       min_{θ_t} J(L^t) for t = 1 … T, with the messages of iterations 1 … t−1 fixed, as in use
                         (forward training, Ross, Munoz, Hebert & Bagnell, CVPR 2011). Needs tied=False.
    by aggregation       one predictor, trained on the messages of all its earlier versions (DAgger, Ross, Gordon &
                         Bagnell, AISTATS 2011): D ← ∅; repeat: pass messages, add the inputs of all iterations to D,
                         train on D; return the best version.

Only the first differentiates through more than one iteration. All use `minimise`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.graph.typed import TypedGraph
from messagenet.losses.cross_entropy import belief_weights
from messagenet.message_passing import ComputedByType, GraphContext, GraphMessagePassing
from messagenet.message_passing.estimator import Beliefs


@dataclass(frozen=True)
class FitOptions:
    """How long and how fast to learn.

    Attributes:
        epochs: Times that every loss is used, at most.
        learning_rate: The highest; it rises for a tenth of the steps and falls to nothing along half a cosine.
        weight_decay: λ, decoupled from the gradient.
        clip: Longer gradients are shortened to this length: back-propagation through many iterations needs it.
        patience: Epochs without a lower validation loss after which to stop, where there is one.
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
    fit: FitOptions,
    validation_loss: Callable[[], float] | None = None,
) -> list[float]:
    """Minimises losses with AdamW, one step per loss in a new order every epoch; returns each epoch's mean loss.

    >>> x = nn.Parameter(torch.tensor(3.0))
    >>> history = minimise([x], [lambda: (x - 1) ** 2], FitOptions(epochs=200, learning_rate=0.1))
    >>> abs(float(x.detach()) - 1) < 0.05 and history[-1] < history[0]
    True

    Args:
        parameters: What to change.
        losses: What to minimise; each is called once per epoch and may draw new data every time.
        fit: Learning rate, epochs, early stopping.
        validation_loss: Called after every epoch; the parameters are left where it was lowest.
    """
    if not losses:
        raise InputError("there is nothing to learn from: give at least one example")
    learned = list(parameters)
    optimiser = torch.optim.AdamW(learned, lr=fit.learning_rate, weight_decay=fit.weight_decay)
    pace = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate_factor(step, fit.epochs * len(losses)))
    generator = torch.Generator().manual_seed(fit.seed)
    history: list[float] = []
    best, best_values, waiting = math.inf, [value.detach().clone() for value in learned], 0
    while len(history) < fit.epochs and waiting < fit.patience:
        total = 0.0
        for index in torch.randperm(len(losses), generator=generator).tolist():
            optimiser.zero_grad(set_to_none=True)
            loss = losses[index]()
            loss.backward()
            nn.utils.clip_grad_norm_(learned, fit.clip)
            optimiser.step()
            pace.step()
            total += float(loss.detach())
        history.append(total / len(losses))
        if validation_loss is not None:
            current = validation_loss()
            waiting = 0 if current < best else waiting + 1
            if current < best:
                best, best_values = current, [value.detach().clone() for value in learned]
    if validation_loss is not None:
        with torch.no_grad():
            for value, best_value in zip(learned, best_values, strict=True):
                value.copy_(best_value)
    return history


def _rate_factor(step: int, steps: int) -> float:
    """The learning rate of a step, as a fraction of the peak.

    >>> [round(_rate_factor(step, 20), 2) for step in (0, 1, 10, 20)]
    [0.5, 0.99, 0.5, 0.0]
    """
    rising = min(1.0, (step + 1) / max(1.0, 0.1 * steps))
    return rising * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class GraphExample:
    """A graph (or several joined), its features and its target.

    Attributes:
        graph: The factors and their variables.
        features: (variables, r).
        labels: (variables,) class of each variable; -1 where it is not known.
        factor_features: For factor types that have them, (factors, e).
        computed: Computed messages, for a head that corrects them.
    """

    graph: TypedGraph
    features: Tensor
    labels: Tensor
    factor_features: Mapping[str, Tensor] | None = None
    computed: ComputedByType | None = None

    def context(self, head: GraphMessagePassing) -> GraphContext:
        """The graph with its features, as the head takes them."""
        return head.context(self.features, self.graph, self.factor_features, self.computed)


def node_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss over labelled variables; 0 where nothing is labelled.

    >>> node_cross_entropy(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, -1]))
    tensor(0.6931)
    """
    if labels.shape != logits.shape[:1]:
        raise InputError(f"labels have shape {tuple(labels.shape)}; give one for each of {len(logits)} variables")
    total = functional.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum")
    return total / (labels != UNLABELLED).sum().clamp(min=1)


def stage_loss(head: GraphMessagePassing, stage: int, example: GraphExample, before: Beliefs | None) -> Tensor:
    """The loss after one iteration from given beliefs; None stands for those before the first iteration."""
    context = example.context(head)
    beliefs = head.step(context, stage, before or head.initial_beliefs(context), keep_messages=False)
    return node_cross_entropy(context.mask_classes(beliefs.logits), example.labels)


def train_stage_by_stage(
    head: GraphMessagePassing, examples: Sequence[GraphExample], fit: FitOptions | None = None
) -> list[list[float]]:
    """Trains each iteration's estimators in turn; returns the losses of every stage's epochs."""
    if head.tied and head.iterations > 1:
        raise InputError("stages are trained one by one: build the head with tied=False")
    states: list[Beliefs | None] = [None] * len(examples)
    history = []
    for stage in range(head.iterations):
        losses = [
            partial(stage_loss, head, stage, example, before) for example, before in zip(examples, states, strict=True)
        ]
        history.append(minimise(head.estimators[stage].parameters(), losses, fit or FitOptions()))
        states = [_advanced(head, stage, example, before) for example, before in zip(examples, states, strict=True)]
    return history


@torch.no_grad()
def _advanced(head: GraphMessagePassing, stage: int, example: GraphExample, before: Beliefs | None) -> Beliefs:
    context = example.context(head)
    return head.step(context, stage, before or head.initial_beliefs(context))


@torch.no_grad()
def iteration_inputs(head: GraphMessagePassing, example: GraphExample) -> list[Beliefs]:
    """The beliefs before each iteration, with the head's present weights."""
    context = example.context(head)
    return [head.initial_beliefs(context), *head.iterate(context)][: head.iterations]


@torch.no_grad()
def _mean_loss(head: GraphMessagePassing, examples: Sequence[GraphExample]) -> float:
    losses = [node_cross_entropy(head(e.features, e.graph, e.factor_features, e.computed), e.labels) for e in examples]
    return float(torch.stack(losses).mean())


def train_by_aggregation(
    head: GraphMessagePassing,
    examples: Sequence[GraphExample],
    fit: FitOptions | None = None,
    *,
    rounds: int = 5,
    held_out: Sequence[GraphExample] = (),
) -> list[float]:
    """Trains tied estimators by data aggregation; leaves the head at its best version.

    Returns the loss on `held_out` after all T iterations, before training and after each round.

    Args:
        head: The head to train.
        examples: What to learn from.
        fit: The training of one round.
        rounds: How often messages are collected and the predictor trained on all of them.
        held_out: What to choose the best version on; by default the examples themselves.
    """
    if not head.tied:
        raise InputError("data aggregation trains one predictor for all iterations: build it with tied=True")
    held_out = held_out or examples
    collected: list[tuple[GraphExample, Beliefs]] = []
    history = [_mean_loss(head, held_out)]
    best = copy.deepcopy(head.state_dict())
    for _ in range(rounds):
        collected += [(example, state) for example in examples for state in iteration_inputs(head, example)]
        losses = [partial(stage_loss, head, 0, example, state) for example, state in collected]
        minimise(head.parameters(), losses, fit or FitOptions())
        history.append(_mean_loss(head, held_out))
        if history[-1] == min(history):
            best = copy.deepcopy(head.state_dict())
    head.load_state_dict(best)
    return history


def supervised_loss(
    head: GraphMessagePassing, example: GraphExample, iteration_weights: Sequence[float] = ()
) -> Tensor:
    """The loss on one example; `iteration_weights` as of `CrossEntropy`."""
    context = example.context(head)
    steps = head.all_beliefs(context) if iteration_weights else list(head.iterate(context))[-1:]
    weights = belief_weights(iteration_weights, len(steps) - 1)
    losses = [node_cross_entropy(context.mask_classes(beliefs.logits), example.labels) for beliefs in steps]
    return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)


def train_through_iterations(
    head: GraphMessagePassing,
    examples: Sequence[GraphExample],
    fit: FitOptions | None = None,
    iteration_weights: Sequence[float] = (),
) -> list[float]:
    """Trains by back-propagation through all iterations; returns the mean loss of every epoch."""
    losses = [partial(supervised_loss, head, example, iteration_weights) for example in examples]
    return minimise(head.parameters(), losses, fit or FitOptions())
