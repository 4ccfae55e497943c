"""Conventional CRFs with CNN potentials: ContextDCRF, and the same potentials trained in other ways.

    objective "piecewise"           ContextDCRF (Lin, Shen, van den Hengel, Reid, arXiv 1504.01013)
    objective "pseudo_likelihood"   every node given its neighbours' labels (Besag, 1975)
    objective "likelihood"          the conditional likelihood, marginals by belief propagation in every step

K² outputs per pairwise factor, where a learned message has K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.graph import Relation
from messagenet.learning.totals import Loss
from messagenet.models.crf_head import CRFHead, Inference, Objective
from messagenet.models.message_net import PAPER_RELATIONS
from messagenet.models.pair_offsets import Neighbours, paired_relations
from messagenet.models.segmentation_net import Features, SegmentationNet


def usual_inference(objective: Objective) -> Inference:
    """How a CRF predicts unless told: with the inference that its potentials were learned with, if there was any.

    Potentials that maximise a likelihood under the marginals of belief propagation make up for its errors, and need
    them in prediction (Wainwright, "Estimating the wrong graphical model", JMLR 7, 2006).

    >>> usual_inference("likelihood"), usual_inference("piecewise")
    ('belief_propagation', 'mean_field')
    """
    return "belief_propagation" if objective == "likelihood" else "mean_field"


class CRFNet(SegmentationNet):
    """A backbone with a CRF for a head.

    >>> import torch
    >>> CRFNet("tiny", 3, hidden=16)(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 3, 10, 13])

    Args:
        backbone, classes, backbone_options, neck, void_values: See `SegmentationNet`.
        relations: Which pairs of nodes have a potential.
        separate_features: A backbone of its own for the unary and for every relation.
        hidden, neighbours, objective, inference, inference_iterations, likelihood_iterations, persistent_messages,
            pairwise_scale: See `CRFHead`.
    """

    options = (
        *("separate_features", "neck", "hidden", "neighbours"),
        *("inference", "inference_iterations", "likelihood_iterations", "persistent_messages"),
    )
    own_objective = True
    adjustable: ClassVar[Mapping[str, tuple[float, ...]]] = {
        "pairwise_scale": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "inference_iterations": (3, 10),
    }
    head: CRFHead

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
        neighbours: Neighbours = "lattice",
        objective: Objective = "piecewise",
        inference: Inference | None = None,
        inference_iterations: int = 3,
        likelihood_iterations: int = 20,
        persistent_messages: bool = False,
        pairwise_scale: float = 1.0,
        void_values: Sequence[int] = (),
    ) -> None:
        of_head: dict[str, Any] = {
            "hidden": hidden,
            "neighbours": neighbours,
            "objective": objective,
            "inference": inference or usual_inference(objective),
            "inference_iterations": inference_iterations,
            "likelihood_iterations": likelihood_iterations,
            "persistent_messages": persistent_messages,
            "pairwise_scale": pairwise_scale,
        }
        kinds = ["unary", *(relation.name for relation in paired_relations(relations))]
        super().__init__(
            backbone,
            classes,
            relations,
            settings={"separate_features": separate_features, **of_head},
            backbone_options=backbone_options,
            separate=kinds if separate_features else (),
            neck=neck,
            void_values=void_values,
        )
        self.head = CRFHead(self.head_channels, self.classes.num_classes, relations, **of_head)

    @property
    def outputs_per_factor(self) -> int:
        """K², of a pairwise potential."""
        return self.classes.num_classes**2

    def own_loss(self, features: Features, truth: Tensor, valid: Tensor | None, names: Sequence[str]) -> Loss:
        """The head's objective, which may remember images by name."""
        return self.head.loss(features, truth, valid, names)

    def adjust(self, **values: float) -> None:
        """Sets the pairwise scale, and for how long inference goes on."""
        super().adjust(**values)
        self.head.pairwise_scale = self.settings["pairwise_scale"]
        self.head.inference_iterations = self.settings["inference_iterations"]
