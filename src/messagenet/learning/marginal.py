"""The objective of learned messages: cross-entropy between the truth and the estimated marginals.

    J = − mean_p log P(ŷ_p | x),      P(y_p | x) = softmax( Σ_F β_{F→p} )

Plain classification: no inference, no partition function, no sampling in its gradient. Void (255) is left out
of the mean. The loss is on the nodes, or on pixels after bilinear upsampling of the logits.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest
from messagenet.learning.labels import CellLabel, node_labels
from messagenet.learning.pixel_loss import pixel_cross_entropy
from messagenet.learning.totals import widened

Resolution = Literal["nodes", "pixels"]


def marginal_cross_entropy(
    logits: Tensor,
    masks: Tensor,
    stride: float,
    *,
    resolution: Resolution = "nodes",
    cell_label: CellLabel = "centre",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The mean loss over labelled nodes or pixels; 0 where nothing is labelled.

    Args:
        logits: Sums of messages, (B, K, h, w).
        masks: Truth at pixels, (B, H, W), 255 for void.
        stride: Image pixels per node.
        resolution: Where to compare: "nodes" or "pixels".
        cell_label: How a node's label comes from its cell, for "nodes".
        label_smoothing: Share of the truth spread evenly over all classes.
    """
    logits = widened(logits)
    if resolution == "nodes":
        truth = node_labels(masks, (logits.shape[2], logits.shape[3]), stride, cell_label)
        total = functional.cross_entropy(
            logits, truth, ignore_index=VOID, reduction="sum", label_smoothing=label_smoothing
        )
    elif resolution == "pixels":
        truth = masks
        total = pixel_cross_entropy(logits, masks, stride, label_smoothing)
    else:
        raise InputError(f"unknown resolution {resolution!r}; {nearest(resolution, get_args(Resolution))}")
    return total / (truth != VOID).sum().clamp(min=1)


def upsample(logits: Tensor, size: tuple[int, int], stride: float) -> Tensor:
    """Node values (B, K, h, w) at the pixels of the image (B, K, H, W), bilinear, corners not aligned.

    The map is enlarged by exactly the stride, then cut to the image: cells that reach over its edge do not
    shift the others.
    """
    whole = (round(logits.shape[2] * stride), round(logits.shape[3] * stride))
    enlarged = functional.interpolate(logits, size=whole, mode="bilinear", align_corners=False)
    height, width = size
    if whole[0] < height or whole[1] < width:
        enlarged = functional.pad(
            enlarged, (0, max(0, width - whole[1]), 0, max(0, height - whole[0])), mode="replicate"
        )
    return enlarged[:, :, :height, :width]
