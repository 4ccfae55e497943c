"""Controls: networks with as many parameters as a message head, within two per cent, and no messages.

Each isolates one reason other than structure for the gain of messages over a unary classifier:

    more parameters         an ensemble of unary classifiers; it sees no more than the unary
    context, nearby         a 3×3 convolution
    context, as far away    dilated 3×3 convolutions (Yu & Koltun, arXiv 1511.07122)
    context, at all scales  pyramid pooling (Zhao et al., arXiv 1612.01105), or atrous spatial pyramid pooling (Chen et
                            al., arXiv 1706.05587)
    context, anywhere       attention with relative positions (Wang et al., arXiv 1711.07971), or two layers of a
                            transformer (Vaswani et al., arXiv 1706.03762)

All but the ensemble compute features with context, (B, r, h, w) → (B, width, h, w), and classify them like a unary.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.errors import InputError
from messagenet.graph import Relation
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.message_passing import MessagePassing
from messagenet.message_passing.grid import assemble, split_by_size
from messagenet.models.base import Head, zero_padding
from messagenet.models.message import unary_estimator
from messagenet.settings import at_least, register

TOLERANCE = 0.02
DILATIONS = (1, 2, 4)  # reach 7 nodes to every side, beyond the paper's range box on a map of 32 × 32
ATTENTION_HEADS = 4


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


class ContextHead(Head):
    """Features with context, then the unary classifier.

    Args:
        in_channels, num_classes: r, channels of the feature map, and K.
        make_context: From a width to the module (B, r, h, w) → (B, width, h, w).
        relations: Of the message head whose number of parameters to match.
        hidden: Hidden units of that head, and of the classifier.
        width: Channels of the features with context; null for the number of parameters of that head.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        make_context: Callable[[int], nn.Module],
        *,
        relations: Sequence[Relation] = PAPER_RELATIONS,
        hidden: int = 256,
        width: int | None = None,
    ) -> None:
        super().__init__(in_channels, num_classes)

        def build(width: int, hidden: int = hidden) -> nn.ModuleList:
            return nn.ModuleList([make_context(width), unary_estimator(width, hidden, num_classes)])

        at_least(1, width=width)
        if width is None:
            parameters = _message_parameters(in_channels, num_classes, relations, hidden)
            width = nearest_width(build, parameters)
            if _mismatch(partial(build, width), hidden, parameters) > TOLERANCE:  # the classifier makes up for it
                width = max(1, width - 1)
                hidden = matching_width(partial(build, width), parameters)
        self.body, self.unary = build(width, hidden)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the marginals, (B, K, h, w); 0 at nodes that do not exist."""
        self.channels_last(zero_padding(features, mask))  # checks them
        parts = []
        for images, context in split_by_size({"unary": features}, mask, ()):
            x = self.body(context.features["unary"].permute(0, 3, 1, 2))
            parts.append((images, context.zero_padding(self.unary(x.permute(0, 2, 3, 1)))))
        return assemble(parts, features)


@register("head", "convolution")
class ConvolutionHead(ContextHead):
    """3×3 convolutions, each with a ReLU, then the unary classifier.

    >>> ConvolutionHead(16, 5, width=8, hidden=32)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        dilations: Dilation of each convolution; `DILATIONS` reach as far as the paper's messages.
    """

    def __init__(self, in_channels: int, num_classes: int, *, dilations: Sequence[int] = (1,), **options: Any) -> None:
        _check_positive("dilations", dilations, "[1, 2, 4]")
        super().__init__(in_channels, num_classes, partial(_convolutions, in_channels, dilations), **options)


@register("head", "pyramid_pooling")
class PyramidPoolingHead(ContextHead):
    """PSPNet's head: means over grids of bins beside the features, a 3×3 convolution, then the unary classifier.

    >>> PyramidPoolingHead(16, 5, width=8, hidden=32)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        bins: Bins to a side of each grid.
    """

    def __init__(
        self, in_channels: int, num_classes: int, *, bins: Sequence[int] = (1, 2, 3, 6), **options: Any
    ) -> None:
        _check_positive("bins", bins, "[1, 2, 3, 6]")
        super().__init__(in_channels, num_classes, partial(_PyramidPooling, in_channels, bins), **options)


@register("head", "aspp")
class ASPPHead(ContextHead):
    """DeepLabv3's head: dilated 3×3 convolutions side by side, a 1×1 one and the image's mean, then the classifier.

    >>> ASPPHead(16, 5, width=8, hidden=32)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        rates: Dilations of the 3×3 convolutions.
    """

    def __init__(
        self, in_channels: int, num_classes: int, *, rates: Sequence[int] = (6, 12, 18), **options: Any
    ) -> None:
        _check_positive("rates", rates, "[6, 12, 18]")
        super().__init__(in_channels, num_classes, partial(_ASPP, in_channels, rates), **options)


@register("head", "attention")
class AttentionHead(ContextHead):
    """Self-attention over all nodes, with a learned function of relative position, then the unary classifier.

    >>> AttentionHead(16, 5, width=8, hidden=32)(torch.randn(2, 16, 6, 7)).shape
    torch.Size([2, 5, 6, 7])

    Args:
        layers: Layers of attention; with `feed_forward` they make a transformer.
        feed_forward: Whether a network of two layers, four times as wide, follows each attention.
    """

    def __init__(
        self, in_channels: int, num_classes: int, *, layers: int = 1, feed_forward: bool = False, **options: Any
    ) -> None:
        at_least(1, layers=layers)
        super().__init__(
            in_channels, num_classes, partial(_AttentionLayers, in_channels, layers, feed_forward), **options
        )


class _PyramidPooling(nn.Module):
    def __init__(self, in_channels: int, bins: Sequence[int], width: int) -> None:
        super().__init__()
        self.bins = tuple(bins)
        narrow = max(1, width // len(bins))
        self.project = nn.ModuleList(_convolution(in_channels, narrow, kernel=1) for _ in bins)
        self.fuse = _convolution(in_channels + len(bins) * narrow, width)

    def forward(self, x: Tensor) -> Tensor:
        levels = [x]
        for bins, project in zip(self.bins, self.project, strict=True):
            pooled = torch.relu(project(functional.adaptive_avg_pool2d(x, bins)))
            levels.append(functional.interpolate(pooled, x.shape[2:], mode="bilinear", align_corners=False))
        return torch.relu(self.fuse(torch.cat(levels, 1)))


class _ASPP(nn.Module):
    def __init__(self, in_channels: int, rates: Sequence[int], width: int) -> None:
        super().__init__()
        dilated = [_convolution(in_channels, width, rate) for rate in rates]
        self.branches = nn.ModuleList([_convolution(in_channels, width, kernel=1), *dilated])
        self.image = _convolution(in_channels, width, kernel=1)
        self.fuse = _convolution(width * (len(rates) + 2), width, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        whole = self.image(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        branches = [*(branch(x) for branch in self.branches), whole]
        return torch.relu(self.fuse(torch.relu(torch.cat(branches, 1))))


class _AttentionLayers(nn.Module):
    def __init__(self, in_channels: int, layers: int, feed_forward: bool, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(in_channels, width)
        self.layers = nn.ModuleList(_AttentionLayer(width, feed_forward) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        nodes = self.project(x.flatten(2).transpose(1, 2))  # (B, N, width)
        for layer in self.layers:
            nodes = layer(nodes, size)
        maps: Tensor = nodes.transpose(1, 2).unflatten(2, size)
        return maps


class _AttentionLayer(nn.Module):
    """Pre-norm attention; queries, keys and values of a head have width / heads channels, rounded up."""

    def __init__(self, width: int, feed_forward: bool) -> None:
        super().__init__()
        self.channels = math.ceil(width / ATTENTION_HEADS)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * ATTENTION_HEADS * self.channels)
        self.position = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, ATTENTION_HEADS))
        self.output = nn.Linear(ATTENTION_HEADS * self.channels, width)
        self.feed_forward: nn.Module | None = None
        if feed_forward:
            self.feed_forward = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

    def forward(self, nodes: Tensor, size: Sequence[int]) -> Tensor:
        joined = self.qkv(self.norm(nodes)).unflatten(2, (3, ATTENTION_HEADS, self.channels))  # (B, N, 3, heads, c)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, self.position_bias(size, nodes))
        nodes = nodes + self.output(mixed.transpose(1, 2).flatten(2))
        return nodes if self.feed_forward is None else nodes + self.feed_forward(nodes)

    def position_bias(self, size: Sequence[int], like: Tensor) -> Tensor:
        """A learned function of (dy, dx), in units of the short edge, for every pair of nodes: (heads, N, N)."""
        height, width = size
        rows, columns = (torch.arange(1 - n, n, device=like.device, dtype=like.dtype) for n in (height, width))
        offsets = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1) / min(height, width)
        table = self.position(offsets)  # (2h − 1, 2w − 1, heads)
        y, x = (torch.arange(n, device=like.device) for n in (height, width))
        dy, dx = y[:, None] - y + height - 1, x[:, None] - x + width - 1
        bias: Tensor = table[dy[:, None, :, None], dx[None, :, None, :]]  # (h, w, h, w, heads)
        return bias.flatten(2, 3).flatten(0, 1).permute(2, 0, 1)


def _message_parameters(in_channels: int, num_classes: int, relations: Sequence[Relation], hidden: int) -> int:
    """Parameters of the message head to match; no memory is used."""
    with torch.device("meta"):
        return parameter_count(MessagePassing(in_channels, num_classes, relations, hidden=hidden))


def matching_width(build: Callable[[int], nn.Module], parameters: int, tolerance: float = TOLERANCE) -> int:
    """The width at which a network comes closest to a number of parameters, within a tolerance; no memory is used.

    >>> matching_width(lambda width: nn.Linear(10, width), 331)
    30
    """
    width = nearest_width(build, parameters)
    if _mismatch(build, width, parameters) > tolerance:
        raise InputError(
            f"no width comes within {tolerance:.0%} of {parameters} parameters (width {width} has "
            f"{_size(build, width)}); compare with a larger head"
        )
    return width


def nearest_width(build: Callable[[int], nn.Module], parameters: int) -> int:
    """The width at which a network comes closest to a number of parameters; no memory is used."""
    high = 1
    while _size(build, high) < parameters:
        high *= 2
    enough = 1 + bisect_left(range(1, high), parameters, key=partial(_size, build))
    return min((max(1, enough - 1), enough), key=lambda width: _mismatch(build, width, parameters))


def _mismatch(build: Callable[[int], nn.Module], width: int, parameters: int) -> float:
    return abs(_size(build, width) - parameters) / parameters


def _size(build: Callable[[int], nn.Module], width: int) -> int:
    with torch.device("meta"):
        return parameter_count(build(width))


def parameter_count(module: nn.Module) -> int:
    """Number of parameters, counted as scalars.

    >>> parameter_count(nn.Linear(10, 30))
    330
    """
    return sum(parameter.numel() for parameter in module.parameters())


def _check_positive(name: str, values: Sequence[int], example: str) -> None:
    if not values or not all(type(value) is int and value > 0 for value in values):
        raise InputError(f"{name} are {list(values)}; give whole numbers above zero such as {example}")


def _convolutions(in_channels: int, dilations: Sequence[int], width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, dilation in enumerate(dilations):
        layers += [_convolution(width if index else in_channels, width, dilation), nn.ReLU()]
    return nn.Sequential(*layers)


def _convolution(inputs: int, outputs: int, dilation: int = 1, kernel: int = 3) -> nn.Conv2d:
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return convolution
