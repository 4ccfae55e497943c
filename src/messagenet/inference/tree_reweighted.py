"""Tree-reweighted message passing: marginals with an upper bound on log Z.

Belief propagation in which each factor counts with the probability ρ_F that it appears in a random spanning tree
(Wainwright, Jaakkola & Willsky 2005; equations in `belief_propagation`). The free energy is convex: there is one fixed
point, and its value bounds log Z from above. At temperature 0 it bounds the largest score; for MAP, `SequentialTRW`
converges where this may not. In a uniform spanning tree the edge (u, v) appears with probability

    ρ_uv = (e_u − e_v)ᵀ L⁺ (e_u − e_v),        L the graph Laplacian

its effective resistance (Kirchhoff 1847). For factors of order three or more, and components too large for a dense
inverse, ρ is the frequency in random forests that cover every factor: also a valid bound, only less tight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph
from messagenet.inference.belief_propagation import BeliefPropagation
from messagenet.settings import register

MAX_DENSE = 2048
FORESTS = 32
_cached: WeakKeyDictionary[FactorGraph, Tensor] = WeakKeyDictionary()


def spanning_tree_probabilities(graph: FactorGraph) -> Tensor:
    """(factors,) ρ_F in the user's order, 1 for unaries and constants; computed once per graph.

    >>> ring = FactorGraph([2, 2, 2], [[0, 1], [1, 2], [2, 0], [0]])
    >>> spanning_tree_probabilities(ring)
    tensor([0.6667, 0.6667, 0.6667, 1.0000], dtype=torch.float64)
    """
    if graph not in _cached:
        _cached[graph] = _probabilities(graph)
    return _cached[graph].clone()


def _probabilities(graph: FactorGraph) -> Tensor:
    scopes = graph.scopes()
    probabilities = torch.ones(len(scopes), dtype=torch.float64)
    for factors in _components(graph.num_variables, scopes):
        variables = sorted({variable for factor in factors for variable in scopes[factor]})
        members = [scopes[factor] for factor in factors]
        if sum(len(scope) - 1 for scope in members) == len(variables) - 1:
            continue  # already a tree
        pairwise = all(len(scope) == 2 for scope in members)
        if pairwise and len(variables) <= MAX_DENSE:
            probabilities[factors] = _resistances(variables, members)
        else:
            probabilities[factors] = _forest_frequencies(graph.num_variables, members)
    return probabilities


def _components(num_variables: int, scopes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Factors of order two or more, by connected component."""
    parent = list(range(num_variables))

    def root(variable: int) -> int:
        while parent[variable] != variable:
            parent[variable] = variable = parent[parent[variable]]
        return variable

    for scope in scopes:
        for variable in scope[1:]:
            parent[root(variable)] = root(scope[0])
    components: dict[int, list[int]] = {}
    for index, scope in enumerate(scopes):
        if len(scope) >= 2:
            components.setdefault(root(scope[0]), []).append(index)
    return list(components.values())


def _resistances(variables: Sequence[int], edges: Sequence[tuple[int, ...]]) -> Tensor:
    position = {variable: index for index, variable in enumerate(variables)}
    ends = torch.tensor([[position[a], position[b]] for a, b in edges])
    count = len(variables)
    laplacian = torch.full((count, count), 1.0 / count, dtype=torch.float64)  # fills the null space
    one = torch.ones(len(ends), dtype=torch.float64)
    for first, second, sign in ((0, 0, 1.0), (1, 1, 1.0), (0, 1, -1.0), (1, 0, -1.0)):
        laplacian.index_put_((ends[:, first], ends[:, second]), sign * one, accumulate=True)
    inverse = torch.linalg.inv(laplacian)
    head, tail = ends.unbind(1)
    resistance: Tensor = inverse[head, head] + inverse[tail, tail] - 2 * inverse[head, tail]
    return resistance.clamp(max=1)


def _forest_frequencies(num_variables: int, scopes: Sequence[tuple[int, ...]]) -> Tensor:
    """Frequencies in random forests; each is grown first from the factors with the lowest counts so far."""
    from messagenet.inference.kernels import grow_forest

    flat = np.array([variable for scope in scopes for variable in scope])
    ends = np.cumsum([len(scope) for scope in scopes])
    counts = np.zeros(len(scopes), dtype=np.int64)
    draw = np.random.default_rng(0)
    forests = 0
    while forests < FORESTS or counts.min() == 0:
        order = np.argsort(counts + draw.random(len(scopes)))
        grow_forest(flat, ends, order, np.arange(num_variables), counts)
        forests += 1
    return torch.from_numpy(counts / forests)


@register("engine", "trw")
@dataclass(frozen=True)
class TreeReweighted(BeliefPropagation):
    """Settings of tree-reweighted message passing; `log_z` of a converged run is an upper bound.

    Damping is on by default: without it, strong couplings oscillate.

    Attributes:
        edge_probabilities: (factors,) ρ_F in the user's order, ignored for unaries; None: of uniform spanning trees.
    """

    damping: float = 0.5
    max_iterations: int = 1000
    edge_probabilities: Tensor | None = None

    def factor_weights(self, graph: FactorGraph) -> Tensor:
        """ρ_F of each factor, (factors,)."""
        if self.edge_probabilities is None:
            return spanning_tree_probabilities(graph)
        given = torch.as_tensor(self.edge_probabilities)
        if given.shape != (graph.num_factors,):
            raise InputError(
                f"edge_probabilities has shape {tuple(given.shape)}; give one number for each of the "
                f"{graph.num_factors} factors"
            )
        wrong = ~((given > 0) & (given <= 1 + 1e-9))
        if bool(wrong.any()):
            factor = int(wrong.nonzero()[0])
            raise InputError(f"factor {factor}: edge probability {float(given[factor])} must be above 0, at most 1")
        return given.clamp(max=1)
