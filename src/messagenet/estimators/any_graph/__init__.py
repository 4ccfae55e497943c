"""Messages learned over any factor graph: any order, mixed types, graphs of any shapes in a batch."""

from messagenet.estimators.any_graph.field import ComputedMessages, GraphField, Known
from messagenet.estimators.any_graph.grid import from_grid
from messagenet.estimators.any_graph.passing import GraphMessagePassing
from messagenet.estimators.any_graph.settings import FactorType
from messagenet.estimators.settling import Passed
from messagenet.graph.typed import TypedGraph, batch_graphs

__all__ = [
    "ComputedMessages",
    "FactorType",
    "GraphField",
    "GraphMessagePassing",
    "Known",
    "Passed",
    "TypedGraph",
    "batch_graphs",
    "from_grid",
]
