"""Which message from where: every single message that one node receives, in any iteration.

Every message that a node receives in any iteration, made from the beliefs of the iterations before.

A pairwise message needs what its sender believed one iteration ago without the factor's own message, and that message
needs the same at the other end, one iteration earlier still:

    β^t_{q→p} = M_F( f_p, f_q, logsoftmax( L^{t−1}_q − β^{t−1}_{p→q} ) ),        β^1 from L⁰, nothing left out

So beliefs L^0 … L^{t−1} are enough, N·K numbers each, to follow every edge of one node back to the first iteration,
instead of keeping all N·n·K messages of every iteration. They are evaluated edge by edge, straight from the
estimators, so the list is also an independent check of the fused sums.

A grid as a graph: the windows of `MessagePassing` written out factor by factor.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph import Form, GridGraph, Relation, window
from messagenet.graph.typed import Scopes, TypedGraph
from messagenet.message_passing.estimator import FactorType
from messagenet.message_passing.graph import GraphMessagePassing
from messagenet.message_passing.grid import Field, MessagePassing, fields, message_scale

Node = tuple[int, int]


@dataclass(frozen=True, eq=False)
class FactorMessages:
    """What a node hears through the factors of one type.

    Attributes:
        name: "unary", or the relation's name.
        form: Of the relation; None for the unary.
        senders: Nodes (row, column) that send; none for the unary.
        values: The messages, (n, K): one from each sender, or one from the whole box.
    """

    name: str
    form: Form | None
    senders: tuple[Node, ...]
    values: Tensor

    def each(self) -> list[tuple[tuple[Node, ...], Tensor]]:
        """The senders and the values (K,) of every single message."""
        if self.form == "pairwise":
            return [((sender,), values) for sender, values in zip(self.senders, self.values, strict=True)]
        return [(self.senders, values) for values in self.values]


class _Edges(NamedTuple):
    """Ends of pairwise factors, row and column of each: two index tensors (n,)."""

    receivers: tuple[Tensor, Tensor]
    senders: tuple[Tensor, Tensor]

    def reversed(self) -> _Edges:
        return _Edges(self.senders, self.receivers)


@torch.no_grad()
def node_messages(
    head: MessagePassing, field: Field, logits: Sequence[Tensor], node: Node, iteration: int
) -> list[FactorMessages]:
    """The messages to a node in an iteration, by factor type; their sum is the node's logits after it.

    Args:
        head: The message-passing head.
        field: Of one image.
        logits: After each iteration from 1 on, (h, w, K); those before `iteration` are used.
        node: (row, column) of the receiver.
        iteration: 1 … T; 0 for the unary message alone.
    """
    unary = head.stage(max(iteration - 1, 0))["unary"](field.features["unary"][(0, *node)])
    factors = [FactorMessages("unary", None, (), unary[None])]
    if iteration == 0:
        return factors
    believed = [head.initial_beliefs(field).logits[0], *logits]
    slots = field.graph.slots(node)
    for index, relation in enumerate(head.relations):
        senders = tuple(slot.sender for slot in slots if slot.relation == index and talks(field, slot.sender))
        if not senders:
            values = unary.new_zeros(0, len(unary))
        elif relation.form == "box":
            values = _box_message(head, field, believed[iteration - 1], relation, senders, node, iteration)
        else:
            there = tuple(torch.tensor(senders, device=unary.device).unbind(1))
            here = tuple(torch.full_like(there[0], place) for place in node)
            edges = _Edges((here[0], here[1]), (there[0], there[1]))
            values = _pair_messages(head, field, believed, index, edges, iteration)
        factors.append(FactorMessages(relation.name, relation.form, senders, values))
    return factors


def talks(field: Field, node: Node) -> bool:
    """Whether a node exists; others are padding inside a map."""
    return field.talking is None or bool(field.talking[(0, *node)])


def _pair_messages(
    head: MessagePassing, field: Field, believed: Sequence[Tensor], index: int, edges: _Edges, iteration: int
) -> Tensor:
    """Messages of one relation along edges, (n, K)."""
    name = head.relations[index].name
    mirror = field.graph.mirrors[index]
    told = believed[iteration - 1][edges.senders]  # (n, K)
    if iteration > 1 and mirror is not None and head.rules.cavity == "factor":
        told = told - _pair_messages(head, field, believed, mirror, edges.reversed(), iteration - 1)
    features = field.features[name][0]
    estimator = head.stage(iteration - 1)[name]
    scale = message_scale(head.rules, field, field.graph.offsets[index])[0][edges.receivers]  # (n, 1)
    message: Tensor = estimator(
        features[edges.receivers], features[edges.senders], torch.log_softmax(told, -1)
    )
    return scale * message


def _box_message(
    head: MessagePassing,
    field: Field,
    believed: Tensor,
    relation: Relation,
    senders: Sequence[Node],
    node: Node,
    iteration: int,
) -> Tensor:
    """The one message of a node's box, (1, K)."""
    features = field.features[relation.name][0]
    rows, columns = torch.tensor(senders, device=features.device).unbind(1)
    told = torch.log_softmax(believed[rows, columns], -1)
    dependent = told.mean(0) if head.rules.dependent == "mean" else told.sum(0)
    estimator = head.stage(iteration - 1)[relation.name]
    message: Tensor = estimator(features[node], features[rows, columns].mean(0), dependent)
    return message[None]


