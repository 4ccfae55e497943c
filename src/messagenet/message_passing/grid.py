r"""Learned message passing on an image grid (Lin, Shen, Reid, van den Hengel, NIPS 2015).

Every factor-to-variable message is the output of a small network, instead of being computed from potentials:

    β_{F→p}  = M_F( [ f_p ; mean_{q ∈ F\p} f_q ; d_pF ] )                    K numbers
    d_pF     = Σ_{q ∈ F\p} logsoftmax( Σ_{F' ∋ q, F' ≠ F} β_{F'→q} )         messages one iteration ago
    logits_p = Σ_{F ∋ p} β_{F→p},          P(y_p | x) = softmax(logits_p)

after exactly T synchronous iterations, T being part of the training. With T = 1 there is no d, and the sum
over a range box is one fused operator without any tensor over edges. With T > 1 and exact cavities the
messages themselves, N·n·K numbers, are all that is kept between iterations.

A message here includes the scale of the aggregation, so that messages always sum to the logits:

    sum    β = M_F                         mean   β = M_F / n_p     n_p: the factors that reach node p
    fixed  β = M_F / |O|                   sqrt   β = M_F / √|O|    |O|: the offsets of the relation

What a head asks of the feature maps it is given, said in one line each where they do not meet it.

What stays the same while messages are passed over one map: features, graph, silent nodes, projections.

A `Field` serves images of one size. Batches that were padded to a common size are cut back into fields of
equal size by `fields`, so that a padded image gets exactly the messages that it would get alone: range boxes
are sized by the image, not by the padding.

Features of nodes, and what estimators make of them before any message: the same in every iteration.

T iterations: what heads on grids and on graphs have in common, whatever one iteration is.

What changes while messages are passed.

One iteration of one relation on a grid: its messages, and their sums.

Three ways lead to the sum of a node's messages, and the cheapest that serves is taken:

- a pairwise relation whose cavities nobody needs is one fused sum, Σ_q relu(P_p + Q_q), and W₂ after it;
- with cavities to leave out but none to keep (the last iteration), what each neighbour was told joins that sum;
- where the next iteration leaves messages out of its cavities, every one of them is made and kept.

A box relation has one message per node, made from the average of its senders.

Passing messages with another budget than the one trained for, or until the beliefs have settled.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, reduce
from itertools import zip_longest
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError, Note
from messagenet.graph import GridGraph, Offset, Relation
from messagenet.message_passing.cavity_ops import Cavity, cavity_sum, edge_messages
from messagenet.message_passing.cavity_ops import EdgeOutput as Output
from messagenet.message_passing.estimator import (
    Aggregation,
    CavityMode,
    Dependent,
    Initial,
    MessageEstimator,
    Rules,
)
from messagenet.message_passing.fused_sum import box_sum, relu_sum, remembered


def check_maps(maps: Collection[Tensor], in_channels: int, weight: Tensor) -> None:
    """Refuses maps that are not all (batch, in_channels, height, width) of one size, type and device.

    Args:
        maps: One feature map for each factor type; the same map may come more than once.
        in_channels: r.
        weight: A parameter of the head, whose type and device the maps must have.
    """
    for values in maps:
        if values.ndim != 4 or values.shape[1] != in_channels:
            raise InputError(
                f"features have shape {tuple(values.shape)}; this head takes (batch, {in_channels}, "
                "height, width)"
            )
    sizes = {(values.shape[0], *values.shape[2:]) for values in maps}
    if len(sizes) > 1:
        raise InputError(f"the feature maps differ in batch or size: {sorted(sizes)}; give all of one size")
    if others := [values.device for values in maps if values.device != weight.device]:
        raise InputError(
            f"features are on {others[0]}, the head is on {weight.device}; move one of them with .to(device)"
        )
    if types := [values.dtype for values in maps if values.dtype != weight.dtype]:
        if torch.is_autocast_enabled(weight.device.type) and all(dtype.is_floating_point for dtype in types):
            return  # autocast brings all of them to one type
        raise InputError(
            f"features are {types[0]}, the head is {weight.dtype}; convert one of them with .to(dtype)"
        )


def check_finite(maps: Collection[Tensor], valid: Tensor | None) -> None:
    """Refuses NaN and infinity in maps (B, r, H, W), but for nodes that are not `valid`, (B, H, W)."""
    for values in {id(values): values for values in maps}.values():
        finite = torch.isfinite(values).all(1)  # (B, H, W)
        if valid is not None and valid.shape == finite.shape:
            finite = finite | ~valid.bool()
        if not bool(finite.all()):
            raise InputError(
                "features contain NaN or infinity; look for a diverged backbone (lower the learning "
                "rate) or a bad input image"
            )


class Projecting(Protocol):
    """The first layer of an estimator, split over receiver and sender."""

    receiver: nn.Linear
    sender: nn.Linear | None


class ProjectedFeatures:
    """Features by factor type, (..., r), and their projections, made once.

    Attributes:
        features: By the name of the factor type; "unary" is there always.
    """

    def __init__(self, features: Mapping[str, Tensor]) -> None:
        self.features = features
        self._projections: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    @property
    def like(self) -> Tensor:
        """A tensor with the type, the device and the nodes of the features."""
        return self.features["unary"]

    def projections(self, name: str, estimator: Projecting) -> tuple[Tensor, Tensor]:
        """P = A f + b and Q = B f, (..., hidden); made once per estimator."""
        key = (id(estimator), name)
        if key not in self._projections:
            assert estimator.sender is not None
            features = self.features[name]
            self._projections[key] = estimator.receiver(features), estimator.sender(features)
        return self._projections[key]


class Field(ProjectedFeatures):
    """Node features, channels last, with everything that is computed from them once.

    Args:
        graph: The grid and its relations.
        features: For each factor type, (B, H, W, r).
        talking: 1 for nodes that send, 0 for padding, (B, H, W, 1); None if all send.
    """

    def __init__(self, graph: GridGraph, features: Mapping[str, Tensor], talking: Tensor | None) -> None:
        self.graph = graph
        super().__init__(features)
        self.talking = talking
        self._counts: dict[tuple[Offset, ...], Tensor] = {}
        for relation, offsets in zip(graph.relations, graph.offsets, strict=True):
            if not offsets and not torch.compiler.is_compiling():
                _warn_empty(relation, graph.height, graph.width)

    def box_projections(self, name: str, offsets: tuple[Offset, ...], estimator: MessageEstimator) -> Tensor:
        """P + Q of a box relation, Q from the average of the senders' features, (B, H, W, hidden)."""
        key = (id(estimator), name)
        if key not in self._projections:
            assert estimator.sender is not None
            features = self.features[name]
            mean = box_sum(self.heard(features), offsets) / self.count(offsets).clamp(min=1)
            self._projections[key] = estimator.receiver(features), estimator.sender(mean)
        receiver, sender = self._projections[key]
        return receiver + sender

    def heard(self, values: Tensor) -> Tensor:
        """The values with those of padding set to 0."""
        return values if self.talking is None else torch.where(self.talking > 0, values, 0)

    def silenced(self, sender: Tensor) -> Tensor:
        """Q with that of padding set to −∞, so that relu(P + Q) = 0."""
        return sender if self.talking is None else sender.masked_fill(self.talking == 0, -torch.inf)

    def count(self, offsets: tuple[Offset, ...]) -> Tensor:
        """n, how many nodes send to each node, (B or 1, H, W, 1)."""
        if offsets not in self._counts:
            ones = self.like.new_ones(1, self.graph.height, self.graph.width, 1)
            self._counts[offsets] = box_sum(ones if self.talking is None else self.talking, offsets)
        return self._counts[offsets]


