"""The interface of an inference engine: settings, a graph and log-potentials in, a `Result` out.

    P(y) = 1/Z · exp Σ_F θ_F(y_F)       →       log P(y_p),  log P(y_F),  log Z,  argmax_y P(y)

An engine is a frozen dataclass of settings; `run(graph, potentials)` is a pure function. A `Problem` holds checked
potentials as (factors or 1, batch or 1, *shape): gathering and summing rows is then contiguous, and one table serves a
whole batch in one matrix product. Unary factors, whose messages never change, collapse into one log-potential per
variable, and constants (order 0) into one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph, FactorGroup, Potentials, check_dtypes
from messagenet.inference.log_math import INF

IMPOSSIBLE = "every joint state has probability zero: potentials (or the evidence) contradict each other"


@dataclass(frozen=True, eq=False)
class Result:
    """Beliefs and what follows from them.

    `log_z`, `log_factor_marginals`, `map_state` and `messages` are computed on first access: on a large grid the factor
    marginals alone are hundreds of times the size of the beliefs.

    Attributes:
        log_marginals: (*batch, variables, max_cardinality), -inf beyond the states; at temperature 0 max-marginals.
        iterations: how many were run; 0 for engines that do not iterate.
        converged: whether the last change was within the engine's tolerance, for every item of the batch.
        history: per iteration, the largest change of a message or belief (`SequentialTRW`: lower bound on the energy).
    """

    log_marginals: Tensor
    iterations: int
    converged: bool
    history: tuple[float, ...]
    compute_log_z: Callable[[], Tensor] = field(repr=False)
    compute_log_factor_marginals: Callable[[], tuple[Tensor, ...]] = field(repr=False)
    compute_map_state: Callable[[], Tensor] = field(repr=False)
    compute_messages: Callable[[], Tensor] | None = field(default=None, repr=False)

    @property
    def marginals(self) -> Tensor:
        """(*batch, variables, max_cardinality) probabilities."""
        return self.log_marginals.exp()

    @cached_property
    def map_state(self) -> Tensor:
        """(*batch, variables) the most probable joint state, or each variable's most probable one."""
        return self.compute_map_state()

    @cached_property
    def messages(self) -> Tensor | None:
        """(*batch, rows, max_cardinality) the last messages, to start another run with; None where none are passed."""
        return None if self.compute_messages is None else self.compute_messages()

    @cached_property
    def log_z(self) -> Tensor:
        """(*batch,) log-partition function, its approximation or its bound, as the engine documents.

        At temperature T it is T·log Σ exp(score / T), so at 0 it is the largest score.
        """
        return self.compute_log_z()

    @cached_property
    def log_factor_marginals(self) -> tuple[Tensor, ...]:
        """Log joint marginals, shaped like the potentials: (*batch, *shape) or per group (*batch, factors, *shape)."""
        return self.compute_log_factor_marginals()

    @cached_property
    def factor_marginals(self) -> tuple[Tensor, ...]:
        """Joint probabilities, shaped like `log_factor_marginals`: the gradient of log Z in the potentials."""
        return tuple(logs.exp() for logs in self.log_factor_marginals)


class Engine(Protocol):
    """Settings of an algorithm; `run` is a pure function of the graph and the potentials."""

    def run(self, graph: FactorGraph, potentials: Potentials) -> Result:
        """Infers marginals, log Z and the most probable state."""
        ...


def check_number(name: str, value: object, expected: str, is_valid: Callable[[Any], bool]) -> None:
    """Refuses a setting that is no number or not a valid one."""
    is_number = isinstance(value, Real) or (isinstance(value, Tensor) and value.ndim == 0)
    if not is_number or isinstance(value, bool) or not is_valid(value):
        raise InputError(f"{name} is {value!r}; it must be {expected}")


_COUNT = ("at least 1", lambda value: isinstance(value, Integral) and int(value) >= 1)
_NUMBERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "temperature": ("1 for sum-product, 0 for max-product, or above 0", lambda value: 0 <= value < INF),
    "damping": ("at least 0 and below 1", lambda value: 0 <= value < 1),
    "iterations": _COUNT,
    "max_iterations": _COUNT,
    "tolerance": ("a number, or None to run every iteration", lambda value: value == value),
    "residual_fraction": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "memory_limit": ("a number of GiB above 0", lambda value: value > 0),
}


