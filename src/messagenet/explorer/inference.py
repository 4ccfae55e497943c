"""Inspectable inference: the beliefs of every iteration, maps of pixels, and the messages to one node.

    t = 0        L⁰_p, the unary message alone ("before messages")
    t = 1 … T    L^t_p = Σ_F β^t_{F→p}; L^T is the model's answer

A trace has L⁰ … L^T and the head's features, (T + 1)·N·K + N·r numbers for N nodes, and no messages: those of one node
follow from the beliefs (`message_passing.inspect`). During inference, exact cavities need every single message, N·n·K
numbers, which grows with the fourth power of the image's side. Where that exceeds the memory allowed, the image is
reduced further than for prediction.

The predictor makes the model's input and takes L^t to the pixels: the labels after T are those of `Predictor.labels`,
the uncertainty is the entropy of the marginals, scaled so that 255 is log K.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from messagenet.data.images import ImageArray, LabelArray
from messagenet.errors import InputError
from messagenet.explorer.models import ServedModel
from messagenet.geometry import map_size
from messagenet.graph import GridGraph, Relation
from messagenet.graph.grid import Node, mirrors
from messagenet.message_passing import MessagePassing
from messagenet.message_passing.grid import GridContext
from messagenet.message_passing.inspect import FactorMessages, node_messages
from messagenet.prediction.predictor import Predictor, resize, scaled_size
from messagenet.report import entropy

FLOAT_BYTES = 4
REDUCTION = 0.9  # factor on the image size, repeated until the messages fit into memory


@dataclass(frozen=True, eq=False)
class BeliefTrace:
    """The beliefs of a model about an image."""

    logits: Tensor  # before messages and after each iteration, (T + 1, K, h, w)
    features: dict[str, Tensor]  # the head's, of each factor type, (h, w, r); empty for a model without messages
    stride: float  # pixels of the image per node
    size: tuple[int, int]  # (H, W) of the image
    working_size: tuple[int, int]  # (H', W') to which it was reduced

    @property
    def nbytes(self) -> int:
        """Memory; features that several factor types share count once."""
        maps = {values.data_ptr(): values.nbytes for values in self.features.values()}
        return self.logits.nbytes + sum(maps.values())

    @property
    def nodes(self) -> tuple[int, int]:
        """(h, w)."""
        return map_size(self.logits)


@torch.inference_mode()
def trace_beliefs(model: ServedModel, images: Sequence[ImageArray], message_bytes: int) -> list[BeliefTrace]:
    """Runs a model on RGB images of one size, (H, W, 3) each; the messages of one may take `message_bytes`."""
    size, predictor, head = (images[0].shape[0], images[0].shape[1]), model.predictor, model.head
    reduced = working_size(model, size, message_bytes)
    inputs = predictor.as_input(resize(predictor.stack(images), reduced))
    network = predictor.fastest(inputs.device)
    features: dict[str, Tensor] = {}
    if head is None:
        logits = network(inputs).float()[:, None]  # (B, 1, K, h, w)
    else:
        maps = head.features_by_type(network.forward_neck(network.forward_features(inputs)))  # (B, r, h, w) each
        features = _map_unique(maps, lambda map: map.permute(0, 2, 3, 1).contiguous())
        context = _context(head, features)
        steps = [head.unary_messages(context, 0)]
        steps += [beliefs.logits for beliefs in head.iterate(context)]  # (B, h, w, K) each
        logits = torch.stack(steps, 1).permute(0, 1, 4, 2, 3).float()  # (B, T + 1, K, h, w)
    stride, traces = network.output_stride * max(size) / max(reduced), []
    for i in range(len(images)):  # copies, which do not hold the memory of the batch
        own = _map_unique(features, lambda map: map[i].clone())  # noqa: B023
        traces.append(BeliefTrace(logits[i].clone(), own, stride, size, reduced))
    return traces


def working_size(model: ServedModel, size: tuple[int, int], message_bytes: int) -> tuple[int, int]:
    """(H', W') to which an image of (H, W) pixels is reduced: as for prediction, and until its messages fit."""
    reduced = whole = model.predictor.working_size(size)
    scale = 1.0
    while stored_message_bytes(model, reduced) > message_bytes:
        scale *= REDUCTION
        reduced = scaled_size(whole, scale)
    return reduced


def stored_message_bytes(model: ServedModel, size: tuple[int, int]) -> int:
    """Memory of exact cavities between iterations for an input (H', W'): N·n·K numbers, twice if T > 2, 0 if T = 1."""
    head = model.head
    if head is None or head.cavity == "none":
        return 0
    rows, columns = (max(1, math.ceil(side / model.model.output_stride)) for side in size)
    offsets = sum(
        len(relation.offsets_on(rows, columns))
        for relation, mirror in zip(head.relations, mirrors(head.relations), strict=True)
        if mirror is not None
    )
    generations = min(head.iterations - 1, 2)
    return generations * rows * columns * offsets * head.num_classes * FLOAT_BYTES


@dataclass(frozen=True, eq=False)
class PixelMaps:
    """Labels and uncertainty of all pixels after an iteration."""

    labels: LabelArray  # (H, W)
    entropy: ImageArray  # from 0 (certain) to 255 (uniform over all classes), (H, W)
    shares: list[float]  # of pixels of each class
    changed: float  # share of pixels whose label differs from the previous iteration


def pixel_maps(predictor: Predictor, trace: BeliefTrace) -> Iterator[PixelMaps]:
    """The maps of t = 0 … T."""
    before: LabelArray | None = None
    for t in range(len(trace.logits)):
        nodes = _on_image_grid(predictor, trace, t)
        entropies = [entropy(torch.softmax(strip, 0)) for strip in predictor.pixel_logits(nodes, trace.size)]
        uncertainty = np.rint(255 * np.concatenate(entropies)).astype(np.uint8)
        labels = predictor.pixel_labels(nodes, trace.size)
        counts = np.bincount(labels.ravel(), minlength=trace.logits.shape[1])
        changed = 0.0 if before is None else float((labels != before).mean())
        yield PixelMaps(labels, uncertainty, (counts / labels.size).tolist(), changed)
        before = labels


def _on_image_grid(predictor: Predictor, trace: BeliefTrace, iteration: int) -> Tensor:
    """Logits (K, h, w) after an iteration, at the nodes of the image itself."""
    nodes: Tensor = predictor.on_image_grid(trace.logits[iteration, None], trace.size, trace.working_size)[0]
    return nodes


def segment(predictor: Predictor, trace: BeliefTrace) -> dict[str, Any]:
    """The maps of all iterations, as `POST /segment` answers."""
    (height, width), (rows, columns) = trace.size, trace.nodes
    maps = [
        {
            "t": t,
            "labels": base64.b64encode(grey_png(each.labels)).decode(),
            "entropy": base64.b64encode(grey_png(each.entropy)).decode(),
            "shares": each.shares,
            "changed": each.changed,
        }
        for t, each in enumerate(pixel_maps(predictor, trace))
    ]
    grid = {"width": width, "height": height, "rows": rows, "columns": columns, "stride": trace.stride}
    return {**grid, "maps": maps}


def label_map(predictor: Predictor, trace: BeliefTrace, iteration: int) -> LabelArray:
    """The labels after an iteration, (H, W)."""
    return predictor.pixel_labels(_on_image_grid(predictor, trace, iteration), trace.size)


def grey_png(values: ImageArray) -> bytes:
    """Values (H, W) as an 8-bit greyscale PNG file; fast rather than small."""
    content = io.BytesIO()
    Image.fromarray(values).save(content, format="PNG", compress_level=3)
    return content.getvalue()


def explain(head: MessagePassing, trace: BeliefTrace, x: float, y: float, iteration: int) -> dict[str, Any]:
    """The messages to the node of pixel (x, y) in iteration t = 0 … T, as `POST /explain` answers."""
    node = node_at(trace, x, y)
    context = _context(head, {name: maps[None] for name, maps in trace.features.items()})
    logits = trace.logits[1:].permute(0, 2, 3, 1).to(context.ref.dtype)  # (T, h, w, K)
    factors = node_messages(head, context, list(logits), node, iteration)
    beliefs = [_belief(step[:, node[0], node[1]]) for step in trace.logits]
    return {
        "iteration": iteration,
        "pixel": [x, y],
        "node": {"row": node[0], "column": node[1], "box": cell_box(trace, [node])},
        "unary": beliefs[0],
        "belief": beliefs[iteration],
        "beliefs": [{"t": t, **belief} for t, belief in enumerate(beliefs)],
        "factors": [_factor(trace, factor) for factor in factors],
    }


def node_at(trace: BeliefTrace, x: float, y: float) -> Node:
    """The node whose cell contains a pixel."""
    height, width = trace.size
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(
            f"pixel ({x:g}, {y:g}) is outside the image; x runs from 0 to {width - 1}, y from 0 to {height - 1}"
        )
    rows, columns = trace.nodes
    return min(math.floor(y / trace.stride), rows - 1), min(math.floor(x / trace.stride), columns - 1)


def cell_box(trace: BeliefTrace, nodes: Sequence[Node]) -> list[float]:
    """The bounding box of the cells of nodes, [x0, y0, x1, y1] in pixels, clipped to the image."""
    height, width = trace.size
    rows, columns = [row for row, _ in nodes], [column for _, column in nodes]
    edges = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
    return [
        min(edge * trace.stride, float(side)) for edge, side in zip(edges, (width, height, width, height), strict=True)
    ]


def _map_unique(maps: dict[str, Tensor], function: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """A function of each map; factor types that share a map share the result."""
    unique = {id(map): map for map in maps.values()}
    results = {key: function(map) for key, map in unique.items()}
    return {name: results[id(map)] for name, map in maps.items()}


def _context(head: MessagePassing, features: dict[str, Tensor]) -> GridContext:
    """The grid of unpadded images with features (B, h, w, r)."""
    _, height, width, _ = features["unary"].shape
    return GridContext(_graph(height, width, head.relations), features, None)


@lru_cache(maxsize=32)
def _graph(height: int, width: int, relations: tuple[Relation, ...]) -> GridGraph:
    """The graph of a map; few are cached, because each lists thousands of offsets."""
    return GridGraph(height, width, relations)


def _belief(logits: Tensor) -> dict[str, list[float]]:
    wide = logits.double()
    return {"logits": wide.tolist(), "marginal": torch.softmax(wide, 0).tolist()}


def _factor(trace: BeliefTrace, factor: FactorMessages) -> dict[str, Any]:
    messages = factor.values.double()
    total = messages.sum(0).tolist()
    if factor.form is None:
        return {"name": factor.name, "total": total}
    return {
        "name": factor.name,
        "form": factor.form,
        "box": cell_box(trace, factor.senders) if factor.senders else None,
        "total": total,
        "senders": [list(sender) for sender in factor.senders],
        "messages": messages.tolist(),
    }
