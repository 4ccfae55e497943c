"""Cross-entropy between the target and the estimated marginals: the loss of learned messages.

    J = − mean_p log P(ŷ_p | x),      P(y_p | x) = softmax( Σ_F β_{F→p} )

The gradient needs no inference, partition function or sampling. With `iteration_weights`, J is a weighted mean over the
beliefs after every iteration, not only the last. Void (255) is left out. The loss is on the nodes, or on the pixels
after bilinear upsampling of the logits:

    up = Y L Xᵀ        bilinear interpolation: Y (H, h) and X (W, w) hold two weights in a row
    J  = Σ_labelled −log softmax(up)[ŷ],      ∂J/∂L = Yᵀ (softmax(up) − ŷ) X

Value and gradient come from one pass, image by image, each small enough for the CPU's cache; only a tensor of
the logits' size is stored. Separate operations would move K·H·W numbers of the batch through memory some ten times.

A loss returns a sum and a count, so that batches and processes share one mean, J = Σ total / Σ count, however images
are divided among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from messagenet.data import Batch
from messagenet.data.classes import VOID
from messagenet.errors import InputError, nearest
from messagenet.geometry import CellLabel, Features, interpolation_matrix, map_size, node_targets
from messagenet.models.base import Head, SegmentationModel, at_least_float32, ignore_padding
from messagenet.models.controls import UnaryEnsemble
from messagenet.settings import at_least, between, convert, register

Resolution = Literal["nodes", "pixels"]


class LossSum(NamedTuple):
    """A summed loss and the number of labelled nodes or pixels to divide it by, both scalars."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]

    @property
    def mean(self) -> Tensor:
        """The loss of a node or pixel; 0 where nothing is labelled."""
        return self.total / self.count.clamp(min=1)


class Loss(Protocol):
    """What a training minimises."""

    def __call__(self, model: SegmentationModel, batch: Batch) -> LossSum:
        """The loss of a batch, as a sum and a count."""
        ...


