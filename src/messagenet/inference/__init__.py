"""Messages computed from potentials: exact, belief propagation, tree-reweighted, mean field.

    result = BeliefPropagation().run(FactorGraph([2, 2], [[0], [0, 1]]), [unary_table, pair_table])
    result.marginals, result.log_z, result.map_state, result.converged

An engine holds settings; `run` takes a graph and a log-potential table per factor (or one tensor per group).
"""

from messagenet.inference.belief_propagation import BeliefPropagation
from messagenet.inference.engine import Engine, Result
from messagenet.inference.evidence import observe, restrict
from messagenet.inference.exact import Exact
from messagenet.inference.mean_field import MeanField
from messagenet.inference.tree_reweighted import TreeReweighted
from messagenet.inference.trw_s import SequentialTRW

__all__ = [
    "BeliefPropagation",
    "Engine",
    "Exact",
    "MeanField",
    "Result",
    "SequentialTRW",
    "TreeReweighted",
    "observe",
    "restrict",
]
