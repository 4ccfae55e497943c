r"""The message estimator, and the iterations that heads on grids and on graphs share.

Belief propagation computes the factor-to-variable message β_{F→p} from a potential. Here a network (two fully connected
layers, K outputs) estimates it from features:

    β_{F→p} = c_p ( W₂ relu( A f_p + B mean_{q∈F\p} f_q + D d_pF + C x_pF + b ) + b₂ )
    d_pF    = Σ_{q∈F\p} logsoftmax( L_q − β_{F→q} )              cavity "factor": loopy belief propagation
            = Σ_{q∈F\p} logsoftmax( L_q )                        cavity "none": mean field
    L_p     = Σ_{F∋p} β_{F→p},        P(y_p | x) = softmax(L_p)

where d takes L and β from the previous iteration. M_F has K outputs whatever the factor's order; a potential has
K^order entries. The first layer is stored in parts, so A f and B f are computed once per node, never per edge. x holds
the factor's features and, where potentials are known, its computed message. A unary factor has A f_p + b alone.

With dependent "gate", the senders' beliefs multiply the hidden units instead of being added to them:

    β_{F→p} = c_p ( W₂ [ relu( A f_p + B mean f_q + C x_pF + b ) ⊙ (1 + D d_pF) ] + b₂ )
    d_pF    = mean_{q∈F\p} √K ( softmax( L_q − β_{F→q} ) − 1/K )             likewise L_q with cavity "none"

A mean-field update with a K×K potential of low rank is a special case: hidden units that do not depend on features.
Beliefs that say nothing (uniform) give d = 0 and the message of one iteration.

A message includes the scale c of the aggregation, so messages always sum to the logits L:

    sum    c = 1              mean   c = 1 / n_p           n_p: messages of this type that reach node p
    fixed  c = 1 / degree                                  degree: a constant of the type, |O| for offsets O

A head runs exactly T synchronous iterations and is trained on the beliefs after the last one. `run` and
`with_iterations` predict with another number; `run` can also stop when the beliefs have converged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar, get_args, get_origin

import torch
from torch import Tensor, nn

from messagenet import settings
from messagenet.errors import InputError, nearest

Aggregation = Literal["fixed", "sum", "mean"]
CavityMode = Literal["factor", "none"]
Initial = Literal["zero", "unary"]
Dependent = Literal["sum", "mean", "gate"]
NodeFeatures = Tensor | Mapping[str, Tensor]
"""One tensor for all factor types, or one for each by name."""


class MessageEstimator(nn.Module):
    """One estimator M_F, shared by all factors of a type."""

    def __init__(
        self,
        in_channels: int,  # r
        hidden: int,
        num_classes: int,  # K of the receiver
        *,
        has_sender: bool = True,  # False for the unary factor
        dependent_channels: int = 0,  # length of d; 0 if messages of the previous iteration are not an input
        factor_channels: int = 0,  # length of x
        gated: bool = False,  # whether d multiplies the hidden units
        zero_init: bool = False,  # start with zero messages, to be added to computed ones
    ) -> None:
        super().__init__()
        self.receiver = nn.Linear(in_channels, hidden)
        self.sender = nn.Linear(in_channels, hidden, bias=False) if has_sender else None
        self.dependent = nn.Linear(dependent_channels, hidden, bias=False) if dependent_channels else None
        self.factor = nn.Linear(factor_channels, hidden, bias=False) if factor_channels else None
        self.output = nn.Linear(hidden, num_classes)
        self.gated, self.zero_init = gated, zero_init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation of the first layer, as if its parts were one matrix on the concatenation.

        A gate starts from PyTorch's own initialisation of a linear layer.
        """
        added = None if self.gated else self.dependent
        parts = [part for part in (self.receiver, self.sender, added, self.factor) if part is not None]
        std = math.sqrt(2 / sum(part.in_features for part in parts))
        for part in parts:
            nn.init.normal_(part.weight, std=std)
        if self.gated and self.dependent is not None:
            self.dependent.reset_parameters()
        nn.init.zeros_(self.receiver.bias)
        nn.init.normal_(self.output.weight, std=0 if self.zero_init else 1 / math.sqrt(self.output.in_features))
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        receiver: Tensor,
        sender: Tensor | None = None,
        dependent: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> Tensor:
        """Messages (…, K), unscaled, from f_p (…, r), the mean of f_q (…, r), d and x with equal leading axes."""
        hidden = self.receiver(receiver)
        added = None if self.gated else dependent
        for layer, values in ((self.sender, sender), (self.dependent, added), (self.factor, factor)):
            if layer is not None and values is not None:
                hidden = hidden + layer(values)
        active = torch.relu(hidden)
        if self.gated and self.dependent is not None and dependent is not None:
            active = active * (1 + self.dependent(dependent))
        message: Tensor = self.output(active)
        return message


