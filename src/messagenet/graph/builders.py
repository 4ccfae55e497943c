"""Factor graphs of familiar shapes: chains, trees, grids and random ones.

Each has one factor per variable followed by one factor per edge (or higher-order scope), so that
`potentials[0]` are the unaries wherever all variables have the same cardinality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import MAX_STATES, FactorGraph, FactorGroup
from messagenet.graph.grid import EdgeBlock, GridFactorGraph, GridGraph, window
from messagenet.graph.relations import four_neighbours


def _unaries(num_variables: int) -> Tensor:
    return torch.arange(num_variables)[:, None]


def chain_graph(cardinalities: Sequence[int] | Tensor) -> FactorGraph:
    """Variables in a row, each tied to the next.

    >>> chain_graph([2, 2, 3]).scopes()
    [(0,), (1,), (2,), (0, 1), (1, 2)]
    """
    count = len(cardinalities)
    nodes = torch.arange(count)
    return FactorGraph.from_blocks(cardinalities, [_unaries(count), torch.stack([nodes[:-1], nodes[1:]], 1)])


def tree_graph(parents: Sequence[int], cardinalities: Sequence[int] | Tensor) -> FactorGraph:
    """A tree (or forest) given by the parent of each variable, -1 for a root.

    >>> tree_graph([-1, 0, 0], [2, 2, 2]).scopes()
    [(0,), (1,), (2,), (0, 1), (0, 2)]
    """
    if len(parents) != len(cardinalities):
        raise InputError(
            f"{len(parents)} parents were given for {len(cardinalities)} variables; give one each"
        )
    _check_forest(parents)
    edges = [(parent, child) for child, parent in enumerate(parents) if parent >= 0]
    pairs = torch.tensor(edges, dtype=torch.long).reshape(-1, 2)
    return FactorGraph.from_blocks(cardinalities, [_unaries(len(parents)), pairs])


def _check_forest(parents: Sequence[int]) -> None:
    """Walks up from every variable; meeting the walk's own trail means a cycle."""
    trail_of = [-1] * len(parents)
    for start in range(len(parents)):
        node = start
        while node >= 0 and trail_of[node] < 0:
            trail_of[node] = start
            node = parents[node]
            if node >= len(parents):
                raise InputError(f"parent {node} does not exist; variables are 0 to {len(parents) - 1}")
        if node >= 0 and trail_of[node] == start:
            raise InputError(f"the parents of variable {node} lead back to it; a tree has no cycle")


def from_grid(grid: GridGraph, num_classes: int) -> GridFactorGraph:
    """One unary factor per node and one pairwise factor per unordered pair of each relation.

    A potential belongs to both of its ends and always tells both, so that each pair appears once:

    - o and −o in one relation are the same pairs: those with o > (0, 0) stay, the second node to the right of
      the first or below it;
    - a relation whose mirror image came before it (`below` after `above`) adds no pairs;
    - a relation without its mirror image still has factors that tell both ends: unlike a learned message, a
      table cannot be made to speak one way. Its offsets stay as listed, the first node being the receiver.

    Different relations may tie the same two nodes by a factor each. Offsets that leave the map have no pairs and
    no block.

    >>> from messagenet.graph import above, below
    >>> graph = from_grid(GridGraph(3, 4, (four_neighbours(), above(cells=1), below(cells=1))), num_classes=2)
    >>> [(block.relation, block.offset, len(block)) for block in graph.blocks]
    [('four_neighbours', (0, 1), 9), ('four_neighbours', (1, 0), 8), ('above', (-1, 0), 8)]
    """
    if not 1 <= num_classes <= MAX_STATES:
        raise InputError(f"num_classes is {num_classes}; every node needs from 1 to {MAX_STATES} states")
    nodes = torch.arange(grid.nodes).view(grid.height, grid.width)
    blocks = tuple(_edge_blocks(grid, num_classes))
    groups = [FactorGroup((num_classes,), _unaries(grid.nodes), torch.arange(grid.nodes))]
    first = grid.nodes
    for block in blocks:
        scopes = torch.stack([nodes[block.first].flatten(), nodes[block.second].flatten()], 1)
        groups.append(FactorGroup((num_classes,) * 2, scopes, torch.arange(first, first + len(block))))
        first += len(block)
    return GridFactorGraph(torch.full((grid.nodes,), num_classes), tuple(groups), grid, blocks)


