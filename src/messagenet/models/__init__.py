"""Whole networks, saved and loaded."""

from messagenet.models.control_nets import ConvolutionNet, EnsembleNet
from messagenet.models.crf_net import CRFNet
from messagenet.models.dense_nets import CRFRNN, DeepLabCRF
from messagenet.models.fcn8s import FCN8s
from messagenet.models.kinds import KINDS
from messagenet.models.machine_net import InferenceMachineNet
from messagenet.models.message_net import PAPER_RELATIONS, MessageNet, UnaryNet
from messagenet.models.segmentation_net import SegmentationNet

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
