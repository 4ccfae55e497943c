r"""Learned message passing over any factor graph (Lin, Shen, Reid, van den Hengel, NIPS 2015).

Every factor-to-variable message is the output of a small network; factors may have any order, and types of
factors and of variables may be mixed:

    β_{F→p}  = M_F( [ f_p ; mean_{q ∈ F\p} f_q ; d_pF ; x_F ] )               K numbers, K of the receiver
    d_pF     = Σ_{q ∈ F\p} logsoftmax( L_q − β_{F→q} )                        cavity "factor": belief propagation
             = Σ_{q ∈ F\p} logsoftmax( L_q )                                  cavity "none": mean-field style
    L_p      = Σ_{F ∋ p} β_{F→p},    P(y_p | x) = softmax(L_p)

with the L and β of the previous iteration. d is a sum (of mixed variable types, one sum for each type, side by
side), a mean, or a concatenation in the order of positions; for pairwise factors all are the same. x_F are features
of the factor. On a grid these are exactly the messages of `MessagePassing`.

Where potentials are known, a head learns what to add to the message computed from them, μ:

    β_{F→p}  = μ_{F→p} + M_F( [ f_p ; mean f_q ; d_pF ; x_F ; μ_{F→p} ] )

and starts, with M_F = 0, as the algorithm that computes them.

Messages include the scale of their aggregation: "sum" 1, "mean" 1/n_p (n_p messages of this kind reach p),
"fixed" 1/degree and "sqrt" 1/√degree with the constant of the `FactorType`. Computed messages are not scaled.

What a head asks of the graph and the tensors it is called with, said in one line each where they do not fit.

What stays the same while messages are passed over one graph: features, layouts, projections.

One iteration of one factor type: what each factor is told, its messages, and their sums.

Three ways lead to the sum of a variable's messages, Σ_s c (W₂ relu(t_s) + b₂), and the cheapest that serves is
taken:

- what a sender says does not depend on whom it tells (first iteration, no cavity, one-way factors): D d is made
  once per variable and becomes part of Q, and W₂ follows the sum: no vector of K per factor exists;
- the last iteration with cavities: d once per factor, W₂ after the sum;
- any other: every message is made and kept, because the next iteration leaves it out of its cavities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError, nearest
from messagenet.graph.typed import Layout, Slots, TypedGraph
from messagenet.message_passing.cavity_ops import Heard, Local, slot_messages, slot_sums
from messagenet.message_passing.cavity_ops import SlotOutput as Output
from messagenet.message_passing.estimator import (
    ONLY_TYPE,
    Aggregation,
    CavityMode,
    FactorEstimator,
    FactorType,
    GraphDependent,
    GraphRules,
    Initial,
    build_stage,
    columns,
)
from messagenet.message_passing.grid import (
    Beliefs,
    Iterating,
    Passed,
    ProjectedFeatures,
    budget,
    follow,
    passed,
)

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


def check_graph(rules: GraphRules, graph: TypedGraph) -> None:
    """Refuses a graph that has what the head does not know."""
    _check_variables(rules, graph)
    for name, blocks in graph.factors.items():
        if name not in rules.factors:
            raise InputError(
                f"the graph has factors {name!r}, which this head does not know; "
                f"{nearest(name, rules.factors) if rules.factors else 'name them when the head is built'}"
            )
        kind = rules.factors[name]
        for block in blocks:
            order = block.scopes.shape[1]
            if kind.order is not None and order != kind.order:
                raise InputError(
                    f"factors {name!r} have order {order} in the graph but {kind.order} in the head; "
                    "build the head with the graph's order, or with order=None and ordered=False for any"
                )
            _check_positions(name, kind, graph, block.scopes)


def _check_variables(rules: GraphRules, graph: TypedGraph) -> None:
    expected = set(rules.num_classes)
    if graph.variable_types is None:
        if expected != {ONLY_TYPE}:
            raise InputError(
                f"this head has variables of types {', '.join(sorted(expected))}; build the graph with variable_types"
            )
        return
    for kind in graph.type_names:
        if kind not in expected:
            fix = "give num_classes for each type" if expected == {ONLY_TYPE} else nearest(kind, expected)
            raise InputError(
                f"the graph has variables of type {kind!r}, which this head does not know; {fix}"
            )


def _check_positions(name: str, kind: FactorType, graph: TypedGraph, scopes: Tensor) -> None:
    if graph.variable_types is None:
        return
    for position in range(scopes.shape[1]):
        expected = kind.kind_at(position)
        found = graph.variable_types[scopes[:, position]]
        code = graph.type_names.index(expected) if expected in graph.type_names else -1
        wrong = (found != code).nonzero()
        if len(wrong):
            other = graph.type_names[int(found[wrong[0]])]
            raise InputError(
                f"factors {name!r}: position {position} should hold a variable of type {expected!r}, one of "
                f"them holds a {other!r}; correct its scope or the head's variable_types"
            )


def check_features(
    rules: GraphRules,
    in_channels: int,
    weight: Tensor,
    features: Tensor | Mapping[str, Tensor],
    graph: TypedGraph,
) -> dict[str, Tensor]:
    """One feature matrix for each factor type, of the type and device of `weight`, a parameter of the head."""
    names = ["unary", *rules.factors]
    given = dict.fromkeys(names, features) if isinstance(features, Tensor) else features
    if missing := [name for name in names if name not in given]:
        raise InputError(f"no features for {', '.join(missing)}; give one matrix for each of {names}")
    for values in {id(values): values for values in given.values()}.values():
        if values.ndim != 2 or values.shape[1] != in_channels:
            raise InputError(
                f"features have shape {tuple(values.shape)}; this head takes (variables, {in_channels})"
            )
        if len(values) != graph.num_variables:
            raise InputError(
                f"{len(values)} rows of features for {graph.num_variables} variables; give one row each"
            )
        _check_tensor("features", values, weight)
    return {name: given[name] for name in names}


def _check_tensor(what: str, values: Tensor, weight: Tensor) -> None:
    """Refuses another device, another type (unless autocast minds it) and what is not finite."""
    if values.device != weight.device:
        raise InputError(
            f"{what} are on {values.device}, the head is on {weight.device}; move one with .to(…)"
        )
    if values.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
        raise InputError(
            f"{what} are {values.dtype}, the head is {weight.dtype}; convert one with .to(dtype)"
        )
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(values).all()):
        raise InputError(f"{what} contain NaN or infinity; look for a diverged encoder or a bad input")


def check_factor_features(
    rules: GraphRules, weight: Tensor, factor_features: Mapping[str, Tensor] | None, graph: TypedGraph
) -> dict[str, Tensor]:
    """The features of factors, for the types that have them."""
    given = factor_features or {}
    expected = {name: kind.features for name, kind in rules.factors.items() if kind.features}
    for name in given:
        if name not in expected:
            raise InputError(
                f"factor features for {name!r} were not announced; build its FactorType with features=…"
            )
    for name, width in expected.items():
        shape = (graph.num_factors(name), width)
        if name not in given:
            if shape[0]:
                raise InputError(f"factors {name!r} come with {width} features each; give factor_features")
            continue
        if tuple(given[name].shape) != shape:
            raise InputError(
                f"features of factors {name!r} have shape {tuple(given[name].shape)}; it must be {shape}"
            )
        _check_tensor(f"features of factors {name!r}", given[name], weight)
    return dict(given)


def check_known(rules: GraphRules, known: Known | None, graph: TypedGraph) -> Known:
    """What is known must be what the head was built to correct."""
    given = known or {}
    if set(given) != rules.known:
        raise InputError(
            f"this head corrects computed messages of {sorted(rules.known) or 'no type'}, but was called with "
            f"known messages of {sorted(given) or 'none'}; give the same"
        )
    if "unary" in given:
        unary = given["unary"]
        shape = (graph.num_variables, rules.most_classes)
        if not isinstance(unary, Tensor) or tuple(unary.shape) != shape:
            raise InputError(f"known unary messages must be a tensor of log-potentials of shape {shape}")
    return given


Stage = Mapping[str, Sequence[FactorEstimator]]


def send(
    field: GraphField,
    name: str,
    estimators: Sequence[FactorEstimator],
    beliefs: Tensor,
    told: Tensor | None,
    chunk: int | None,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The total message of a factor type to every variable, (variables, K), and if asked for every message.

    Args:
        field: The graph and its features.
        name: The factor type.
        estimators: Its estimators in this iteration.
        beliefs: What the variables believed, normalised, (variables, K).
        told: What they told each factor of the type, without its own message, (slots, K); None: their beliefs.
        chunk: Slots whose hidden units exist at once.
        keep: Return the messages, (slots, K).
    """
    layout = field.layouts[name]
    width = field.rules.most_classes
    total = beliefs.new_zeros(field.graph.num_variables, width)
    if not len(layout):
        return total, None
    computed = _computed(field, name, layout, beliefs, told)
    if computed is not None:
        total = total.index_add(0, layout.receivers, _widened(computed, width))
    sent: list[Tensor] = []
    for slots in layout.slots:
        own = None if computed is None else computed[slots.rows]
        messages, sums = _send_part(
            field, name, slots, estimators[slots.estimator], beliefs, told, own, chunk, keep
        )
        total = total + _widened(sums, width)
        if messages is not None:
            sent.append(messages)
    if not keep:
        return total, None
    most = max(messages.shape[1] for messages in sent)
    joined = [_widened(messages, most) for messages in sent]
    return total, joined[0] if len(joined) == 1 else torch.cat(joined)


