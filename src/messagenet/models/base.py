"""What all networks have in common: images in, logits at the nodes out, a loss, and a folder to be saved in.

    image ─ backbone (C1) ─ features ─ [neck] ─ head ─ logits at the nodes ─ upsampled ─ P(y | x) at the pixels

A network is a backbone and a head (`heads`). Most are trained with the cross-entropy of their marginals; a head with
an objective of its own is trained with that. Those that are more than a head on one feature map (`fcn8s`,
`dense_nets`) override `forward` and `loss`, and nothing outside this package needs to know.

What a head is: the part of a network between the feature map and the beliefs.

Every system of the comparison is a backbone and a head, and a head is any module with

    forward(features, valid)        logits of the marginals at the nodes: what it predicts
    loss(features, labels, valid)   a sum and a count: what it is trained with

A head without an objective of its own is trained with the cross-entropy of its marginals. Neither may depend
on padding: a map that was padded to the size of others gets the same logits and the same loss as alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.data.classes import VOID, Classes, as_classes
from messagenet.errors import InputError, nearest
from messagenet.geometry import CellLabel, node_labels
from messagenet.graph import Relation
from messagenet.losses.cross_entropy import (
    Loss,
    Resolution,
    cross_entropy_total,
    marginal_cross_entropy,
    upsample,
)
from messagenet.models import saving
from messagenet.models.backbones import IMAGENET_MEAN, IMAGENET_STD, build_backbone, check_backbone
from messagenet.models.neck import build_neck

Features = Tensor | dict[str, Tensor]


class SegmentationNet(nn.Module):
    """A segmentation network; subclasses set `head`.

    Args:
        backbone: Name of a backbone ("vgg16", "efficientnet_lite0", 1 or 2, "tiny"), or any module that turns
            normalised images into a feature map and has `channels` and `stride`.
        classes: What the labels mean: a class list, their names, or how many there are.
        relations: Which neighbours the head joins.
        settings: All other arguments of the subclass, for `save`.
        backbone_options: Options of a backbone given by name.
        separate: Factor types with a backbone of their own; none for one backbone that all share.
        neck: What stands between backbone and head, such as {"width": 128, "filters": 2} (see `neck`), if anything.
        void_values: Values of the masks it learns from, besides 255, that mean "not labelled": remembered for
            those who score it.

    Attributes:
        stride: Image pixels per node of what `forward` returns.
        feature_stride: Image pixels per node of the feature map.
        settings: What `save` writes, and what the network can be built from again.
        longest_side: The pictures it is for: prediction reduces larger ones to so many pixels. None for any size.
    """

    options: ClassVar[tuple[str, ...]] = ()
    """Settings that a configuration may give, by the name of the argument."""

    uses_relations: ClassVar[bool] = True
    """Whether it is built from relations."""

    own_objective: ClassVar[bool] = False
    """Whether the head is trained with an objective of its own, which is at the nodes."""

    learns_from_features: ClassVar[bool] = True
    """Whether the feature map is all that the loss needs, so that training can keep it instead of the image."""

    decides_from_features: ClassVar[bool] = True
    """Whether it is all that the logits need."""

    adjustable: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    """Settings that training does not learn, and values to try for them on held-out images: see `adjust`."""

    head: nn.Module

    def __init__(
        self,
        backbone: str | nn.Module,
        classes: Classes | Sequence[str] | int,
        relations: Sequence[Relation] = (),
        *,
        settings: Mapping[str, Any],
        backbone_options: Mapping[str, Any] | None = None,
        separate: Sequence[str] = (),
        neck: Mapping[str, Any] | None = None,
        void_values: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if relations and not self.uses_relations:
            raise InputError(f"a {type(self).__name__} has no relations; use MessageNet")
        self.classes = as_classes(classes)
        self.relations = tuple(relations)
        self.void_values = tuple(void_values)
        self.longest_side: int | None = None
        self.settings: dict[str, Any] = {
            "backbone": backbone if isinstance(backbone, str) else None,
            "backbone_options": dict(backbone_options or {}),
            **({"neck": dict(neck)} if neck else {}),
            **settings,
        }
        names = tuple(separate) or ("shared",)
        self.backbones = nn.ModuleDict({name: self._backbone(backbone, len(names)) for name in names})
        self.neck = build_neck(self.channels, neck) if neck else None
        if self.neck is not None and separate:
            raise InputError("a neck needs features that all factors share; set separate_features=false")
        self.feature_stride = self.stride = self._map_stride()
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def _backbone(self, backbone: str | nn.Module, copies: int) -> nn.Module:
        if isinstance(backbone, str):
            return build_backbone(backbone, **self.settings["backbone_options"])
        check_backbone(backbone)
        if copies > 1 or self.settings["backbone_options"]:
            raise InputError(
                "a backbone given as a module can be neither copied for separate_features nor changed by "
                "backbone_options; give its name instead"
            )
        return backbone

    def _map_stride(self) -> float:
        return float(self._first.stride)

    @property
    def _first(self) -> Any:
        return next(iter(self.backbones.values()))

    @property
    def channels(self) -> int:
        """r, channels of the feature map."""
        return int(self._first.channels)

    @property
    def head_channels(self) -> int:
        """Channels of what the head sees: of the feature map, or of the neck."""
        return self.channels if self.neck is None else self.neck.channels

    @property
    def outputs_per_factor(self) -> int:
        """How many numbers a network computes for a factor: K of a message or of a node's class."""
        return self.classes.num_classes

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def features(self, images: Tensor) -> Features:
        """C1: the feature map (B, r, h, w) of images (B, 3, H, W) in 0..1, or one for each factor type.

        Images are extended below and on the right to a whole number of cells, with the mean colour. `told` is what
        the head makes of them.
        """
        normalised = self.normalised(images)
        if self.feature_stride == int(self.feature_stride):
            down, across = (-side % int(self.feature_stride) for side in images.shape[2:])
            normalised = functional.pad(normalised, (0, across, 0, down))
        maps: dict[str, Tensor] = {name: each(normalised) for name, each in self.backbones.items()}
        return maps.get("shared", maps)

    def normalised(self, images: Tensor) -> Tensor:
        """The images as backbones see them, checked."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(
                f"images have shape {tuple(images.shape)}; give RGB as (batch, 3, height, width)"
            )
        if not images.is_floating_point():
            raise InputError(
                f"images are {images.dtype}; give numbers from 0 to 1, such as images.float() / 255"
            )
        return (images - self.get_buffer("mean")) / self.get_buffer("std")

    def node_valid(self, valid: Tensor, size: tuple[int, int]) -> Tensor:
        """Which nodes see any pixel of the image, (B, h, w), from such flags for pixels (B, H, W)."""
        rows, columns = (
            (torch.arange(nodes, device=valid.device) * self.feature_stride).long().clamp(max=pixels - 1)
            for nodes, pixels in zip(size, valid.shape[1:], strict=True)
        )
        return valid[:, rows[:, None], columns[None, :]]

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals at the nodes, (B, K, h, w).

        Args:
            images: RGB in 0..1, (B, 3, H, W).
            valid: Which pixels are image and not padding, (B, H, W).
        """
        return self.logits_of(images, self.features(images), valid)

    def logits_of(self, images: Tensor, features: Features, valid: Tensor | None = None) -> Tensor:
        """The same, from images whose features are known."""
        return self.decided(features, self._existing(features, valid))

    def decided(self, features: Features, valid: Tensor | None = None) -> Tensor:
        """Logits at the nodes, (B, K, h, w), from the feature map; `valid` says which nodes exist, (B, h, w)."""
        logits: Tensor = self.head(self.told(features, valid), valid)
        return logits

    def told(self, features: Features, valid: Tensor | None = None) -> Features:
        """What the head is told: the feature map, through the neck if there is one."""
        if self.neck is None:
            return features
        assert isinstance(features, Tensor), "refused with separate features"
        through: Tensor = self.neck(features, valid)
        return through

    def _seen(self, images: Tensor, valid: Tensor | None) -> tuple[Features, Tensor | None]:
        """The features, and which nodes exist."""
        features = self.features(images)
        return features, self._existing(features, valid)

    def _existing(self, features: Features, valid: Tensor | None) -> Tensor | None:
        """Which nodes exist, from such flags for pixels."""
        return None if valid is None else self.node_valid(valid, map_size(features))

    def pixel_logits(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits at the pixels, (B, K, H, W), upsampled from the nodes."""
        return upsample(self(images, valid), (images.shape[2], images.shape[3]), self.stride)

    def marginals(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """P(y | x) at the pixels, (B, K, H, W)."""
        return torch.softmax(self.pixel_logits(images, valid), 1)

    def loss(
        self,
        inputs: Features,
        truth: Tensor,
        valid: Tensor | None = None,
        *,
        are_features: bool = False,
        resolution: Resolution = "nodes",
        cell_label: CellLabel = "centre",
        label_smoothing: float = 0.0,
        names: Sequence[str] = (),
    ) -> Loss:
        """What training minimises, as a sum and a count.

        Args:
            inputs: Images (B, 3, H, W), or their features, one map (B, r, h, w) or one by factor type.
            truth: Labels of pixels (B, H, W); with features and a loss at the nodes, of nodes (B, h, w).
            valid: Which pixels, or with features which nodes, are not padding.
            are_features: Whether the inputs are features.
            resolution: Where marginals meet the truth; an objective of the head's own is always at the nodes.
            cell_label: How a node's label comes from its cell.
            label_smoothing: Share of the truth spread evenly over all classes, for cross-entropy.
            names: What the images are called, for objectives that remember them.
        """
        if self.own_objective:
            assert resolution == "nodes", "refused by the configuration"
            assert not label_smoothing, "refused by the configuration"
            features, valid = (inputs, valid) if are_features else self._seen(_images(inputs), valid)
            if not are_features:
                truth = node_labels(truth, map_size(features), self.feature_stride, cell_label)
            return self.own_loss(self.told(features, valid), truth, valid, names)
        logits = self.decided(inputs, valid) if are_features else self.judged_logits(_images(inputs), valid)
        stride = self.judged_stride
        if resolution == "nodes" and not are_features:
            truth = node_labels(truth, map_size(logits), stride, cell_label)
        return marginal_total(logits, truth, stride, resolution, label_smoothing)

    def judged_logits(self, images: Tensor, valid: Tensor | None) -> Tensor:
        """The logits that cross-entropy compares with the truth, (B, K, h, w), every `judged_stride` pixels."""
        logits: Tensor = self(images, valid)
        return logits

    @property
    def judged_stride(self) -> float:
        """Pixels per node of `judged_logits`."""
        return self.stride

    def own_loss(self, features: Features, truth: Tensor, valid: Tensor | None, names: Sequence[str]) -> Loss:
        """The objective of a head that has one, at the nodes, from what it is told."""
        own: Loss = self.head.loss(features, truth, valid)  # type: ignore[operator]
        return own

    @classmethod
    def upgraded(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a saved model of this kind as this version has them; see also `upgrades`."""
        return dict(settings)

    def trust_features(self) -> None:
        """Leaves out the search for NaN, which waits for the device, in every part that does it."""
        for module in self.modules():
            if hasattr(module, "check_finite"):
                setattr(module, "check_finite", False)  # noqa: B010 (no attribute of all modules)

    def adjust(self, **values: float) -> None:
        """Changes settings that training does not learn; `save` writes the new ones.

        Args:
            **values: Some of `adjustable`.
        """
        self.check_adjustable(values)
        self.settings |= values

    def check_adjustable(self, names: Iterable[str]) -> None:
        """Refuses settings that cannot be adjusted."""
        for name in names:
            if name not in self.adjustable:
                raise InputError(
                    f"a {type(self).__name__} has no setting {name!r} to adjust; {nearest(name, self.adjustable)}"
                )

    def save(self, folder: str | Path, *, half: bool = False) -> Path:
        """Writes `model.safetensors` and `config.json`; `from_pretrained` reads back the same model.

        Args:
            folder: Where to.
            half: Round parameters to 16 bits in the file, which is half as large then; they are read as float32.
        """
        return saving.save_model(self, folder, half)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path | None = None, backbone: nn.Module | None = None
    ) -> SegmentationNet:
        """Reads a saved model of any kind, ready for prediction.

        Args:
            folder: Where it was saved, or the name of a model in the box; that for animals unless told.
            backbone: Needed only if it was not built by name.
        """
        from messagenet.models.kinds import NETWORKS

        return saving.load_model(folder, NETWORKS, backbone)


