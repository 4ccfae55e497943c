"""Learned message passing over any factor graph (Lin, Shen, Reid, van den Hengel, NIPS 2015).

Every factor-to-variable message is the output of a small network; factors may have any order, and types of
factors and of variables may be mixed:

    β_{F→p}  = M_F( [ f_p ; mean_{q ∈ F\\p} f_q ; d_pF ; x_F ] )               K numbers, K of the receiver
    d_pF     = Σ_{q ∈ F\\p} logsoftmax( L_q − β_{F→q} )                        cavity "factor": belief propagation
             = Σ_{q ∈ F\\p} logsoftmax( L_q )                                  cavity "none": mean-field style
    L_p      = Σ_{F ∋ p} β_{F→p},    P(y_p | x) = softmax(L_p)

with the L and β of the previous iteration. d is a sum (of mixed variable types, one sum for each type, side by
side), a mean, or a concatenation in the order of positions; for pairwise factors all are the same. x_F are features
of the factor. On a grid these are exactly the messages of `MessagePassing`.

Where potentials are known, a head learns what to add to the message computed from them, μ:

    β_{F→p}  = μ_{F→p} + M_F( [ f_p ; mean f_q ; d_pF ; x_F ; μ_{F→p} ] )

and starts, with M_F = 0, as the algorithm that computes them.

Messages include the scale of their aggregation: "sum" 1, "mean" 1/n_p (n_p messages of this kind reach p),
"fixed" 1/degree and "sqrt" 1/√degree with the constant of the `FactorType`. Computed messages are not scaled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.estimators.any_graph.checks import (
    check_factor_features,
    check_features,
    check_graph,
    check_known,
)
from messagenet.estimators.any_graph.estimator import build_stage
from messagenet.estimators.any_graph.field import GraphField, Known
from messagenet.estimators.any_graph.sending import Stage, send
from messagenet.estimators.any_graph.settings import ONLY_TYPE, FactorType, GraphDependent, GraphRules
from messagenet.estimators.beliefs import Beliefs
from messagenet.estimators.iterating import Iterating
from messagenet.estimators.rules import Aggregation, CavityMode, Initial
from messagenet.estimators.settling import Passed, budget, follow, passed
from messagenet.graph.typed import TypedGraph


class GraphMessagePassing(nn.Module, Iterating[GraphField]):
    """A head over factor graphs: one feature vector per variable in, logits of its marginals out.

    >>> graph = TypedGraph.build(4, {"next": [[0, 1], [1, 2], [2, 3]], "all": [[0, 1, 2, 3]]})
    >>> head = GraphMessagePassing(in_channels=6, num_classes=3, hidden=16, iterations=2,
    ...                            factors={"next": 2, "all": FactorType(4, ordered=False)})
    >>> head(torch.randn(4, 6), graph).shape
    torch.Size([4, 3])

    Args:
        in_channels: r, the length of a variable's feature vector.
        num_classes: K, or one for each type of variable by name.
        factors: The factor types and their orders, or a `FactorType` for more: symmetric factors, factor
            features, one-way factors, mixed variable types. None at all gives a unary classifier.
        hidden: Hidden units of every estimator.
        iterations: T, the inference-time budget that the head is trained for.
        tied: One set of estimators for all iterations (a recurrent network), or one per iteration.
        cavity: "factor" leaves a factor's own message out of what it is told (loopy belief propagation);
            "none" does not (mean-field style, cheaper when T > 1).
        initial: Messages before the first iteration: "zero", or "unary" for the unary factors' messages.
        aggregation: Scale of a message: "fixed" (÷ the type's degree, 1 if not given), "sum", "mean", "sqrt".
        dependent: How the messages of a factor's other variables are joined: "sum", "mean" or "concat".
        known: Factor types (or "unary") whose computed messages are given with every call and corrected.
        chunk: Slots whose hidden units exist at once; None for as many as fit the caches.
    """

    rules: GraphRules

    def __init__(
        self,
        in_channels: int,
        num_classes: int | Mapping[str, int],
        factors: Mapping[str, int | FactorType | None] | None = None,
        *,
        hidden: int = 128,
        iterations: int = 1,
        tied: bool = True,
        cavity: CavityMode = "factor",
        initial: Initial = "zero",
        aggregation: Aggregation = "fixed",
        dependent: GraphDependent = "sum",
        known: Collection[str] = (),
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        if type(in_channels) is not int or in_channels < 1:
            raise InputError(f"in_channels is {in_channels!r}; give the length of a variable's features")
        if chunk is not None and (type(chunk) is not int or chunk < 1):
            raise InputError(f"chunk is {chunk!r}; give at least 1, or None to have it chosen")
        kinds = {
            name: kind if isinstance(kind, FactorType) else FactorType(kind, ordered=kind is not None)
            for name, kind in (factors or {}).items()
        }
        classes = dict(num_classes) if isinstance(num_classes, Mapping) else {ONLY_TYPE: num_classes}
        self.rules = GraphRules(
            classes,
            kinds,
            hidden,
            iterations,
            tied,
            cavity,
            initial,
            aggregation,
            dependent,
            frozenset(known),
        )
        for name in (*kinds, *classes):
            if hasattr(nn.ModuleDict(), name):
                raise InputError(f"type name {name!r} is a method of torch modules; choose another")
        self.in_channels = in_channels
        self.chunk = chunk
        self.estimators = nn.ModuleList(
            build_stage(self.rules, in_channels) for _ in range(1 if tied else iterations)
        )

    @property
    def factor_types(self) -> list[str]:
        """ "unary", then the names of the factor types."""
        return ["unary", *self.rules.factors]

    def extra_repr(self) -> str:
        """The rules, for print(head)."""
        shown = {name: value for name, value in vars(self.rules).items() if name != "factors"}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def field(
        self,
        features: Tensor | Mapping[str, Tensor],
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        known: Known | None = None,
    ) -> GraphField:
        """The graph with its features, checked: what `initial_beliefs`, `step` and `iterate` work on."""
        check_graph(self.rules, graph)
        weight = next(self.parameters())
        return GraphField(
            self.rules,
            graph,
            check_features(self.rules, self.in_channels, weight, features, graph),
            check_factor_features(self.rules, weight, factor_features, graph),
            check_known(self.rules, known, graph),
        )

    def forward(
        self,
        features: Tensor | Mapping[str, Tensor],
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        known: Known | None = None,
    ) -> Tensor:
        """Logits of the marginals after T iterations, (variables, K); −∞ at classes a variable does not have.

        Args:
            features: One row per variable, (variables, r), or one such matrix for each factor type by name.
            graph: Who is tied to whom.
            factor_features: For each factor type that has features, (factors, e) in the order of its factors.
            known: For each type named so, its `ComputedMessages`; for "unary" log-potentials (variables, K).
        """
        field = self.field(features, graph, factor_features, known)
        *_, beliefs = self.iterate(field)
        return field.masked(beliefs.logits)

    def trace(
        self,
        features: Tensor | Mapping[str, Tensor],
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        known: Known | None = None,
    ) -> list[dict[str, Tensor]]:
        """For each iteration, the total message of each factor type to each variable, (variables, K) by name.

        The totals of an iteration sum to its logits; they are 0 at classes that a variable does not have.
        """
        return [
            beliefs.totals for beliefs in self.iterate(self.field(features, graph, factor_features, known))
        ]

    @torch.no_grad()
    def run(
        self,
        features: Tensor | Mapping[str, Tensor],
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        known: Known | None = None,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
    ) -> Passed:
        """Prediction with another budget than the one trained for, or until the beliefs have settled.

        Args:
            features: As for `forward`.
            graph: Joined graphs go on together until the last of them has settled.
            factor_features: As for `forward`.
            known: As for `forward`.
            iterations: At most so many; by default as many as the head was trained for.
            tolerance: Stop when no probability changes by more than this from one iteration to the next.
        """
        rules = self.rules
        most = budget(rules.iterations, rules.tied, iterations, tolerance)
        field = self.field(features, graph, factor_features, known)

        def marginals(beliefs: Beliefs) -> Tensor:
            return field.normalised(beliefs.logits).exp()

        states = self.iterate(field, most, open_end=tolerance is not None)
        course = follow(states, marginals, marginals(self.initial_beliefs(field)), tolerance)
        return passed(field.masked(course.state.logits), [course], rules.iterations)

    def initial_beliefs(self, field: GraphField) -> Beliefs:
        """β⁰: nothing but, if asked for, the unary factors' messages."""
        if self.rules.initial == "unary":
            return Beliefs({"unary": self._unary(field, self.stage(0))}, {})
        shape = (field.graph.num_variables, self.rules.most_classes)
        return Beliefs({"unary": field.like.new_zeros(shape)}, {})

    def stage(self, number: int) -> Stage:
        """The estimators of an iteration, by factor type."""
        stage: Stage = self.estimators[0 if self.rules.tied else number]  # type: ignore[assignment]
        return stage

    def step(self, field: GraphField, number: int, previous: Beliefs, *, keep: bool = True) -> Beliefs:
        """One synchronous iteration: see `Iterating.step`."""
        stage = self.stage(number)
        totals, messages = {"unary": self._unary(field, stage)}, {}
        logits = previous.logits
        beliefs = field.normalised(logits)
        for name, kind in self.rules.factors.items():
            told = None
            if name in previous.messages:
                told = field.to_factor(field.layouts[name], logits, previous.messages[name])
            wanted = keep and self.rules.cavity == "factor" and kind.has_cavity
            totals[name], sent = send(field, name, stage[name], beliefs, told, self.chunk, keep=wanted)
            if sent is not None:
                messages[name] = sent
        return Beliefs(totals, messages)

    def _unary(self, field: GraphField, stage: Stage) -> Tensor:
        """The messages of the unary factors, (variables, most classes), 0 where there is no such class."""
        total = field.unary(stage["unary"])
        known = field.known.get("unary")
        return total + known if isinstance(known, Tensor) else total