def _edge_blocks(grid: GridGraph, num_classes: int) -> Iterator[EdgeBlock]:
    for number, (relation, offsets) in enumerate(zip(grid.relations, grid.offsets, strict=True)):
        if relation.form == "box":
            raise InputError(
                f"relation {relation.name!r} has box factors, whose tables would have {num_classes}^"
                f'{len(offsets) + 1} entries; make it form="pairwise", or learn its messages (MessagePassing)'
            )
        mirror = grid.mirrors[number]
        if mirror is not None and mirror < number:
            continue
        for dy, dx in offsets:
            repeated = (dy, dx) < (0, 0) and (-dy, -dx) in offsets
            pairs = None if repeated else window((grid.height, grid.width), (dy, dx))
            if pairs is not None:
                yield EdgeBlock(relation.name, (dy, dx), pairs.receivers[1:], pairs.senders[1:])


def grid_factor_graph(height: int, width: int, num_classes: int) -> GridFactorGraph:
    """A 4-connected grid, rows first: unaries, horizontal pairs and vertical pairs.

    >>> [len(group) for group in grid_factor_graph(2, 3, num_classes=5).groups]
    [6, 4, 3]
    """
    return from_grid(GridGraph(height, width, (four_neighbours(),)), num_classes)


def random_graph(
    num_variables: int,
    num_factors: int,
    *,
    order: int = 2,
    cardinality: int | tuple[int, int] = 2,
    generator: torch.Generator | None = None,
) -> FactorGraph:
    """Unaries plus factors over random sets of `order` variables, listed in random order; often loopy.

    Args:
        num_variables: how many variables.
        num_factors: how many factors besides the unaries.
        order: variables per factor.
        cardinality: states per variable, or (least, most) to draw it for each.
        generator: source of randomness.
    """
    if not 1 <= order <= num_variables:
        raise InputError(
            f"factors of order {order} need at least {order} variables; there are {num_variables}"
        )
    least, most = (cardinality, cardinality) if isinstance(cardinality, int) else cardinality
    states = torch.randint(least, most + 1, (num_variables,), generator=generator)
    scopes = _distinct(num_factors, order, num_variables, generator)
    return FactorGraph.from_blocks(states, [_unaries(num_variables), scopes])


def _distinct(rows: int, columns: int, below: int, generator: torch.Generator | None) -> Tensor:
    """(rows, columns) random numbers, no two the same in a row."""
    if below <= 4 * columns:
        return torch.rand(rows, below, generator=generator).argsort(1)[:, :columns]
    drawn = torch.randint(below, (rows, columns), generator=generator)
    while True:
        ordered = drawn.sort(1).values
        clash = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero()[:, 0]
        if len(clash) == 0:
            return drawn
        drawn[clash] = torch.randint(below, (len(clash), columns), generator=generator)


def random_tree(
    num_variables: int, *, cardinality: int | tuple[int, int] = 2, generator: torch.Generator | None = None
) -> FactorGraph:
    """A tree in which every variable hangs from a random earlier one."""
    least, most = (cardinality, cardinality) if isinstance(cardinality, int) else cardinality
    states = torch.randint(least, most + 1, (num_variables,), generator=generator)
    draws = torch.rand(num_variables, generator=generator)
    parents = [-1, *(int(draws[node] * node) for node in range(1, num_variables))]
    return tree_graph(parents, states)


def random_potentials(
    graph: FactorGraph,
    *,
    scale: float = 1.0,
    batch: int | None = None,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, ...]:
    """Independent normal log-potentials of standard deviation `scale` for every factor."""
    lead = () if batch is None else (batch,)
    return tuple(
        scale * torch.randn(*lead, len(group), *group.shape, dtype=dtype, generator=generator)
        for group in graph.groups
    )
