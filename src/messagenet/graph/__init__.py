"""What talks to what: relations and the graphs they span."""

from messagenet.graph.grid import GridGraph, Slot, Window, window
from messagenet.graph.relations import (
    Form,
    Offset,
    Relation,
    above,
    below,
    four_neighbours,
    left,
    right,
    surrounding,
)

__all__ = [
    "Form",
    "GridGraph",
    "Offset",
    "Relation",
    "Slot",
    "Window",
    "above",
    "below",
    "four_neighbours",
    "left",
    "right",
    "surrounding",
    "window",
]
