"""Models at work: images in, segmentations and scores out."""

from messagenet.prediction.outputs import predict_files
from messagenet.prediction.predictor import Predictor, Views
from messagenet.prediction.scoring import score

__all__ = ["Predictor", "Views", "predict_files", "score"]
