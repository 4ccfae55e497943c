"""Learned message passing for structured prediction, in PyTorch.

The public names are loaded on first use, so that importing the package (and asking a command for help) does not
wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from messagenet._version import __version__
from messagenet.errors import InputError

if TYPE_CHECKING:
    from messagenet.api import evaluate, evaluate_models, infer, predict, train
    from messagenet.data import check_data, open_data
    from messagenet.demo import run_demo
    from messagenet.graph import GridGraph, Relation, above, below, four_neighbours, left, right, surrounding
    from messagenet.message_passing import MessagePassing, received_messages
    from messagenet.models import MessageNet, UnaryNet
    from messagenet.prediction import Predictor
    from messagenet.studies import compare


_HOME = {
    "MessagePassing": "message_passing",
    "received_messages": "message_passing",
    "GridGraph": "graph",
    "Relation": "graph",
    "above": "graph",
    "below": "graph",
    "four_neighbours": "graph",
    "left": "graph",
    "right": "graph",
    "surrounding": "graph",
    "MessageNet": "models",
    "UnaryNet": "models",
    "Predictor": "prediction",
    "check_data": "data",
    "compare": "studies",
    "evaluate": "api",
    "evaluate_models": "api",
    "infer": "api",
    "open_data": "data",
    "predict": "api",
    "run_demo": "demo",
    "train": "api",
}

__all__ = [
    "GridGraph",
    "InputError",
    "MessageNet",
    "MessagePassing",
    "Predictor",
    "Relation",
    "UnaryNet",
    "__version__",
    "above",
    "below",
    "check_data",
    "compare",
    "evaluate",
    "evaluate_models",
    "four_neighbours",
    "infer",
    "left",
    "open_data",
    "predict",
    "received_messages",
    "right",
    "run_demo",
    "surrounding",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'messagenet' has no attribute {name!r}")
    value = getattr(import_module(f"messagenet.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
