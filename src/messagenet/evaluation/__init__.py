"""How good a labelling is: IoU over the whole set, near boundaries, and calibration of the marginals.

`Evaluator` scores a set image by image into a `Scores`; the functions below it work on single arrays.
"""

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
