"""Controls: networks with as many parameters as a message head, and no messages.

With one iteration a message is a feature of the context, so the gain over a unary classifier could have cheaper
reasons than structure. Each of these isolates one:

    more parameters          an ensemble of unary classifiers; it sees no more than the unary
    context, nearby          a 3×3 convolution before the unary
    context, as far away     dilated 3×3 convolutions (Yu & Koltun, arXiv 1511.07122) before the unary

all with the number of parameters of a given message head, within two per cent.

Controls as whole networks: as many parameters as a `MessageNet` of the same settings, and no messages.

See `controls` for what each of them isolates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError
from messagenet.graph import Relation
from messagenet.losses.cross_entropy import Loss, cross_entropy_total
from messagenet.message_passing import MessageEstimator, MessagePassing
from messagenet.models.base import MarginalHead, SegmentationNet, heard, known
from messagenet.models.message import PAPER_RELATIONS

TOLERANCE = 0.02
DILATIONS = (1, 2, 4)
"""Reach of 7 nodes to every side: beyond the paper's range box on a map of 32 × 32."""


class UnaryEnsemble(MarginalHead):
    """Unary classifiers that vote: P(y_p | x) is the mean of their probabilities.

    Each is trained with its own loss, not with that of the vote, as members of an ensemble are; `loss` is the mean
    of theirs. They start from different random weights and share the feature map.

    >>> UnaryEnsemble(16, 5, hidden=32, members=4)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        hidden: Hidden units of every classifier.
        members: How many there are.
    """

    def __init__(self, in_channels: int, num_classes: int, hidden: int, members: int) -> None:
        super().__init__(in_channels, num_classes)
        self.members = nn.ModuleList(_unary(in_channels, hidden, num_classes) for _ in range(members))

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Log-probabilities of the vote, (B, K, h, w); 0 at nodes that are not valid."""
        votes = torch.log_softmax(self._member_logits(features), -1)  # (M, B, h, w, K)
        log_mean = torch.logsumexp(votes, 0) - math.log(len(votes))
        return heard(log_mean.permute(0, 3, 1, 2), valid)

    def loss(self, features: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
        """The members' mean cross-entropy, summed over the labelled nodes, and their number."""
        labels = known(labels, valid)
        losses = [cross_entropy_total(logits, labels) for logits in self._member_logits(features)]
        return Loss(torch.stack([loss.total for loss in losses]).mean(), losses[0].nodes)

    def _member_logits(self, features: Tensor) -> Tensor:
        nodes = self.nodes(features)
        return torch.stack([member(nodes) for member in self.members])


class ConvolutionHead(MarginalHead):
    """3×3 convolutions, each followed by a ReLU, then the unary classifier.

    Nodes that do not exist are zeros to every convolution, as is everything outside the map.

    >>> ConvolutionHead(16, 5, width=8, hidden=32)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.
        width: Channels of the convolutions.
        hidden: Hidden units of the classifier.
        dilations: Dilation of each convolution; their number is the depth.
    """

    def __init__(
        self, in_channels: int, num_classes: int, width: int, hidden: int, dilations: Sequence[int] = (1,)
    ) -> None:
        super().__init__(in_channels, num_classes)
        if not dilations or not all(type(dilation) is int and dilation > 0 for dilation in dilations):
            raise InputError(
                f"dilations are {list(dilations)}; give whole numbers above zero such as [1, 2, 4]"
            )
        widths = [in_channels, *(width for _ in dilations)]
        self.convolutions = nn.ModuleList(
            _convolution(inputs, outputs, dilation)
            for inputs, outputs, dilation in zip(widths, widths[1:], dilations, strict=False)
        )
        self.unary = _unary(width, hidden, num_classes)

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals, (B, K, h, w); 0 at nodes that are not valid."""
        x = self.nodes(features).permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = torch.relu(convolution(heard(x, valid)))  # (B, width, h, w)
        logits: Tensor = self.unary(x.permute(0, 2, 3, 1))
        return heard(logits.permute(0, 3, 1, 2), valid)


def ensemble_like(head: MessagePassing, members: int | None = None) -> UnaryEnsemble:
    """An ensemble with a message head's number of parameters.

    Args:
        head: The head to match.
        members: How many classifiers; as many as the head has factor types unless told.
    """
    classes, count = head.rules.num_classes, members or len(head.factor_types)

    def build(width: int) -> UnaryEnsemble:
        return UnaryEnsemble(head.in_channels, classes, width, count)

    return build(matching_width(build, parameter_count(head)))


def convolution_like(head: MessagePassing, dilations: Sequence[int] = (1,)) -> ConvolutionHead:
    """Convolutions before the head's own unary classifier, with the head's number of parameters altogether.

    Args:
        head: The head to match.
        dilations: Dilation of each convolution; `DILATIONS` reach as far as the paper's messages.
    """
    classes, hidden = head.rules.num_classes, head.rules.hidden

    def build(width: int) -> ConvolutionHead:
        return ConvolutionHead(head.in_channels, classes, width, hidden, dilations)

    return build(matching_width(build, parameter_count(head)))


def matching_width(build: Callable[[int], nn.Module], parameters: int, tolerance: float = TOLERANCE) -> int:
    """The width at which a network comes closest to a number of parameters.

    >>> matching_width(lambda width: nn.Linear(10, width), 331)
    30

    Args:
        build: Makes the network of a width from 1 up; wider ones have more parameters. No memory is used.
        parameters: How many it should have.
        tolerance: The largest difference to accept, as a fraction.
    """

    def size(width: int) -> int:
        with torch.device("meta"):
            return parameter_count(build(width))

    high = 1
    while size(high) < parameters:
        high *= 2
    low = max(1, high // 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < parameters else (low, middle)
    width = min((low, high), key=lambda width: abs(size(width) - parameters))
    if abs(size(width) - parameters) > tolerance * parameters:
        raise InputError(
            f"no width comes within {tolerance:.0%} of {parameters} parameters (width {width} has {size(width)}); "
            "compare with a larger head"
        )
    return width


def parameter_count(module: nn.Module) -> int:
    """How many numbers training changes.

    >>> parameter_count(nn.Linear(10, 30))
    330
    """
    return sum(parameter.numel() for parameter in module.parameters())


def _unary(in_channels: int, hidden: int, num_classes: int) -> MessageEstimator:
    return MessageEstimator(in_channels, hidden, num_classes, has_sender=False, has_dependent=False)


def _convolution(inputs: int, outputs: int, dilation: int) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return convolution


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