def dependent_input(logits: Tensor, gated: bool = False) -> Tensor:
    """What a sender's belief or cavity (…, K) adds to d: log-probabilities, or for a gate √K (probabilities − 1/K).

    >>> dependent_input(torch.tensor([0.0, 0.0]), gated=True)
    tensor([0., 0.])
    """
    if not gated:
        return torch.log_softmax(logits, -1)
    classes = logits.shape[-1]
    return math.sqrt(classes) * (torch.softmax(logits, -1) - 1 / classes)


def message_scale(aggregation: Aggregation, count: Tensor, degree: float) -> Tensor:
    """c, the factor of every message to a node, from n_p (`count`, floating point) and the type's degree.

    >>> message_scale("mean", torch.tensor([0.0, 1.0, 4.0]), degree=4)
    tensor([1.0000, 1.0000, 0.2500])
    """
    if aggregation == "mean":
        return 1 / count.clamp(min=1)
    return torch.full_like(count, 1.0 if aggregation == "sum" else 1 / degree)


class Beliefs(NamedTuple):
    """The state between iterations, on a grid (nodes: B, H, W) or on a graph (nodes: variables)."""

    totals: dict[str, Tensor]  # for each factor type, the sum of its messages to every node, (nodes, K)
    messages: dict[str, Tensor]  # every message of types with cavities: (B, n, H, W, K) or (slots, K)

    @property
    def logits(self) -> Tensor:
        """L = Σ_F β_{F→p}, (nodes, K)."""
        return reduce(torch.add, self.totals.values())


class Context:
    """Everything that is constant across iterations: graph, features (nodes, r) by factor type, projections."""

    def __init__(self, features: Mapping[str, Tensor]) -> None:
        self.features = features
        self._projections: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    @property
    def ref(self) -> Tensor:
        """A tensor with the dtype, the device and the nodes of the features."""
        return self.features["unary"]

    def projections(self, name: str, estimator: MessageEstimator) -> tuple[Tensor, Tensor]:
        """P = A f + b and Q = B f, (nodes, hidden), of a factor type; computed once per estimator."""
        if (key := (id(estimator), name)) not in self._projections:
            assert estimator.sender is not None
            features = self.features[name]
            self._projections[key] = estimator.receiver(features), estimator.sender(features)
        return self._projections[key]

    def marginals(self, logits: Tensor) -> Tensor:
        """P(y_p | x), (nodes, K)."""
        return torch.softmax(logits, -1)


@dataclass(frozen=True, eq=False)
class MessagePassingResult:
    """Result of message passing.

    Attributes:
        logits: L, (variables, K), −∞ at classes that a variable does not have; on a grid (B, K, H, W).
        messages: For each factor type, the sum of its last messages to every node; together they sum to the logits.
        iterations: How many were run.
        converged: Whether the last change was within the tolerance; None without a tolerance.
        history: The largest change of a probability in each iteration; empty without a tolerance.
        note: A caveat for the reader; empty if there is none.
    """

    logits: Tensor
    messages: dict[str, Tensor]
    iterations: int
    converged: bool | None
    history: tuple[float, ...]
    note: str

    @property
    def log_marginals(self) -> Tensor:
        """Logarithms of the marginals, shaped like the logits."""
        return torch.log_softmax(self.logits, 1)

    @property
    def marginals(self) -> Tensor:
        """P(y_p | x), shaped like the logits."""
        return torch.softmax(self.logits, 1)

    @property
    def map_state(self) -> Tensor:
        """Each node's most probable class, (variables,) or (B, H, W)."""
        return self.logits.argmax(1)


