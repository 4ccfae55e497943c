"""Models at work: images in, segmentations and scores out.

`messagenet.prediction.ray` does the same on a cluster; it is imported only when asked for.
"""

from messagenet.prediction.files import Predicted, predict_files
from messagenet.prediction.predictor import Predictor, Refinement, Views
from messagenet.prediction.scoring import score

__all__ = ["Predicted", "Predictor", "Refinement", "Views", "predict_files", "score"]
