"""Maps of messages on a grid, and the windows through which neighbours see each other.

A map is (K, nodes), classes first, the nodes of all images in turn: what is done to all classes of a node then runs
along the nodes, and a table meets all of them in one matrix product. Block e of a `GridFactorGraph` has two *ways*:
number 2e leads from the first nodes of its pairs to the second ones, 2e + 1 back, so that `way ^ 1` is the opposite of
`way`. What goes along a way lies at its senders; where a way would leave the grid, its map holds nothing of interest.

Maps are worked on in strips, so that what one step writes is still in the cache when the next one reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from messagenet.graph.grid_factors import Area, GridFactorGraph

NODES_PER_STRIP = 4096


class Way(NamedTuple):
    """One direction of a block's pairs: rows and columns of those who send and of those who receive."""

    senders: Area
    receivers: Area


@dataclass(frozen=True)
class Strip:
    """Some images, or some rows of one image.

    Attributes:
        images: which images.
        rows: which rows of them.
        nodes: the strip on a flat map.
    """

    images: slice
    rows: slice
    nodes: slice

    def __len__(self) -> int:
        return int(self.nodes.stop - self.nodes.start)

    def image(self, values: Tensor, number: int | None) -> Tensor:
        """One image of a map of the strip, (..., nodes of the strip), or all of them."""
        if number is None:
            return values
        nodes = len(self) // (self.images.stop - self.images.start)
        return values[..., number * nodes : (number + 1) * nodes]


@dataclass(frozen=True)
class Layout:
    """The maps of a batch of images on one grid.

    Attributes:
        graph: the grid.
        batch: how many images.
    """

    graph: GridFactorGraph
    batch: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, height, width: the nodes of a map."""
        return self.batch, self.graph.grid.height, self.graph.grid.width

    @property
    def nodes(self) -> int:
        """Nodes of all images."""
        return self.batch * self.graph.grid.nodes

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """Both ways of every block."""
        both = (((b.first, b.second), (b.second, b.first)) for b in self.graph.blocks)
        return tuple(Way(*ends) for pair in both for ends in pair)

    @cached_property
    def strips(self) -> tuple[Strip, ...]:
        """Cuts the nodes into strips of about `NODES_PER_STRIP`."""
        batch, height, width = self.shape
        images = max(1, NODES_PER_STRIP // (height * width))
        rows = height if images > 1 else max(1, NODES_PER_STRIP // width)
        return tuple(
            self._strip(slice(first, min(first + images, batch)), slice(top, min(top + rows, height)))
            for first in range(0, batch, images)
            for top in range(0, height, rows)
        )

    @property
    def everything(self) -> Strip:
        """All nodes as one strip."""
        return self._strip(slice(0, self.batch), slice(0, self.graph.grid.height))

    def _strip(self, images: slice, rows: slice) -> Strip:
        _, height, width = self.shape
        start, stop = (
            (images.start * height + rows.start) * width,
            ((images.stop - 1) * height + rows.stop) * width,
        )
        return Strip(images, rows, slice(start, stop))

    def window(self, strip: Strip, area: Area) -> Area:
        """The part of an area in a strip, counted from the strip's first row."""
        start = max(strip.rows.start, area[0].start)
        stop = max(start, min(strip.rows.stop, area[0].stop))
        return slice(start - strip.rows.start, stop - strip.rows.start), area[1]

    def here(self, strip: Strip, values: Tensor, area: Area) -> Tensor:
        """The part of an area in a strip, on a map of the strip: (..., rows, columns)."""
        rows = strip.rows.stop - strip.rows.start
        return values.view(*values.shape[:-1], -1, rows, self.shape[2])[(..., *self.window(strip, area))]

    def there(self, strip: Strip, values: Tensor, area: Area, moved: Area) -> Tensor:
        """The same part of an area where it is moved to, on a map of all nodes."""
        rows, _ = self.window(strip, area)
        shift = strip.rows.start + moved[0].start - area[0].start
        everything = values.view(*values.shape[:-1], *self.shape)
        return everything[..., strip.images, rows.start + shift : rows.stop + shift, moved[1]]

    def pairs_in(self, strip: Strip, way: int) -> slice:
        """Which pairs of a way's block begin in a strip of an image, as a range of them all."""
        senders = self.ways[way].senders
        rows, columns = self.window(strip, senders)
        width, shift = columns.stop - columns.start, strip.rows.start - senders[0].start
        return slice((rows.start + shift) * width, (rows.stop + shift) * width)

    def pairs(self, values: Tensor, way: int) -> Tensor:
        """What lies at the senders of a way: (..., nodes) to (..., batch, height', width')."""
        return values.view(*values.shape[:-1], *self.shape)[(..., *self.ways[way].senders)]
