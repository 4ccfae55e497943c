"""Scores of label maps and marginals: IoU over the whole set, IoU near boundaries, accuracy by size, calibration."""

from messagenet.evaluation.boundary import boundary_distance, trimap_iou, trimap_matrices
from messagenet.evaluation.calibration import Reliability, reliability
from messagenet.evaluation.confusion import (
    Confusion,
    confusion_matrix,
    frequency_weighted_iou,
    iou_per_class,
    mean_iou,
    pixel_accuracy,
)
from messagenet.evaluation.scores import Evaluator, ImageScore, Scores, scores_table

__all__ = [
    "Confusion",
    "Evaluator",
    "ImageScore",
    "Reliability",
    "Scores",
    "boundary_distance",
    "confusion_matrix",
    "frequency_weighted_iou",
    "iou_per_class",
    "mean_iou",
    "pixel_accuracy",
    "reliability",
    "scores_table",
    "trimap_iou",
    "trimap_matrices",
]
