"""Learned message passing for structured prediction, in PyTorch."""

from messagenet._version import __version__
from messagenet.errors import InputError
from messagenet.estimators import MessagePassing
from messagenet.graph import (
    GridGraph,
    Relation,
    above,
    below,
    four_neighbours,
    left,
    right,
    surrounding,
)

__all__ = [
    "GridGraph",
    "InputError",
    "MessagePassing",
    "Relation",
    "__version__",
    "above",
    "below",
    "four_neighbours",
    "left",
    "right",
    "surrounding",
]
