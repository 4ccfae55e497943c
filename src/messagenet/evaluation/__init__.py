"""Scores of label maps and marginals: IoU over the whole set, IoU near boundaries, accuracy by size, calibration."""

from messagenet.evaluation.confusion import Confusion, iou_per_class, mean_iou, pixel_accuracy
from messagenet.evaluation.scores import Evaluator, Scores, scores_csv, scores_json, scores_latex, scores_table

__all__ = [
    "Confusion",
    "Evaluator",
    "Scores",
    "iou_per_class",
    "mean_iou",
    "pixel_accuracy",
    "scores_csv",
    "scores_json",
    "scores_latex",
    "scores_table",
]
