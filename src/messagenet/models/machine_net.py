"""An inference machine as a whole network (Ross, Munoz, Hebert & Bagnell, CVPR 2011).

Its nodes are described by hand-crafted features (`backbones` "hand_crafted"), as in the original, or by a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.estimators.rules import CavityMode
from messagenet.graph import Relation
from messagenet.models.inference_machine import InferenceMachine
from messagenet.models.segmentation_net import SegmentationNet


class InferenceMachineNet(SegmentationNet):
    """Features, and an inference machine on them; `loss` back-propagates through all its iterations.

    >>> import torch
    >>> InferenceMachineNet(classes=3)(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 3, 5, 7])

    Args:
        backbone, classes, backbone_options, void_values: See `SegmentationNet`.
        relations: None: a machine has a fixed number of neighbours (`inference_machine.NEIGHBOURS`).
        inference_iterations, tied, cavity: See `InferenceMachine`.
    """

    uses_relations = False
    options = ("inference_iterations", "tied", "cavity")
    head: InferenceMachine

    def __init__(
        self,
        backbone: str | nn.Module = "hand_crafted",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = (),
        *,
        backbone_options: Mapping[str, Any] | None = None,
        inference_iterations: int = 3,
        tied: bool = True,
        cavity: CavityMode = "factor",
        void_values: Sequence[int] = (),
    ) -> None:
        super().__init__(
            backbone,
            classes,
            relations,
            settings={"inference_iterations": inference_iterations, "tied": tied, "cavity": cavity},
            backbone_options=backbone_options,
            void_values=void_values,
        )
        self.head = InferenceMachine(
            self.channels,
            self.classes.num_classes,
            iterations=inference_iterations,
            tied=tied,
            cavity=cavity,
        )
