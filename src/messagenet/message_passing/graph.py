r"""Learned message passing over any factor graph (Lin, Shen, Reid, van den Hengel, NIPS 2015).

Factors may have any order, and types of factors and of variables may be mixed. In the notation of `estimator`,

    β_{F→p}  = c_p M_F( [ f_p ; mean_{q ∈ F\p} f_q ; d_pF ; x_F ] )           K numbers, K of the receiver

where d is a sum, a mean or a concatenation (see `factor_types`) and x_F are the factor's features. On a grid these are
exactly the messages of `MessagePassing`. Where potentials are known, a head learns a correction of the message μ that
is computed from them, starting from M_F = 0. Computed messages are not scaled by the aggregation:

    β_{F→p}  = μ_{F→p} + M_F( [ f_p ; mean f_q ; d_pF ; x_F ; μ_{F→p} ] )

The sum of a variable's messages, Σ_s c (W₂ relu(t_s) + b₂), is computed in the cheapest of three ways:

- without cavities (T = 1, cavity "none", one-way factors): d does not depend on the receiver. D d is computed once per
  variable and joins Q where senders are interchangeable, and W₂ follows the sum; no vector of K per factor exists;
- with cavities, in the last iteration: d once per slot, W₂ after the sum;
- with cavities, before that: every message is computed and stored, for the cavities of the next iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError, nearest
from messagenet.graph.typed import MessageIndex, Slots, TypedGraph
from messagenet.message_passing.cavity_ops import DependentInput, FactorInput, OutputLayer, pass_slots
from messagenet.message_passing.estimator import (
    Beliefs,
    Context,
    IterativeHead,
    MessageEstimator,
    MessagePassingResult,
    NodeFeatures,
    check_dtype_and_device,
    message_scale,
)
from messagenet.message_passing.factor_types import SINGLE_TYPE, FactorType, GraphDependent, check_graph, columns

ComputedMessages = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]
"""β_{F→p} of factors with known potentials, (factors, K) for each position, from β_{q→F}, shaped alike, and the
factors' indices in the list of their type, (factors,)."""
ComputedByType = Mapping[str, "ComputedMessages | Tensor"]
"""For each corrected factor type its `ComputedMessages`; for "unary" log-potentials (variables, K)."""


