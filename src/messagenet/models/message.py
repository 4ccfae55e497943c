"""The network of this library: image → features (C1, and a neck if wanted) → messages (C2) → beliefs.

`MessageNet` is a backbone with a message-passing head. `UnaryNet` is the same without relations: every node
decides alone. Both take RGB images in 0..1 of any size and return logits at the nodes; `marginals` brings
them to the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.graph import Relation, above, below, surrounding
from messagenet.message_passing import MessagePassing
from messagenet.message_passing.estimator import Aggregation, CavityMode, Dependent, Initial
from messagenet.models.base import SegmentationNet

PAPER_RELATIONS = (surrounding(0.4), above(0.4), below(0.4))


class MessageNet(SegmentationNet):
    """A segmentation network whose head passes learned messages.

    >>> import torch
    >>> net = MessageNet("tiny", Classes(("ground", "sky", "tree")), hidden=16)
    >>> net(torch.rand(1, 3, 40, 50)).shape                       # logits at the nodes, one per 4×4 pixels
    torch.Size([1, 3, 10, 13])
    >>> net.marginals(torch.rand(1, 3, 40, 50)).shape             # probabilities at the pixels
    torch.Size([1, 3, 40, 50])

    Args:
        backbone: Name of a backbone ("vgg16", "efficientnet_lite0", 1 or 2, "tiny"), or any module that turns
            normalised images into a feature map and has `channels` and `stride`.
        classes: What the labels mean: a class list, their names, or how many there are.
        relations: Which neighbours send messages; the paper's three by default.
        backbone_options: Options of a backbone given by name.
        separate_features: A backbone of its own for the unary and for every relation, as the paper has it,
            instead of one that all share.
        neck: What stands between the backbone and the head, such as {"width": 128, "filters": 2}: see `neck`.
        hidden, iterations, tied, cavity, initial, aggregation, dependent, check_finite: See `MessagePassing`;
            `check_finite` is not saved with the model.
        void_values: Values of the masks it learns from, besides 255, that mean "not labelled": remembered for
            those who score it.
    """

    options: ClassVar[tuple[str, ...]] = (
        *("separate_features", "neck", "hidden", "iterations", "tied"),
        *("cavity", "initial", "aggregation", "dependent"),
    )
    head: MessagePassing

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = PAPER_RELATIONS,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        separate_features: bool = False,
        neck: Mapping[str, Any] | None = None,
        hidden: int = 256,
        iterations: int = 1,
        tied: bool = True,
        cavity: CavityMode = "factor",
        initial: Initial = "zero",
        aggregation: Aggregation = "fixed",
        dependent: Dependent = "sum",
        check_finite: bool = True,
        void_values: Sequence[int] = (),
    ) -> None:
        passing: dict[str, Any] = {
            "hidden": hidden,
            "iterations": iterations,
            "tied": tied,
            "cavity": cavity,
            "initial": initial,
            "aggregation": aggregation,
            "dependent": dependent,
        }
        super().__init__(
            backbone,
            classes,
            relations,
            settings={"separate_features": separate_features, **passing},
            backbone_options=backbone_options,
            neck=neck,
            separate=["unary", *(relation.name for relation in relations)] if separate_features else (),
            void_values=void_values,
        )
        self.head = MessagePassing(
            self.head_channels, self.classes.num_classes, relations, **passing, check_finite=check_finite
        )
        self.relations = self.head.relations


class UnaryNet(MessageNet):
    """The same network without relations: every node is classified from its own features.

    It takes the settings of `MessageNet`, of which those of message passing have no effect.
    """

    uses_relations = False
    options = MessageNet.options[1:]

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = (),
        **settings: Any,
    ) -> None:
        super().__init__(backbone, classes, relations, **settings)
