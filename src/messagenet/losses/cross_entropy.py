"""The objective of learned messages: cross-entropy between the truth and the estimated marginals.

    J = − mean_p log P(ŷ_p | x),      P(y_p | x) = softmax( Σ_F β_{F→p} )

Plain classification: no inference, no partition function, no sampling in its gradient. Void (255) is left out
of the mean. The loss is on the nodes, or on pixels after bilinear upsampling of the logits.

Cross-entropy at the pixels of logits that live on coarser nodes, without keeping anything of the pixels' size.

    up = Y L Xᵀ        bilinear interpolation: Y (H, h) and X (W, w) hold two weights in a row
    J  = Σ_labelled −log softmax(up)[ŷ]
    ∂J/∂L = Yᵀ (softmax(up) − ŷ) X

Value and gradient come from one walk over the images, each small enough for the processor's cache; what is kept
for the backward pass has the size of the logits. Interpolating, taking logarithms and going back as separate
operations would move K·H·W numbers of the whole batch through memory some ten times.

Losses as a sum and a count, so that any number of batches can share one mean.

    J = Σ_batches total / Σ_batches nodes

A mean of means would depend on how images are divided among batches and processes; the sums do not.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest
from messagenet.geometry import CellLabel, node_labels


def pixel_cross_entropy(logits: Tensor, masks: Tensor, stride: float, label_smoothing: float = 0.0) -> Tensor:
    """− Σ log softmax(upsample(logits))[ŷ] over the labelled pixels, a scalar.

    Args:
        logits: At the nodes, (B, K, h, w).
        masks: Truth at pixels, (B, H, W), 255 for void.
        stride: Image pixels per node.
        label_smoothing: Share of the truth spread evenly over all classes.
    """
    total: Tensor = _PixelCrossEntropy.apply(logits, masks, stride, label_smoothing)  # type: ignore[no-untyped-call]
    return total


def interpolation(nodes: int, pixels: int, stride: float, like: Tensor) -> Tensor:
    """The matrix (pixels, nodes) that interpolates along one axis as `upsample` does."""
    identity = torch.eye(nodes, dtype=like.dtype, device=like.device)[None]
    rows = functional.interpolate(identity, size=round(nodes * stride), mode="linear", align_corners=False)
    missing = max(0, pixels - rows.shape[2])
    return functional.pad(rows, (0, missing), mode="replicate")[0, :, :pixels].T


class _PixelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, masks: Tensor, stride: float, label_smoothing: float) -> Tensor:
        down = interpolation(logits.shape[2], masks.shape[1], stride, logits)  # (H, h)
        across = interpolation(logits.shape[3], masks.shape[2], stride, logits)  # (W, w)
        total = logits.new_zeros(())
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        for number, (image, mask) in enumerate(zip(logits, masks, strict=True)):
            up = down @ image @ across.T  # (K, H, W)
            total += _loss_into_gradient(up, mask, label_smoothing)
            if gradient is not None:
                gradient[number] = down.T @ up @ across
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (None if gradient is None else gradient * upstream), None, None, None


def _loss_into_gradient(logits: Tensor, mask: Tensor, label_smoothing: float) -> Tensor:
    """Returns the loss of one image (K, H, W) and overwrites the logits with its gradient."""
    labelled = mask != VOID
    truth = torch.where(labelled, mask, 0)[None]  # (1, H, W)
    logits -= logits.amax(0)
    chosen = logits.gather(0, truth)[0]
    mean = logits.mean(0) if label_smoothing else None
    partition = logits.exp_().sum(0)
    loss = partition.log() - (1 - label_smoothing) * chosen
    if mean is not None:
        loss -= label_smoothing * mean
    logits /= partition
    logits.scatter_add_(0, truth, logits.new_full((), label_smoothing - 1).expand_as(truth))
    if mean is not None:
        logits -= label_smoothing / logits.shape[0]
    logits *= labelled
    return torch.where(labelled, loss, 0).sum()


class Loss(NamedTuple):
    """A summed loss and the number of labelled nodes that it is to be divided by, both scalars."""

    total: Tensor
    nodes: Tensor

    @property
    def mean(self) -> Tensor:
        """The loss of a node; 0 where nothing is labelled."""
        return self.total / self.nodes.clamp(min=1)


def cross_entropy_total(logits: Tensor, labels: Tensor) -> Loss:
    """− Σ_p log softmax(logits_p)[ŷ_p] over the labelled nodes.

    >>> import torch
    >>> cross_entropy_total(torch.zeros(3, 2), torch.tensor([0, 1, 255]))
    Loss(total=tensor(1.3863), nodes=tensor(2))

    Args:
        logits: One row per node, (…, K).
        labels: Classes of the nodes and 255 for void, (…).
    """
    total = functional.cross_entropy(
        widened(logits).flatten(0, -2), labels.flatten(), ignore_index=VOID, reduction="sum"
    )
    return Loss(total, (labels != VOID).sum())


def widened(values: Tensor) -> Tensor:
    """The values in float32 if they had less, to be summed in."""
    return values.float() if values.dtype.itemsize < 4 else values


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
