"""Tree-reweighted message passing: marginals with an upper bound on log Z.

Belief propagation in which each factor counts with the probability ρ_F that it appears in a random spanning
tree (Wainwright, Jaakkola & Willsky 2005). The free energy is then convex: there is one fixed point, and its
value bounds log Z from above. At temperature 0 the bound is on the largest score. The equations are in
`network`, the probabilities in `spanning_trees`; for MAP `SequentialTRW` converges where this may not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.belief_propagation import pass_messages
from messagenet.inference.passing import PassingSettings
from messagenet.inference.result import Result
from messagenet.inference.spanning_trees import spanning_tree_probabilities


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
