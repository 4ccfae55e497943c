"""All networks by name: what a configuration calls them, and what a saved model does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from messagenet.models.base import SegmentationNet
from messagenet.models.controls import DILATIONS, ConvolutionNet, EnsembleNet
from messagenet.models.crf import CRFNet
from messagenet.models.dense_crf import CRFRNN, DeepLabCRF
from messagenet.models.fcn8s import FCN8s
from messagenet.models.inference_machine import InferenceMachineNet
from messagenet.models.message import MessageNet, UnaryNet


class Kind(NamedTuple):
    """A row of the comparison.

    Attributes:
        network: What it is built as.
        settings: What tells it from other rows of that class.
    """

    network: type[SegmentationNet]
    settings: Mapping[str, Any]


KINDS: dict[str, Kind] = {
    "message": Kind(MessageNet, {}),
    "unary": Kind(UnaryNet, {}),
    "context_crf": Kind(CRFNet, {"objective": "piecewise"}),
    "crf_pseudo": Kind(CRFNet, {"objective": "pseudo_likelihood"}),
    "crf_likelihood": Kind(CRFNet, {"objective": "likelihood"}),
    "deeplab_crf": Kind(DeepLabCRF, {}),
    "crf_rnn": Kind(CRFRNN, {}),
    "inference_machine": Kind(InferenceMachineNet, {}),
    "ensemble": Kind(EnsembleNet, {}),
    "convolution": Kind(ConvolutionNet, {"dilations": [1]}),
    "dilated": Kind(ConvolutionNet, {"dilations": list(DILATIONS)}),
    "fcn8s": Kind(FCN8s, {}),
}
"""What `model.kind` of a configuration may be."""

NETWORKS: dict[str, type[SegmentationNet]] = {kind.network.__name__: kind.network for kind in KINDS.values()}
"""The classes of saved models."""
