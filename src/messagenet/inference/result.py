"""What every engine answers, and the interface by which it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from messagenet.graph.factor_graph import FactorGraph, Potentials


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
