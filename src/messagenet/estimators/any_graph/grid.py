"""A grid as a graph: the windows of `MessagePassing` written out factor by factor.

A relation becomes a factor type of its name:

    symmetric              one symmetric factor for every pair of nodes
    with a mirror image    one ordered factor for every pair, position 0 hears through the relation and
                           position 1 through its mirror image (above/below are one type, "above")
    without one            one factor for every directed pair, which sends to position 0 only
    box                    one factor for every node and all of its senders, which sends to position 0 only

with the relation's number of offsets as the `degree` of aggregation "fixed" and "sqrt". The two ways agree in
every digit but the last; the grid is many times faster, the graph takes any shape.
"""

from __future__ import annotations

import torch

from messagenet.estimators.any_graph.passing import GraphMessagePassing
from messagenet.estimators.any_graph.settings import FactorType
from messagenet.estimators.passing import MessagePassing
from messagenet.graph import GridGraph, window
from messagenet.graph.typed import Scopes, TypedGraph


def from_grid(head: MessagePassing, height: int, width: int) -> tuple[GraphMessagePassing, TypedGraph]:
    """A graph head with the very parameters of a grid head, and the graph of one map of this size.

    Variables are the nodes of the map in reading order: features (r, H, W) go in as `flatten(1).T`. For a
    batch, join one graph per image with `batch_graphs`.

    >>> from messagenet import four_neighbours
    >>> head = MessagePassing(4, 3, [four_neighbours()], hidden=8)
    >>> graph_head, graph = from_grid(head, 2, 3)
    >>> features = torch.randn(1, 4, 2, 3)
    >>> logits = graph_head(features[0].flatten(1).T, graph)
    >>> torch.allclose(logits.T.reshape(1, 3, 2, 3), head(features), atol=1e-5)
    True
    """
    grid = GridGraph(height, width, head.relations)
    rules = head.rules
    graph_head = GraphMessagePassing(
        head.in_channels,
        rules.num_classes,
        grid_factor_types(grid),
        hidden=rules.hidden,
        iterations=rules.iterations,
        tied=rules.tied,
        cavity=rules.cavity,
        initial=rules.initial,
        aggregation=rules.aggregation,
        dependent=rules.dependent,
    )
    for number in range(len(head.estimators)):
        theirs, ours = head.stage(number), graph_head.stage(number)
        for name, sources in {"unary": ["unary"], **_sources(grid)}.items():
            for estimator, source in zip(ours[name], sources, strict=True):
                for layer in ("receiver", "sender", "dependent", "output"):
                    setattr(estimator, layer, getattr(theirs[source], layer))
    return graph_head, grid_typed_graph(grid)


def _sources(grid: GridGraph) -> dict[str, list[str]]:
    """For each factor type, the relations whose estimators send to its positions."""
    names = [relation.name for relation in grid.relations]
    found: dict[str, list[str]] = {}
    for index, mirror in enumerate(grid.mirrors):
        if mirror is None or mirror == index:
            found[names[index]] = [names[index]]
        elif mirror > index:
            found[names[index]] = [names[index], names[mirror]]
    return found


def grid_factor_types(grid: GridGraph) -> dict[str, FactorType]:
    """The factor types of a grid's relations."""
    kinds = {}
    for index, relation in enumerate(grid.relations):
        mirror, degree = grid.mirrors[index], max(1, len(grid.offsets[index]))
        if relation.form == "box":
            kinds[relation.name] = FactorType(None, ordered=False, sends_to=(0,))
        elif mirror is None:
            kinds[relation.name] = FactorType(2, sends_to=(0,), degree=degree)
        elif mirror >= index:
            kinds[relation.name] = FactorType(2, ordered=mirror != index, degree=degree)
    return kinds


def grid_typed_graph(grid: GridGraph) -> TypedGraph:
    """The factors of a grid's relations, (receiver, sender, …) each.

    >>> from messagenet import above, below
    >>> graph = grid_typed_graph(GridGraph(2, 2, (above(cells=1), below(cells=1))))
    >>> graph.factors["above"][0].scopes.tolist()
    [[2, 0], [3, 1]]
    """
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
        factors[relation.name] = _boxes(scopes, grid.nodes) if relation.form == "box" else scopes
    return TypedGraph.build(grid.nodes, factors)


def _boxes(pairs: torch.Tensor, nodes: int) -> list[list[int]]:
    """One scope for each receiver of some pair: itself, then all its senders."""
    scopes: list[list[int]] = [[node] for node in range(nodes)]
    for receiver, sender in pairs.tolist():
        scopes[receiver].append(sender)
    return [scope for scope in scopes if len(scope) > 1]
