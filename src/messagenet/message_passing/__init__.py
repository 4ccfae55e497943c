"""Messages learned: estimators and the passing of their messages over a grid.

Messages learned over any factor graph: any order, mixed types, graphs of any shapes in a batch.
"""

from messagenet.message_passing.estimator import FactorType, MessageEstimator
from messagenet.message_passing.fused_sum import relu_sum, use_backend
from messagenet.message_passing.graph import ComputedMessages, GraphField, GraphMessagePassing, Known
from messagenet.message_passing.grid import MessagePassing, Passed
from messagenet.message_passing.inspect import Received, from_grid, received_messages

__all__ = [
    "ComputedMessages",
    "FactorType",
    "GraphField",
    "GraphMessagePassing",
    "Known",
    "MessageEstimator",
    "MessagePassing",
    "Passed",
    "Received",
    "from_grid",
    "received_messages",
    "relu_sum",
    "use_backend",
]
