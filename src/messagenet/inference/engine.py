"""What every engine answers, and the interface by which it is asked.

Passing messages until they stay: settings, the loop, and how it went.

Potentials laid out for inference, checked once.

Inside an engine the factor or variable axis leads and the batch follows, (factors, batch, *shape): gathering
and summing rows is then contiguous, and one table serves all items of a batch as one matrix product. Unary
factors collapse into one log-potential per variable, since the message of a unary factor never changes;
constants (order 0) collapse into one number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph, FactorGroup, Potentials
from messagenet.inference.log_math import INF


@dataclass(frozen=True, eq=False)
class Result:
    """Beliefs and what follows from them.

    `log_z`, `log_factor_marginals` and `map_state` are computed when first asked for: on a large grid the
    factor marginals alone are hundreds of times the size of the beliefs.

    Attributes:
        log_marginals: (*batch, variables, max_cardinality), -inf beyond a variable's own states. At
            temperature 0 the max-marginals, normalised like probabilities.
        iterations: how many were run; 0 for engines that do not iterate.
        converged: whether the last change was within the engine's tolerance, for every item of the batch.
        history: the largest change of any message or belief in each iteration (`SequentialTRW`: the lower
            bound on the energy instead).
    """

    log_marginals: Tensor
    iterations: int
    converged: bool
    history: tuple[float, ...]
    compute_log_z: Callable[[], Tensor] = field(repr=False)
    compute_log_factor_marginals: Callable[[], tuple[Tensor, ...]] = field(repr=False)
    compute_map_state: Callable[[], Tensor] = field(repr=False)
    compute_messages: Callable[[], Tensor] | None = field(default=None, repr=False)

    @cached_property
    def log_z(self) -> Tensor:
        """(*batch,) log-partition function, its approximation or its bound, as the engine documents.

        At temperature T it is T·log Σ exp(score / T), so at 0 it is the largest score.
        """
        return self.compute_log_z()

    @cached_property
    def log_factor_marginals(self) -> tuple[Tensor, ...]:
        """Per group (*batch, factors, *shape) logs of the joint marginals of each factor's scope."""
        return self.compute_log_factor_marginals()

    @cached_property
    def factor_marginals(self) -> tuple[Tensor, ...]:
        """Per group (*batch, factors, *shape) joint probabilities: the gradient of log Z in the potentials."""
        return tuple(logs.exp() for logs in self.log_factor_marginals)

    @cached_property
    def map_state(self) -> Tensor:
        """(*batch, variables) the most probable joint state, or each variable's most probable one."""
        return self.compute_map_state()

    @cached_property
    def messages(self) -> Tensor | None:
        """(*batch, rows, max_cardinality) the last messages, to begin another run with; None where none are passed."""
        return None if self.compute_messages is None else self.compute_messages()

    @property
    def marginals(self) -> Tensor:
        """(*batch, variables, max_cardinality) probabilities."""
        return self.log_marginals.exp()


class Engine(Protocol):
    """Settings of an algorithm; `run` is a pure function of the graph and the potentials."""

    def run(self, graph: FactorGraph, potentials: Potentials) -> Result:
        """Infers marginals, log Z and the most probable state."""
        ...


Schedule = Literal["synchronous", "sequential", "residual"]
Messages = TypeVar("Messages")


@dataclass(frozen=True)
class PassingSettings:
    """What belief propagation and its tree-reweighted form have in common.

    Attributes:
        temperature: 1 for sum-product, 0 for max-product.
        schedule: "synchronous", "sequential" or "residual".
        damping: how much of the old message to keep, in the log domain.
        max_iterations: at most so many; a sequential iteration goes through the factors and back.
        tolerance: largest change of a message at which to stop; None runs exactly `max_iterations` and
            measures nothing, which is fastest.
        residual_fraction: share of the messages the residual schedule accepts in an iteration.
    """

    temperature: float = 1.0
    schedule: Schedule = "synchronous"
    damping: float = 0.0
    max_iterations: int = 500
    tolerance: float | None = 1e-5
    residual_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise InputError(
                f'schedule "{self.schedule}" is not known; {nearest(self.schedule, get_args(Schedule))}'
            )
        if not 0 <= self.damping < 1:
            raise InputError(f"damping is {self.damping}; it must be at least 0 and below 1")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations is {self.max_iterations}; it must be at least 1")
        if not 0 < self.residual_fraction <= 1:
            raise InputError(
                f"residual_fraction is {self.residual_fraction}; it must be above 0 and at most 1"
            )