def check_settings(engine: object, **choices: Sequence[str]) -> None:
    """Refuses a graph in place of a setting, a number out of range, and a word that is none of its choices."""
    settings = vars(engine)
    if any(type(value).__name__.endswith("Graph") for value in settings.values()):
        kind = type(engine).__name__
        raise InputError(f"{kind} takes settings, not a graph; write {kind}().run(graph, potentials)")
    for name, value in settings.items():
        if name in choices and value not in choices[name]:
            raise InputError(f'{name} "{value}" is not known; {nearest(str(value), choices[name])}')
        if name in _NUMBERS and not (name == "tolerance" and value is None):
            check_number(name, value, *_NUMBERS[name])


Schedule = Literal["synchronous", "sequential", "residual"]
Messages = TypeVar("Messages")


@dataclass(frozen=True)
class PassingSettings:
    """Settings that belief propagation and its tree-reweighted form have in common.

    Attributes:
        temperature: 1 for sum-product, 0 for max-product.
        schedule: "synchronous", "sequential" or "residual".
        damping: share of the old message to keep, in the log domain.
        max_iterations: at most so many; a sequential iteration goes through the factors and back.
        tolerance: largest change of a message at which to stop; None (fastest) runs exactly `max_iterations`.
        residual_fraction: share of the messages that the residual schedule accepts in an iteration.
    """

    temperature: float = 1.0
    schedule: Schedule = "synchronous"
    damping: float = 0.0
    max_iterations: int = 500
    tolerance: float | None = 1e-5
    residual_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_settings(self, schedule=get_args(Schedule))


class Trace(NamedTuple):
    """The `iterations`, `converged` and `history` of a `Result`."""

    iterations: int
    converged: bool
    history: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Propagation:
    """The final state of message passing."""

    trace: Trace
    beliefs: Tensor  # (variables, batch, max_cardinality) logs, up to a constant per variable
    compute_messages: Callable[[], Tensor]  # (rows, batch, max_cardinality)

    @cached_property
    def messages(self) -> Tensor:
        """The messages after the last iteration."""
        return self.compute_messages()


