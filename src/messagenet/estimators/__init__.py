"""Messages learned: estimators and the passing of their messages over a grid."""

from messagenet.estimators.aggregate import relu_sum
from messagenet.estimators.backends import use_backend
from messagenet.estimators.estimator import MessageEstimator
from messagenet.estimators.inspection import Received, received_messages
from messagenet.estimators.passing import MessagePassing

__all__ = [
    "MessageEstimator",
    "MessagePassing",
    "Received",
    "received_messages",
    "relu_sum",
    "use_backend",
]
