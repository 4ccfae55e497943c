"""Products of the tables of a grid's pairs with maps, strip by strip, and their gradients.

    forth:    Tᵀ x along the ways 2e, T x along the ways 2e + 1
    adjoint:  T x along the ways 2e, Tᵀ x along the ways 2e + 1

A table that all pairs of a block share is one matrix product with a whole strip; where every pair has a table of its
own, there are as many small products, in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.inference.grid_maps import Layout, Strip

TERMS_AT_ONCE = 4  # iterations whose gradients in tables of single pairs are added up in one product


class Part(NamedTuple):
    """Nodes of a strip that have the same table, or one for each pair they begin.

    Attributes:
        image: which image of the strip; None for all of them.
        tables: (K, K) or (pairs, K, K).
    """

    image: int | None
    tables: Tensor


@dataclass(frozen=True, eq=False)
class GridTables:
    """The tables of all blocks.

    Attributes:
        layout: of the maps they meet.
        tables: per block (pairs or 1, batch or 1, K, K).
    """

    layout: Layout
    tables: tuple[Tensor, ...]

    def multiply(
        self, strip: Strip, values: Sequence[Tensor], out: Sequence[Tensor], *, adjoint: bool = False
    ) -> None:
        """Products with the maps of a strip, per way (K, nodes of the strip)."""
        for way, (source, target) in enumerate(zip(values, out, strict=True)):
            turned = (way % 2 == 0) != adjoint
            for image, tables in self.parts(self.tables[way // 2], way, strip):
                operand, product = strip.image(source, image), strip.image(target, image)
                if tables.ndim == 2:
                    torch.mm(tables.T if turned else tables, operand, out=product)
                else:
                    told = self.by_pair(strip, operand, way)[:, None]  # (pairs, 1, K)
                    sums = torch.bmm(told, tables if turned else tables.transpose(1, 2))
                    window = self.layout.here(strip, product, self.layout.ways[way].senders)
                    window.copy_(sums.view(*window.shape[1:], len(window)).movedim(-1, 0))

    def parts(self, tables: Tensor, way: int, strip: Strip) -> Iterator[Part]:
        """The parts of a strip with their share of a block's tables (or of something like them)."""
        if tables.shape[:2] == (1, 1):
            yield Part(None, tables[0, 0])
            return
        pairs = self.layout.pairs_in(strip, way) if len(tables) > 1 else None
        for place, image in enumerate(range(strip.images.start, strip.images.stop)):
            own = tables[:, 0 if tables.shape[1] == 1 else image]
            yield Part(place, own[0] if pairs is None else own[pairs])

    def by_pair(self, strip: Strip, values: Tensor, way: int) -> Tensor:
        """A copy of what one image's senders in a strip have on a map (K, nodes): (pairs, K)."""
        rows, columns = self.layout.window(strip, self.layout.ways[way].senders)
        nodes = values.T.clone(memory_format=torch.contiguous_format)
        return nodes.view(-1, self.layout.shape[2], len(values))[rows, columns].flatten(0, 1)


class TableGradients:
    """Gradients in the tables, added up over iterations and strips."""

    def __init__(self, tables: GridTables) -> None:
        self._tables = tables
        self._totals = [torch.zeros_like(table) for table in tables.tables]
        self._waiting: dict[tuple[int, int, int], list[tuple[Tensor, Tensor]]] = {}

    def add(self, strip: Strip, values: Sequence[Tensor], of_products: Sequence[Tensor]) -> None:
        """Given what the tables were multiplied with and the gradient in the products."""
        for way, (told, grad) in enumerate(zip(values, of_products, strict=True)):
            first, second = (told, grad) if way % 2 == 0 else (grad, told)
            for image, total in self._tables.parts(self._totals[way // 2], way, strip):
                left, right = strip.image(first, image), strip.image(second, image)
                if image is None or total.ndim == 2:
                    total.addmm_(left, right.T)
                    continue
                waiting = self._waiting.setdefault((way, strip.nodes.start, image), [])
                by_pair = self._tables.by_pair
                waiting.append((by_pair(strip, left, way), by_pair(strip, right, way)))
                if len(waiting) == TERMS_AT_ONCE:
                    _add_products(total, waiting)

    def finish(self) -> list[Tensor]:
        """Per block, shaped like its tables."""
        for strip in self._tables.layout.strips:
            for way in range(len(self._tables.layout.ways)):
                for image, total in self._tables.parts(self._totals[way // 2], way, strip):
                    if image is not None and total.ndim == 3:
                        _add_products(total, self._waiting.get((way, strip.nodes.start, image), []))
        return self._totals


def _add_products(total: Tensor, waiting: list[tuple[Tensor, Tensor]]) -> None:
    """Adds Σ left ⊗ right for every pair, (pairs, K) each, and empties the list."""
    if waiting:
        left, right = (torch.stack(side, 1) for side in zip(*waiting, strict=True))  # (pairs, terms, K)
        total.baddbmm_(left.transpose(1, 2), right)
        waiting.clear()
