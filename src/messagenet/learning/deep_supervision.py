"""Back-propagation through all iterations, with the loss on the last or on every one of them.

    J = Σ_t w_t J_t,      J_t = − mean_p log softmax(L_p^t)[ŷ_p]

The last iteration alone (w = 0, …, 0, 1) is the paper's budget; a loss on every iteration ("deep supervision",
Lee et al., AISTATS 2015) gives early iterations a gradient of their own and makes their beliefs usable.
Memory grows by the messages kept per iteration, not by hidden units (see `estimators.any_graph.slot_messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch import Tensor

from messagenet.errors import InputError
from messagenet.estimators.any_graph import GraphMessagePassing
from messagenet.learning.fitting import Fit, minimise
from messagenet.learning.graph_examples import GraphExample, node_cross_entropy

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
