"""Objectives: what a model is trained to minimise."""

from messagenet.geometry import CellLabel, node_labels
from messagenet.losses.cross_entropy import Resolution, marginal_cross_entropy, upsample

__all__ = ["CellLabel", "Resolution", "marginal_cross_entropy", "node_labels", "upsample"]