@dataclass(frozen=True)
class Received:
    """One factor-to-variable message.

    Attributes:
        factor: "unary", or the relation's name.
        senders: The nodes it comes from: none for the unary, one for a pairwise factor, all of a box.
        values: β_{F→p}, (K,), the aggregation's scale included.
    """

    factor: str
    senders: tuple[Node, ...]
    values: Tensor


@torch.no_grad()
def received_messages(
    head: MessagePassing,
    features: Tensor | Mapping[str, Tensor],
    node: Node,
    *,
    iteration: int | None = None,
    image: int = 0,
    valid: Tensor | None = None,
) -> list[Received]:
    """Every message that a node receives in an iteration; their sum is the node's logits after it.

    >>> from messagenet import MessagePassing, four_neighbours
    >>> head = MessagePassing(4, 3, [four_neighbours()], hidden=8)
    >>> features = torch.randn(1, 4, 5, 6)
    >>> messages = received_messages(head, features, (0, 2))
    >>> [(m.factor, m.senders) for m in messages][:3]
    [('unary', ()), ('four_neighbours', ((0, 1),)), ('four_neighbours', ((0, 3),))]
    >>> torch.allclose(sum(m.values for m in messages), head(features)[0, :, 0, 2], atol=1e-5)
    True

    Args:
        head: The message-passing head.
        features: What the head is called with; of a network, `net.told(net.features(images))`.
        node: (row, column) of the receiver.
        iteration: 1 … T, or 0 for the unary message alone; the last one by default.
        image: Its image in the batch.
        valid: The validity mask, if the batch is padded.
    """
    by_type = head.features_by_type(features, valid)
    one = {name: values[image : image + 1] for name, values in by_type.items()}
    ((_, field),) = fields(one, None if valid is None else valid[image : image + 1], head.relations)
    if not field.graph.contains(node) or not talks(field, node):
        raise InputError(
            f"node {node} is outside the image's map of {field.graph.height}×{field.graph.width} nodes; "
            "give a row and column inside it, counted from 0"
        )
    last = head.rules.iterations
    wanted = last if iteration is None else iteration
    if type(wanted) is not int or not 0 <= wanted <= last:
        raise InputError(f"iteration is {wanted!r}; give a whole number from 0 to {last}")
    logits = [beliefs.logits[0] for beliefs in head.iterate(field, wanted - 1)] if wanted > 1 else []
    return [
        Received(factor.name, senders, values)
        for factor in node_messages(head, field, logits, node, wanted)
        for senders, values in factor.each()
    ]


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