def _send_part(
    field: GraphField,
    name: str,
    slots: Slots,
    estimator: FactorEstimator,
    beliefs: Tensor,
    told: Tensor | None,
    computed: Tensor | None,
    chunk: int | None,
    keep: bool,
) -> tuple[Tensor | None, Tensor]:
    """Messages (if kept) and their sums, for slots of one estimator and one order."""
    receiver, sender = field.projections(name, estimator)
    sender, heard = _heard(field, name, slots, estimator, sender, beliefs, told)
    classes = estimator.output.out_features
    local = _local(field, name, slots, estimator, None if computed is None else computed[:, :classes])
    scale = _scale(field, name, slots).to(receiver.dtype)
    weight, bias = estimator.output.weight, estimator.output.bias
    if not keep:
        active = slot_sums(receiver, sender, slots, heard, local, chunk)
        count = torch.bincount(slots.receivers, minlength=len(receiver))
        sums = functional.linear(active, weight) + count.unsqueeze(1) * bias
        return None, scale.unsqueeze(1) * sums
    messages = slot_messages(receiver, sender, slots, Output(weight, bias, scale), heard, local, chunk)
    sums = messages.new_zeros(len(receiver), classes).index_add(0, slots.receivers, messages)
    return (messages if computed is None else messages + computed[:, :classes]), sums