def iterate(
    step: Callable[[Messages], tuple[Messages, Tensor | None]],
    messages: Messages,
    max_iterations: int,
    tolerance: float | None,
) -> tuple[Messages, Trace]:
    """Repeats `step` (messages → new ones, their largest change if measured) until convergence or `max_iterations`."""
    history: list[float] = []
    for iteration in range(max_iterations):
        messages, largest = step(messages)
        if tolerance is not None and largest is not None:
            history.append(float(largest))
            if history[-1] <= tolerance:
                return messages, Trace(iteration + 1, True, tuple(history))
    return messages, Trace(max_iterations, False, tuple(history))


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph with its potentials, checked and aligned."""

    graph: FactorGraph
    potentials: tuple[Tensor, ...]  # per group, as given
    aligned: tuple[Tensor, ...]  # per group (factors or 1, batch or 1, *shape), divided by the temperature
    batch: int | None  # None when no potential has a batch axis
    has_zeros: bool  # whether some log-potential is -inf
    per_factor: bool  # whether the user gave one table per factor

    @property
    def batch_size(self) -> int:
        """Size of the internal batch axis, which always exists."""
        return 1 if self.batch is None else self.batch

    @property
    def options(self) -> dict[str, Any]:
        """The dtype and device of everything computed."""
        return {"dtype": self.aligned[0].dtype, "device": self.aligned[0].device} if self.aligned else {}

    @property
    def requires_grad(self) -> bool:
        """Whether autograd is recording any of the potentials."""
        return torch.is_grad_enabled() and any(table.requires_grad for table in self.aligned)

    def unary(self) -> Tensor:
        """(variables, batch, max_cardinality) sum of each variable's own factors; 0 beyond its states."""
        graph = self.graph
        total = torch.zeros(graph.num_variables, self.batch_size, graph.max_cardinality, **self.options)
        for group, table in zip(graph.groups, self.aligned, strict=True):
            if group.order == 1:
                rows = table.expand(len(group), self.batch_size, group.shape[0])
                rows = torch.nn.functional.pad(rows, (0, graph.max_cardinality - group.shape[0]))
                in_order = torch.equal(group.scopes[:, 0], torch.arange(len(total), device=total.device))
                total = total + rows if in_order else total.index_add(0, group.scopes[:, 0], rows)
        return total

    def constant(self) -> Tensor:
        """(batch,) sum of the factors that touch no variable."""
        total = torch.zeros(self.batch_size, **self.options)
        for group, table in zip(self.graph.groups, self.aligned, strict=True):
            if group.order == 0:
                total = total + table.expand(len(group), self.batch_size).sum(0)
        return total

    def mask(self, values: Tensor) -> Tensor:
        """(variables, batch, max_cardinality) with -inf where a variable has no such state."""
        if bool((self.graph.cardinalities == self.graph.max_cardinality).all()):
            return values
        return values.masked_fill(~self.graph.valid_states[:, None], -INF)

    def to_user_layout(self, values: Tensor) -> Tensor:
        """(rows, batch, ...) to the user's (*batch, rows, ...)."""
        return values[:, 0] if self.batch is None else values.transpose(0, 1)

    def to_user_batch(self, values: Tensor) -> Tensor:
        """(batch,) to the user's (*batch,)."""
        return values[0] if self.batch is None else values

    def to_user_factors(self, tables: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Per group (factors, batch, *shape) to the form of the user's potentials, per factor or per group."""
        groups = tuple(self.to_user_layout(table) for table in tables)
        return tuple(self.graph.unpack(groups)) if self.per_factor else groups

    def require_possible(self, beliefs: Tensor) -> None:
        """Refuses beliefs (variables, batch, states) that give some variable no possible state."""
        if self.has_zeros:
            refuse_impossible((beliefs == -INF).all(-1).nonzero()[:, 0])


def refuse_impossible(variables: Tensor) -> None:
    """Refuses variables that have no possible state, given by their indices."""
    if len(variables):
        raise InputError(
            f"variable {int(variables[0])} has no possible state: zero potentials (or the evidence) contradict"
            " each other; give some joint state a positive potential"
        )


def align(graph: FactorGraph, potentials: Potentials, temperature: float = 1.0) -> Problem:
    """Checks the potentials, aligns them, and divides them by the temperature (0, maximisation, leaves them alone)."""
    if not isinstance(graph, FactorGraph):
        raise InputError(
            f"graph is a {type(graph).__name__}; give FactorGraph(cardinalities, scopes) or GridFactorGraph.from_grid"
        )
    if not hasattr(potentials, "__len__") or len(potentials) not in (graph.num_factors, len(graph.groups)):
        given = len(potentials) if hasattr(potentials, "__len__") else type(potentials).__name__
        raise InputError(
            f"{given} potential tensors were given for {graph.num_factors} factors in {len(graph.groups)} groups; "
            "give one table per factor, or one tensor per group"
        )
    per_factor = graph.is_per_factor(potentials)
    grouped = graph.pack(potentials) if per_factor else tuple(map(torch.as_tensor, potentials))
    sizes = {_batch_size(group, table) for group, table in zip(graph.groups, grouped, strict=True)}
    batches = sorted(size for size in sizes if size is not None)
    if len(set(batches) - {1}) > 1:
        raise InputError(f"potentials have different batch sizes {batches}; use one size, or 1 to share")
    check_dtypes(grouped)
    aligned: list[Tensor] = []
    has_zeros = False
    for group, table in zip(graph.groups, grouped, strict=True):
        has_zeros |= _check_values(group, table)
        unbatched = table.ndim == group.order + 1
        leading = _collapse(table[:, None] if unbatched else table.transpose(0, 1))
        aligned.append(leading if temperature in (0.0, 1.0) else leading / temperature)
    return Problem(graph, grouped, tuple(aligned), max(batches) if batches else None, has_zeros, per_factor)


def _collapse(table: Tensor) -> Tensor:
    """An expanded tensor back to the one table it repeats, along the factor and the batch axis."""
    for axis in range(2):
        if table.shape[axis] > 1 and table.stride(axis) == 0:
            table = table.narrow(axis, 0, 1)
    return table


def _batch_size(group: FactorGroup, table: Tensor) -> int | None:
    lead, tail = table.shape[: table.ndim - group.order], table.shape[table.ndim - group.order :]
    if tuple(tail) != group.shape or len(lead) not in (1, 2) or lead[-1] not in (1, len(group)):
        raise InputError(
            f"factor {int(group.factor_ids[0])}: its group needs log-potentials of shape "
            f"({len(group)} or 1, {', '.join(map(str, group.shape))}), with at most one batch axis before; "
            f"got {tuple(table.shape)}"
        )
    return lead[0] if len(lead) == 2 else None


def _check_values(group: FactorGroup, table: Tensor) -> bool:
    """Whether a -inf is there; NaN, +inf and tables of -inf alone are refused."""
    low, high = (float(value) for value in torch.aminmax(table.detach()))
    if high == INF or high != high:
        bad = (table.isnan() | (table == INF)).nonzero()[0]
        factor = int(group.factor_ids[int(bad[table.ndim - group.order - 1])])
        raise InputError(f"factor {factor}: log-potential {high} is not finite; only -inf (probability 0) may be")
    if low == -INF and not group.order:
        raise InputError(IMPOSSIBLE)
    if low == -INF:
        impossible = (table.flatten(-group.order) == -INF).all(-1).nonzero()[:, -1]
        refuse_impossible(group.scopes[impossible, 0])
    return low == -INF
