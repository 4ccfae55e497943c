"""The grid graph: height × width variable nodes, and the factors that relations put between them.

A *message slot* (r, o, p) is the message that node p receives through relation r from node p + o. A pairwise
factor joins two nodes and sends one message to each, so slots come in pairs:

    rev(r, o, p) = (r', −o, p + o),       rev ∘ rev = identity,

where r' = r for a symmetric relation (surrounding ↔ itself) and its mirror image otherwise (above ↔ below).
The cavity of a message needs exactly this map: what q tells p must leave out what p told q.

A relation without its mirror in the graph has factors that send one way only; so has a box factor, which
sends to the node it belongs to. They have no reverse slot, and nothing to leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from messagenet.errors import InputError
from messagenet.graph.relation import Offset, Relation

Node = tuple[int, int]


class Slot(NamedTuple):
    """One directed message: to `receiver`, through relation number `relation`, from `receiver + offset`."""

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
    """For each relation, the number of the relation that holds its reverse slots, if there is one.

    Relations are matched by definition, first come first served, so that `mirrors` is an involution.

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
    >>> graph.rev(Slot(0, (-1, 0), (2, 1)))
    Slot(relation=1, offset=(1, 0), receiver=(1, 1))

    Attributes:
        height: Rows of nodes.
        width: Columns of nodes.
        relations: Which neighbours send messages.
        offsets: The ordered offsets of each relation on this map.
        mirrors: For each relation, the relation of its reverse slots; None where its factors send one way.
        reverse_offsets: For each relation, where −o stands in its mirror's list, for every o in its own list.
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
        places = [{offset: i for i, offset in enumerate(each)} for each in offsets]
        matched = mirrors(self.relations)
        reverse = (
            None if mirror is None else tuple(places[mirror][-dy, -dx] for dy, dx in each)
            for mirror, each in zip(matched, offsets, strict=True)
        )
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "mirrors", matched)
        object.__setattr__(self, "reverse_offsets", tuple(reverse))

    @property
    def nodes(self) -> int:
        """N, the number of variable nodes."""
        return self.height * self.width

    def rev(self, slot: Slot) -> Slot | None:
        """The slot of the same factor's message to its other end; None where the factor sends one way."""
        mirror = self.mirrors[slot.relation]
        if mirror is None:
            return None
        dy, dx = slot.offset
        return Slot(mirror, (-dy, -dx), slot.sender)

    def contains(self, node: Node) -> bool:
        """Whether the node is inside the map."""
        return 0 <= node[0] < self.height and 0 <= node[1] < self.width

    def slots(self, receiver: Node) -> list[Slot]:
        """Every slot of a node whose sender is inside the map, relation by relation, in order."""
        slots = (Slot(i, o, receiver) for i, offsets in enumerate(self.offsets) for o in offsets)
        return [slot for slot in slots if self.contains(slot.sender)]