def _heard(
    field: GraphField,
    name: str,
    slots: Slots,
    estimator: FactorEstimator,
    sender: Tensor,
    beliefs: Tensor,
    told: Tensor | None,
) -> tuple[Tensor, Heard | None]:
    """Q and what else the senders said; where that does not depend on whom they tell, it becomes part of Q."""
    if estimator.dependent is None:
        return sender, None
    rules, kind = field.rules, field.rules.factors[name]
    position = kind.receivers[slots.estimator]
    layout = columns(kind, position, slots.order, rules.num_classes, rules.dependent)
    weight = estimator.dependent.weight
    if told is not None:
        if not kind.one_way:
            return sender, Heard(told, slots.reverse, layout, weight)
        everyone = torch.cat([_widened(told, beliefs.shape[1]), beliefs])
        rows = torch.where(slots.reverse < 0, slots.senders + len(told), slots.reverse)
        return sender, Heard(everyone, rows, layout, weight)
    if layout.alike:
        said = beliefs[:, : layout.sizes[0]]
        return torch.addmm(sender, said, weight.T, alpha=(slots.order - 1) * layout.weights[0]), None
    return sender, Heard(beliefs, slots.senders, layout, weight)


def _local(
    field: GraphField, name: str, slots: Slots, estimator: FactorEstimator, computed: Tensor | None
) -> Local | None:
    """Features of the factor and its computed message, per slot."""
    if estimator.local is None:
        return None
    parts = [] if computed is None else [computed]
    if name in field.factor_features:
        parts.insert(0, field.factor_features[name].index_select(0, slots.factors))
    return Local(parts[0] if len(parts) == 1 else torch.cat(parts, 1), estimator.local.weight)


def _computed(
    field: GraphField, name: str, layout: Layout, beliefs: Tensor, told: Tensor | None
) -> Tensor | None:
    """The computed messages of every slot, (slots, K), where potentials are known."""
    compute = field.known.get(name)
    if compute is None:
        return None
    if isinstance(compute, Tensor):
        raise InputError(
            f"known messages of {name!r} must be computed by a function of the messages it is told"
        )
    kind, classes = field.rules.factors[name], field.rules.num_classes
    width = max(classes[kind.kind_at(i)] for block in layout.row_of for i in range(block.shape[1]))
    by_block: list[Tensor] = []
    for (scopes, numbers), rows in zip(field.graph.factors.get(name, ()), layout.row_of, strict=True):
        incoming = []
        for position in range(scopes.shape[1]):
            answered = kind.sends_to is None or position in kind.sends_to
            said = beliefs[scopes[:, position]] if told is None or not answered else told[rows[:, position]]
            incoming.append(said[:, : classes[kind.kind_at(position)]])
        outgoing = compute(incoming, numbers)
        if [message.shape for message in outgoing] != [message.shape for message in incoming]:
            raise InputError(
                f"computed messages of {name!r} have shapes {[tuple(m.shape) for m in outgoing]}; return one for "
                f"each position, shaped like the messages told: {[tuple(m.shape) for m in incoming]}"
            )
        by_block.append(torch.cat([_widened(message, width) for message in outgoing]))
    parts = [by_block[slots.block].index_select(0, slots.origin) for slots in layout.slots]
    return torch.cat(parts).to(beliefs.dtype)


def _scale(field: GraphField, name: str, slots: Slots) -> Tensor:
    """What a message to each variable is multiplied with, (variables,)."""
    count = field.layouts[name].counts[slots.estimator]
    kind: FactorType = field.rules.factors[name]
    match field.rules.aggregation:
        case "sum":
            return torch.ones_like(count, dtype=torch.float64)
        case "mean":
            return 1 / count.clamp(min=1).double()
        case "fixed":
            return torch.full_like(count, 1 / kind.degree, dtype=torch.float64)
        case _:
            return torch.full_like(count, kind.degree**-0.5, dtype=torch.float64)


def _widened(message: Tensor, width: int) -> Tensor:
    missing = width - message.shape[1]
    return functional.pad(message, (0, missing)) if missing else message


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
