"""Learned messages: a message estimator is a drop-in for a computed message.

`MessagePassing` passes them over the nodes of a feature map, `GraphMessagePassing` over any factor graph: any order,
mixed types, graphs of any shapes in a batch.
"""

from messagenet.message_passing.estimator import MessageEstimator
from messagenet.message_passing.factor_types import FactorType
from messagenet.message_passing.fused_sum import relu_sum, use_backend
from messagenet.message_passing.graph import ComputedByType, ComputedMessages, GraphContext, GraphMessagePassing
from messagenet.message_passing.grid import MessagePassing
from messagenet.message_passing.inspect import received_messages

__all__ = [
    "ComputedByType",
    "ComputedMessages",
    "FactorType",
    "GraphContext",
    "GraphMessagePassing",
    "MessageEstimator",
    "MessagePassing",
    "received_messages",
    "relu_sum",
    "use_backend",
]
