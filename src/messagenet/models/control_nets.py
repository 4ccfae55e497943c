"""Controls as whole networks: as many parameters as a `MessageNet` of the same settings, and no messages.

See `controls` for what each of them isolates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.estimators import MessagePassing
from messagenet.graph import Relation
from messagenet.models.controls import ConvolutionHead, UnaryEnsemble, convolution_like, ensemble_like
from messagenet.models.message_net import PAPER_RELATIONS
from messagenet.models.segmentation_net import SegmentationNet


class _Control(SegmentationNet):
    """A network whose size is that of a message head, which is built only to be counted."""

    options = ("neck", "hidden")

    def __init__(
        self,
        backbone: str | nn.Module,
        classes: Classes | Sequence[str] | int,
        relations: Sequence[Relation],
        hidden: int,
        settings: Mapping[str, Any],
        backbone_options: Mapping[str, Any] | None,
        neck: Mapping[str, Any] | None,
        void_values: Sequence[int],
    ) -> None:
        super().__init__(
            backbone,
            classes,
            relations,
            settings={"hidden": hidden, **settings},
            backbone_options=backbone_options,
            neck=neck,
            void_values=void_values,
        )
        with torch.device("meta"):
            self._matched = (
                MessagePassing(self.head_channels, self.classes.num_classes, relations, hidden=hidden),
            )

    def message_head(self) -> MessagePassing:
        """The head to be as large as; it holds no numbers."""
        return self._matched[0]


class EnsembleNet(_Control):
    """Unary classifiers that vote, with the parameters of a message head altogether.

    >>> EnsembleNet("tiny", 3, hidden=16)(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 3, 10, 13])

    Args:
        backbone, classes, backbone_options, neck, void_values: See `SegmentationNet`.
        relations, hidden: Of the message head.
    """

    own_objective = True
    head: UnaryEnsemble

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = PAPER_RELATIONS,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        neck: Mapping[str, Any] | None = None,
        hidden: int = 256,
        void_values: Sequence[int] = (),
    ) -> None:
        super().__init__(backbone, classes, relations, hidden, {}, backbone_options, neck, void_values)
        self.head = ensemble_like(self.message_head())


class ConvolutionNet(_Control):
    """3×3 convolutions before the unary classifier, with the parameters of a message head altogether.

    Args:
        backbone, classes, backbone_options, neck, void_values: See `SegmentationNet`.
        relations, hidden: Of the message head.
        dilations: Dilation of each convolution.
    """

    head: ConvolutionHead

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = PAPER_RELATIONS,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        neck: Mapping[str, Any] | None = None,
        hidden: int = 256,
        dilations: Sequence[int] = (1,),
        void_values: Sequence[int] = (),
    ) -> None:
        settings = {"dilations": list(dilations)}
        super().__init__(backbone, classes, relations, hidden, settings, backbone_options, neck, void_values)
        self.head = convolution_like(self.message_head(), dilations)
