"""Objectives: what a model is trained to minimise."""

from messagenet.learning.labels import CellLabel, node_labels
from messagenet.learning.marginal import Resolution, marginal_cross_entropy, upsample

__all__ = ["CellLabel", "Resolution", "marginal_cross_entropy", "node_labels", "upsample"]
