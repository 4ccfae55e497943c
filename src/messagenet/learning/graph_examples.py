"""Labelled graphs, and the loss of beliefs on them.

    J = − mean_p log P(ŷ_p | x),      P(y_p | x) = softmax( L_p )

As on images: plain classification of every labelled variable, whatever the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.estimators.any_graph import GraphField, GraphMessagePassing, Known, TypedGraph

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
