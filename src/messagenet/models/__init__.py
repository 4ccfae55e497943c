"""Whole networks, saved and loaded."""

from messagenet.models.message_net import PAPER_RELATIONS, MessageNet, UnaryNet

__all__ = ["PAPER_RELATIONS", "MessageNet", "UnaryNet"]
