"""A segmentation model: features, neck, head.

    image ─ forward_features ─ f ─ forward_neck ─ z ─ head ─ logits at the nodes ─ upsampled ─ P(y | x) at the pixels
            normalise, pad,        optional           messages, or the head that is compared with them
            backbone (C1)          convolutions

All systems are this class with another head. A loss is a separate object, called with a model and a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.data.classes import VOC_CLASSES, VOID, Classes, as_classes
from messagenet.data.dataset import check_void_values
from messagenet.data.images import IMAGENET_MEAN
from messagenet.errors import InputError, nearest
from messagenet.geometry import Features, map_size, node_mask, upsample
from messagenet.graph import Relation
from messagenet.message_passing import MessagePassing
from messagenet.models.backbones import IMAGENET_STD, Backbone, as_levels, level_maps, level_spec
from messagenet.models.backbones.base import positive_integer
from messagenet.models.backbones.efficientnet_lite import ConvolutionNorm, InvertedResidual
from messagenet.settings import KIND, Spec, between, build, component, convert, find, register

NECK_KERNEL = 5
SHARED = "shared"  # name of the backbone that all factor types share
Purpose = Literal["loss", "prediction"]
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class InputSpec:
    """What a model is for; saved with it.

    Attributes:
        classes: What its labels mean.
        void_values: Mask values, besides 255, that meant "not labelled" in training.
        longest_side: Larger images are reduced to this many pixels before prediction; None for any size.
        precision: Of backbone and neck in prediction on a CPU: "float32"; or "bf16", which falls back to float32 on a
            processor without instructions for it.
        mean, std: Of the values (in 0..1) that images are normalised with, one for each channel of an image.
    """

    classes: Classes
    void_values: tuple[int, ...] = ()
    longest_side: int | None = None
    precision: Precision = "float32"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        check_void_values(self.void_values)
        side = self.longest_side
        if side is not None and (type(side) is not int or side < 1):
            raise InputError(f"longest_side is {side!r}; give a number of pixels")
        convert(self.precision, Precision, "precision")
        if not len(self.mean) == len(self.std) > 0:
            raise InputError(f"mean and std have {len(self.mean)} and {len(self.std)} values; give one per channel")

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return len(self.mean)


class Head(nn.Module):
    """Base class of heads: the part of a model between features and beliefs.

    `forward(features, mask=None)` maps features (B, r, h, w) to logits of the marginals (B, K, h, w). `mask`, (B, h, w)
    bool, says which nodes of a padded map exist. Padding does not change their logits; all other logits are 0.

    Args:
        in_channels: r, channels of the feature map.
        num_classes: K.

    Attributes:
        check_finite: Refuse features with NaN or infinity.
        context: Further keyword arguments of `forward`: "size", "sizes", "images", as in `forward_head` of a model.
        needs_images: The purposes for which features alone do not suffice.
        takes_neck: Whether a neck can stand before the head.
        level_strides: Strides of the levels that it reads instead of one map; `in_channels` then lists their channels.
        tunable: Settings that training does not learn, and values to try for them on held-out images.
    """

    context: ClassVar[tuple[str, ...]] = ()
    needs_images: ClassVar[frozenset[Purpose]] = frozenset()
    takes_neck: ClassVar[bool] = True
    level_strides: ClassVar[tuple[int, ...]] = ()
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    config: dict[str, Any]

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        check_sizes(in_channels, num_classes)
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.check_finite = True

    @property
    def outputs_per_factor(self) -> int:
        """Outputs computed for a factor: K, of a message or of a node's class."""
        return self.num_classes

    def output_stride(self, feature_stride: float) -> float:
        """Pixels per node of the logits, from those of the feature map."""
        return feature_stride

    def channels_last(self, features: Tensor) -> Tensor:
        """The features, checked, as (B, h, w, r)."""
        return check_features(features, self.in_channels, self.check_finite).permute(0, 2, 3, 1)


def head_trait(head: Any, name: str) -> Any:
    """An attribute of a head or its class, as `Head` explains it; other modules have the default, or None."""
    known = issubclass(head if inspect.isclass(head) else type(head), Head | MessagePassing)
    return getattr(head if known else Head, name, getattr(Head, name, None))


