"""Models at work: images in, segmentations and scores out; `prediction.ray` does the same on a cluster."""

from messagenet.prediction.files import PredictedFiles, predict_files
from messagenet.prediction.predictor import PredictOptions, Predictor, Refinement
from messagenet.prediction.scoring import score

__all__ = ["PredictOptions", "PredictedFiles", "Predictor", "Refinement", "predict_files", "score"]
