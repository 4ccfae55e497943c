"""Tree-reweighted message passing: marginals with an upper bound on log Z.

Belief propagation in which each factor counts with the probability ρ_F that it appears in a random spanning
tree (Wainwright, Jaakkola & Willsky 2005). The free energy is then convex: there is one fixed point, and its
value bounds log Z from above. At temperature 0 the bound is on the largest score. The equations are in
`network`, the probabilities in `spanning_trees`; for MAP `SequentialTRW` converges where this may not.

How often each factor appears in a random spanning tree.

In a uniformly random spanning tree of a connected graph the edge (u, v) appears with probability

    ρ_uv = (e_u − e_v)ᵀ L⁺ (e_u − e_v),        L the graph Laplacian

its effective resistance (Kirchhoff 1847; Wainwright, Jaakkola & Willsky 2005 §VI). Factors of order three or
more have no such formula, and a component may be too large for a dense inverse; there the probabilities are
frequencies in a set of random forests that cover every factor. Any distribution over forests gives a valid
upper bound on log Z, so this only changes how tight it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.belief_propagation import pass_messages
from messagenet.inference.engine import PassingSettings, Result

LARGEST_DENSE = 2048
FORESTS = 32


class DisjointSets:
    """Union-find over variables."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, item: int) -> int:
        """The representative of an item's set."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, items: Sequence[int]) -> bool:
        """Merges the sets of all items; False, and no change, if two of them are together already."""
        roots = [self.find(item) for item in items]
        if len(set(roots)) < len(roots):
            return False
        for root in roots[1:]:
            self._parent[root] = roots[0]
        return True


_known: WeakKeyDictionary[FactorGraph, Tensor] = WeakKeyDictionary()


def spanning_tree_probabilities(graph: FactorGraph) -> Tensor:
    """(factors,) ρ_F of every factor in the user's order; 1 for unaries and constants.

    They take longer than passing messages, and depend on the structure alone: a graph's are computed once.

    >>> ring = FactorGraph.from_scopes([2, 2, 2], [[0, 1], [1, 2], [2, 0], [0]])
    >>> spanning_tree_probabilities(ring)
    tensor([0.6667, 0.6667, 0.6667, 1.0000], dtype=torch.float64)
    """
    if graph not in _known:
        _known[graph] = _probabilities(graph)
    return _known[graph].clone()


def _probabilities(graph: FactorGraph) -> Tensor:
    scopes = graph.scopes()
    probabilities = torch.ones(len(scopes), dtype=torch.float64)
    for factors in _components(graph.num_variables, scopes):
        variables = sorted({variable for factor in factors for variable in scopes[factor]})
        members = [scopes[factor] for factor in factors]
        if sum(len(scope) - 1 for scope in members) == len(variables) - 1:
            continue  # already a tree
        pairwise = all(len(scope) == 2 for scope in members)
        if pairwise and len(variables) <= LARGEST_DENSE:
            probabilities[factors] = _resistances(variables, members)
        else:
            probabilities[factors] = _forest_frequencies(graph.num_variables, members)
    return probabilities


def _components(num_variables: int, scopes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Factors of order two or more, by connected component."""
    sets = DisjointSets(num_variables)
    for scope in scopes:
        for variable in scope[1:]:
            sets.join((scope[0], variable))
    components: dict[int, list[int]] = {}
    for number, scope in enumerate(scopes):
        if len(scope) >= 2:
            components.setdefault(sets.find(scope[0]), []).append(number)
    return list(components.values())


def _resistances(variables: Sequence[int], edges: Sequence[tuple[int, ...]]) -> Tensor:
    place = {variable: index for index, variable in enumerate(variables)}
    ends = torch.tensor([[place[a], place[b]] for a, b in edges])
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
    """Frequencies in random forests, each grown from the factors that earlier ones left out most often."""
    flat = np.array([variable for scope in scopes for variable in scope])
    ends = np.cumsum([len(scope) for scope in scopes])
    counts = np.zeros(len(scopes), dtype=np.int64)
    draw = np.random.default_rng(0)
    forests = 0
    while forests < FORESTS or counts.min() == 0:
        order = np.argsort(counts + draw.random(len(scopes)))
        _grow_forest(flat, ends, order, np.arange(num_variables), counts)
        forests += 1
    return torch.from_numpy(counts / forests)


@numba.njit(cache=True, nogil=True)
def _grow_forest(
    flat: NDArray[np.int64],
    ends: NDArray[np.int64],
    order: NDArray[np.int64],
    parent: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Adds factors in order wherever they close no cycle (Kruskal's rule), and counts those added.

    Args:
        flat: the scopes, one after another.
        ends: where each scope ends in `flat`.
        order: in which to try the factors.
        parent: of every variable in its tree; itself at the start.
        counts: how often each factor was added so far.
    """
    for factor in order:
        start = ends[factor - 1] if factor > 0 else 0
        roots = flat[start : ends[factor]].copy()
        for position in range(len(roots)):
            item = roots[position]
            while parent[item] != item:
                parent[item] = parent[parent[item]]
                item = parent[item]
            roots[position] = item
        closes = False
        for position in range(1, len(roots)):
            for earlier in range(position):
                closes = closes or roots[position] == roots[earlier]
        if not closes:
            parent[roots] = roots[0]
            counts[factor] += 1


@dataclass(frozen=True)
class TreeReweighted(PassingSettings):
    """Settings of tree-reweighted message passing; `log_z` of a converged run is an upper bound.

    Damping is on by default: without any, strong couplings oscillate.

    Attributes:
        edge_probabilities: (factors,) probability of each factor in the user's order; None: of uniform
            spanning trees. Those of unaries are ignored.
    """

    damping: float = 0.5
    max_iterations: int = 1000
    edge_probabilities: Tensor | None = None

    def run(self, graph: FactorGraph, potentials: Potentials, messages: Tensor | None = None) -> Result:
        """Passes reweighted messages and reads off beliefs and the bound; `messages` as in `BeliefPropagation.run`."""
        return pass_messages(graph, potentials, self, self._probabilities(graph), messages)

    def _probabilities(self, graph: FactorGraph) -> Tensor:
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
            raise InputError(
                f"factor {factor}: edge probability {float(given[factor])} must be above 0, at most 1"
            )
        return given.clamp(max=1)
