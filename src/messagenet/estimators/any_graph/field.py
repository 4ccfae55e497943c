"""What stays the same while messages are passed over one graph: features, layouts, projections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.estimators.any_graph.estimator import FactorEstimator
from messagenet.estimators.any_graph.settings import GraphRules
from messagenet.estimators.projected import ProjectedFeatures
from messagenet.graph.slots import Layout
from messagenet.graph.typed import TypedGraph

ComputedMessages = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]
"""How messages of factors with known potentials are computed.

Called with the messages to the factors, β_{q→F}, (factors, K) for each position, and with the factors' numbers
in the list of their type, (factors,); returns the messages β_{F→p} to each position, shaped like the first.
"""
Known = Mapping[str, "ComputedMessages | Tensor"]


class GraphField(ProjectedFeatures):
    """One graph with its features, and everything that is made from them once.

    Args:
        rules: The settings of the head.
        graph: The graph, or several joined.
        features: For each factor type, (variables, r).
        factor_features: For factor types that have them, (factors, e).
        known: For factor types with known potentials, how their messages are computed; "unary": (variables, K).
    """

    def __init__(
        self,
        rules: GraphRules,
        graph: TypedGraph,
        features: Mapping[str, Tensor],
        factor_features: Mapping[str, Tensor],
        known: Known,
    ) -> None:
        self.rules = rules
        self.graph = graph
        super().__init__(features)
        self.factor_features = factor_features
        self.known = known
        self.layouts = {
            name: graph.layout(name, ordered=kind.ordered, sends_to=kind.sends_to)
            for name, kind in rules.factors.items()
        }
        self.valid = _valid_classes(rules, graph)
        self._unary: dict[int, Tensor] = {}

    def unary(self, estimators: Sequence[FactorEstimator]) -> Tensor:
        """The learned messages of the unary factors, (variables, K), 0 beyond a variable's own classes; made once.

        Args:
            estimators: One for each type of variable.
        """
        key = id(estimators)
        if key not in self._unary:
            features, width = self.features["unary"], self.rules.most_classes
            total: Tensor | None = None
            for kind, estimator in zip(self.rules.num_classes, estimators, strict=True):
                chosen = self._variables(kind)
                message = estimator(features if chosen is None else features.index_select(0, chosen))
                message = functional.pad(message, (0, width - message.shape[1]))
                if chosen is not None:
                    message = message.new_zeros(len(features), width).index_add(0, chosen, message)
                total = message if total is None else total + message
            assert total is not None
            self._unary[key] = total
        return self._unary[key]

    def normalised(self, logits: Tensor) -> Tensor:
        """The variables' beliefs, (variables, K), 0 at classes that a variable does not have."""
        if self.valid is None:
            return torch.log_softmax(logits, -1)
        return torch.where(self.valid, torch.log_softmax(self.masked(logits), -1), 0)

    def masked(self, logits: Tensor) -> Tensor:
        """Logits with −∞ at classes that a variable does not have."""
        return logits if self.valid is None else logits.masked_fill(~self.valid, -torch.inf)

    def to_factor(self, layout: Layout, logits: Tensor, messages: Tensor) -> Tensor:
        """β_{p→F} of every slot, (rows, K): what the variable believes without the factor's own message."""
        width = messages.shape[1]
        told = logits[:, :width].index_select(0, layout.receivers).sub_(messages)
        if self.valid is not None:
            told = told.masked_fill(~self.valid[:, :width].index_select(0, layout.receivers), -torch.inf)
        return torch.log_softmax(told, -1)

    def _variables(self, kind: str) -> Tensor | None:
        """The numbers of the variables of a type; None for all."""
        if self.graph.variable_types is None:
            return None
        if kind not in self.graph.type_names:
            return self.graph.variable_types.new_zeros(0)
        return (self.graph.variable_types == self.graph.type_names.index(kind)).nonzero()[:, 0]


def _valid_classes(rules: GraphRules, graph: TypedGraph) -> Tensor | None:
    """(variables, most classes) which classes each variable has; None if all have all."""
    if graph.variable_types is None or len(set(rules.num_classes.values())) == 1:
        return None
    codes = graph.variable_types
    sizes = torch.tensor([rules.num_classes[kind] for kind in graph.type_names], device=codes.device)
    return torch.arange(rules.most_classes, device=codes.device) < sizes[codes][:, None]