def marginal_total(
    logits: Tensor, truth: Tensor, stride: float, resolution: Resolution, label_smoothing: float = 0.0
) -> Loss:
    """The summed cross-entropy of node logits (B, K, h, w) with labels of nodes or, upsampled, of pixels."""
    mean = marginal_cross_entropy(
        logits,
        truth,
        stride if resolution == "pixels" else 1.0,
        resolution=resolution,
        label_smoothing=label_smoothing,
    )
    nodes = (truth != VOID).sum()
    return Loss(mean * nodes, nodes)


def map_size(features: Features) -> tuple[int, int]:
    """(h, w) of a map, or of several of one size."""
    some = features if isinstance(features, Tensor) else next(iter(features.values()))
    return some.shape[2], some.shape[3]


def _images(inputs: Features) -> Tensor:
    assert isinstance(inputs, Tensor), "images are one tensor"
    return inputs


class Head(Protocol):
    """The shape of a head, for type checkers."""

    def __call__(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals, (B, K, h, w); 0 at nodes that are not valid.

        Args:
            features: The feature map, (B, r, h, w).
            valid: Which nodes exist, (B, h, w), where maps of several sizes were padded to one.
        """
        ...

    def loss(self, features: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
        """What training minimises.

        Args:
            features: The feature map, (B, r, h, w).
            labels: Classes of the nodes and 255 for void, (B, h, w).
            valid: Which nodes exist, (B, h, w).
        """
        ...


class MarginalHead(nn.Module):
    """A head that is trained with the cross-entropy of its own marginals.

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.

    Attributes:
        check_finite: Refuse features with NaN or infinity.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        check_sizes(in_channels, num_classes)
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.check_finite = True

    def loss(self, features: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
        """− Σ_p log P(ŷ_p | x) over the labelled nodes, and their number."""
        return marginal_loss(self(features, valid), labels, valid)

    def nodes(self, features: Tensor) -> Tensor:
        """The features, checked, channels last: (B, h, w, r)."""
        return checked(features, self.in_channels, self.check_finite).permute(0, 2, 3, 1)


def marginal_loss(logits: Tensor, labels: Tensor, valid: Tensor | None = None) -> Loss:
    """The summed cross-entropy of logits (B, K, h, w) and the number of labelled nodes.

    >>> marginal_loss(torch.zeros(1, 2, 1, 3), torch.tensor([[[0, 1, 255]]])).mean
    tensor(0.6931)
    """
    return cross_entropy_total(logits.permute(0, 2, 3, 1), known(labels, valid))


def known(labels: Tensor, valid: Tensor | None) -> Tensor:
    """The labels, void where there is no node."""
    return labels if valid is None else torch.where(valid.bool(), labels, VOID)


def heard(values: Tensor, valid: Tensor | None) -> Tensor:
    """Maps (B, C, h, w) with 0 where there is no node."""
    return values if valid is None else torch.where(valid.bool()[:, None], values, 0)


def check_sizes(in_channels: int, num_classes: int) -> None:
    """Refuses a head that could not classify anything."""
    if type(in_channels) is not int or in_channels < 1:
        raise InputError(f"in_channels is {in_channels!r}; give the number of channels of the feature map")
    if type(num_classes) is not int or num_classes < 2:
        raise InputError(f"num_classes is {num_classes!r}; a labelling needs at least 2 classes")


def checked(features: Tensor, in_channels: int, check_finite: bool = True) -> Tensor:
    """The feature map, if it is one that a head for so many channels can take."""
    if features.ndim != 4 or features.shape[1] != in_channels:
        raise InputError(
            f"features have shape {tuple(features.shape)}; this head takes (batch, {in_channels}, height, width)"
        )
    if check_finite and not torch.compiler.is_compiling() and not bool(torch.isfinite(features).all()):
        raise InputError(
            "features contain NaN or infinity; look for a diverged backbone (lower the learning rate) or a bad "
            "input image"
        )
    return features