class GraphMessagePassing(IterativeHead["GraphContext"]):
    """A head over factor graphs: one feature vector per variable in, logits of its marginals out.

    >>> graph = TypedGraph.build(4, {"next": [[0, 1], [1, 2], [2, 3]], "all": [[0, 1, 2, 3]]})
    >>> head = GraphMessagePassing(in_channels=6, num_classes=3, hidden=16, iterations=2,
    ...                            factors={"next": 2, "all": FactorType(4, ordered=False)})
    >>> head(torch.randn(4, 6), graph).shape
    torch.Size([4, 3])

    Args:
        in_channels: r, the length of a variable's feature vector.
        num_classes: K, or one for each type of variable by name.
        factors: For each factor type its order, None for any order, or a `FactorType`; {} is a unary classifier.
        dependent: How the messages of a factor's other variables enter its own: added to the hidden units, as their
            "sum", "mean" or "concat"; or, with "gate", multiplied with them.
        computed: Factor types (or "unary") whose computed messages are given with every call and corrected.
        chunk: Slots computed at a time; None for as many as fit the caches.
        **options: hidden, iterations, tied, cavity, initial and aggregation, as of `IterativeHead`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int | Mapping[str, int],
        factors: Mapping[str, int | FactorType | None] | None = None,
        *,
        dependent: GraphDependent = "sum",
        computed: Collection[str] = (),
        chunk: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, **options)
        if not isinstance(factors or {}, Mapping):
            raise InputError(f'factors is {factors!r}; give the order of each type, as in {{"next": 2}}')
        self.num_classes = dict(num_classes) if isinstance(num_classes, Mapping) else {SINGLE_TYPE: num_classes}
        self.factors = {
            name: given if isinstance(given, FactorType) else FactorType(given, ordered=given is not None)
            for name, given in (factors or {}).items()
        }
        self.dependent, self.computed, self.chunk = dependent, frozenset(computed), chunk
        self.check_options()
        self._check_types()
        self.estimators = nn.ModuleList(self._build_stage() for _ in range(1 if self.tied else self.iterations))

    def _check_types(self) -> None:
        for name, classes in self.num_classes.items():
            if type(classes) is not int or classes < 2:
                of = "" if name == SINGLE_TYPE else f" of {name!r}"
                raise InputError(f"num_classes{of} is {classes!r}; give a whole number, at least 2")
        for name, factor_type in self.factors.items():
            factor_type.check(name, self.num_classes, self.dependent)
        for name in self.computed:
            if name not in self.factor_types:
                raise InputError(f"computed names {name!r}; {nearest(name, self.factor_types)}")
        for name in (*self.factors, *self.num_classes):
            if hasattr(nn.ModuleDict(), name):
                raise InputError(f"type name {name!r} is a method of torch modules; choose another")

    def _build_stage(self) -> nn.ModuleDict:
        sizes, zero_init = (self.in_channels, self.hidden), "unary" in self.computed
        unary = (
            MessageEstimator(*sizes, classes, has_sender=False, zero_init=zero_init)
            for classes in self.num_classes.values()
        )
        stage = {"unary": nn.ModuleList(unary)}
        for name, factor_type in self.factors.items():
            stage[name] = nn.ModuleList(self._build_estimator(name, position) for position in factor_type.receivers)
        return nn.ModuleDict(stage)

    def _build_estimator(self, name: str, position: int) -> MessageEstimator:
        factor_type, computed = self.factors[name], name in self.computed
        classes = self.num_classes[factor_type.variable_type(position)]
        width = columns(factor_type, position, factor_type.order or 2, self.num_classes, self.dependent).width
        dependent_channels = width if self.has_dependent else 0
        extra = factor_type.features + (classes if computed else 0)
        sizes = (self.in_channels, self.hidden, classes)
        return MessageEstimator(
            *sizes, dependent_channels=dependent_channels, factor_channels=extra, gated=self.gated, zero_init=computed
        )

    @property
    def factor_types(self) -> list[str]:
        """ "unary", then the names of the factor types."""
        return ["unary", *self.factors]

    @property
    def max_classes(self) -> int:
        """The largest number of classes of a variable type: the width of beliefs."""
        return max(self.num_classes.values())

    def extra_repr(self) -> str:
        """The classes and options, for print(head)."""
        return f"num_classes={self.num_classes!r}, {super().extra_repr()}"

    def forward(
        self,
        features: NodeFeatures,
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        computed: ComputedByType | None = None,
    ) -> Tensor:
        """Logits of the marginals after T iterations, (variables, K); −∞ at classes a variable does not have.

        Args:
            features: One row per variable, (variables, r), or one such matrix for each factor type by name.
            graph: The factors.
            factor_features: For each factor type that has features, (factors, e) in the order of its factors.
            computed: The computed messages of every type that the head corrects.
        """
        context = self.context(features, graph, factor_features, computed)
        *_, beliefs = self.iterate(context)
        return context.mask_classes(beliefs.logits)

    def trace(
        self,
        features: NodeFeatures,
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        computed: ComputedByType | None = None,
    ) -> list[dict[str, Tensor]]:
        """For each iteration, the total message of each factor type to each variable, (variables, K) by name.

        Totals are 0 at classes that a variable does not have; those of an iteration sum to its logits.
        """
        context = self.context(features, graph, factor_features, computed)
        return [beliefs.totals for beliefs in self.iterate(context)]

    @torch.no_grad()
    def run(
        self,
        features: NodeFeatures,
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        computed: ComputedByType | None = None,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
    ) -> MessagePassingResult:
        """Runs more or fewer iterations than at training time, or iterates to convergence.

        Args:
            features, factor_features, computed: As for `forward`.
            graph: Joined graphs stop together, when the last of them has converged.
            iterations: At most so many; T by default.
            tolerance: Stop when no probability changes by more than this in an iteration.
        """
        max_iterations = self.max_iterations(iterations, tolerance)
        context = self.context(features, graph, factor_features, computed)
        trace = self.run_until(context, max_iterations, tolerance)
        return self.result(context.mask_classes(trace.beliefs.logits), trace.beliefs.totals, [trace])

    def context(
        self,
        features: NodeFeatures,
        graph: TypedGraph,
        factor_features: Mapping[str, Tensor] | None = None,
        computed: ComputedByType | None = None,
    ) -> GraphContext:
        """The graph with its features, checked: what `initial_beliefs`, `step` and `iterate` work on."""
        check_graph(self.factors, self.num_classes, graph)
        by_type = self._check_features(features, graph)
        factor_features = self._check_factor_features(factor_features or {}, graph)
        return GraphContext(self, graph, by_type, factor_features, self._check_computed(computed or {}, graph))

    def _check_features(self, features: NodeFeatures, graph: TypedGraph) -> dict[str, Tensor]:
        names = self.factor_types
        given = features if isinstance(features, Mapping) else dict.fromkeys(names, features)
        if missing := [name for name in names if name not in given]:
            raise InputError(f"no features for {', '.join(missing)}; give one matrix for each of {names}")
        for values in {id(values): values for values in given.values()}.values():
            if values.ndim != 2 or values.shape[1] != self.in_channels:
                shape = tuple(values.shape)
                raise InputError(f"features have shape {shape}; this head takes (variables, {self.in_channels})")
            if (rows := len(values)) != graph.num_variables:
                raise InputError(f"{rows} rows of features for {graph.num_variables} variables; give one row each")
            self._check_values("features", values)
        return {name: given[name] for name in names}

    def _check_values(self, name: str, values: Tensor) -> None:
        check_dtype_and_device(name, values, next(self.parameters()))
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(values).all()):
            raise InputError(f"{name} contain NaN or infinity; look for a diverged encoder or a bad input")

    def _check_factor_features(self, given: Mapping[str, Tensor], graph: TypedGraph) -> Mapping[str, Tensor]:
        expected = {name: each.features for name, each in self.factors.items() if each.features}
        for name in given:
            if name not in expected:
                raise InputError(
                    f"factor features for {name!r} were not announced; build its FactorType with features=…"
                )
        for name, width in expected.items():
            shape = (graph.num_factors(name), width)
            if name in given:
                if (found := tuple(given[name].shape)) != shape:
                    raise InputError(f"features of factors {name!r} have shape {found}; it must be {shape}")
                self._check_values(f"features of factors {name!r}", given[name])
            elif shape[0]:
                raise InputError(f"factors {name!r} come with {width} features each; give factor_features")
        return given

    def _check_computed(self, given: ComputedByType, graph: TypedGraph) -> ComputedByType:
        if set(given) != self.computed:
            raise InputError(
                f"this head corrects computed messages of {sorted(self.computed) or 'no type'}, but was called with "
                f"computed messages of {sorted(given) or 'none'}; give the same"
            )
        shape = (graph.num_variables, self.max_classes)
        for name, each in given.items():
            if name == "unary":
                if not isinstance(each, Tensor) or tuple(each.shape) != shape:
                    raise InputError(f"computed unary messages must be a tensor of log-potentials of shape {shape}")
            elif isinstance(each, Tensor):
                raise InputError(f"computed messages of {name!r} must be given as a function of the incoming messages")
        return given

    def unary_messages(self, context: GraphContext, iteration: int) -> Tensor:
        """The messages of the unary factors, (variables, K), 0 at classes that a variable does not have."""
        total = context.unary(self.stage(iteration)["unary"])
        computed = context.computed.get("unary")
        return total + computed if isinstance(computed, Tensor) else total

    def step(self, context: GraphContext, iteration: int, previous: Beliefs, *, keep_messages: bool = True) -> Beliefs:
        """One synchronous iteration: see `IterativeHead.step`."""
        totals, messages = {"unary": self.unary_messages(context, iteration)}, {}
        logits = previous.logits
        beliefs = context.log_marginals(logits)
        for name, factor_type in self.factors.items():
            sent = previous.messages.get(name)
            incoming = None if sent is None else context.to_factor(name, logits, sent)
            keep = keep_messages and self.cavity == "factor" and factor_type.has_cavity
            estimators = self.stage(iteration)[name]
            totals[name], sent = _FactorMessages(context, name, beliefs, incoming).send(estimators, keep=keep)
            if sent is not None:
                messages[name] = sent
        return Beliefs(totals, messages)


class GraphContext(Context):
    """Everything that is constant across iterations: features, graph, message indices, projections."""

    def __init__(
        self,
        head: GraphMessagePassing,
        graph: TypedGraph,  # one, or several joined
        features: Mapping[str, Tensor],  # for each factor type, (variables, r)
        factor_features: Mapping[str, Tensor],  # for factor types that have them, (factors, e)
        computed: ComputedByType,  # messages that the head corrects
    ) -> None:
        super().__init__(features)
        self.head, self.graph = head, graph
        self.factor_features, self.computed = factor_features, computed
        self.index = {
            name: graph.message_index(name, ordered=each.ordered, sends_to=each.sends_to)
            for name, each in head.factors.items()
        }
        self.valid = self._valid_classes()
        self._unary: dict[int, Tensor] = {}

    def unary(self, estimators: Sequence[MessageEstimator]) -> Tensor:
        """The learned messages of the unary factors, (variables, K), from one estimator per variable type."""
        if (key := id(estimators)) not in self._unary:
            features, width = self.features["unary"], self.head.max_classes
            messages = []
            for variable_type, estimator in zip(self.head.num_classes, estimators, strict=True):
                chosen = self._variables(variable_type)
                message = _pad_classes(
                    estimator(features if chosen is None else features.index_select(0, chosen)), width
                )
                if chosen is not None:
                    message = message.new_zeros(len(features), width).index_add(0, chosen, message)
                messages.append(message)
            self._unary[key] = reduce(torch.add, messages)
        return self._unary[key]

    def log_marginals(self, logits: Tensor) -> Tensor:
        """The variables' normalised beliefs, (variables, K), 0 at classes that a variable does not have."""
        if self.valid is None:
            return torch.log_softmax(logits, -1)
        return torch.where(self.valid, torch.log_softmax(self.mask_classes(logits), -1), 0)

    def marginals(self, logits: Tensor) -> Tensor:
        """The variables' beliefs as probabilities, (variables, K)."""
        return self.log_marginals(logits).exp()

    def mask_classes(self, logits: Tensor) -> Tensor:
        """Logits with −∞ at classes that a variable does not have."""
        return logits if self.valid is None else logits.masked_fill(~self.valid, -torch.inf)

    def to_factor(self, name: str, logits: Tensor, messages: Tensor) -> Tensor:
        """β_{p→F} of every slot, (rows, K): the variable's belief without the factor's own message."""
        width, receivers = messages.shape[1], self.index[name].receivers
        cavity = logits[:, :width].index_select(0, receivers).sub_(messages)
        if self.valid is not None:
            cavity = cavity.masked_fill(~self.valid[:, :width].index_select(0, receivers), -torch.inf)
        return torch.log_softmax(cavity, -1)

    def centred(self, log_beliefs: Tensor, variables: Tensor | None = None) -> Tensor:
        """√K (b − 1/K) of log-probabilities (rows, K) of all variables, or of those named: what gates hidden units."""
        classes: Tensor | int = self.head.max_classes
        if self.valid is not None:
            of_variable = self.valid.sum(1, keepdim=True).to(log_beliefs.dtype)
            classes = of_variable if variables is None else of_variable.index_select(0, variables)
        return (log_beliefs.exp() - 1 / classes) * classes**0.5

    def _variables(self, variable_type: str) -> Tensor | None:
        """Indices of the variables of a type; None for all."""
        if self.graph.variable_types is None:
            return None
        if variable_type not in self.graph.type_names:
            return self.graph.variable_types.new_zeros(0)
        return (self.graph.variable_types == self.graph.type_names.index(variable_type)).nonzero()[:, 0]

    def _valid_classes(self) -> Tensor | None:
        """(variables, K) which classes each variable has; None if all have all."""
        codes, num_classes = self.graph.variable_types, self.head.num_classes
        if codes is None or len(set(num_classes.values())) == 1:
            return None
        sizes = torch.tensor([num_classes[each] for each in self.graph.type_names], device=codes.device)
        return torch.arange(self.head.max_classes, device=codes.device) < sizes[codes][:, None]


