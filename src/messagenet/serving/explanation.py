"""One pixel explained: what its node believes after each iteration, and every message that made it believe so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.estimators.node_messages import FactorMessages, node_messages
from messagenet.models import MessageNet
from messagenet.serving.infer import Inferred, field_of

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