@remembered
def layout(height: int, width: int, relations: tuple[Relation, ...]) -> GridGraph:
    """The graph of a map, kept for the next map of this size."""
    return GridGraph(height, width, relations)


@cache
def _warn_empty(relation: Relation, height: int, width: int) -> None:
    warnings.warn(
        f"on an image this small ({height}×{width} nodes) no message comes from {relation.name!r}: "
        f"{relation.fraction} of the short edge is less than one node; use larger images, or give the relation's size "
        "in cells",
        Note,
        stacklevel=2,
    )


def fields(
    features: Mapping[str, Tensor], valid: Tensor | None, relations: Sequence[Relation]
) -> Iterator[tuple[Tensor | None, Field]]:
    """Splits a batch (B, r, H, W) into fields of equal image size, with the numbers of their images.

    The numbers are None where one field holds the whole batch at its full size.
    """
    maps = {
        id(values): values.permute(0, 2, 3, 1).contiguous() for values in features.values()
    }  # (B, H, W, r)
    last = {name: maps[id(values)] for name, values in features.items()}
    images, height, width, _ = next(iter(last.values())).shape
    if valid is None:
        yield None, Field(layout(height, width, tuple(relations)), last, None)
        return
    valid = valid.bool()
    if valid.shape != (images, height, width):
        raise InputError(
            f"the validity mask has shape {tuple(valid.shape)}; for these features it must be "
            f"{(images, height, width)}: one flag per node"
        )
    if not bool(valid.flatten(1).any(1).all()):
        raise InputError("the validity mask marks no node of an image as valid; leave that image out")
    rows = [1 + int(flags.nonzero().max()) for flags in valid.any(2)]
    columns = [1 + int(flags.nonzero().max()) for flags in valid.any(1)]
    sizes = list(zip(rows, columns, strict=True))
    for h, w in dict.fromkeys(sizes):
        numbers = torch.tensor([i for i, size in enumerate(sizes) if size == (h, w)], device=valid.device)
        flags = valid[numbers, :h, :w]
        part = {name: values[numbers, :h, :w] for name, values in last.items()}
        talking = None
        if not bool(flags.all()):
            exists = flags.unsqueeze(-1)
            # Whatever padding holds, NaN included, must reach neither messages nor gradients.
            part = {name: torch.where(exists, values, 0) for name, values in part.items()}
            talking = exists.to(next(iter(part.values())).dtype)
        yield numbers, Field(layout(h, w, tuple(relations)), part, talking)


