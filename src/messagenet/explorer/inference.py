"""Pictures to beliefs: what every node believes after each iteration, and the features it believes it from.

    t = 0        the unary factor's message alone, "before messages"
    t = 1 … T    logits after t iterations; those at T are the model's answer

Pictures of one size go through the network together. Between iterations with exact cavities every single message is in
memory, N·n·K numbers, which grows with the fourth power of a picture's edge: pictures for which that is too much are
shown to the network smaller. What is kept of a picture is small, because the messages of a node can be made again from
the beliefs (`estimators.node_messages`).

Beliefs of nodes to maps of pixels: the label and the uncertainty of every pixel, for every iteration.

Logits are brought to the pixels as in prediction (bilinear); a label is the largest of them, the uncertainty the
entropy of their softmax, from 0 to 255 for log K.

One pixel explained: what its node believes after each iteration, and every message that made it believe so.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from messagenet.data.images import ImageArray, LabelArray
from messagenet.errors import InputError
from messagenet.graph import GridGraph, Relation
from messagenet.graph.grid import mirrors
from messagenet.message_passing.grid import Field
from messagenet.message_passing.inspect import FactorMessages, node_messages
from messagenet.models import MessageNet, SegmentationNet
from messagenet.prediction.upsample import most_probable, pixel_strips
from messagenet.report import entropy

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


@dataclass(frozen=True, eq=False)
class BeliefMap:
    """What pixels show after an iteration.

    Attributes:
        labels: The most probable class, (H, W).
        entropy: 0, certain, to 255, a guess among all classes, (H, W).
        shares: The share of pixels of each class.
        changed: The share of pixels whose label is another one than an iteration ago.
    """

    labels: LabelArray
    entropy: ImageArray
    shares: list[float]
    changed: float


def belief_maps(inferred: Inferred) -> Iterator[BeliefMap]:
    """The maps of t = 0 … T."""
    before: LabelArray | None = None
    for logits in inferred.logits:
        labels, uncertainty = _pixels(logits, inferred)
        counts = np.bincount(labels.ravel(), minlength=len(logits))
        changed = 0.0 if before is None else float((labels != before).mean())
        yield BeliefMap(labels, uncertainty, (counts / labels.size).tolist(), changed)
        before = labels


def label_map(inferred: Inferred, iteration: int) -> LabelArray:
    """The labels after an iteration, (H, W)."""
    strips = pixel_strips(inferred.logits[iteration], inferred.size, inferred.stride)
    return np.concatenate([most_probable(strip) for strip in strips])


def _pixels(logits: Tensor, inferred: Inferred) -> tuple[LabelArray, ImageArray]:
    labels, uncertainty = [], []
    for strip in pixel_strips(logits, inferred.size, inferred.stride):  # (K, rows, W)
        labels.append(most_probable(strip))
        uncertainty.append(np.rint(255 * entropy(torch.softmax(strip, 0))).astype(np.uint8))
    return np.concatenate(labels), np.concatenate(uncertainty)


def grey_png(values: ImageArray) -> bytes:
    """Values (H, W) as the content of an 8-bit greyscale PNG file; quick rather than small."""
    content = io.BytesIO()
    Image.fromarray(values).save(content, format="PNG", compress_level=3)
    return content.getvalue()


Node = tuple[int, int]


def explain(net: MessageNet, inferred: Inferred, x: float, y: float, iteration: int) -> dict[str, Any]:
    """The node of pixel (x, y) and its messages in an iteration, as `POST /explain` answers.

    Args:
        net: The model.
        inferred: What it made of the picture.
        x: Pixels from the left edge.
        y: Pixels from the upper edge.
        iteration: t, 0 … T.
    """
    node = node_at(inferred, x, y)
    field = field_of(net, {name: values[None] for name, values in inferred.features.items()})
    logits = inferred.logits[1:].permute(0, 2, 3, 1).to(field.like.dtype)  # (T, h, w, K)
    factors = node_messages(net.head, field, list(logits), node, iteration)
    beliefs = [_belief(step[:, node[0], node[1]]) for step in inferred.logits]
    return {
        "iteration": iteration,
        "pixel": [x, y],
        "node": {"row": node[0], "column": node[1], "box": cell_box(inferred, [node])},
        "unary": beliefs[0],
        "after": beliefs[iteration],
        "iterations": [{"t": t, **belief} for t, belief in enumerate(beliefs)],
        "factors": [_factor(inferred, factor) for factor in factors],
    }


def node_at(inferred: Inferred, x: float, y: float) -> Node:
    """The node whose cell holds a pixel."""
    height, width = inferred.size
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(
            f"pixel ({x:g}, {y:g}) is outside the image; x runs from 0 to {width - 1}, y from 0 to {height - 1}"
        )
    rows, columns = inferred.nodes
    return min(math.floor(y / inferred.stride), rows - 1), min(math.floor(x / inferred.stride), columns - 1)


def cell_box(inferred: Inferred, nodes: Sequence[Node]) -> list[float]:
    """The smallest box around the cells of nodes, [x0, y0, x1, y1] in pixels, cut at the border."""
    height, width = inferred.size
    rows, columns = [row for row, _ in nodes], [column for _, column in nodes]
    edges = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
    return [
        min(edge * inferred.stride, float(side))
        for edge, side in zip(edges, (width, height, width, height), strict=True)
    ]


def _belief(logits: Tensor) -> dict[str, list[float]]:
    wide = logits.double()
    return {"logits": wide.tolist(), "marginal": torch.softmax(wide, 0).tolist()}


def _factor(inferred: Inferred, factor: FactorMessages) -> dict[str, Any]:
    values = factor.values.double()
    total = values.sum(0).tolist()
    if factor.form is None:
        return {"name": factor.name, "total": total}
    return {
        "name": factor.name,
        "form": factor.form,
        "box": cell_box(inferred, factor.senders) if factor.senders else None,
        "total": total,
        "senders": [list(sender) for sender in factor.senders],
        "values": values.tolist(),
    }
