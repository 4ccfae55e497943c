"""FCN-8s: a classifier with skip connections (Long, Shelhamer & Darrell, arXiv 1411.4038).

    scores = s₈ + up( s₁₆ + up(s₃₂) ),        s_l = W_l f_l + b_l

1×1 convolutions score the features at strides 8, 16 and 32 (`backbones.level_maps`); up is bilinear and not learned. As
published, the skip connections start at zero, so that training starts from the coarse prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.models.base import Head, zero_padding
from messagenet.settings import register


@register("head", "fcn8s")
class FCN8s(Head):
    """Scores of three levels, added up.

    >>> from messagenet.models import SegmentationModel
    >>> model = SegmentationModel("efficientnet_lite0", 5, "fcn8s").eval()
    >>> model(torch.rand(1, 3, 40, 50)).shape
    torch.Size([1, 5, 5, 7])

    Args:
        in_channels: Channels of the levels at strides 8, 16 and 32.
        num_classes: K.
    """

    context = ("size", "sizes")
    takes_neck = False
    level_strides = (8, 16, 32)

    def __init__(self, in_channels: Sequence[int], num_classes: int) -> None:
        super().__init__(sum(in_channels), num_classes)
        self.scores = nn.ModuleList(nn.Conv2d(channels, num_classes, 1) for channels in in_channels)
        for skip in self.scores[:-1]:
            for parameter in skip.parameters():
                nn.init.zeros_(parameter)

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
            scores = self._add_scores(levels)
        else:  # an image ends where it would end alone, so that enlarging does not read the padding
            scores = torch.cat([self._add_alone(levels, index, each) for index, each in enumerate(sizes.tolist())])
            scores = zero_padding(scores, mask)
        if size is None:
            return scores
        rows, columns = (-(-side // self.level_strides[0]) for side in size)
        return scores[:, :, :rows, :columns]

    def _add_scores(self, levels: Sequence[Tensor]) -> Tensor:
        scores: Tensor
        *finer, scores = (score(level) for score, level in zip(self.scores, levels, strict=True))  # (B, K, H/l, W/l)
        for skip in reversed(finer):
            scores = skip + functional.interpolate(scores, scale_factor=2, mode="bilinear")
        return scores

    def _add_alone(self, levels: Sequence[Tensor], index: int, size: Sequence[int]) -> Tensor:
        """Scores of one image of (H, W) pixels, padded with 0."""
        coarsest = self.level_strides[-1]
        high, wide = (-(-side // coarsest) * coarsest for side in size)
        own = [
            level[index : index + 1, :, : high // stride, : wide // stride]
            for level, stride in zip(levels, self.level_strides, strict=True)
        ]
        scores, (height, width) = self._add_scores(own), levels[0].shape[2:]
        return functional.pad(scores, (0, width - scores.shape[3], 0, height - scores.shape[2]))
