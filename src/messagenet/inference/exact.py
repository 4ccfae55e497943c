"""Exact inference: the oracle that every other engine is checked with.

Either the joint table of all variables is written out (`enumerate`), or variables are summed out one after
another (`eliminate`), which costs what the largest intermediate table costs: exponential in the treewidth of
the graph, not in its size. Both are passes over a tree of cliques (`junction_tree`), the first with a single
clique, and both are differentiable: the gradient of log Z is the factor marginals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.evidence import possible_states, restrict
from messagenet.inference.junction_tree import Clique, JunctionTree, Table, bucket_tree
from messagenet.inference.logspace import INF, log_normalise
from messagenet.inference.ordering import best_elimination, neighbours
from messagenet.inference.problem import Problem, align
from messagenet.inference.result import Result

Method = Literal["auto", "enumerate", "eliminate"]
METHODS: tuple[Method, ...] = ("auto", "enumerate", "eliminate")


@dataclass(frozen=True)
class Exact:
    """Settings of exact inference.

    >>> from messagenet.graph.builders import chain_graph
    >>> result = Exact().run(chain_graph([2, 2]), [torch.zeros(2, 2), torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])])
    >>> result.map_state, round(float(result.log_z), 4)
    (tensor([0, 0]), 2.3408)

    Attributes:
        method: "enumerate", "eliminate", or "auto" for whichever needs less.
        temperature: 1 for marginals and log Z; 0 for max-marginals and the largest score.
        memory_limit: refuse, with the size, what would need more than so many GiB.
    """

    method: Method = "auto"
    temperature: float = 1.0
    memory_limit: float = 8.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f'method "{self.method}" is not known; {nearest(self.method, METHODS)}')

    def run(self, graph: FactorGraph, potentials: Potentials) -> Result:
        """Answers exactly, or refuses and says how large the tables would be."""
        problem = align(graph, potentials, self.temperature)
        if problem.has_zeros or bool((graph.cardinalities == 1).any()):
            smaller = restrict(graph, potentials, possible_states(graph, potentials))
            return smaller.restore(self._solve(align(smaller.graph, smaller.potentials, self.temperature)))
        return self._solve(problem)

    def _solve(self, problem: Problem) -> Result:
        scopes = problem.graph.scopes()
        cliques = self._cliques(problem, scopes)
        tables = _factor_tables(problem, scopes)
        cardinalities = problem.graph.cardinalities.tolist()
        like = problem.constant()
        tree = JunctionTree(cliques, tables, cardinalities, self.temperature == 0, problem.has_zeros)
        messages = tree.collect(like)
        log_z = tree.log_z(messages) + problem.constant()
        if bool((log_z == -INF).any()):
            raise InputError(
                "every joint state has probability zero: potentials (or the evidence) contradict each other"
            )
        variables, factors = tree.distribute(messages, like)
        scale = self.temperature if self.temperature > 0 else 1.0

        def decode() -> Tensor:
            with torch.no_grad():
                best = JunctionTree(cliques, tables, cardinalities, True, problem.has_zeros)
                upward = messages if tree.maximise else best.collect(like)
                return problem.publish(best.decode(upward, problem.batch_size).T)

        return Result(
            log_marginals=problem.publish(_variable_marginals(problem, variables)),
            iterations=0,
            converged=True,
            history=(),
            compute_log_z=lambda: problem.publish_batch(scale * log_z),
            compute_log_factor_marginals=lambda: _pack(problem, factors),
            compute_map_state=decode,
        )

    def _cliques(self, problem: Problem, scopes: Sequence[tuple[int, ...]]) -> list[Clique]:
        cardinalities = problem.graph.cardinalities.tolist()
        entry = problem.batch_size * problem.constant().element_size()
        limit = int(self.memory_limit * 2**30) // (3 * entry)
        states = math.prod(cardinalities)
        if self.method == "enumerate" or (self.method == "auto" and states <= 4096):
            if states > limit:
                raise self._too_large("a joint table", len(cardinalities), states, entry, at_least=False)
            everything = tuple(range(len(cardinalities)))
            touching = tuple(number for number, scope in enumerate(scopes) if scope)
            return [Clique(everything, (), None, touching)]
        plan = best_elimination(cardinalities, neighbours(len(cardinalities), scopes), limit)
        if not plan.complete:
            raise self._too_large("a table", plan.width, plan.largest, entry, at_least=True)
        kept = plan.total if problem.requires_grad else plan.total // 2
        if kept > 3 * limit:
            raise self._too_large("tables", plan.width, kept, entry, at_least=False)
        return bucket_tree(plan.cliques, scopes)

    def _too_large(self, what: str, width: int, entries: int, entry: int, *, at_least: bool) -> InputError:
        return InputError(
            f"exact inference would need {what} over {width} variables: {'at least ' if at_least else ''}"
            f"{_rounded(entries)} entries, about {_rounded(entries * entry // 2**30)} GiB each time it is written, "
            f"which memory_limit = {self.memory_limit:g} GiB does not allow; use BeliefPropagation or another "
            "approximate engine, add evidence, or raise memory_limit"
        )


def _rounded(number: int) -> str:
    """A whole number of any size in three digits.

    >>> _rounded(1234567), _rounded(7**1000)
    ('1.23e+06', '10^845')
    """
    return f"{number:.3g}" if number < 10**300 else f"10^{len(str(number)) - 1}"


def _factor_tables(problem: Problem, scopes: Sequence[tuple[int, ...]]) -> list[Table]:
    """One table per factor, in the user's order."""
    tables: list[Table] = [Table((), torch.empty(0))] * len(scopes)
    for group, logs in zip(problem.graph.groups, problem.aligned, strict=True):
        members = logs.expand(len(group), *logs.shape[1:]).unbind(0)
        for number, member in zip(group.factor_ids.tolist(), members, strict=True):
            tables[number] = Table(scopes[number], member)
    return tables


def _variable_marginals(problem: Problem, variables: dict[int, Tensor]) -> Tensor:
    """(variables, batch, max_cardinality), padded with -inf."""
    width, batch = problem.graph.max_cardinality, problem.batch_size
    rows = [
        torch.nn.functional.pad(logs.expand(batch, logs.shape[1]), (0, width - logs.shape[1]), value=-INF)
        for _, logs in sorted(variables.items())
    ]
    return log_normalise(torch.stack(rows))


def _pack(problem: Problem, factors: dict[int, Table]) -> tuple[Tensor, ...]:
    """Per group, (*batch, factors, *shape) normalised logs."""
    packed = []
    for group in problem.graph.groups:
        if group.order == 0:
            packed.append(problem.publish(problem.constant().new_zeros(len(group), problem.batch_size)))
            continue
        logs = torch.stack(
            [factors[n].logs.expand(problem.batch_size, *group.shape) for n in group.factor_ids.tolist()]
        )
        packed.append(problem.publish(log_normalise(logs, range(2, logs.ndim))))
    return tuple(packed)
