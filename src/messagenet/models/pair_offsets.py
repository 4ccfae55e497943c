"""Which pairs of nodes carry a pairwise potential.

A message goes one way, so a relation lists every neighbour of a node. A potential belongs to an unordered pair,
so one list serves both ends, and no pair may be in it twice:

    surrounding   o and −o are the same pairs: those with o > (0, 0), the second node below or to the right
    above         −o is never in it: all offsets, the second node above the first
    below         the pairs of `above`, seen from the other end: a relation whose mirror image has come before it
                  adds none

ContextDCRF does not connect every pair in the range box, for cost, but a regular lattice of 24 neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

from messagenet.errors import InputError
from messagenet.estimators.box_sum import as_rectangle
from messagenet.graph import Offset, Relation
from messagenet.graph.grid import mirrors

Neighbours = Literal["lattice", "all"]
LATTICE = 5


def paired_relations(relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """The relations without those whose pairs an earlier one has already.

    >>> from messagenet.graph import surrounding, above, below
    >>> [relation.name for relation in paired_relations([surrounding(0.4), above(0.4), below(0.4)])]
    ['surrounding', 'above']
    """
    for relation in relations:
        if relation.form != "pairwise":
            raise InputError(
                f"relation {relation.name!r} has the form {relation.form!r}, which potentials of pairs cannot have; "
                "make it pairwise"
            )
    matched = mirrors(relations)
    return tuple(
        relation for i, relation in enumerate(relations) if (mirror := matched[i]) is None or mirror >= i
    )


def pair_offsets(offsets: tuple[Offset, ...], neighbours: Neighbours = "lattice") -> tuple[Offset, ...]:
    """The offsets that name each pair of neighbours once.

    >>> from messagenet.graph import surrounding
    >>> box = surrounding(cells=13).offsets_on(32, 32)
    >>> len(pair_offsets(box, "all")), pair_offsets(box)[:5]        # 168 / 2; the lattice has 24 / 2
    (84, ((0, 3), (0, 6), (3, -6), (3, -3), (3, 0)))
    """
    chosen = lattice(offsets) if neighbours == "lattice" else offsets
    present = set(chosen)
    return tuple((dy, dx) for dy, dx in chosen if (dy, dx) > (0, 0) or (-dy, -dx) not in present)


def lattice(offsets: tuple[Offset, ...]) -> tuple[Offset, ...]:
    """Up to 24 of the offsets, on a 5 × 5 lattice that spans their box, its middle left out.

    In a box around the node the middle is the node itself. A box above it has none to leave out; its middle goes
    all the same, so that every relation has 24. Boxes with no more offsets than that, and sets of offsets that
    fill no box, stay whole.

    >>> from messagenet.graph import above, surrounding
    >>> [len(lattice(relation.offsets_on(32, 32))) for relation in (surrounding(0.4), above(0.4))]
    [24, 24]
    """
    if len(offsets) < LATTICE**2 or (box := as_rectangle(offsets)) is None:
        return offsets
    rows, columns = _spread(box.top, box.bottom), _spread(box.left, box.right)
    places = tuple(product(rows, columns))
    if len(places) < LATTICE**2:
        return tuple(place for place in places if place != (0, 0))
    return tuple(place for i, place in enumerate(places) if i != len(places) // 2)


def _spread(low: int, high: int) -> list[int]:
    """Up to five whole numbers, evenly from `low` to `high`."""
    return sorted({round(low + (high - low) * i / (LATTICE - 1)) for i in range(LATTICE)})