class Beliefs(NamedTuple):
    """The state between iterations, on a grid (nodes: B, H, W) or on any graph (nodes: variables).

    Attributes:
        totals: For each factor type, the sum of its messages to every node, (nodes, K).
        messages: For types whose cavities will be needed, every message: on a grid (B, n, H, W, K), else (slots, K).
    """

    totals: dict[str, Tensor]
    messages: dict[str, Tensor]

    @property
    def logits(self) -> Tensor:
        """Σ_F β_{F→p}, (nodes, K)."""
        return reduce(torch.add, self.totals.values())


FieldT = TypeVar("FieldT")


class Budget(Protocol):
    """The rules that concern iterations."""

    @property
    def iterations(self) -> int:
        """T."""
        ...

    @property
    def tied(self) -> bool:
        """Whether all iterations have the same estimators."""
        ...


class Iterating(Generic[FieldT]):
    """A head whose beliefs are made in iterations, each from those before it.

    Attributes:
        rules: How many, and with which estimators.
        estimators: One set of estimators for all iterations, or one for each.
    """

    rules: Budget
    estimators: nn.ModuleList

    @abstractmethod
    def initial_beliefs(self, field: FieldT) -> Beliefs:
        """β⁰: nothing but, if asked for, the unary factors' messages."""

    @abstractmethod
    def step(self, field: FieldT, number: int, previous: Beliefs, *, keep: bool = True) -> Beliefs:
        """One synchronous iteration: every factor sends, then every node sums.

        Args:
            field: The graph and its features.
            number: Which iteration, counted from 0; it chooses untied estimators.
            previous: The beliefs before it.
            keep: Keep single messages where a next iteration needs them for its cavities.
        """

    def iterate(
        self, field: FieldT, iterations: int | None = None, *, open_end: bool = False
    ) -> Iterator[Beliefs]:
        """The beliefs after each iteration, T of them unless told otherwise.

        Args:
            field: The graph and its features.
            iterations: How many, for tied estimators.
            open_end: Keep single messages in the last iteration too, so that passing can go on from there.
        """
        count = self.rules.iterations if iterations is None else iterations
        beliefs = self.initial_beliefs(field)
        for number in range(count):
            beliefs = self.step(field, number, beliefs, keep=open_end or number + 1 < count)
            yield beliefs


