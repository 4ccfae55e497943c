"""Whole networks: image → features (C1) → messages (C2) → beliefs.

`MessageNet` is a backbone with a message-passing head. `UnaryNet` is the same without relations: every node
decides alone. Both take RGB images in 0..1 of any size and return logits at the nodes; `marginals` brings
them to the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError
from messagenet.estimators import MessagePassing
from messagenet.estimators.rules import Aggregation, CavityMode, Dependent, Initial
from messagenet.graph import Relation, above, below, surrounding
from messagenet.learning.marginal import upsample
from messagenet.models import saving
from messagenet.models.backbones import IMAGENET_MEAN, IMAGENET_STD, build_backbone, check_backbone

PAPER_RELATIONS = (surrounding(0.4), above(0.4), below(0.4))


class MessageNet(nn.Module):
    """A segmentation network whose head passes learned messages.

    >>> net = MessageNet("tiny", Classes(("ground", "sky", "tree")), hidden=16)
    >>> net(torch.rand(1, 3, 40, 50)).shape                       # logits at the nodes, one per 4×4 pixels
    torch.Size([1, 3, 10, 13])
    >>> net.marginals(torch.rand(1, 3, 40, 50)).shape             # probabilities at the pixels
    torch.Size([1, 3, 40, 50])

    Args:
        backbone: Name of a backbone ("vgg16", "efficientnet_lite0", "tiny"), or any module that turns
            normalised images into a feature map and has `channels` and `stride`.
        classes: What the labels mean: a class list, their names, or how many there are.
        relations: Which neighbours send messages; the paper's three by default.
        backbone_options: Options of a backbone given by name.
        separate_features: A backbone of its own for the unary and for every relation, as the paper has it,
            instead of one that all share.
        hidden, iterations, tied, cavity, initial, aggregation, dependent: See `MessagePassing`.
    """

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = PAPER_RELATIONS,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        separate_features: bool = False,
        hidden: int = 256,
        iterations: int = 1,
        tied: bool = True,
        cavity: CavityMode = "factor",
        initial: Initial = "zero",
        aggregation: Aggregation = "fixed",
        dependent: Dependent = "sum",
    ) -> None:
        super().__init__()
        self.classes = as_classes(classes)
        self.settings: dict[str, Any] = {
            "backbone": backbone if isinstance(backbone, str) else None,
            "backbone_options": dict(backbone_options or {}),
            "separate_features": separate_features,
            "hidden": hidden,
            "iterations": iterations,
            "tied": tied,
            "cavity": cavity,
            "initial": initial,
            "aggregation": aggregation,
            "dependent": dependent,
        }
        names = ["unary", *(relation.name for relation in relations)] if separate_features else ["shared"]
        self.backbones = nn.ModuleDict({name: self._backbone(backbone, len(names)) for name in names})
        self.stride = float(self._first.stride)
        self.head = MessagePassing(
            int(self._first.channels),
            self.classes.num_classes,
            relations,
            hidden=hidden,
            iterations=iterations,
            tied=tied,
            cavity=cavity,
            initial=initial,
            aggregation=aggregation,
            dependent=dependent,
        )
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

    @property
    def _first(self) -> Any:
        return next(iter(self.backbones.values()))

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations of the head."""
        return self.head.relations

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def features(self, images: Tensor) -> Tensor | dict[str, Tensor]:
        """C1: the feature map (B, r, h, w) of images (B, 3, H, W) in 0..1, or one for each factor type.

        Images are extended below and on the right to a whole number of cells, with the mean colour.
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(
                f"images have shape {tuple(images.shape)}; give RGB as (batch, 3, height, width)"
            )
        if not images.is_floating_point():
            raise InputError(
                f"images are {images.dtype}; give numbers from 0 to 1, such as images.float() / 255"
            )
        normalised = (images - self.get_buffer("mean")) / self.get_buffer("std")
        if self.stride == int(self.stride):
            down, across = (-side % int(self.stride) for side in images.shape[2:])
            normalised = functional.pad(normalised, (0, across, 0, down))
        maps = {name: backbone(normalised) for name, backbone in self.backbones.items()}
        return maps if self.settings["separate_features"] else maps["shared"]

    def node_valid(self, valid: Tensor, size: tuple[int, int]) -> Tensor:
        """Which nodes see any pixel of the image, (B, h, w), from such flags for pixels (B, H, W)."""
        rows, columns = (
            (torch.arange(nodes, device=valid.device) * self.stride).long().clamp(max=pixels - 1)
            for nodes, pixels in zip(size, valid.shape[1:], strict=True)
        )
        return valid[:, rows[:, None], columns[None, :]]

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the marginals at the nodes, (B, K, h, w).

        Args:
            images: RGB in 0..1, (B, 3, H, W).
            valid: Which pixels are image and not padding, (B, H, W).
        """
        features = self.features(images)
        if valid is not None:
            some = features if isinstance(features, Tensor) else features["unary"]
            valid = self.node_valid(valid, (some.shape[2], some.shape[3]))
        logits: Tensor = self.head(features, valid)
        return logits

    def pixel_logits(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits at the pixels, (B, K, H, W), upsampled from the nodes."""
        return upsample(self(images, valid), (images.shape[2], images.shape[3]), self.stride)

    def marginals(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """P(y | x) at the pixels, (B, K, H, W)."""
        return torch.softmax(self.pixel_logits(images, valid), 1)

    def save(self, folder: str | Path) -> Path:
        """Writes `model.safetensors` and `config.json`; `from_pretrained` reads them back exactly."""
        return saving.save_model(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, backbone: nn.Module | None = None) -> MessageNet:
        """Reads a saved model; `backbone` is needed only if it was not built by name."""
        return saving.load_model(folder, {net.__name__: net for net in (MessageNet, UnaryNet)}, backbone)


class UnaryNet(MessageNet):
    """The same network without relations: every node is classified from its own features.

    It takes the settings of `MessageNet`, of which those of message passing have no effect.
    """

    def __init__(
        self,
        backbone: str | nn.Module = "efficientnet_lite0",
        classes: Classes | Sequence[str] | int = VOC_CLASSES,
        relations: Sequence[Relation] = (),
        **settings: Any,
    ) -> None:
        if relations:
            raise InputError("a UnaryNet has no relations; use MessageNet")
        super().__init__(backbone, classes, (), **settings)


def as_classes(classes: Classes | Sequence[str] | int) -> Classes:
    """A class list from itself, from names, or from a number.

    >>> as_classes(["ground", "sky"]).num_classes
    2
    """
    if isinstance(classes, int):
        return numbered_classes(classes)
    return classes if isinstance(classes, Classes) else Classes(tuple(classes))


def numbered_classes(count: int) -> Classes:
    """Classes without names.

    >>> numbered_classes(3).names
    ('class 0', 'class 1', 'class 2')
    """
    if count < 2:
        raise InputError(f"num_classes is {count}; a labelling needs at least 2 classes")
    return Classes(tuple(f"class {i}" for i in range(count)))
