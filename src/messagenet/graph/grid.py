"""The grid graph: height × width variable nodes, and the factors that relations put between them.

A *message slot* (r, o, p) is the message that node p receives through relation r from node p + o. A pairwise factor
sends one message to each of its two nodes, so slots come in pairs:

    rev(r, o, p) = (r', −o, p + o),       rev ∘ rev = identity,

where r' = r for a symmetric relation (surrounding) and its mirror image otherwise (above ↔ below). A cavity needs this
map: the message from q to p leaves out the message from p to q. A relation without its mirror in the graph has factors
that send one way only, and so has a box factor; they have no reverse slot.

A `GridFactorGraph` is a `FactorGraph` whose variables are the nodes, rows first. Every node has a unary factor, and
every pair (p, p + o) of a *block* a pairwise one with axes y_p and y_{p+o}. A block is a window and its shift,

    first  = { p : p and p + o inside the map },      second = first + o,

so an engine reaches neighbours by slicing instead of indexing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import MAX_STATES, FactorGraph, FactorGroup
from messagenet.graph.relations import Offset, Relation

Node = tuple[int, int]


class Slot(NamedTuple):
    """One directed message: to `receiver`, through the relation of index `relation`, from `receiver + offset`."""

    relation: int
    offset: Offset
    receiver: Node

    @property
    def sender(self) -> Node:
        """The node at the other end of the factor."""
        return (self.receiver[0] + self.offset[0], self.receiver[1] + self.offset[1])


class Window(NamedTuple):
    """Receivers p with both p and p + o inside the map, and their senders: indices into (B, H, W, …)."""

    receivers: tuple[slice, slice, slice]
    senders: tuple[slice, slice, slice]


def window(size: Sequence[int], offset: Offset) -> Window | None:
    """The overlap of the map with itself shifted by `offset`; None where the shift leaves the map.

    >>> _, rows, columns = window((4, 5), (-1, 2)).senders
    >>> rows, columns
    (slice(0, 3, None), slice(2, 5, None))
    """
    height, width = size
    dy, dx = offset
    if abs(dy) >= height or abs(dx) >= width:
        return None
    rows = slice(max(0, -dy), min(height, height - dy))
    columns = slice(max(0, -dx), min(width, width - dx))
    shifted = slice(rows.start + dy, rows.stop + dy), slice(columns.start + dx, columns.stop + dx)
    return Window((slice(None), rows, columns), (slice(None), *shifted))


def mirrors(relations: Sequence[Relation]) -> tuple[int | None, ...]:
    """For each relation, the index of the relation that holds its reverse slots, if there is one: an involution.

    >>> from messagenet.graph import surrounding, above, below
    >>> mirrors([surrounding(0.4), above(0.4), below(0.4), above(0.2, name="near_above")])
    (0, 2, 1, None)
    """
    found: list[int | None] = [None] * len(relations)
    for i, relation in enumerate(relations):
        if relation.form == "box" or found[i] is not None:
            continue
        for j in range(i, len(relations)):
            if found[j] is None and relation.is_mirror_of(relations[j]):
                found[i], found[j] = j, i
                break
    return tuple(found)


@dataclass(frozen=True)
class GridGraph:
    """Nodes on a grid and the relations between them; structure only, no values.

    >>> from messagenet.graph import above, below
    >>> graph = GridGraph(3, 4, (above(cells=1), below(cells=1)))
    >>> graph.slots((0, 1)), graph.mirrors
    ([Slot(relation=1, offset=(1, 0), receiver=(0, 1))], (1, 0))

    Attributes:
        height: Rows of nodes.
        width: Columns of nodes.
        relations: Which neighbours send messages.
        offsets: The ordered offsets of each relation on this map.
        mirrors: For each relation, the relation of its reverse slots; None where its factors send one way.
        reverse_offsets: For each relation, the index of −o in its mirror's list, for every o in its own list.
    """

    height: int
    width: int
    relations: tuple[Relation, ...] = ()
    offsets: tuple[tuple[Offset, ...], ...] = field(init=False, repr=False, compare=False)
    mirrors: tuple[int | None, ...] = field(init=False, repr=False, compare=False)
    reverse_offsets: tuple[tuple[int, ...] | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "relations", tuple(self.relations))
        if self.height < 1 or self.width < 1:
            raise InputError(f"a grid of {self.height}×{self.width} nodes has no node; give at least 1×1")
        names = [relation.name for relation in self.relations]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two relations are called {name!r}; give one another name with name=…")
        offsets = tuple(relation.offsets_on(self.height, self.width) for relation in self.relations)
        positions = [{offset: i for i, offset in enumerate(each)} for each in offsets]
        matched = mirrors(self.relations)
        reverse = (
            None if mirror is None else tuple(positions[mirror][-dy, -dx] for dy, dx in each)
            for mirror, each in zip(matched, offsets, strict=True)
        )
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "mirrors", matched)
        object.__setattr__(self, "reverse_offsets", tuple(reverse))

    @property
    def nodes(self) -> int:
        """N, the number of variable nodes."""
        return self.height * self.width

    def contains(self, node: Node) -> bool:
        """Whether the node is inside the map."""
        return 0 <= node[0] < self.height and 0 <= node[1] < self.width

    def slots(self, receiver: Node) -> list[Slot]:
        """Every slot of a node whose sender is inside the map, relation by relation, in order."""
        slots = (Slot(i, o, receiver) for i, offsets in enumerate(self.offsets) for o in offsets)
        return [slot for slot in slots if self.contains(slot.sender)]


Area = tuple[slice, slice]


@dataclass(frozen=True)
class EdgeBlock:
    """The pairs of nodes (p, p + offset) of one relation."""

    relation: str  # its name
    offset: Offset  # from the first node of a pair to the second
    first: Area  # rows and columns of the first nodes
    second: Area  # rows and columns of the second nodes

    @property
    def shape(self) -> tuple[int, int]:
        """(h', w'): the pairs form a map of this size."""
        rows, columns = self.first
        return rows.stop - rows.start, columns.stop - columns.start

    def __len__(self) -> int:
        rows, columns = self.shape
        return rows * columns


@dataclass(frozen=True, eq=False)
class GridFactorGraph(FactorGraph):
    """A factor graph on a grid, made by `from_grid`: one group of unaries, then one group for each block."""

    grid: GridGraph
    blocks: tuple[EdgeBlock, ...]  # the pairs, by relation and offset

    @classmethod
    def from_grid(cls, grid: GridGraph, num_classes: int) -> GridFactorGraph:
        """One unary factor per node and one pairwise factor per unordered pair of each relation.

        A table has no direction, unlike a learned message, and sends both ways. So each pair appears once:

        - o and −o in one relation are the same pairs: those with o > (0, 0) stay, to the right or below;
        - a relation whose mirror image came before it (`below` after `above`) adds no pairs;
        - a relation without its mirror image keeps its offsets, the first node being the receiver.

        Different relations may connect the same two nodes by a factor each. Offsets that leave the map have no block.

        >>> from messagenet.graph import above, below, four_neighbours
        >>> grid = GridGraph(3, 4, (four_neighbours(), above(cells=1), below(cells=1)))
        >>> graph = GridFactorGraph.from_grid(grid, num_classes=2)
        >>> [(block.relation, block.offset, len(block)) for block in graph.blocks]
        [('four_neighbours', (0, 1), 9), ('four_neighbours', (1, 0), 8), ('above', (-1, 0), 8)]
        """
        if not 1 <= num_classes <= MAX_STATES:
            raise InputError(f"num_classes is {num_classes}; every node needs from 1 to {MAX_STATES} states")
        return cls.from_edges(grid, _edge_blocks(grid, num_classes), num_classes)

    @classmethod
    def from_edges(cls, grid: GridGraph, blocks: Iterable[EdgeBlock], num_classes: int) -> GridFactorGraph:
        """One unary factor per node and one pairwise factor per pair of each block."""
        blocks = tuple(blocks)
        nodes = torch.arange(grid.nodes).view(grid.height, grid.width)
        groups = [FactorGroup((num_classes,), torch.arange(grid.nodes)[:, None], torch.arange(grid.nodes))]
        first = grid.nodes
        for block in blocks:
            scopes = torch.stack([nodes[block.first].flatten(), nodes[block.second].flatten()], 1)
            groups.append(FactorGroup((num_classes,) * 2, scopes, torch.arange(first, first + len(block))))
            first += len(block)
        return cls(torch.full((grid.nodes,), num_classes), tuple(groups), grid, blocks)

    @property
    def num_classes(self) -> int:
        """K, the states of every variable."""
        return self.max_cardinality

    def to_factor_graph(self) -> FactorGraph:
        """The same factors as index lists."""
        return FactorGraph.from_groups(self.cardinalities, self.groups)

    def to(self, device: torch.device | str) -> GridFactorGraph:
        """The same graph with its index tensors on another device."""
        groups = (FactorGroup(g.shape, g.scopes.to(device), g.factor_ids.to(device)) for g in self.groups)
        return GridFactorGraph(self.cardinalities.to(device), tuple(groups), self.grid, self.blocks)

    def potentials(self, unary: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps of log-potentials as an engine takes them; nothing is copied.

        >>> from messagenet.graph import GridGraph, four_neighbours
        >>> graph = GridFactorGraph.from_grid(GridGraph(4, 5, (four_neighbours(),)), num_classes=3)
        >>> per_pair = torch.zeros(*graph.blocks[1].shape, 3, 3)
        >>> [tuple(p.shape) for p in graph.potentials(torch.zeros(2, 3, 4, 5), [torch.eye(3), per_pair])]
        [(2, 20, 3), (1, 3, 3), (15, 3, 3)]

        Args:
            unary: (K, H, W) or (batch, K, H, W).
            tables: For each block (K, K), shared by all its pairs, or (h', w', K, K), with at most one batch axis
                before. The last two axes are the classes of the first and the second node.
        """
        classes, size = self.num_classes, (self.grid.height, self.grid.width)
        if unary.shape[-3:] != (classes, *size) or unary.ndim not in (3, 4):
            raise InputError(
                f"the unary log-potentials have shape {tuple(unary.shape)}; give ({classes}, {size[0]}, {size[1]}), "
                "with at most one batch axis before"
            )
        if len(tables) != len(self.blocks):
            offsets = ", ".join(str(block.offset) for block in self.blocks)
            raise InputError(
                f"{len(tables)} tables were given for {len(self.blocks)} blocks of pairs; give one for each of "
                f"the offsets {offsets}"
            )
        pairs = (self._pairs(block, table) for block, table in zip(self.blocks, tables, strict=True))
        return unary.flatten(-2).transpose(-1, -2), *pairs

    def _pairs(self, block: EdgeBlock, table: Tensor) -> Tensor:
        classes = (self.num_classes, self.num_classes)
        if table.ndim in (2, 3) and table.shape[-2:] == classes:
            return table.unsqueeze(-3)
        if table.ndim in (4, 5) and table.shape[-4:] == (*block.shape, *classes):
            return table.flatten(-4, -3)
        rows, columns = block.shape
        raise InputError(
            f"the table of offset {block.offset} has shape {tuple(table.shape)}; give {classes} for all its pairs or "
            f"({rows}, {columns}, {classes[0]}, {classes[1]}), with at most one batch axis before"
        )

    def as_map(self, values: Tensor) -> Tensor:
        """(*batch, variables, K) beliefs of an engine as (*batch, K, H, W), or (*batch, variables) as (*batch, H, W).

        >>> from messagenet.graph.builders import grid_factor_graph
        >>> grid_factor_graph(2, 3, num_classes=5).as_map(torch.zeros(7, 6, 5)).shape
        torch.Size([7, 5, 2, 3])
        """
        size = (self.grid.height, self.grid.width)
        if values.shape[-2:] == (self.num_variables, self.num_classes):
            values = values.transpose(-1, -2)
        elif values.shape[-1:] != (self.num_variables,):
            raise InputError(
                f"values of shape {tuple(values.shape)} are not one row for each of the {self.num_variables} nodes"
            )
        return values.reshape(*values.shape[:-1], *size)


def _edge_blocks(grid: GridGraph, num_classes: int) -> Iterator[EdgeBlock]:
    for index, (relation, offsets) in enumerate(zip(grid.relations, grid.offsets, strict=True)):
        if relation.form == "box":
            raise InputError(
                f"relation {relation.name!r} has box factors, whose tables would have {num_classes}^"
                f'{len(offsets) + 1} entries; make it form="pairwise", or learn its messages (MessagePassing)'
            )
        mirror = grid.mirrors[index]
        if mirror is not None and mirror < index:
            continue
        for dy, dx in offsets:
            repeated = (dy, dx) < (0, 0) and (-dy, -dx) in offsets
            pairs = None if repeated else window((grid.height, grid.width), (dy, dx))
            if pairs is not None:
                yield EdgeBlock(relation.name, (dy, dx), pairs.receivers[1:], pairs.senders[1:])
