"""A grid head as a graph head.

On a graph, a relation of a grid becomes a factor type, with the relation's number of offsets as its `degree`:

    symmetric              one symmetric factor for every pair of nodes
    with a mirror image    one ordered factor for every pair; position 0 receives through the relation, position 1
                           through its mirror image (above/below are one type, "above")
    without one            one factor for every directed pair, which sends to position 0 only
    box                    one factor for every node and all of its senders, which sends to position 0 only

Both heads agree up to rounding. The grid is many times faster; the graph takes any shape.
"""

from __future__ import annotations

import torch

from messagenet.graph import GridGraph, window
from messagenet.graph.typed import Scopes, TypedGraph
from messagenet.message_passing import FactorType, GraphMessagePassing, MessagePassing


def as_graph_head(head: MessagePassing, height: int, width: int) -> tuple[GraphMessagePassing, TypedGraph]:
    """A graph head that shares the parameters of a grid head, and the graph of one map of this size.

    Variables are nodes in reading order: features (r, H, W) go in as `flatten(1).T`. Batch with `batch_graphs`.
    """
    grid = GridGraph(height, width, head.relations)
    types = _factor_types(grid)
    factors = {name: factor_type for name, (factor_type, _) in types.items()}
    graph_head = GraphMessagePassing(head.in_channels, head.num_classes, factors, **head.options)
    for iteration in range(len(head.estimators)):
        source, target = head.stage(iteration), graph_head.stage(iteration)
        senders = {"unary": ["unary"], **{name: relations for name, (_, relations) in types.items()}}
        for name, relations in senders.items():
            for estimator, relation in zip(target[name], relations, strict=True):
                for layer in ("receiver", "sender", "dependent", "output"):
                    setattr(estimator, layer, getattr(source[relation], layer))
    return graph_head, grid_typed_graph(grid)


def _factor_types(grid: GridGraph) -> dict[str, tuple[FactorType, list[str]]]:
    """The factor types of a grid, each with the relations whose estimators send to its positions."""
    types = {}
    for index, relation in enumerate(grid.relations):
        name, mirror, degree = relation.name, grid.mirrors[index], max(1, len(grid.offsets[index]))
        if relation.form == "box":
            types[name] = FactorType(None, ordered=False, sends_to=(0,)), [name]
        elif mirror is None:
            types[name] = FactorType(2, sends_to=(0,), degree=degree), [name]
        elif mirror == index:
            types[name] = FactorType(2, ordered=False, degree=degree), [name]
        elif mirror > index:
            types[name] = FactorType(2, degree=degree), [name, grid.relations[mirror].name]
    return types


def grid_typed_graph(grid: GridGraph) -> TypedGraph:
    """The factors of a grid's relations, (receiver, sender, …) each."""
    nodes = torch.arange(grid.nodes).reshape(1, grid.height, grid.width)
    factors: dict[str, Scopes] = {}
    for index, relation in enumerate(grid.relations):
        mirror, offsets = grid.mirrors[index], grid.offsets[index]
        if mirror is not None and mirror < index:
            continue
        if mirror == index:
            offsets = tuple(offset for offset in offsets if offset > (0, 0))
        windows = [w for offset in offsets if (w := window((grid.height, grid.width), offset)) is not None]
        pairs = [torch.stack([nodes[w.receivers].flatten(), nodes[w.senders].flatten()], 1) for w in windows]
        scopes = torch.cat([torch.zeros(0, 2, dtype=torch.long), *pairs])
        if relation.form == "box":  # one factor per receiver: itself, then all its senders
            boxes: list[list[int]] = [[node] for node in range(grid.nodes)]
            for receiver, sender in scopes.tolist():
                boxes[receiver].append(sender)
            factors[relation.name] = [box for box in boxes if len(box) > 1]
        else:
            factors[relation.name] = scopes
    return TypedGraph.build(grid.nodes, factors)
