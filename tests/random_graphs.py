"""Random factor graphs and log-potentials."""

from __future__ import annotations

import torch
from torch import Tensor

from messagenet.graph import FactorGraph, tree_graph


def random_graph(
    num_variables: int,
    num_factors: int,
    *,
    order: int = 2,
    cardinality: int | tuple[int, int] = 2,
    generator: torch.Generator | None = None,
) -> FactorGraph:
    """Unaries plus factors over random sets of `order` variables, listed in random order; often loopy.

    Args:
        num_variables: how many variables.
        num_factors: how many factors besides the unaries.
        order: variables per factor.
        cardinality: states per variable, or (smallest, largest) to draw it for each.
        generator: source of randomness.
    """
    smallest, largest = (cardinality, cardinality) if isinstance(cardinality, int) else cardinality
    states = torch.randint(smallest, largest + 1, (num_variables,), generator=generator)
    scopes = _distinct(num_factors, order, num_variables, generator)
    return FactorGraph.from_blocks(states, [torch.arange(num_variables)[:, None], scopes])


def _distinct(rows: int, columns: int, below: int, generator: torch.Generator | None) -> Tensor:
    """(rows, columns) random integers below a limit, all distinct within a row."""
    if below <= 4 * columns:
        return torch.rand(rows, below, generator=generator).argsort(1)[:, :columns]
    drawn = torch.randint(below, (rows, columns), generator=generator)
    while True:
        ordered = drawn.sort(1).values
        clash = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero()[:, 0]
        if len(clash) == 0:
            return drawn
        drawn[clash] = torch.randint(below, (len(clash), columns), generator=generator)


def random_tree(
    num_variables: int, *, cardinality: int | tuple[int, int] = 2, generator: torch.Generator | None = None
) -> FactorGraph:
    """A tree in which every variable hangs from a random earlier one."""
    smallest, largest = (cardinality, cardinality) if isinstance(cardinality, int) else cardinality
    states = torch.randint(smallest, largest + 1, (num_variables,), generator=generator)
    draws = torch.rand(num_variables, generator=generator)
    parents = [-1, *(int(draws[node] * node) for node in range(1, num_variables))]
    return tree_graph(parents, states)


def random_potentials(
    graph: FactorGraph,
    *,
    scale: float = 1.0,
    batch: int | None = None,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, ...]:
    """Independent normal log-potentials of standard deviation `scale` for every factor."""
    lead = () if batch is None else (batch,)
    return tuple(
        scale * torch.randn(*lead, len(group), *group.shape, dtype=dtype, generator=generator) for group in graph.groups
    )
