"""Heads that read maps of several strides of the backbone (`backbones.level_maps`): FCN-8s and DeconvNet.

FCN-8s (Long, Shelhamer & Darrell, arXiv 1411.4038): 1×1 convolutions score the features at strides 8, 16 and 32; up is
bilinear and not learned. As published, the skip connections start at zero, so that training starts from the coarse
prediction.

    scores = s₈ + up( s₁₆ + up(s₃₂) ),        s_l = W_l f_l + b_l

DeconvNet (Noh, Hong & Han, arXiv 1505.04366): a decoder enlarges the coarsest map. Unpooling puts a value where the
encoder's map had its maximum of 2×2 (the switch), all else is zero; then a deconvolution fills in the details.

    x = f₃₂;   for l in 16, 8:   x = deconv( unpool( conv(x), switches of f_l ) );        scores = W x + b

Backbones without pooling, such as EfficientNet, have switches too: the position of the maximum of 2×2 is all it takes.
The decoder ends at stride 8, like the other heads; group norm stands for the published batch norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.models.base import Head, zero_padding
from messagenet.settings import register


class LevelsHead(Head):
    """A head that reads the maps at strides 8, 16 and 32; a subclass implements `scores_of`.

    Args:
        in_channels: Channels of the levels at strides 8, 16 and 32.
        num_classes: K.
    """

    context = ("size", "sizes")
    takes_neck = False
    level_strides = (8, 16, 32)

    def __init__(self, in_channels: Sequence[int], num_classes: int) -> None:
        super().__init__(sum(in_channels), num_classes)

    def scores_of(self, levels: Sequence[Tensor]) -> Tensor:
        """Logits (B, K, H/8, W/8) from maps (B, r, H/l, W/l), finest first; H and W are multiples of 32."""
        raise NotImplementedError

    def forward(
        self,
        features: Mapping[str, Tensor],
        mask: Tensor | None = None,
        *,
        size: tuple[int, int] | None = None,
        sizes: Tensor | None = None,
    ) -> Tensor:
        """Logits at the nodes, (B, K, ⌈H/8⌉, ⌈W/8⌉), 0 in padding; arguments as in `forward_head` of a model."""
        levels = [features[str(stride)] for stride in self.level_strides]
        if mask is None or sizes is None:
            scores = self.scores_of(levels)
        else:  # an image ends where it would end alone, so that enlarging does not read the padding
            scores = torch.cat([self._alone(levels, index, each) for index, each in enumerate(sizes.tolist())])
            scores = zero_padding(scores, mask)
        if size is None:
            return scores
        rows, columns = (-(-side // self.level_strides[0]) for side in size)
        return scores[:, :, :rows, :columns]

    def _alone(self, levels: Sequence[Tensor], index: int, size: Sequence[int]) -> Tensor:
        """Scores of one image of (H, W) pixels, padded with 0."""
        coarsest = self.level_strides[-1]
        high, wide = (-(-side // coarsest) * coarsest for side in size)
        own = [
            level[index : index + 1, :, : high // stride, : wide // stride]
            for level, stride in zip(levels, self.level_strides, strict=True)
        ]
        scores, (height, width) = self.scores_of(own), levels[0].shape[2:]
        return functional.pad(scores, (0, width - scores.shape[3], 0, height - scores.shape[2]))


@register("head", "fcn8s")
class FCN8s(LevelsHead):
    """FCN-8s: scores of three levels, added up.

    >>> from messagenet.models import SegmentationModel
    >>> model = SegmentationModel("efficientnet_lite0", 5, "fcn8s").eval()
    >>> model(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 5, 5, 7])

    Args:
        in_channels: Channels of the levels at strides 8, 16 and 32.
        num_classes: K.
    """

    def __init__(self, in_channels: Sequence[int], num_classes: int) -> None:
        super().__init__(in_channels, num_classes)
        self.scores = nn.ModuleList(nn.Conv2d(channels, num_classes, 1) for channels in in_channels)
        for skip in self.scores[:-1]:
            for parameter in skip.parameters():
                nn.init.zeros_(parameter)

    def scores_of(self, levels: Sequence[Tensor]) -> Tensor:
        """The scores of every level, added from the coarsest to the finest."""
        scores: Tensor
        *finer, scores = (score(level) for score, level in zip(self.scores, levels, strict=True))  # (B, K, H/l, W/l)
        for skip in reversed(finer):
            scores = skip + functional.interpolate(scores, scale_factor=2, mode="bilinear")
        return scores


@register("head", "deconvnet")
class DeconvNet(LevelsHead):
    """DeconvNet's decoder: unpooling by the encoder's switches, and deconvolutions.

    >>> from messagenet.models import SegmentationModel
    >>> model = SegmentationModel("efficientnet_lite0", 5, "deconvnet").eval()
    >>> model(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 5, 5, 7])

    Args:
        in_channels: Channels of the levels at strides 8, 16 and 32.
        num_classes: K.
    """

    def __init__(self, in_channels: Sequence[int], num_classes: int) -> None:
        super().__init__(in_channels, num_classes)
        fine, middle, coarse = in_channels
        self.before = nn.ModuleList([_layer(nn.Conv2d, coarse, middle), _layer(nn.Conv2d, middle, fine)])
        self.after = nn.ModuleList([_layer(nn.ConvTranspose2d, width, width) for width in (middle, fine)])
        self.score = nn.Conv2d(fine, num_classes, 1)

    def scores_of(self, levels: Sequence[Tensor]) -> Tensor:
        """The scores of the finest level, from the coarsest map and the switches of the others."""
        *finer, x = levels
        for level, before, after in zip(reversed(finer), self.before, self.after, strict=True):
            _, switches = functional.max_pool2d(level, 2, return_indices=True)
            x = after(functional.max_unpool2d(before(x), switches, (2, 2)))
        scores: Tensor = self.score(x)
        return scores


def _layer(kind: type[nn.Conv2d | nn.ConvTranspose2d], inputs: int, outputs: int) -> nn.Sequential:
    """A 3×3 layer that keeps the size, normalised over an image's channels and nodes, and a ReLU."""
    return nn.Sequential(kind(inputs, outputs, 3, padding=1), nn.GroupNorm(1, outputs), nn.ReLU())