def send(
    field: Field,
    index: int,
    estimator: MessageEstimator,
    rules: Rules,
    previous: Beliefs,
    logits: Tensor,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The total message of a relation to every node, (B, H, W, K), and every message, (B, n, H, W, K), if needed.

    Args:
        field: The map and its features.
        index: The relation's number.
        estimator: Its estimator in this iteration.
        rules: How messages are passed.
        previous: The beliefs before this iteration.
        logits: Their sums, (B, H, W, K).
        keep: Return the messages where a next iteration needs them for its cavities.
    """
    relation, offsets = field.graph.relations[index], field.graph.offsets[index]
    if relation.form == "box":
        return _box_total(field, relation.name, offsets, estimator, rules, logits), None
    cavity = _cavity(field, index, estimator, previous, logits)
    receiver, sender = field.projections(relation.name, estimator)
    if estimator.dependent is not None and cavity is None:
        sender = sender + estimator.dependent(torch.log_softmax(logits, -1))
    sender = field.silenced(sender)
    scale = message_scale(rules, field, offsets)
    if keep and field.graph.mirrors[index] is not None and rules.cavity == "factor":
        sent = _messages(field, receiver, sender, estimator, scale, offsets, cavity)
        return sent.sum(1), sent
    active = (
        relu_sum(receiver, sender, offsets)
        if cavity is None
        else cavity_sum(receiver, sender, offsets, cavity)
    )
    bias = field.count(offsets) * estimator.output.bias
    return scale * (functional.linear(active, estimator.output.weight) + bias), None


def message_scale(rules: Rules, field: Field, offsets: tuple[Offset, ...]) -> Tensor:
    """What a message to each node is multiplied with, (B or 1, H, W, 1)."""
    count = field.count(offsets)
    match rules.aggregation:
        case "sum":
            return torch.ones_like(count)
        case "mean":
            return 1 / count.clamp(min=1)
        case "fixed":
            return torch.full_like(count, 1 / max(len(offsets), 1))
        case _:
            return torch.full_like(count, 1 / max(len(offsets), 1) ** 0.5)


def _box_dependent(rules: Rules, field: Field, offsets: tuple[Offset, ...], logits: Tensor) -> Tensor:
    """d of a box factor, which sends to its own node only and so has no cavity to leave out."""
    total = box_sum(field.heard(torch.log_softmax(logits, -1)), offsets)
    return total / field.count(offsets).clamp(min=1) if rules.dependent == "mean" else total


def _cavity(
    field: Field, index: int, estimator: MessageEstimator, previous: Beliefs, logits: Tensor
) -> Cavity | None:
    """What to leave out of what the neighbours say; None where no messages of the opposite relation were kept."""
    mirror = field.graph.mirrors[index]
    if mirror is None:
        return None
    sent = previous.messages.get(field.graph.relations[mirror].name)
    if sent is None:
        return None
    places = field.graph.reverse_offsets[index]
    assert estimator.dependent is not None
    assert places is not None
    return Cavity(estimator.dependent.weight, logits, sent, places)


def _messages(
    field: Field,
    receiver: Tensor,
    sender: Tensor,
    estimator: MessageEstimator,
    scale: Tensor,
    offsets: tuple[Offset, ...],
    cavity: Cavity | None,
) -> Tensor:
    """Every message of a pairwise relation, (B, n, H, W, K)."""
    shape = receiver.shape[:3]
    talking = receiver.new_ones(shape) if field.talking is None else field.talking[..., 0]
    output = Output(estimator.output.weight, estimator.output.bias, scale[..., 0].expand(shape), talking)
    return edge_messages(receiver, sender, output, offsets, cavity)


def _box_total(
    field: Field,
    name: str,
    offsets: tuple[Offset, ...],
    estimator: MessageEstimator,
    rules: Rules,
    logits: Tensor,
) -> Tensor:
    """The message of a node's one box factor, (B, H, W, K); 0 where the box holds no node."""
    hidden = field.box_projections(name, offsets, estimator)
    if estimator.dependent is not None:
        hidden = hidden + estimator.dependent(_box_dependent(rules, field, offsets, logits))
    message = estimator.output(torch.relu(hidden))
    return torch.where(field.count(offsets) > 0, message, 0)


State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Passed:
    """What came of passing messages.

    Attributes:
        logits: Of the marginals: (variables, K), −∞ at classes that a variable does not have; on a grid (B, K, H, W).
        iterations: How many were run.
        settled: Whether the beliefs changed by no more than the tolerance at the end; None without a tolerance.
        changes: The largest change of a probability in each iteration, if there is a tolerance.
        note: What to bear in mind when reading the result; empty if nothing.
    """

    logits: Tensor
    iterations: int
    settled: bool | None
    changes: tuple[float, ...]
    note: str


@dataclass(frozen=True, eq=False)
class Course(Generic[State]):
    """How passing went: the last state, and what `Passed` says of it."""

    state: State
    iterations: int
    settled: bool | None
    changes: tuple[float, ...]


def budget(trained: int, tied: bool, iterations: int | None, tolerance: float | None) -> int:
    """How many iterations a head may run: `iterations`, or as many as it was trained for.

    >>> budget(3, True, None, None), budget(3, True, 10, 1e-3)
    (3, 10)
    """
    most = trained if iterations is None else iterations
    if type(most) is not int or most < 1:
        raise InputError(f"iterations is {most!r}; give a whole number, at least 1")
    if not tied and (most != trained or tolerance is not None):
        raise InputError(
            f"this head has estimators of their own for each of {trained} iterations; run exactly these without "
            "a tolerance, or train it with tied=True"
        )
    return most


def follow(
    states: Iterable[State], marginals: Callable[[State], Tensor], before: Tensor, tolerance: float | None
) -> Course[State]:
    """Goes through the iterations until no probability changes by more than the tolerance.

    Args:
        states: What each iteration leaves; they are computed as they are asked for.
        marginals: The probabilities of a state.
        before: Those before the first iteration.
        tolerance: None goes through all of them, and measures nothing.
    """
    changes: list[float] = []
    used, settled = 0, None if tolerance is None else False
    for state in states:
        used += 1
        if tolerance is None:
            continue
        after = marginals(state)
        moved = (after - before).abs()
        changes.append(float(moved.amax()) if moved.numel() else 0.0)
        before = after
        if settled := changes[-1] <= tolerance:
            break
    return Course(state, used, settled, tuple(changes))


def passed(logits: Tensor, courses: Sequence[Course[State]], trained: int) -> Passed:
    """One account of everything that was passed side by side."""
    used = max(course.iterations for course in courses)
    flags = [course.settled for course in courses]
    changes = zip_longest(*(course.changes for course in courses), fillvalue=0.0)
    return Passed(
        logits,
        used,
        None if None in flags else all(flags),
        tuple(max(each) for each in changes),
        "" if used == trained else f"trained for {trained} iterations, run for {used}",
    )


class MessagePassing(nn.Module, Iterating[Field]):
    """A drop-in head: feature map in, sums of messages (logits of the marginals) out.

    >>> from messagenet import surrounding, above, below
    >>> head = MessagePassing(in_channels=16, num_classes=5, hidden=32,
    ...                       relations=[surrounding(0.4), above(0.4), below(0.4)], iterations=1)
    >>> head(torch.randn(2, 16, 12, 15)).shape
    torch.Size([2, 5, 12, 15])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        relations: Which neighbours send messages; none at all gives a unary classifier.
        hidden: Hidden units of every estimator.
        iterations: T, the inference-time budget that the head is trained for.
        tied: One set of estimators for all iterations (a recurrent network), or one per iteration.
        cavity: "factor" leaves a factor's own message out of what it is told (loopy belief propagation);
            "none" does not (mean-field style, cheaper when T > 1).
        initial: Messages before the first iteration: "zero", or "unary" for the unary factors' messages.
        aggregation: Scale of a message: "fixed" (÷ number of offsets), "sum" (the paper's), "mean", "sqrt".
        dependent: How a box factor joins its senders' dependent messages: "sum" (the paper's) or "mean".
        check_finite: Refuse features with NaN or infinity (costs one pass over them, and on a GPU a wait for
            it; not when compiled).
    """

    rules: Rules

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        relations: Sequence[Relation] = (),
        *,
        hidden: int = 512,
        iterations: int = 1,
        tied: bool = True,
        cavity: CavityMode = "factor",
        initial: Initial = "zero",
        aggregation: Aggregation = "fixed",
        dependent: Dependent = "sum",
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.rules = Rules(num_classes, hidden, iterations, tied, cavity, initial, aggregation, dependent)
        if isinstance(relations, Relation) or not all(
            isinstance(relation, Relation) for relation in relations
        ):
            raise InputError("relations must be a list such as [surrounding(0.4), above(0.4), below(0.4)]")
        if type(in_channels) is not int or in_channels < 1:
            raise InputError(
                f"in_channels is {in_channels!r}; give the number of channels of the feature map"
            )
        self.relations = GridGraph(1, 1, tuple(relations)).relations
        for relation in self.relations:
            if hasattr(nn.ModuleDict(), relation.name):
                raise InputError(
                    f"relation name {relation.name!r} is a method of torch modules; choose another"
                )
        self.in_channels = in_channels
        self.check_finite = check_finite
        self.estimators = nn.ModuleList(self._stage() for _ in range(1 if tied else iterations))

    def _stage(self) -> nn.ModuleDict:
        """The estimators of one iteration: one for the unary factors and one per relation."""
        rules = self.rules
        return nn.ModuleDict(
            {
                name: MessageEstimator(
                    self.in_channels,
                    rules.hidden,
                    rules.num_classes,
                    has_sender=name != "unary",
                    has_dependent=rules.has_dependent,
                )
                for name in self.factor_types
            }
        )

    @property
    def factor_types(self) -> list[str]:
        """ "unary", then the names of the relations."""
        return ["unary", *(relation.name for relation in self.relations)]

    def extra_repr(self) -> str:
        """The rules, for print(head)."""
        relations = ", ".join(f"{relation.name} ({relation.form})" for relation in self.relations)
        rules = ", ".join(f"{name}={value!r}" for name, value in asdict(self.rules).items())
        return f"{rules}, relations=[{relations}]"

    def forward(self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals after T iterations, (B, K, H, W); 0 at nodes that are not valid.

        Args:
            features: The feature map (B, r, H, W), or one for each factor type by name.
            valid: Which nodes exist, (B, H, W), where images of several sizes were padded to one.
        """
        by_type = self.features_by_type(features, valid)
        parts = [
            (numbers, field.heard(self._last(field).logits))
            for numbers, field in fields(by_type, valid, self.relations)
        ]
        return _assembled(parts, by_type["unary"])

    def trace(
        self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None
    ) -> list[dict[str, Tensor]]:
        """For each iteration, the total message of each factor type to each node, (B, K, H, W) by name.

        The totals of an iteration sum to its logits.
        """
        by_type = self.features_by_type(features, valid)
        parts = [
            (numbers, field, list(self.iterate(field)))
            for numbers, field in fields(by_type, valid, self.relations)
        ]
        return [
            {
                name: _assembled(
                    [(numbers, field.heard(steps[step].totals[name])) for numbers, field, steps in parts],
                    by_type["unary"],
                )
                for name in self.factor_types
            }
            for step in range(self.rules.iterations)
        ]

    @torch.no_grad()
    def run(
        self,
        features: Tensor | Mapping[str, Tensor],
        valid: Tensor | None = None,
        *,
        iterations: int | None = None,
        tolerance: float | None = None,
    ) -> Passed:
        """Prediction with another budget than the one trained for, or until the beliefs have settled.

        Args:
            features: As for `forward`.
            valid: As for `forward`.
            iterations: At most so many; by default as many as the head was trained for.
            tolerance: Stop when no probability changes by more than this from one iteration to the next; images of
                one size go on together.
        """
        most = budget(self.rules.iterations, self.rules.tied, iterations, tolerance)
        by_type = self.features_by_type(features, valid)
        parts, courses = [], []
        for numbers, field in fields(by_type, valid, self.relations):
            states = self.iterate(field, most, open_end=tolerance is not None)
            course = follow(states, _marginals, _marginals(self.initial_beliefs(field)), tolerance)
            parts.append((numbers, field.heard(course.state.logits)))
            courses.append(course)
        return passed(_assembled(parts, by_type["unary"]), courses, self.rules.iterations)

    def _last(self, field: Field) -> Beliefs:
        """The beliefs after the last iteration."""
        *_, beliefs = self.iterate(field)
        return beliefs

    def initial_beliefs(self, field: Field) -> Beliefs:
        """β⁰: nothing but, if asked for, the unary factors' messages."""
        if self.rules.initial == "unary":
            return Beliefs({"unary": self.stage(0)["unary"](field.features["unary"])}, {})
        shape = (*field.like.shape[:3], self.rules.num_classes)
        return Beliefs({"unary": field.like.new_zeros(shape)}, {})

    def stage(self, number: int) -> Mapping[str, MessageEstimator]:
        """The estimators of an iteration, by factor type."""
        stage: Mapping[str, MessageEstimator] = self.estimators[0 if self.rules.tied else number]  # type: ignore[assignment]
        return stage

    def step(self, field: Field, number: int, previous: Beliefs, *, keep: bool = True) -> Beliefs:
        """One synchronous iteration: see `Iterating.step`."""
        stage = self.stage(number)
        totals, messages = {"unary": stage["unary"](field.features["unary"])}, {}
        logits = previous.logits
        for index, relation in enumerate(self.relations):
            estimator = stage[relation.name]
            totals[relation.name], sent = send(
                field, index, estimator, self.rules, previous, logits, keep=keep
            )
            if sent is not None:
                messages[relation.name] = sent
        return Beliefs(totals, messages)

    def features_by_type(
        self, features: Tensor | Mapping[str, Tensor], valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One feature map per factor type, checked; nodes that are not valid may hold anything."""
        if isinstance(features, Tensor):
            features = dict.fromkeys(self.factor_types, features)
        if missing := [name for name in self.factor_types if name not in features]:
            raise InputError(
                f"no features for {', '.join(missing)}; give one map for each of {self.factor_types}"
            )
        check_maps(features.values(), self.in_channels, self.stage(0)["unary"].receiver.weight)
        if self.check_finite and not torch.compiler.is_compiling():
            check_finite(features.values(), valid)
        return {name: features[name] for name in self.factor_types}


def _marginals(beliefs: Beliefs) -> Tensor:
    return torch.softmax(beliefs.logits, -1)


def _assembled(parts: list[tuple[Tensor | None, Tensor]], like: Tensor) -> Tensor:
    """Puts the fields of a batch, (b, h, w, K), back together: (B, K, H, W), 0 at padding."""
    maps = [(numbers, values.permute(0, 3, 1, 2)) for numbers, values in parts]
    if len(maps) == 1 and maps[0][0] is None:
        return maps[0][1]
    images, _, height, width = like.shape
    whole = maps[0][1].new_zeros(images, maps[0][1].shape[1], height, width)
    for numbers, values in maps:
        assert numbers is not None
        grown = functional.pad(values, (0, width - values.shape[3], 0, height - values.shape[2]))
        whole = whole.index_add(0, numbers, grown)
    return whole