class HeadRun(NamedTuple):
    """One run: the last beliefs, and `iterations`, `converged` and `history` as in `MessagePassingResult`."""

    beliefs: Beliefs
    iterations: int
    converged: bool | None
    history: tuple[float, ...]


ContextT = TypeVar("ContextT", bound=Context)


class IterativeHead(nn.Module, Generic[ContextT]):
    """T synchronous iterations of learned messages; a subclass implements one iteration, `step`.

    Args:
        in_channels: r, the length of a node's features.
        hidden: Hidden units of every estimator.
        iterations: T, the number of iterations that the head is trained for.
        tied: One set of estimators for all iterations (a recurrent network), or one per iteration.
        cavity: "factor" leaves a factor's own message out of its input (loopy BP); "none" does not (mean field).
        initial: Messages before the first iteration: "zero", or "unary" for the unary factors' messages.
        aggregation: Scale of a message: "fixed" (÷ its type's degree; on a grid, the number of offsets), "sum" (the
            paper's), "mean".
    """

    dependent: Any  # a literal of the subclass
    estimators: nn.ModuleList  # one set for all iterations if tied, else one per iteration

    def __init__(
        self,
        in_channels: int,
        *,
        hidden: int = 256,
        iterations: int = 1,
        tied: bool = True,
        cavity: CavityMode = "factor",
        initial: Initial = "zero",
        aggregation: Aggregation = "fixed",
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            name, known = next(iter(unknown)), settings.options(type(self))
            raise InputError(f'{type(self).__name__} has no option "{name}"; {nearest(name, known)}')
        self.in_channels = in_channels
        self.hidden, self.iterations, self.tied = hidden, iterations, tied
        self.cavity, self.initial, self.aggregation = cavity, initial, aggregation
        self.has_dependent = iterations > 1 or initial == "unary"  # some iteration sees messages that say something

    @property
    def options(self) -> dict[str, Any]:
        """The values of all options, which are stored in attributes of the same name."""
        structure = ("relations", "factors")
        return {name: getattr(self, name) for name in settings.options(type(self)) if name not in structure}

    def check_options(self) -> None:
        """Refuses values that the annotations of the parameters do not allow; integers are at least 1."""
        hints = {name: option.type for name, option in settings.options(type(self)).items()}
        for name, hint in {"in_channels": int, **hints}.items():
            value = getattr(self, name, None)
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise InputError(f"unknown {name} {value!r}; {nearest(str(value), get_args(hint))}")
            is_integer = hint is int or (hint == (int | None) and value is not None)
            if is_integer and (type(value) is not int or value < 1):
                raise InputError(f"{name} is {value!r}; give a whole number, at least 1")

    def extra_repr(self) -> str:
        """The options, for print(head)."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())

    @property
    def max_classes(self) -> int:
        """K, the largest number of classes of a node: the width of beliefs."""
        raise NotImplementedError

    @property
    def gated(self) -> bool:
        """Whether senders' beliefs multiply the hidden units."""
        return bool(self.dependent == "gate")

    def stage(self, iteration: int) -> Mapping[str, Any]:
        """The estimators of an iteration, by factor type."""
        stage: Mapping[str, Any] = self.estimators[0 if self.tied else iteration]  # type: ignore[assignment]
        return stage

    def unary_messages(self, context: ContextT, iteration: int) -> Tensor:
        """The messages of the unary factors, (nodes, K)."""
        raise NotImplementedError

    def step(self, context: ContextT, iteration: int, previous: Beliefs, *, keep_messages: bool = True) -> Beliefs:
        """One synchronous iteration, counted from 0: every factor sends, then every node sums.

        `keep_messages` keeps single messages where the next iteration needs them for its cavities.
        """
        raise NotImplementedError

    def initial_beliefs(self, context: ContextT) -> Beliefs:
        """β⁰: all messages zero, or those of the unary factors alone."""
        if self.initial == "unary":
            return Beliefs({"unary": self.unary_messages(context, 0)}, {})
        return Beliefs({"unary": context.ref.new_zeros(*context.ref.shape[:-1], self.max_classes)}, {})

    def iterate(
        self, context: ContextT, iterations: int | None = None, *, keep_messages: bool = False
    ) -> Iterator[Beliefs]:
        """The beliefs after each iteration; `keep_messages` keeps messages of the last one too, to continue it."""
        count = self.iterations if iterations is None else iterations
        beliefs = self.initial_beliefs(context)
        for iteration in range(count):
            keep = keep_messages or iteration + 1 < count
            beliefs = self.step(context, iteration, beliefs, keep_messages=keep)
            yield beliefs

    def all_beliefs(self, context: ContextT) -> list[Beliefs]:
        """The beliefs after each iteration; those of the unary messages come first if they are initial."""
        first = [self.initial_beliefs(context)] if self.initial == "unary" else []
        return [*first, *self.iterate(context)]

    def max_iterations(self, iterations: int | None, tolerance: float | None) -> int:
        """How many iterations `run` may take: `iterations`, or T by default."""
        count = self.iterations if iterations is None else iterations
        if type(count) is not int or count < 1:
            raise InputError(f"iterations is {count!r}; give a whole number, at least 1")
        if not self.tied and (count != self.iterations or tolerance is not None):
            raise InputError(
                f"this head has separate estimators for each of its {self.iterations} iterations and runs exactly "
                "these; to vary them, train it with tied=true"
            )
        return count

    def with_iterations(self, iterations: int) -> Self:
        """For prediction: a head that shares everything with this one, but runs another number of iterations."""
        other = copy(self)
        other.iterations = self.max_iterations(iterations, None)
        if other.iterations > 1 and not self.has_dependent:
            raise InputError(f"this head is for one iteration, not {iterations}; train it with iterations=2 or more")
        return other

    def run_until(self, context: ContextT, max_iterations: int, tolerance: float | None) -> HeadRun:
        """Iterates until no probability changes by more than the tolerance; None runs all iterations."""
        history: list[float] = []
        used, converged = 0, None if tolerance is None else False
        before = context.ref if tolerance is None else context.marginals(self.initial_beliefs(context).logits)
        for beliefs in self.iterate(context, max_iterations, keep_messages=tolerance is not None):
            used += 1
            if tolerance is None:
                continue
            after = context.marginals(beliefs.logits)
            change = (after - before).abs()
            history.append(float(change.amax()) if change.numel() else 0.0)
            before = after
            if converged := history[-1] <= tolerance:
                break
        return HeadRun(beliefs, used, converged, tuple(history))

    def result(self, logits: Tensor, messages: dict[str, Tensor], traces: Sequence[HeadRun]) -> MessagePassingResult:
        """The result of runs side by side: the longest, converged if all of them are."""
        used, flags = max(trace.iterations for trace in traces), [trace.converged for trace in traces]
        converged = None if None in flags else all(flags)
        history = tuple(map(max, zip_longest(*(trace.history for trace in traces), fillvalue=0.0)))
        note = "" if used == self.iterations else f"trained for {self.iterations} iterations, run for {used}"
        return MessagePassingResult(logits, messages, used, converged, history, note)


def check_dtype_and_device(name: str, values: Tensor, weight: Tensor) -> None:
    """Refuses a tensor whose device or dtype differs from that of `weight`, a parameter of the head."""
    if not isinstance(values, Tensor):
        raise InputError(f"{name} are of type {type(values).__name__}; give a tensor, such as torch.from_numpy({name})")
    if values.device != weight.device:
        devices = f"{name} are on {values.device}, the head is on {weight.device}"
        raise InputError(f"{devices}; move one of them with .to(device)")
    if values.dtype != weight.dtype:
        if torch.is_autocast_enabled(weight.device.type) and values.dtype.is_floating_point:
            return  # autocast brings all of them to one dtype
        raise InputError(f"{name} are {values.dtype}, the head is {weight.dtype}; convert one of them with .to(dtype)")
