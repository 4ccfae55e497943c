"""The factor graph of a grid: a `FactorGraph` that remembers where its variables lie.

Variables are the nodes, rows first; every node has a unary factor, and every pair (p, p + o) of a *block* a pairwise
one, its table's axes being y_p and y_{p+o}. All pairs of a block are one window of the map and its shifted copy:

    first  = { p : p and p + o inside the map },      second = first + o

so an engine reaches neighbours by slicing instead of looking them up. To everything else this is a factor graph
like any other; `to_factor_graph` forgets the windows, and no answer changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, FactorGroup
from messagenet.graph.grid import GridGraph
from messagenet.graph.relation import Offset

Area = tuple[slice, slice]


@dataclass(frozen=True)
class EdgeBlock:
    """The pairs of nodes (p, p + offset) of one relation.

    Attributes:
        relation: name of the relation they belong to.
        offset: from the first node of a pair to the second.
        first: rows and columns of the first nodes.
        second: rows and columns of the second nodes.
    """

    relation: str
    offset: Offset
    first: Area
    second: Area

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
    """A factor graph on a grid; `messagenet.graph.builders.from_grid` makes it.

    The first group of factors are the unaries, then comes one group for each block.

    Attributes:
        grid: the nodes and relations.
        blocks: the pairs, by relation and offset.
    """

    grid: GridGraph
    blocks: tuple[EdgeBlock, ...]

    @property
    def num_classes(self) -> int:
        """K, the states of every variable."""
        return self.max_cardinality

    def to_factor_graph(self) -> FactorGraph:
        """The same factors as index lists."""
        return FactorGraph(self.cardinalities, self.groups)

    def to(self, device: torch.device | str) -> GridFactorGraph:
        """The same graph with its index tensors on another device."""
        groups = (FactorGroup(g.shape, g.scopes.to(device), g.factor_ids.to(device)) for g in self.groups)
        return GridFactorGraph(self.cardinalities.to(device), tuple(groups), self.grid, self.blocks)

    def potentials(self, unary: Tensor, tables: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps of log-potentials as an engine takes them; nothing is copied.

        >>> from messagenet.graph import GridGraph, four_neighbours
        >>> from messagenet.graph.builders import from_grid
        >>> graph = from_grid(GridGraph(4, 5, (four_neighbours(),)), num_classes=3)
        >>> per_pair = torch.zeros(*graph.blocks[1].shape, 3, 3)
        >>> [tuple(p.shape) for p in graph.potentials(torch.zeros(2, 3, 4, 5), [torch.eye(3), per_pair])]
        [(2, 20, 3), (1, 3, 3), (15, 3, 3)]

        Args:
            unary: (K, H, W) or (batch, K, H, W).
            tables: for each block (K, K), shared by all its pairs, or (h', w', K, K); either may have a
                batch axis before. The last two axes are the classes of the first and the second node.
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
