"""Cross-entropy at the pixels of logits that live on coarser nodes, without keeping anything of the pixels' size.

    up = Y L Xᵀ        bilinear interpolation: Y (H, h) and X (W, w) hold two weights in a row
    J  = Σ_labelled −log softmax(up)[ŷ]
    ∂J/∂L = Yᵀ (softmax(up) − ŷ) X

Value and gradient come from one walk over the images, each small enough for the processor's cache; what is kept
for the backward pass has the size of the logits. Interpolating, taking logarithms and going back as separate
operations would move K·H·W numbers of the whole batch through memory some ten times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from messagenet.data.classes import VOID


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
