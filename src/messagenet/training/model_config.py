"""The settings of a network; their texts are the comments of YAML files, as in `config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from messagenet.errors import InputError
from messagenet.estimators.rules import Aggregation, CavityMode, Dependent, Initial
from messagenet.models.crf_head import Inference
from messagenet.models.dense_nets import WORKING_STRIDES
from messagenet.models.pair_offsets import Neighbours
from messagenet.training.bounds import at_least
from messagenet.training.relations import parse_relation

KindName = Literal[
    "message",
    "unary",
    "context_crf",
    "crf_pseudo",
    "crf_likelihood",
    "deeplab_crf",
    "crf_rnn",
    "inference_machine",
    "ensemble",
    "convolution",
    "dilated",
    "fcn8s",
]


@dataclass(frozen=True)
class ModelConfig:
    """The network: a backbone and a head, which passes messages unless another kind is chosen.

    Attributes:
        kind: "message", or "unary" for the same network without relations; or one to compare with: "context_crf"
            (potentials, trained piecewise), "crf_pseudo", "crf_likelihood" (the same, trained otherwise),
            "deeplab_crf", "crf_rnn" (dense CRF), "inference_machine", "ensemble", "convolution", "dilated"
            (as many parameters, no messages), "fcn8s".
        backbone: The feature network: vgg16, efficientnet_lite0 (or 1, 2) or tiny.
        backbone_options: Settings of that backbone, such as {width: 128}.
        pretrained: Where the backbone's first weights come from: null for random ones, a file, "package"
            (efficientnet_lite), "torch.hub" (vgg16), or a model with this backbone, whose neck is taken too if it is
            the same: its folder, or the name of one in the box, "voc-animals".
        pretrained_head: Whether that model's head is taken too; needs the same classes and settings of the head.
        neck: What stands between backbone and head, and is trained with the head: {width: 128, filters: 2} for a
            projection to 128 channels and two separable 5×5 filters; {} for nothing. "fcn8s" and "inference_machine"
            have none.
        relations: Who sends messages: shape:size:form, such as surrounding:0.4, above:13cells, below:0.4:box.
        hidden: Hidden units of every message estimator.
        iterations: Message-passing iterations, T.
        tied: One set of estimators for all iterations, or one for each.
        cavity: "factor" leaves a factor's own message out of what it is told; "none" does not.
        initial: Messages before the first iteration: "zero", or those of the "unary" factors.
        aggregation: Scale of a message: "fixed", "sum", "mean" or "sqrt".
        dependent: How a box factor joins its senders' messages: "sum" or "mean".
        separate_features: A backbone of its own for every factor type, as in the paper.
        neighbours: Pairs with a potential in a CRF: a "lattice" of 24 neighbours in each range box, or "all".
        inference: How a CRF predicts: "mean_field" or "belief_propagation"; null for the latter with "crf_likelihood",
            which learns with it, and the former with the others.
        inference_iterations: Of that, and of an inference machine.
        likelihood_iterations: Of belief propagation in each training step of "crf_likelihood", at most.
        persistent_messages: Begin it with the messages that the image had when last seen; needs images that stay as
            they are, and memory for all messages of all of them. A resumed run begins without.
        working_stride: Pixels per cell of a dense CRF: 1, 2 or 4.
        kernels: What a dense CRF ties pixels by, where it differs from DeepLab's: {spatial_weight: 3, spatial_position:
            3, bilateral_weight: 10, bilateral_position: 80, bilateral_colour: 13}, lengths in pixels. The weights of
            "crf_rnn" are learned and start at 1.
        machine_features: What an inference machine sees: "hand_crafted" features on the backbone's nodes, or
            those of the "backbone".
    """

    kind: KindName = "message"
    backbone: str = "efficientnet_lite0"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None
    pretrained_head: bool = False
    neck: dict[str, Any] = field(default_factory=dict)
    relations: tuple[str | dict[str, Any], ...] = ("surrounding:0.4", "above:0.4", "below:0.4")
    hidden: int = 256
    iterations: int = 1
    tied: bool = True
    cavity: CavityMode = "factor"
    initial: Initial = "zero"
    aggregation: Aggregation = "fixed"
    dependent: Dependent = "sum"
    separate_features: bool = False
    neighbours: Neighbours = "lattice"
    inference: Inference | None = None
    inference_iterations: int = 3
    likelihood_iterations: int = 20
    persistent_messages: bool = False
    working_stride: int = 1
    kernels: dict[str, float] = field(default_factory=dict)
    machine_features: Literal["hand_crafted", "backbone"] = "hand_crafted"

    def __post_init__(self) -> None:
        for relation in self.relations:
            parse_relation(relation)
        at_least(
            1,
            hidden=self.hidden,
            iterations=self.iterations,
            inference_iterations=self.inference_iterations,
            likelihood_iterations=self.likelihood_iterations,
        )
        if self.working_stride not in WORKING_STRIDES:
            raise InputError(f"working_stride is {self.working_stride}; choose 1, 2 or 4 pixels")