@register("neck", "separable")
class Neck(nn.Module):
    """Optional layers between backbone and head: a norm, dropout, a projection, separable filters.

        features (B, r, h, w) ─ [norm] ─ [dropout] ─ [k×k, norm, ReLU] ─ [5×5 depthwise, 1×1, residual] × filters ─ head

    The filters sharpen what interpolation and large cells have blurred. Feature caches hold the map before the neck.

    >>> Neck(40, width=16, filters=1)(torch.randn(2, 40, 6, 7)).shape
    torch.Size([2, 16, 6, 7])

    Args:
        in_channels: r, channels of the backbone's map.
        width: Channels of the result; null for those of the backbone, without a projection.
        filters: How many separable 5×5 filters.
        kernel: Side of the projection's kernel, an odd number.
        normalise: Standardise each channel first: for the features of a frozen backbone, whose scales differ.
        dropout: Probability of dropping each feature channel of an image in training (Tompson et al., arXiv
            1411.4280). Against overfitting, above all of a head on a frozen backbone; try 0.1 to 0.5.
    """

    def __init__(
        self,
        in_channels: int,
        width: int | None = None,
        filters: int = 0,
        *,
        kernel: int = 1,
        normalise: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if type(filters) is not int or filters < 0:
            raise InputError(f"a neck's filters must be a whole number from 0, not {filters!r}")
        if type(kernel) is not int or kernel < 1 or kernel % 2 == 0 or (width is None and kernel > 1):
            raise InputError(f"a neck's kernel is {kernel!r}; give an odd number such as 3, and the width with it")
        between(0, 1, dropout=dropout)
        self.normalise = nn.BatchNorm1d(in_channels, affine=False) if normalise else None
        self.dropout = nn.Dropout2d(dropout)
        width = None if width is None else positive_integer("width", width)
        self.project = None if width is None else ConvolutionNorm(in_channels, width, kernel)
        self.channels = width or in_channels
        self.filters = nn.Sequential(
            *(InvertedResidual(self.channels, self.channels, NECK_KERNEL, residual=True) for _ in range(filters))
        )

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps (B, r, h, w) to (B, width, h, w); nodes outside the mask (B, h, w) are zero to every filter."""
        x: Tensor = self.dropout(self._normalised(features, mask))
        if self.project is not None:
            x = functional.relu(self.project(zero_padding(x, mask)))
        for block in self.filters:
            x = block(zero_padding(x, mask))
        return x

    def _normalised(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Standardised by the statistics of the nodes that exist."""
        if self.normalise is None:
            return features
        nodes = features.permute(0, 2, 3, 1)  # (B, h, w, r)
        if mask is None or not self.training:
            every: Tensor = self.normalise(nodes.flatten(0, 2)).unflatten(0, nodes.shape[:3])
            return every.permute(0, 3, 1, 2)
        values: Tensor = self.normalise(nodes[mask.bool()])
        return values.new_zeros(nodes.shape).index_put((mask.bool(),), values).permute(0, 3, 1, 2)


class SegmentationModel(nn.Module):
    """A backbone, an optional neck, and a head.

    >>> model = SegmentationModel("tiny", 3, {"kind": "unary", "hidden": 16})
    >>> model(torch.rand(1, 3, 40, 50)).shape                       # logits at the nodes, one for 4×4 pixels
    torch.Size([1, 3, 10, 13])
    >>> model.marginals(torch.rand(1, 3, 40, 50)).shape             # probabilities at the pixels
    torch.Size([1, 3, 40, 50])

    Args:
        backbone: A kind such as "efficientnet_lite0", a mapping {kind: …}, or a module with `channels` and `stride`.
        classes: What the labels mean: a class list, names, or a count; or an `InputSpec`.
        head: A kind, a mapping, or a module. A module gets the features, and the mask if its `forward` has `mask`.
        neck: A kind, a mapping, a module with `channels`, called as a head is, or nothing.
        separate_features: A backbone of its own for every factor type, as in the paper, instead of one that all share.

    Attributes:
        input: What the model is for.
        feature_stride: Pixels per node of the feature map.
        output_stride: Pixels per node of the logits.
    """

    head: Any
    neck: nn.Module | None

    def __init__(
        self,
        backbone: str | Spec | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int | InputSpec = VOC_CLASSES,
        head: str | Spec | nn.Module = "message",
        *,
        neck: str | Spec | nn.Module | None = None,
        separate_features: bool = False,
    ) -> None:
        super().__init__()
        self.input = classes if isinstance(classes, InputSpec) else InputSpec(as_classes(classes))
        kind: Any = head if isinstance(head, nn.Module) else find("head", component("head", head)[KIND])
        self._levels: tuple[int, ...] = head_trait(kind, "level_strides")
        names = _factor_types(kind, head) if separate_features else (SHARED,)
        self.backbones = nn.ModuleDict({name: self._build_backbone(backbone, len(names)) for name in names})
        self.feature_stride = float(self._levels[0] if self._levels else self._first_backbone.stride)
        self.neck = None if neck is None else self._build_neck(neck, kind, separate_features)
        self.head = self._build_head(head)
        self.output_stride: float = (
            self.head.output_stride(self.feature_stride) if isinstance(self.head, Head) else self.feature_stride
        )
        self.config: dict[str, Any] = {
            "backbone": _own_config(self._first_backbone),
            "neck": _own_config(self.neck),
            "head": _own_config(self.head),
            "separate_features": separate_features,
        }
        for name, values in (("mean", self.input.mean), ("std", self.input.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def _build_backbone(self, backbone: str | Spec | nn.Module, copies: int) -> nn.Module:
        if not isinstance(backbone, nn.Module):
            spec = level_spec(backbone) if self._levels else backbone
            module: nn.Module = build("backbone", spec, path="backbone")
        elif copies > 1:
            raise InputError("a backbone given as a module cannot be copied for separate_features; give its kind")
        else:
            module = backbone
        if self._levels:
            return as_levels(module)
        check_backbone(module)
        return module

    def _build_neck(self, neck: str | Spec | nn.Module, head: Any, separate_features: bool) -> nn.Module:
        if separate_features:
            raise InputError("a neck needs features that all factors share; set separate_features=false")
        if not head_trait(head, "takes_neck"):
            raise InputError(f"{_name(head)} takes no neck; leave it out")
        if not isinstance(neck, nn.Module):
            built: nn.Module = build("neck", neck, path="neck", in_channels=self._first_backbone.channels)
            return built
        if not isinstance(getattr(neck, "channels", None), int):
            raise InputError(
                f'the neck {type(neck).__name__} has no attribute "channels": set it to the number of channels that it '
                "returns"
            )
        return neck

    def _build_head(self, head: str | Spec | nn.Module) -> nn.Module:
        num_classes = self.input.classes.num_classes
        if isinstance(head, nn.Module):
            if head_trait(head, "num_classes") not in (None, num_classes):
                raise InputError(f"the head has {head.num_classes} classes, the model {num_classes}; give it as many")
            return head
        source: Any = self._first_backbone if self.neck is None else self.neck
        channels = level_channels(source, self._levels, self.input.channels) if self._levels else source.channels
        given = {"in_channels": channels, "num_classes": num_classes, "feature_stride": self.feature_stride}
        built: nn.Module = build("head", head, path="head", **given)
        return built

    @property
    def _first_backbone(self) -> Any:
        return next(iter(self.backbones.values()))

    @property
    def classes(self) -> Classes:
        """What the labels mean."""
        return self.input.classes

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations of the head, if it has any."""
        return tuple(head_trait(self.head, "relations") or ())

    @property
    def needs_images(self) -> frozenset[Purpose]:
        """The purposes ("loss", "prediction") for which features alone do not suffice."""
        found: frozenset[Purpose] = head_trait(self.head, "needs_images")
        return found

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Logits at the nodes, (B, K, h, w), of RGB images (B, 3, H, W) in 0..1; `sizes` as for `forward_head`."""
        features = self.forward_features(images)
        return self.forward_head(features, size=map_size(images), sizes=sizes, images=images)

    def forward_features(self, images: Tensor) -> Features:
        """C1: the feature map (B, r, h, w) of RGB images (B, 3, H, W) in 0..1, or one for each factor type or level.

        Images are padded with the mean colour, below and on the right, to a whole number of cells.
        """
        x = self.normalise(images)
        cell = self._levels[-1] if self._levels else self.feature_stride
        if cell == int(cell):
            down, across = (-side % int(cell) for side in images.shape[2:])
            x = functional.pad(x, (0, across, 0, down))
        if self._levels:
            levels = level_maps(self._first_backbone, x)
            return {str(stride): level for stride, level in zip(self._levels, levels, strict=True)}
        maps: dict[str, Tensor] = {name: backbone(x) for name, backbone in self.backbones.items()}
        return maps.get(SHARED, maps)

    def forward_neck(self, features: Features, mask: Tensor | None = None) -> Features:
        """The features that the head reads: the backbone's, through the neck if there is one; `mask` as in `Head`."""
        if self.neck is None:
            return features
        result: Features = _call_part(self.neck, features, mask)
        return result

    def forward_head(
        self,
        features: Features,
        *,
        size: tuple[int, int] | None = None,
        sizes: Tensor | None = None,
        images: Tensor | None = None,
    ) -> Tensor:
        """Neck and head: logits at the nodes, (B, K, h, w).

        Args:
            features: What `forward_features` returned.
            size: (H, W) of the images in pixels; needed by heads that read levels.
            sizes: Height and width of each image in pixels, (B, 2), where smaller ones were padded.
            images: RGB in 0..1, (B, 3, H, W); needed by dense CRFs.
        """
        logits: Tensor = self._call_head(self.head, features, size=size, sizes=sizes, images=images)
        return logits

    def forward_train(self, features: Features, **context: Any) -> tuple[Tensor, float]:
        """Logits that a loss compares with the target, and their stride; arguments as for `forward_head`."""
        if head_trait(self.head, "forward_train") is None:
            return self.forward_head(features, **context), self.output_stride
        return self._call_head(self.head.forward_train, features, **context), self.feature_stride

    def forward_iterations(self, features: Features, **context: Any) -> list[Tensor]:
        """Logits at the nodes after each iteration of a head that has several; arguments as for `forward_head`."""
        logits: list[Tensor] = self._call_head(self.head.forward_iterations, features, **context)
        return logits

    def _call_head(self, head: Any, features: Features, *, sizes: Tensor | None = None, **context: Any) -> Any:
        mask = self.node_mask(features, sizes)
        context["sizes"] = sizes
        needed = {name: context[name] for name in head_trait(head, "context")}
        return _call_part(head, self.forward_neck(features, mask), mask, **needed)

    def node_mask(self, features: Features, sizes: Tensor | None) -> Tensor | None:
        """Which nodes of a padded feature map exist, (B, h, w) bool; None if all do."""
        mask = node_mask(sizes, map_size(features), self.feature_stride)
        return None if mask is None else mask.to(self.device)

    def normalise(self, images: Tensor) -> Tensor:
        """Checked images, normalised for the backbone."""
        channels = self.input.channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise InputError(f"images have shape {tuple(images.shape)}; give (batch, {channels}, height, width)")
        if 0 in images.shape[2:]:
            raise InputError(f"images have shape {tuple(images.shape)}, without a pixel; give at least one")
        if not images.is_floating_point():
            raise InputError(f"images are {images.dtype}; give numbers from 0 to 1, such as images.float() / 255")
        return (images - self.get_buffer("mean")) / self.get_buffer("std")

    def marginals(self, images: Tensor) -> Tensor:
        """P(y | x) at the pixels, (B, K, H, W), of images (B, 3, H, W) in 0..1."""
        logits = upsample(self(images), map_size(images), self.output_stride)
        return torch.softmax(logits, 1)

    def skip_finite_checks(self) -> None:
        """Switches off the search for NaN, which waits for the device, in every part."""
        for module in self.modules():
            if isinstance(module, Head | MessagePassing):
                module.check_finite = False

    def set_tunable(self, **values: float) -> None:
        """Changes settings that training does not learn, those in `head.tunable`; `save` writes the new values."""
        tunable = head_trait(self.head, "tunable")
        for name in values:
            if name not in tunable:
                raise InputError(
                    f"a {type(self.head).__name__} has no setting {name!r} to tune; {nearest(name, tunable)}"
                )
        config = component("head", {**self.head.config, **values})
        given = {"in_channels": self.head.in_channels, "num_classes": self.head.num_classes}
        with torch.device("meta"):
            build("head", config, path="head", feature_stride=self.feature_stride, **given)  # checks the values
        for name in values:
            setattr(self.head, name, config[name])
            self.head.config[name] = config[name]

    def save(self, folder: str | Path, *, half: bool = False) -> Path:
        """Writes `model.safetensors`, rounded to 16 bits if `half`, and `config.json`; `from_pretrained` reads them."""
        from messagenet.models.saving import save_model

        return save_model(self, folder, half)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path | None = None,
        *,
        backbone: nn.Module | None = None,
        neck: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> SegmentationModel:
        """Reads a saved model, ready for prediction.

        Args:
            folder: Where it was saved, or the name of a bundled model. Default: the bundled model.
            backbone, neck, head: Needed only for parts that were given as modules.
        """
        from messagenet.models.saving import load_model

        return load_model(folder, backbone=backbone, neck=neck, head=head)


def _call_part(part: Any, features: Features, mask: Tensor | None, **context: Any) -> Any:
    """Output of a head or neck; a module without a parameter for the mask gets zeros at nodes that do not exist."""
    if not isinstance(part, nn.Module) or "mask" in inspect.signature(type(part).forward).parameters:
        return part(features, mask, **context)
    assert isinstance(features, Tensor), "one feature map for each factor type needs a head that knows them"
    return zero_padding(part(zero_padding(features, mask)), mask)


def _own_config(part: nn.Module | None) -> dict[str, Any] | None:
    """The kind and settings of a component; None for a module that was not built from them."""
    config: Any = getattr(part, "config", None)
    return config if isinstance(config, dict) and KIND in config else None


def _name(part: Any) -> str:
    return getattr(part, "__name__", type(part).__name__)


def _factor_types(head: Any, spec: Any) -> tuple[str, ...]:
    if head_trait(head, "feature_names") is None:
        raise InputError(f"{_name(head)} reads one feature map; set separate_features=false")
    if isinstance(head, nn.Module):
        relations: Sequence[Relation] = head.relations  # type: ignore[assignment]
    else:
        relations = convert(component("head", spec)["relations"], Sequence[Relation], "head.relations")
    names: tuple[str, ...] = head.feature_names(relations)
    return names


def level_channels(backbone: Backbone, strides: Sequence[int], channels: int) -> list[int]:
    """Channels of a backbone's levels, read from the maps of an empty image."""
    module: Any = backbone
    training, last = module.training, strides[-1]
    with torch.no_grad():
        maps = level_maps(module.eval(), torch.zeros(1, channels, last, last))
    module.train(training)
    found, wanted = [level.shape[2] for level in maps], [last // stride for stride in strides]
    if found != wanted:
        raise InputError(
            f"this head reads maps at strides 8, 16 and 32, of {wanted} nodes on 32 pixels; those of the backbone have "
            f"{found}: set its levels and output stride accordingly"
        )
    return [level.shape[1] for level in maps]


def ignore_padding(target: Tensor, mask: Tensor | None) -> Tensor:
    """Labels of nodes, void where there is no node."""
    return target if mask is None else torch.where(mask.bool(), target, VOID)


def zero_padding(values: Tensor, mask: Tensor | None) -> Tensor:
    """Maps (B, C, h, w) with 0 where there is no node."""
    return values if mask is None else torch.where(mask.bool()[:, None], values, 0)


def check_backbone(module: object) -> None:
    """Refuses a module that cannot serve as a feature network, naming what it lacks.

    >>> check_backbone(nn.Conv2d(3, 8, 1))
    Traceback (most recent call last):
    messagenet.errors.InputError: the backbone Conv2d has no attribute "channels": set it to the number of ...
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise InputError(f"the backbone must be a torch.nn.Module, not {kind}")
    for attribute, kinds, meaning in (
        ("channels", (int,), "the number of channels of its feature map"),
        ("stride", (int, float), "the number of image pixels per node"),
    ):
        value = getattr(module, attribute, None)
        if value is None:
            raise InputError(f'the backbone {kind} has no attribute "{attribute}": set it to {meaning}')
        if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
            raise InputError(f"the backbone {kind} has {attribute} = {value!r}: set it to {meaning}")


def check_sizes(in_channels: int, num_classes: int) -> None:
    """Refuses a head that could not classify anything."""
    if type(in_channels) is not int or in_channels < 1:
        raise InputError(f"in_channels is {in_channels!r}; give the number of channels of the feature map")
    if type(num_classes) is not int or num_classes < 2:
        raise InputError(f"num_classes is {num_classes!r}; a labelling needs at least 2 classes")


def check_features(features: Tensor, in_channels: int, check_finite: bool = True) -> Tensor:
    """Returns the feature map if a head for `in_channels` can read it."""
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


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32, or in their own precision if it is higher."""
    return values.float() if values.dtype.itemsize < 4 else values
