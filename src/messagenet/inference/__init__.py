"""Messages computed from potentials: exact, belief propagation, tree-reweighted, mean field."""

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