@register("loss", "cross_entropy")
class CrossEntropy:
    """Cross-entropy of the marginals.

    Args:
        resolution: Where marginals meet the target: at the "nodes", or at the "pixels" after upsampling.
        cell_label: Which label a node has: of its cell's "centre", or the "majority" of its cell.
        label_smoothing: Probability mass of the target that is spread uniformly over all classes.
        iteration_weights: Weights of the beliefs after each iteration but the last, which has weight 1; with
            head.initial=unary the initial beliefs come first. One number stands for all; [] for the last one only.
    """

    def __init__(
        self,
        *,
        resolution: Resolution = "nodes",
        cell_label: CellLabel = "centre",
        label_smoothing: float = 0.0,
        iteration_weights: Sequence[float] = (),
    ) -> None:
        between(0, 1, label_smoothing=label_smoothing)
        at_least(0, **{f"iteration_weights[{t}]": weight for t, weight in enumerate(iteration_weights)})
        if resolution == "pixels" and cell_label != "centre":
            raise InputError("cell_label is for a loss at the nodes; set resolution=nodes, or leave it out")
        self.options = {
            "resolution": convert(resolution, Resolution, "resolution"),
            "cell_label": convert(cell_label, CellLabel, "cell_label"),
            "label_smoothing": label_smoothing,
        }
        self.iteration_weights = tuple(iteration_weights)

    def __call__(self, model: SegmentationModel, batch: Batch) -> LossSum:
        """The loss of a batch, as a sum and a count."""
        features, target = batch_features(model, batch)
        size = (target.shape[1], target.shape[2])
        context = {"size": size, "sizes": batch.sizes, "images": batch.images}
        if not self.iteration_weights:
            return self._loss(*model.forward_train(features, **context), target, batch.sizes)
        steps = model.forward_iterations(features, **context)
        weights = belief_weights(self.iteration_weights, len(steps) - 1)
        losses = [self._loss(logits, model.output_stride, target, batch.sizes) for logits in steps]
        total = torch.stack([w * loss.total for w, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)
        return LossSum(total, losses[-1].count)

    def _loss(self, logits: Tensor, stride: float, target: Tensor, sizes: Tensor | None) -> LossSum:
        options: dict[str, Any] = self.options
        return marginal_cross_entropy(logits, target, stride, sizes=sizes, **options)


def belief_weights(given: Sequence[float], earlier: int) -> tuple[float, ...]:
    """Weights of the beliefs after each iteration, of which `earlier` come before the last.

    >>> belief_weights([0.3], 2)
    (0.3, 0.3, 1.0)
    """
    if given and not earlier:
        raise InputError(
            "iteration_weights are for the beliefs before the last; set iteration_weights=[], or, in the head, "
            "iterations=2 or initial=unary"
        )
    if len(given) not in (1, earlier):
        raise InputError(f"{len(given)} iteration_weights for {earlier} earlier beliefs; give as many, or one for all")
    return (*(tuple(given) * earlier if len(given) == 1 else given), 1.0)


class NodeLoss:
    """A loss of one kind of head, at the nodes.

    Args:
        cell_label: Which label a node has: of its cell's "centre", or the "majority" of its cell.
    """

    heads: ClassVar[tuple[str, ...]] = ()
    head_class: ClassVar[type[Head]] = Head

    def __init__(self, *, cell_label: CellLabel = "centre") -> None:
        self.cell_label: CellLabel = convert(cell_label, CellLabel, "cell_label")

    def __call__(self, model: SegmentationModel, batch: Batch) -> LossSum:
        """The loss of a batch, as a sum and a count."""
        if not isinstance(model.head, self.head_class):
            name = type(self).__name__
            raise InputError(f"{name} cannot train this head; choose the head {self.heads[0]}, or another loss")
        features, target = batch_features(model, batch)
        mask = model.node_mask(features, batch.sizes)
        labels = node_targets(target, map_size(features), model.feature_stride, self.cell_label, batch.sizes)
        return self.on_features(model.head, model.forward_neck(features, mask), labels, mask, batch.ids)

    def on_features(
        self, head: Any, features: Features, labels: Tensor, mask: Tensor | None = None, ids: Sequence[str] = ()
    ) -> LossSum:
        """The loss of a head on its features, (B, r, h, w) or one such map for each factor type.

        `labels` are the nodes' classes, 255 for void, `mask` is 0 at padding, both (B, h, w); `ids` are of the images.
        """
        raise NotImplementedError


@register("loss", "member_cross_entropy")
class MemberCrossEntropy(NodeLoss):
    """Mean cross-entropy of the members of an ensemble at the nodes, each trained by itself."""

    heads, head_class = ("ensemble",), UnaryEnsemble

    def on_features(
        self, head: Any, features: Features, labels: Tensor, mask: Tensor | None = None, ids: Sequence[str] = ()
    ) -> LossSum:
        """See `NodeLoss.on_features`."""
        labels = ignore_padding(labels, mask)
        losses = [cross_entropy_sum(logits, labels) for logits in head.member_logits(features, mask)]
        return LossSum(torch.stack([loss.total for loss in losses]).mean(), losses[0].count)


def batch_features(model: SegmentationModel, batch: Batch) -> tuple[Features, Tensor]:
    """The features of a batch, computed if it holds images, and its target at the pixels."""
    if batch.target is None:
        raise InputError("the batch has no target to learn from; use a split with masks")
    if batch.features is not None:
        return batch.features, batch.target
    if batch.images is None:
        raise InputError("the batch has neither images nor features; give one of them")
    return model.forward_features(batch.images), batch.target


def marginal_cross_entropy(
    logits: Tensor,  # sums of messages, (B, K, h, w)
    target: Tensor,  # labels of the pixels, (B, H, W), 255 for void
    stride: float,  # pixels per node
    *,
    resolution: Resolution = "nodes",
    cell_label: CellLabel = "centre",
    label_smoothing: float = 0.0,
    sizes: Tensor | None = None,  # height and width of each image in pixels, (B, 2), where smaller ones were padded
) -> LossSum:
    """The loss of node logits over labelled nodes or pixels."""
    logits = at_least_float32(logits)
    if resolution == "nodes":
        target = node_targets(target, map_size(logits), stride, cell_label, sizes)
        total = functional.cross_entropy(
            logits, target, ignore_index=VOID, reduction="sum", label_smoothing=label_smoothing
        )
    elif resolution == "pixels":
        arguments = (logits, target, stride, label_smoothing, sizes)
        total = _PixelCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    else:
        raise InputError(f"unknown resolution {resolution!r}; {nearest(resolution, get_args(Resolution))}")
    return LossSum(total, (target != VOID).sum())


def cross_entropy_sum(logits: Tensor, target: Tensor) -> LossSum:
    """− Σ_p log softmax(logits_p)[ŷ_p] over the labelled nodes, from logits (…, K) and targets (…).

    >>> cross_entropy_sum(torch.zeros(3, 2), torch.tensor([0, 1, 255]))
    LossSum(total=tensor(1.3863), count=tensor(2))
    """
    rows = at_least_float32(logits).flatten(0, -2)
    total = functional.cross_entropy(rows, target.flatten(), ignore_index=VOID, reduction="sum")
    return LossSum(total, (target != VOID).sum())


def sum_losses(losses: Iterable[LossSum]) -> LossSum:
    """The loss of several batches together."""
    totals, counts = zip(*losses, strict=True)
    return LossSum(torch.stack(totals).sum(), torch.stack(counts).sum())


class _PixelCrossEntropy(torch.autograd.Function):
    """− Σ log softmax(upsample(logits))[ŷ] over the labelled pixels, a scalar; arguments as above."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, stride: float, label_smoothing: float, sizes: Tensor | None
    ) -> Tensor:
        whole = [list(target.shape[1:])] * len(target)
        total = logits.new_zeros(())
        gradient = torch.zeros_like(logits) if ctx.needs_input_grad[0] else None
        matrices: dict[tuple[int, int], Tensor] = {}
        for index, size in enumerate(whole if sizes is None else sizes.tolist()):
            for axis in (0, 1):
                if (axis, size[axis]) not in matrices:
                    nodes, pixels = logits.shape[2 + axis], size[axis]
                    if pixels < target.shape[1 + axis]:  # an image that was padded
                        nodes = min(math.ceil(pixels / stride), nodes)
                    matrices[axis, pixels] = interpolation_matrix(nodes, pixels, stride, logits)
            down, across = matrices[0, size[0]], matrices[1, size[1]]  # (H, h), (W, w)
            window = (index, slice(None), slice(down.shape[1]), slice(across.shape[1]))
            up = down @ logits[window] @ across.T  # (K, H, W)
            total += _loss_into_gradient(up, target[index, : size[0], : size[1]], label_smoothing)
            if gradient is not None:
                gradient[window] = down.T @ up @ across
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (None if gradient is None else gradient * upstream), None, None, None, None


def _loss_into_gradient(logits: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Returns the loss of one image (K, H, W) and overwrites the logits with its gradient."""
    labelled = target != VOID
    index = torch.where(labelled, target, 0)[None]  # (1, H, W)
    logits -= logits.amax(0)
    chosen = logits.gather(0, index)[0]
    mean = logits.mean(0) if label_smoothing else None
    partition = logits.exp_().sum(0)
    loss = partition.log() - (1 - label_smoothing) * chosen
    if mean is not None:
        loss -= label_smoothing * mean
    logits /= partition
    logits.scatter_add_(0, index, logits.new_full((), label_smoothing - 1).expand_as(index))
    if mean is not None:
        logits -= label_smoothing / logits.shape[0]
    logits *= labelled
    return torch.where(labelled, loss, 0).sum()
