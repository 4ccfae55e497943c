"""Every system of the library in a small size, and batches of padded maps; a new system is one line of `SYSTEMS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from messagenet.data import Batch
from messagenet.losses import CrossEntropy, Likelihood, MemberCrossEntropy, Piecewise, PseudoLikelihood
from messagenet.models import SegmentationModel
from messagenet.settings import build

VOID = 255
CLASSES = 3
SIZES = ((33, 45), (40, 28), (17, 22), (33, 45))
PAPER = ["surrounding:0.4", "above:0.4", "below:0.4"]
TINY = {"kind": "tiny", "width": 5}
LITE = {"kind": "efficientnet_lite0"}


def build_backbone(kind: str, **values: Any) -> Any:
    """A backbone by its kind and options."""
    return build("backbone", {"kind": kind, **values})


@dataclass(frozen=True)
class System:
    """What to build: settings of a model."""

    head: dict[str, Any]
    backbone: dict[str, Any] | None = None
    neck: dict[str, Any] | None = None
    separate_features: bool = False

    def build(self, seed: int = 0) -> SegmentationModel:
        """The model in double precision, ready for prediction, with random values everywhere."""
        torch.manual_seed(seed)
        model = SegmentationModel(
            self.backbone or TINY, CLASSES, self.head, neck=self.neck, separate_features=self.separate_features
        )
        for parameter in model.head.parameters():
            nn.init.normal_(parameter, std=0.5)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2)
        return model.double().eval()


MESSAGE = {"kind": "message", "relations": PAPER, "hidden": 6}
CRF = {"kind": "crf", "relations": PAPER, "hidden": 6}
KERNELS = {"bilateral_position": 6.0, "spatial_position": 2.0}
SYSTEMS = {
    "message": System(MESSAGE),
    "message, T = 2, cavity": System({**MESSAGE, "iterations": 2, "aggregation": "sum"}),
    "message, T = 2, untied, no cavity": System(
        {**MESSAGE, "iterations": 2, "tied": False, "cavity": "none", "initial": "unary"}
    ),
    "message, T = 2, gate": System({**MESSAGE, "iterations": 2, "dependent": "gate", "initial": "unary"}),
    "message, boxes": System({**MESSAGE, "relations": ["surrounding:0.4:box"], "iterations": 2}),
    "message, neck": System(MESSAGE, neck={"kind": "separable", "width": 4, "filters": 2}),
    "message, separate features": System(MESSAGE, separate_features=True),
    "unary": System({"kind": "unary", "hidden": 6}),
    "crf": System(CRF),
    "crf, separate features": System(CRF, separate_features=True),
    "crf, belief propagation": System({**CRF, "inference": "belief_propagation", "neighbours": "all"}),
    "deeplab_crf": System({"kind": "deeplab_crf", "hidden": 6, **KERNELS}),
    "crf_rnn": System({"kind": "crf_rnn", "hidden": 6, **KERNELS}),
    "crf_rnn, cells of 2 pixels": System({"kind": "crf_rnn", "hidden": 6, "working_stride": 2, **KERNELS}),
    "inference_machine": System({"kind": "inference_machine"}),
    "inference_machine, untied, mean field": System(
        {"kind": "inference_machine", "tied": False, "cavity": "none", "position": False}
    ),
    "ensemble": System({"kind": "ensemble", "hidden": 32}),
    "convolution": System({"kind": "convolution", "hidden": 32}),
    "dilated": System({"kind": "convolution", "hidden": 74, "dilations": [1, 2, 4]}),
    "pyramid_pooling": System({"kind": "pyramid_pooling", "width": 8, "hidden": 6}),
    "aspp": System({"kind": "aspp", "width": 5, "hidden": 6, "rates": [1, 3]}),
    "attention": System({"kind": "attention", "width": 6, "hidden": 6}),
    "transformer": System({"kind": "attention", "width": 8, "hidden": 6, "layers": 2, "feed_forward": True}),
    "fcn8s": System({"kind": "fcn8s"}, LITE),
    "deconvnet": System({"kind": "deconvnet"}, LITE),
}
LOSSES = {
    "cross_entropy": lambda: CrossEntropy(),
    "cross_entropy, majority": lambda: CrossEntropy(cell_label="majority", label_smoothing=0.1),
    "cross_entropy, every iteration": lambda: CrossEntropy(iteration_weights=[0.3]),
    "cross_entropy, pixels": lambda: CrossEntropy(resolution="pixels", label_smoothing=0.1),
    "member_cross_entropy": lambda: MemberCrossEntropy(),
    "piecewise": lambda: Piecewise(cell_label="majority"),
    "pseudo_likelihood": lambda: PseudoLikelihood(),
    "likelihood": lambda: Likelihood(iterations=3),
}


def fits(loss: str, system: str) -> bool:
    """Whether a loss trains the head of a system."""
    if "every iteration" in loss:
        return SYSTEMS[system].head["kind"] == "message" and SYSTEMS[system].head.get("iterations", 1) > 1
    heads = getattr(LOSSES[loss](), "heads", None)
    return heads is None or SYSTEMS[system].head["kind"] in heads


TRAININGS = [(system, loss) for system in SYSTEMS for loss in LOSSES if fits(loss, system)]


def random_batch(sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[Batch]:
    """One batch for each image, of random pixels and labels, some of them void."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for index, size in enumerate(sizes):
        images = torch.rand(1, 3, *size, dtype=torch.float64, generator=generator)
        target = torch.randint(0, CLASSES, (1, *size), generator=generator)
        target[:, torch.randint(0, size[0], (5,), generator=generator)] = VOID
        batches.append(Batch(images, None, target, torch.tensor([size]), (f"image {index}",)))
    return batches


def with_features(model: SegmentationModel, batch: Batch) -> Batch:
    """The batch with features instead of images, which stay only where the model needs them."""
    assert batch.images is not None
    with torch.no_grad():
        features = model.forward_features(batch.images)
    return batch._replace(features=features, images=batch.images if model.needs_images else None)


def pad_together(batches: Sequence[Batch], fill: float = torch.nan) -> Batch:
    """One batch of several, smaller maps and images padded with a value that nothing may read."""
    images: Any = None
    if batches[0].images is not None:
        images = _padded([batch.images for batch in batches], 0.5)
    first = batches[0].features
    if isinstance(first, dict):
        features: Any = {name: _padded([batch.features[name] for batch in batches], fill) for name in first}
    else:
        features = None if first is None else _padded([batch.features for batch in batches], fill)
    target = _padded([batch.target for batch in batches], VOID)
    sizes = torch.cat([batch.sizes for batch in batches])
    return Batch(images, features, target, sizes, tuple(name for batch in batches for name in batch.ids))


def _padded(maps: Sequence[Any], fill: float) -> Tensor:
    height, width = (max(each.shape[axis] for each in maps) for axis in (-2, -1))
    whole = maps[0].new_full((len(maps), *maps[0].shape[1:-2], height, width), fill)
    for index, each in enumerate(maps):
        whole[index, ..., : each.shape[-2], : each.shape[-1]] = each[0]
    return whole


def batch_logits(model: SegmentationModel, batch: Batch) -> Tensor:
    """Logits of a batch of features."""
    assert batch.features is not None
    assert batch.target is not None
    size = (batch.target.shape[1], batch.target.shape[2])
    return model.forward_head(batch.features, size=size, sizes=batch.sizes, images=batch.images)
