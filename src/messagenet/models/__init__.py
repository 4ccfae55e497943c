"""Whole networks, saved and loaded."""

from messagenet.models.base import SegmentationNet
from messagenet.models.controls import ConvolutionNet, EnsembleNet
from messagenet.models.crf import CRFNet
from messagenet.models.dense_crf import CRFRNN, DeepLabCRF
from messagenet.models.fcn8s import FCN8s
from messagenet.models.inference_machine import InferenceMachineNet
from messagenet.models.kinds import KINDS
from messagenet.models.message import PAPER_RELATIONS, MessageNet, UnaryNet

__all__ = [
    "CRFRNN",
    "KINDS",
    "PAPER_RELATIONS",
    "CRFNet",
    "ConvolutionNet",
    "DeepLabCRF",
    "EnsembleNet",
    "FCN8s",
    "InferenceMachineNet",
    "MessageNet",
    "SegmentationNet",
    "UnaryNet",
]
