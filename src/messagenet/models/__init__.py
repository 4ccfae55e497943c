"""Whole networks: features, neck, head; saved and loaded.

A backbone, neck or head of one's own is a plain module, or a class with the decorator `@register("head", "mine")`.
"""

from messagenet.models.base import Head, InputSpec, SegmentationModel
from messagenet.models.controls import ASPPHead, AttentionHead, ConvolutionHead, PyramidPoolingHead, matched_ensemble
from messagenet.models.crf import CRFHead
from messagenet.models.dense_crf import CRFRNN, DeepLabCRF
from messagenet.models.inference_machine import InferenceMachine
from messagenet.models.levels import DeconvNet, FCN8s
from messagenet.models.message import MessageNet, UnaryHead, UnaryNet

__all__ = [
    "CRFRNN",
    "ASPPHead",
    "AttentionHead",
    "CRFHead",
    "ConvolutionHead",
    "DeconvNet",
    "DeepLabCRF",
    "FCN8s",
    "Head",
    "InferenceMachine",
    "InputSpec",
    "MessageNet",
    "PyramidPoolingHead",
    "SegmentationModel",
    "UnaryHead",
    "UnaryNet",
    "matched_ensemble",
]
