"""Pictures to beliefs: what every node believes after each iteration, and the features it believes it from.

    t = 0        the unary factor's message alone, "before messages"
    t = 1 … T    logits after t iterations; those at T are the model's answer

Pictures of one size go through the network together. Between iterations with exact cavities every single message is in
memory, N·n·K numbers, which grows with the fourth power of a picture's edge: pictures for which that is too much are
shown to the network smaller. What is kept of a picture is small, because the messages of a node can be made again from
the beliefs (`estimators.node_messages`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data.images import ImageArray
from messagenet.estimators.field import Field
from messagenet.graph import GridGraph, Relation
from messagenet.graph.grid import mirrors
from messagenet.models import MessageNet, SegmentationNet

FLOAT_BYTES = 4
SMALLER = 0.9
"""By how much a picture is reduced at a time, until its messages fit."""


@dataclass(frozen=True, eq=False)
class Inferred:
    """What a model makes of a picture.

    Attributes:
        logits: Before messages and after each iteration, (T + 1, K, h, w).
        features: For each factor type, (h, w, r); none for a model without messages.
        stride: Pixels of the picture per node.
        size: (H, W) of the picture.
    """

    logits: Tensor
    features: dict[str, Tensor]
    stride: float
    size: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """What it takes in memory; types that share their features are counted once."""
        maps = {values.data_ptr(): values.nbytes for values in self.features.values()}
        return self.logits.nbytes + sum(maps.values())

    @property
    def nodes(self) -> tuple[int, int]:
        """(h, w)."""
        return self.logits.shape[2], self.logits.shape[3]


@torch.inference_mode()
def infer(net: SegmentationNet, pictures: Sequence[ImageArray], message_bytes: int) -> list[Inferred]:
    """Runs a network on pictures of one size.

    Args:
        net: The network, in evaluation mode.
        pictures: RGB, each (H, W, 3).
        message_bytes: What single messages may take for one picture.
    """
    size = (pictures[0].shape[0], pictures[0].shape[1])
    scale = working_scale(net, size, message_bytes)
    parameter = next(net.parameters())
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).to(parameter.device)  # (B, 3, H, W)
    images = pixels.to(parameter.dtype) / 255
    if scale < 1:
        smaller = [max(1, round(side * scale)) for side in size]
        images = functional.interpolate(images, smaller, mode="bilinear", antialias=True)
    if isinstance(net, MessageNet) and net.relations:
        logits, features = _traced(net, images)
    else:
        logits, features = net(images).float()[:, None], {}  # (B, 1, K, h, w)
    return [
        Inferred(
            logits[i].clone(),
            _unbatched(features, i),
            net.stride / scale,
            size,
        )
        for i in range(len(pictures))
    ]


def _traced(net: MessageNet, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of all iterations, (B, T + 1, K, h, w), and features by factor type, (B, h, w, r)."""
    field = field_of(net, channels_last(net.head.features_by_type(net.told(net.features(images)))))
    steps = [net.head.stage(0)["unary"](field.features["unary"])]
    steps += [beliefs.logits for beliefs in net.head.iterate(field)]  # (B, h, w, K) each
    return torch.stack(steps, 1).permute(0, 1, 4, 2, 3).float(), dict(field.features)


def channels_last(maps: dict[str, Tensor]) -> dict[str, Tensor]:
    """Maps (B, r, h, w) as (B, h, w, r); those that are one stay one."""
    moved = {id(values): values.permute(0, 2, 3, 1).contiguous() for values in maps.values()}
    return {name: moved[id(values)] for name, values in maps.items()}


def _unbatched(features: dict[str, Tensor], image: int) -> dict[str, Tensor]:
    own = {id(values): values[image].clone() for values in features.values()}
    return {name: own[id(values)] for name, values in features.items()}


def field_of(net: MessageNet, features: dict[str, Tensor]) -> Field:
    """The field of pictures that fill it, from features (B, h, w, r)."""
    _, height, width, _ = features["unary"].shape
    return Field(_graph(height, width, net.head.relations), features, None)


@lru_cache(maxsize=32)
def _graph(height: int, width: int, relations: tuple[Relation, ...]) -> GridGraph:
    """The graph of a map; few are kept, as each lists thousands of offsets."""
    return GridGraph(height, width, relations)


def working_scale(net: SegmentationNet, size: tuple[int, int], message_bytes: int) -> float:
    """By how much a picture is reduced, so that messages fit into memory.

    1 for T = 1 and without exact cavities; with them, the messages of every pair are kept from one iteration to the
    next, and a fine grid of nodes has many.
    """
    scale = 1.0
    while passed_bytes(net, (size[0] * scale, size[1] * scale)) > message_bytes:
        scale *= SMALLER
    return scale


def passed_bytes(net: SegmentationNet, size: tuple[float, float]) -> int:
    """What single messages take while they are passed on a picture of this size: N·n·K numbers, twice if T > 2."""
    if not isinstance(net, MessageNet) or net.head.rules.cavity == "none":
        return 0
    rules, relations = net.head.rules, net.head.relations
    rows, columns = (max(1, math.ceil(side / net.stride)) for side in size)
    offsets = sum(
        len(relation.offsets_on(rows, columns))
        for relation, mirror in zip(relations, mirrors(relations), strict=True)
        if mirror is not None
    )
    generations = min(rules.iterations - 1, 2)
    return generations * rows * columns * offsets * rules.num_classes * FLOAT_BYTES