class _FactorMessages:
    """The messages of one factor type in one iteration; without `incoming`, from the beliefs (variables, K)."""

    def __init__(self, context: GraphContext, name: str, beliefs: Tensor, incoming: Tensor | None) -> None:
        self.context, self.head, self.name = context, context.head, name
        self.factor_type, self.beliefs, self.incoming = context.head.factors[name], beliefs, incoming

    def send(self, estimators: Sequence[MessageEstimator], *, keep: bool) -> tuple[Tensor, Tensor | None]:
        """The total message to every variable, (variables, K), and, to keep, every message, (slots, K)."""
        index: MessageIndex = self.context.index[self.name]
        width = self.head.max_classes
        total = self.beliefs.new_zeros(self.context.graph.num_variables, width)
        if not len(index):
            return total, None
        computed = self._computed(index)
        if computed is not None:
            total = total.index_add(0, index.receivers, _pad_classes(computed, width))
        sent: list[Tensor] = []
        for slots in index.slots:
            estimator = estimators[slots.estimator]
            own = None if computed is None else computed[slots.rows, : estimator.output.out_features]
            messages, sums = self._send_slots(slots, estimator, own, keep)
            total = total + _pad_classes(sums, width)
            sent += [] if messages is None else [messages]
        if not keep:
            return total, None
        widest = max(messages.shape[1] for messages in sent)
        padded = [_pad_classes(messages, widest) for messages in sent]
        return total, padded[0] if len(padded) == 1 else torch.cat(padded)

    def _send_slots(
        self, slots: Slots, estimator: MessageEstimator, computed: Tensor | None, keep: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Messages (if kept) and their sums, for slots of one estimator and one order."""
        receiver, sender = self.context.projections(self.name, estimator)
        sender, dependent = self._dependent(slots, estimator, sender)
        factor = self._factor_input(slots, estimator, computed)
        count = self.context.index[self.name].counts[slots.estimator].double()
        scale = message_scale(self.head.aggregation, count, self.factor_type.degree).to(receiver.dtype)
        output = OutputLayer(estimator.output.weight, estimator.output.bias, scale)
        if not keep:
            active = pass_slots(receiver, sender, slots, dependent, factor, chunk=self.head.chunk)
            count = torch.bincount(slots.receivers, minlength=len(receiver))
            sums = functional.linear(active, output.weight) + count.unsqueeze(1) * output.bias
            return None, scale.unsqueeze(1) * sums
        messages = pass_slots(receiver, sender, slots, dependent, factor, output, self.head.chunk)
        sums = messages.new_zeros(len(receiver), len(output.bias)).index_add(0, slots.receivers, messages)
        return (messages if computed is None else messages + computed), sums

    def _dependent(
        self, slots: Slots, estimator: MessageEstimator, sender: Tensor
    ) -> tuple[Tensor, DependentInput | None]:
        """Q and the dependent input; where d does not depend on the receiver, it joins Q."""
        if estimator.dependent is None:
            return sender, None
        position = self.factor_type.receivers[slots.estimator]
        layout = columns(self.factor_type, position, slots.order, self.head.num_classes, self.head.dependent)
        weight, incoming, beliefs, gated = estimator.dependent.weight, self.incoming, self.beliefs, estimator.gated
        if gated:
            beliefs = self.context.centred(beliefs)
        if incoming is not None:
            if gated:
                incoming = self.context.centred(incoming, self.context.index[self.name].receivers)
            if not self.factor_type.one_way:
                return sender, DependentInput(incoming, slots.reverse, layout, weight, gated)
            both = torch.cat([_pad_classes(incoming, beliefs.shape[1]), beliefs])
            rows = torch.where(slots.reverse < 0, slots.senders + len(incoming), slots.reverse)
            return sender, DependentInput(both, rows, layout, weight, gated)
        if layout.shared and not gated:
            alpha = (slots.order - 1) * layout.weights[0]
            return torch.addmm(sender, beliefs[:, : layout.sizes[0]], weight.T, alpha=alpha), None
        return sender, DependentInput(beliefs, slots.senders, layout, weight, gated)

    def _factor_input(self, slots: Slots, estimator: MessageEstimator, computed: Tensor | None) -> FactorInput | None:
        """x: features of the factor and its computed message, per slot."""
        if estimator.factor is None:
            return None
        parts = [] if computed is None else [computed]
        if self.name in self.context.factor_features:
            parts.insert(0, self.context.factor_features[self.name].index_select(0, slots.factors))
        return FactorInput(parts[0] if len(parts) == 1 else torch.cat(parts, 1), estimator.factor.weight)

    def _computed(self, index: MessageIndex) -> Tensor | None:
        """The computed messages of every slot, (slots, K), for a type that the head corrects."""
        compute = self.context.computed.get(self.name)
        if compute is None or isinstance(compute, Tensor):
            return None
        factor_type, num_classes = self.factor_type, self.head.num_classes
        by_block: list[list[Tensor]] = []
        blocks = self.context.graph.factors.get(self.name, ())
        for (scopes, factors), rows in zip(blocks, index.row_of, strict=True):
            incoming = []
            for position in range(scopes.shape[1]):
                receives = factor_type.sends_to is None or position in factor_type.sends_to
                messages = self.beliefs[scopes[:, position]]
                if self.incoming is not None and receives:
                    messages = self.incoming[rows[:, position]]
                incoming.append(messages[:, : num_classes[factor_type.variable_type(position)]])
            outgoing = list(compute(incoming, factors))
            if [message.shape for message in outgoing] != [message.shape for message in incoming]:
                raise InputError(
                    f"computed messages of {self.name!r} have shapes {[tuple(m.shape) for m in outgoing]}; return one "
                    f"for each position, shaped like the incoming ones: {[tuple(m.shape) for m in incoming]}"
                )
            by_block.append(outgoing)
        width = max(message.shape[1] for outgoing in by_block for message in outgoing)
        joined = [torch.cat([_pad_classes(m, width) for m in outgoing]) for outgoing in by_block]
        parts = [joined[slots.block].index_select(0, slots.origin) for slots in index.slots]
        return torch.cat(parts).to(self.beliefs.dtype)


def _pad_classes(message: Tensor, width: int) -> Tensor:
    missing = width - message.shape[1]
    return functional.pad(message, (0, missing)) if missing else message
