"""Graphs without the values on them: factor graphs, grids of nodes with relations, and graphs with typed factors."""

from messagenet.graph.builders import chain_graph, grid_factor_graph, tree_graph
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.grid import GridFactorGraph, GridGraph, Slot, Window, window
from messagenet.graph.relations import Form, Offset, Relation, above, below, four_neighbours, left, right, surrounding
from messagenet.graph.typed import TypedGraph, batch_graphs

__all__ = [
    "FactorGraph",
    "Form",
    "GridFactorGraph",
    "GridGraph",
    "Offset",
    "Relation",
    "Slot",
    "TypedGraph",
    "Window",
    "above",
    "batch_graphs",
    "below",
    "chain_graph",
    "four_neighbours",
    "grid_factor_graph",
    "left",
    "right",
    "surrounding",
    "tree_graph",
    "window",
]
