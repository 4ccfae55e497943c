"""Controls: networks with as many parameters as a message head, within two per cent, and no messages.

Each isolates one reason other than structure for the gain of messages over a unary classifier:

    more parameters          an ensemble of unary classifiers; it sees no more than the unary
    context, nearby          a 3×3 convolution before the unary
    context, as far away     dilated 3×3 convolutions (Yu & Koltun, arXiv 1511.07122) before the unary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from messagenet.errors import InputError
from messagenet.graph import Relation
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.message_passing import MessagePassing
from messagenet.models.base import Head, zero_padding
from messagenet.models.message import unary_estimator
from messagenet.settings import register

TOLERANCE = 0.02
DILATIONS = (1, 2, 4)  # reach 7 nodes to every side, beyond the paper's range box on a map of 32 × 32


class UnaryEnsemble(Head):
    """Unary classifiers that vote: P(y_p | x) is the mean of their probabilities.

    They share the feature map; each has its own first weights and its own loss (`losses.MemberCrossEntropy`).

    >>> UnaryEnsemble(16, 5, hidden=32, members=4)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])
    """

    def __init__(self, in_channels: int, num_classes: int, hidden: int, members: int) -> None:
        super().__init__(in_channels, num_classes)
        self.members = nn.ModuleList(unary_estimator(in_channels, hidden, num_classes) for _ in range(members))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probabilities of the vote, (B, K, h, w); 0 at nodes that do not exist."""
        votes = torch.log_softmax(self.member_logits(features, mask), -1)  # (M, B, h, w, K)
        log_mean = torch.logsumexp(votes, 0) - math.log(len(votes))
        return zero_padding(log_mean.permute(0, 3, 1, 2), mask)

    def member_logits(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of every classifier, (M, B, h, w, K)."""
        nodes = self.channels_last(zero_padding(features, mask))
        return torch.stack([member(nodes) for member in self.members])


class ConvolutionHead(Head):
    """3×3 convolutions, one per dilation, each with a ReLU, then the unary classifier; padding is 0 to all of them.

    >>> ConvolutionHead(16, 5, width=8, hidden=32)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])
    """

    def __init__(
        self, in_channels: int, num_classes: int, width: int, hidden: int, dilations: Sequence[int] = (1,)
    ) -> None:
        super().__init__(in_channels, num_classes)
        if not dilations or not all(type(dilation) is int and dilation > 0 for dilation in dilations):
            raise InputError(f"dilations are {list(dilations)}; give whole numbers above zero such as [1, 2, 4]")
        widths = [in_channels, *(width for _ in dilations)]
        self.convolutions = nn.ModuleList(
            _convolution(inputs, outputs, dilation)
            for inputs, outputs, dilation in zip(widths, widths[1:], dilations, strict=False)
        )
        self.unary = unary_estimator(width, hidden, num_classes)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the marginals, (B, K, h, w); 0 at nodes that do not exist."""
        x = self.channels_last(zero_padding(features, mask)).permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = torch.relu(convolution(zero_padding(x, mask)))  # (B, width, h, w)
        logits: Tensor = self.unary(x.permute(0, 2, 3, 1))
        return zero_padding(logits.permute(0, 3, 1, 2), mask)


@register("head", "ensemble")
def matched_ensemble(
    in_channels: int,
    num_classes: int,
    *,
    relations: Sequence[Relation] = PAPER_RELATIONS,
    hidden: int = 256,
    members: int | None = None,
) -> UnaryEnsemble:
    """An ensemble with the number of parameters of a message head.

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        relations: Of the message head to match.
        hidden: Hidden units of that head.
        members: How many classifiers; null for as many as that head has factor types.
    """
    parameters = _message_parameters(in_channels, num_classes, relations, hidden)
    count = members or 1 + len(relations)

    def build(width: int) -> UnaryEnsemble:
        return UnaryEnsemble(in_channels, num_classes, width, count)

    return build(matching_width(build, parameters))


@register("head", "convolution")
def matched_convolution(
    in_channels: int,
    num_classes: int,
    *,
    relations: Sequence[Relation] = PAPER_RELATIONS,
    hidden: int = 256,
    dilations: Sequence[int] = (1,),
) -> ConvolutionHead:
    """Convolutions before a unary classifier, with the number of parameters of a message head altogether.

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        relations: Of the message head to match.
        hidden: Hidden units of that head, and of the classifier.
        dilations: Dilation of each convolution; `DILATIONS` reach as far as the paper's messages.
    """
    parameters = _message_parameters(in_channels, num_classes, relations, hidden)

    def build(width: int) -> ConvolutionHead:
        return ConvolutionHead(in_channels, num_classes, width, hidden, dilations)

    return build(matching_width(build, parameters))


def _message_parameters(in_channels: int, num_classes: int, relations: Sequence[Relation], hidden: int) -> int:
    """Parameters of the message head to match; no memory is used."""
    with torch.device("meta"):
        return parameter_count(MessagePassing(in_channels, num_classes, relations, hidden=hidden))


def matching_width(build: Callable[[int], nn.Module], parameters: int, tolerance: float = TOLERANCE) -> int:
    """The width at which a network comes closest to a number of parameters, within a tolerance; no memory is used.

    >>> matching_width(lambda width: nn.Linear(10, width), 331)
    30
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
    """Number of parameters, counted as scalars.

    >>> parameter_count(nn.Linear(10, 30))
    330
    """
    return sum(parameter.numel() for parameter in module.parameters())


def _convolution(inputs: int, outputs: int, dilation: int) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return convolution