@dataclass(frozen=True)
class Progress:
    """How a run went."""

    iterations: int
    converged: bool
    history: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run leaves.

    Attributes:
        progress: how it went.
        beliefs: (variables, batch, max_cardinality) logs, up to a constant for each variable.
        compute_messages: makes the (rows, batch, max_cardinality) messages; most answers need beliefs only.
    """

    progress: Progress
    beliefs: Tensor
    compute_messages: Callable[[], Tensor]

    @cached_property
    def messages(self) -> Tensor:
        """The messages after the last iteration."""
        return self.compute_messages()


def iterate(
    step: Callable[[Messages], tuple[Messages, Tensor | None]], messages: Messages, settings: PassingSettings
) -> tuple[Messages, Progress]:
    """Renews messages until none changes by more than the tolerance, or the iterations are used up.

    Args:
        step: makes newer messages, and says the largest change of any if it measured that.
        messages: to begin with.
        settings: of the run.
    """
    history: list[float] = []
    for iteration in range(settings.max_iterations):
        messages, largest = step(messages)
        if settings.tolerance is not None and largest is not None:
            history.append(float(largest))
            if history[-1] <= settings.tolerance:
                return messages, Progress(iteration + 1, True, tuple(history))
    return messages, Progress(settings.max_iterations, False, tuple(history))


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph with its potentials, aligned.

    Attributes:
        graph: the structure.
        aligned: per group, (factors or 1, batch or 1, *shape) log-potentials.
        batch: number of items, or None when no potential has a batch axis.
        has_zeros: whether some log-potential is -inf.
    """

    graph: FactorGraph
    aligned: tuple[Tensor, ...]
    batch: int | None
    has_zeros: bool

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
                everyone = torch.equal(group.scopes[:, 0], torch.arange(len(total), device=total.device))
                total = total + rows if everyone else total.index_add(0, group.scopes[:, 0], rows)
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

    def publish(self, values: Tensor) -> Tensor:
        """(rows, batch, ...) to the user's (*batch, rows, ...)."""
        return values[:, 0] if self.batch is None else values.transpose(0, 1)

    def publish_batch(self, values: Tensor) -> Tensor:
        """(batch,) to the user's (*batch,)."""
        return values[0] if self.batch is None else values

    def require_possible(self, beliefs: Tensor) -> None:
        """Refuses beliefs (variables, batch, states) that give some variable no possible state."""
        if not self.has_zeros:
            return
        lost = (beliefs == -INF).all(-1).nonzero()
        if len(lost):
            raise InputError(
                f"variable {int(lost[0, 0])} has no possible state: zero potentials (or the evidence) contradict"
                " each other; give some joint state a positive potential"
            )


def align(graph: FactorGraph, potentials: Potentials, temperature: float = 1.0) -> Problem:
    """Checks shapes and values and brings every tensor to (factors or 1, batch or 1, *shape).

    A positive temperature divides the log-potentials; 0 (maximisation) leaves them alone.
    """
    if temperature < 0:
        raise InputError(f"temperature is {temperature}; use 1 for sum-product, 0 for max-product")
    if len(potentials) != len(graph.groups):
        raise InputError(
            f"{len(potentials)} potential tensors were given for {len(graph.groups)} groups of factors; give one each"
        )
    sizes = {_batch_size(group, table) for group, table in zip(graph.groups, potentials, strict=True)}
    batches = sorted(size for size in sizes if size is not None)
    if len(set(batches) - {1}) > 1:
        raise InputError(f"potentials have different batch sizes {batches}; use one size, or 1 to share")
    dtypes = {table.dtype for table in potentials}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        raise InputError(f"potentials must have one floating-point dtype; got {sorted(map(str, dtypes))}")
    aligned: list[Tensor] = []
    has_zeros = False
    for group, table in zip(graph.groups, potentials, strict=True):
        has_zeros |= _check_values(group, table)
        unbatched = table.ndim == group.order + 1
        leading = _collapse(table[:, None] if unbatched else table.transpose(0, 1))
        aligned.append(leading if temperature in (0.0, 1.0) else leading / temperature)
    return Problem(graph, tuple(aligned), max(batches) if batches else None, has_zeros)


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
    """Whether a -inf is there; NaN and +inf are refused with the factor they are in."""
    least, most = (float(value) for value in torch.aminmax(table.detach()))
    if most == INF or most != most:
        bad = (table.isnan() | (table == INF)).nonzero()[0]
        factor = int(group.factor_ids[int(bad[table.ndim - group.order - 1])])
        raise InputError(
            f"factor {factor}: log-potential {most} is not finite; only -inf (probability 0) may be"
        )
    return least == -INF
