"""Synchronous belief propagation on a grid without a logarithm.

Where no potential is zero and the range of all of them together fits the floating-point numbers, messages can stay
positive numbers μ = exp β from the first iteration to the last: sums of logs are products, and a message is one
product with the table. They are the messages of the log domain (`network`), constants and all, so that every answer
is the same. The equations and their gradient (the first only) are in `linear_steps`, the windows in `grid_maps`.

A message is a mean of the rows of its table, weighted by the sender's beliefs, so its range is at most the table's;
a belief's is then at most that of the node's own potentials times those of all tables around it, and no message is
above K. `fits` compares that with what a number can hold.

One iteration of `linear_grid` and its gradient, on plain numbers.

Forth, with q = p + o, u = exp θ_p and T = exp(θ_pq / ρ) whose largest entry is 1:

    b_p     = u_p Π_q μ_{q→p}^ρ
    c_{p→q} = b_p / μ_{q→p},  divided by its largest entry
    μ_{p→q} = Tᵀ c_{p→q}
    damped:   μ ← μ^(1 − damping) · (the old μ)^damping

Back, in log μ, where everything is a sum. With n the gradient in log μ after an iteration and a = c ⊙ T (n / μ) that
in log c,

    A_p = Σ_q a_{p→q};    dθ_p += A_p;    dT += c (n / μ)ᵀ;    before the iteration n_{p→q} = ρ A_q − a_{q→p}

Multiplying a message by a constant changes no answer, so n sums to zero over the classes; what rounding leaves of
that sum would grow with each iteration and is taken off. Only messages are kept for the way back: cavities cost less
to make again than to store.

Maps of messages on a grid, and the windows through which neighbours see each other.

A map is (K, nodes), classes first, the nodes of all images in turn: what is done to all classes of a node then runs
along the nodes, and a table meets all of them in one matrix product. Block e of a `GridFactorGraph` has two *ways*:
number 2e leads from the first nodes of its pairs to the second ones, 2e + 1 back, so that `way ^ 1` is the opposite of
`way`. What goes along a way lies at its senders; where a way would leave the grid, its map holds nothing of interest.

Maps are worked on in strips, so that what one step writes is still in the cache when the next one reads it.

Products of the tables of a grid's pairs with maps, strip by strip, and their gradients.

    forth:    Tᵀ x along the ways 2e, T x along the ways 2e + 1
    adjoint:  T x along the ways 2e, Tᵀ x along the ways 2e + 1

A table that all pairs of a block share is one matrix product with a whole strip; where every pair has a table of its
own, there are as many small products, in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from messagenet.graph.grid import Area, GridFactorGraph
from messagenet.inference.engine import Outcome, PassingSettings, Progress, iterate

if TYPE_CHECKING:
    from messagenet.inference.belief_propagation import Network


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


class Sight(NamedTuple):
    """How a strip sees a set of messages: views of memory, for each way.

    Attributes:
        heard: the messages that arrive at its nodes.
        told: what the nodes that its nodes speak to have said to them.
        sent: its own messages, (K, nodes of the strip).
    """

    heard: list[Tensor]
    told: list[Tensor]
    sent: list[Tensor]


class Desk(NamedTuple):
    """Where the messages of a strip are worked on: views of memory that all strips share, for each way.

    Attributes:
        listening: beliefs of the nodes that receive.
        weights: ρ of what they receive; None where it is one.
        speaking: beliefs of the nodes that send.
        cavities: what they are to send.
    """

    listening: list[Tensor]
    weights: list[Tensor | None]
    speaking: list[Tensor]
    cavities: list[Tensor]


@dataclass(frozen=True, eq=False)
class Maps:
    """Messages (ways, K, nodes), and how each strip sees them."""

    values: Tensor
    sights: list[Sight]


class LinearSteps:
    """The numbers of one run, and memory that its steps use again and again.

    Args:
        layout: of the maps.
        unary: (K, nodes) log-potentials of the nodes.
        tables: per block (pairs or 1, batch or 1, K, K) T.
        weights: (ways, nodes) ρ at the senders; None where all are one.
        damping: how much of the old message to keep.
    """

    def __init__(
        self, layout: Layout, unary: Tensor, tables: Sequence[Tensor], weights: Tensor | None, damping: float
    ) -> None:
        self._layout, self._weights, self._damping = layout, weights, damping
        self._unary = (unary - unary.amax(0)).exp().contiguous()
        self._tables = GridTables(layout, tuple(tables))
        widest = max(map(len, layout.strips))
        self._beliefs = self._unary.new_empty(len(unary), widest)
        self._cavities = self._unary.new_ones(len(layout.ways), len(unary), widest)
        self._desks = [self._desk(strip) for strip in layout.strips]

    def _desk(self, strip: Strip) -> Desk:
        layout, ways = self._layout, self._layout.ways
        beliefs, cavities = self._beliefs[:, : len(strip)], self._cavities[..., : len(strip)]
        weights: list[Tensor | None] = [None] * len(ways)
        if self._weights is not None:
            each = zip(self._weights, ways, strict=True)
            weights = [layout.there(strip, rho, way.receivers, way.senders) for rho, way in each]
        return Desk(
            [layout.here(strip, beliefs, way.receivers) for way in ways],
            weights,
            [layout.here(strip, beliefs, way.senders) for way in ways],
            [layout.here(strip, own, way.senders) for own, way in zip(cavities, ways, strict=True)],
        )

    def new_maps(self) -> Maps:
        """Messages that say nothing."""
        return self.maps(self._unary.new_ones(len(self._layout.ways), *self._unary.shape))

    def maps(self, values: Tensor) -> Maps:
        """Messages (ways, K, nodes) with their views."""
        return Maps(values, [self._sight(strip, values.unbind()) for strip in self._layout.strips])

    def _sight(self, strip: Strip, values: Sequence[Tensor]) -> Sight:
        there, ways = self._layout.there, self._layout.ways
        return Sight(
            [there(strip, own, way.receivers, way.senders) for own, way in zip(values, ways, strict=True)],
            [there(strip, values[n ^ 1], way.senders, way.receivers) for n, way in enumerate(ways)],
            [own[:, strip.nodes] for own in values],
        )

    def advance(self, messages: Maps, out: Maps) -> None:
        """New messages from old ones."""
        for number, strip in enumerate(self._layout.strips):
            cavities = self._cavities_of(number, messages)
            self._tables.multiply(strip, cavities.unbind(), out.sights[number].sent)
        if self._damping:
            out.values.mul_((messages.values / out.values).pow_(self._damping))

    def _cavities_of(self, number: int, messages: Maps) -> Tensor:
        """c along all ways from the nodes of a strip; the next call overwrites it."""
        self._beliefs_of(number, messages)
        desk = self._desks[number]
        for beliefs, told, out in zip(
            desk.speaking, messages.sights[number].told, desk.cavities, strict=True
        ):
            torch.div(beliefs, told, out=out)
        cavities = self._cavities[..., : len(self._layout.strips[number])]
        return cavities.div_(cavities.amax(1, keepdim=True))

    def _beliefs_of(self, number: int, messages: Maps) -> Tensor:
        """b of the nodes of a strip, (K, nodes); the next call overwrites it."""
        strip, desk = self._layout.strips[number], self._desks[number]
        beliefs = self._beliefs[:, : len(strip)].copy_(self._unary[:, strip.nodes])
        heard = messages.sights[number].heard
        for places, arriving, rho in zip(desk.listening, heard, desk.weights, strict=True):
            places *= arriving if rho is None else arriving**rho
        return beliefs

    def log_beliefs(self, messages: Maps) -> Tensor:
        """(K, nodes) log b."""
        out = torch.empty_like(self._unary)
        for number, strip in enumerate(self._layout.strips):
            torch.log(self._beliefs_of(number, messages), out=out[:, strip.nodes])
        return out

    def largest_change(self, new: Maps, old: Maps) -> Tensor:
        """Of any log-message."""
        extremes: list[Tensor] = []
        for way in range(len(self._layout.ways)):
            ratio = self._layout.pairs(new.values[way], way) / self._layout.pairs(old.values[way], way)
            extremes += torch.aminmax(ratio)
        return torch.stack(extremes).log_().abs_().amax()

    def gradients(
        self, of_messages: Tensor | None, of_beliefs: Tensor | None, trail: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The gradients in the unary log-potentials and in the tables.

        Args:
            of_messages: gradient in the last messages; None if it is zero.
            of_beliefs: gradient in the logs of the beliefs they make; None if it is zero.
            trail: messages (ways, K, nodes) before the first iteration and after each.
        """
        of_unary, of_tables = torch.zeros_like(self._unary), TableGradients(self._tables)
        at_nodes, scratch = torch.zeros_like(of_unary), torch.empty_like(self._cavities)
        shares, in_logs = torch.zeros_like(trail[-1]), torch.zeros_like(trail[-1])
        before = self._before(at_nodes, shares, in_logs)
        if of_beliefs is not None:
            at_nodes += of_beliefs
            of_unary += of_beliefs
            before()
        if of_messages is not None:
            in_logs.addcmul_(of_messages, trail[-1])
        for old, new in zip(trail[-2::-1], trail[:0:-1], strict=True):
            messages = self.maps(old)
            for number, strip in enumerate(self._layout.strips):
                cavities, part = self._cavities_of(number, messages), shares[..., strip.nodes]
                products = new[..., strip.nodes]
                if self._damping:
                    self._tables.multiply(strip, cavities.unbind(), part.unbind())
                    products = part / (1 - self._damping)
                of_products = torch.div(in_logs[..., strip.nodes], products, out=scratch[..., : len(strip)])
                of_tables.add(strip, cavities.unbind(), of_products.unbind())
                self._tables.multiply(strip, of_products.unbind(), part.unbind(), adjoint=True)
                part *= cavities
                part -= part.mean(1, keepdim=True)
                torch.sum(part, 0, out=at_nodes[:, strip.nodes])
            of_unary += at_nodes
            before()
        return of_unary, of_tables.finish()

    def _before(self, at_nodes: Tensor, shares: Tensor, in_logs: Tensor) -> Callable[[], None]:
        """Makes ρ A_q − a_{q→p}, the gradient in log μ_{p→q} before an iteration, out of A and a.

        Damping keeps some of the gradient after it.
        """
        layout, everything, views = self._layout, self._layout.everything, []
        for number, way in enumerate(layout.ways):
            heard = layout.there(everything, at_nodes, way.senders, way.receivers)
            told = layout.there(everything, shares[number ^ 1], way.senders, way.receivers)
            rho = None if self._weights is None else layout.pairs(self._weights[number], number)
            views.append((heard, told, rho, layout.pairs(in_logs[number], number)))

        def renew() -> None:
            for heard, told, rho, out in views:
                share = heard if rho is None else heard * rho
                if self._damping:
                    out.mul_(self._damping).add_(share).sub_(told)
                else:
                    torch.sub(share, told, out=out)

        return renew


HEADROOM = 0.9  # share of a number's exponents that messages may use


@dataclass(frozen=True, eq=False)
class LinearGrid:
    """A network whose messages can be computed without logarithms.

    Attributes:
        layout: of its maps.
        unary: (K, nodes) log-potentials of the nodes.
        tables: per block (pairs or 1, batch or 1, K, K) exp(θ_pq / ρ), the largest entry of each 1.
        weights: (ways, nodes) ρ at the senders; None where all are one.
    """

    layout: Layout
    unary: Tensor
    tables: tuple[Tensor, ...]
    weights: Tensor | None

    @classmethod
    def build(cls, network: Network) -> LinearGrid | None:
        """The network's potentials as maps; None if it is no grid, has zeros or too large a range, or maximises."""
        graph = network.problem.graph
        if not isinstance(graph, GridFactorGraph) or network.problem.has_zeros or network.maximise:
            return None
        tables = tuple(table.scaled for table in network.tables if table and table.scaled is not None)
        if not tables or not fits(network.unary, tables):
            return None
        layout = Layout(graph, network.unary.shape[1])
        unary = network.unary.permute(2, 1, 0).flatten(1)
        weights = None if network.weights is None else _weight_maps(layout, network.weights)
        return cls(layout, unary, tables, weights)

    def propagate(self, settings: PassingSettings, start: Tensor | None = None) -> Outcome:
        """Runs the schedule, from zeros or from messages (rows, batch, K)."""
        progress: list[Progress] = []
        first = None if start is None else self._maps(start)
        messages, beliefs = _Propagate.apply(  # type: ignore[no-untyped-call]
            self, settings, progress, first, self.unary, *self.tables
        )
        by_variable = beliefs.unflatten(1, (self.layout.batch, -1)).permute(2, 1, 0)
        return Outcome(progress[0], by_variable, lambda: self._rows(messages))

    def _rows(self, messages: Tensor) -> Tensor:
        """(rows, batch, K) logs of messages, in the order of the network."""
        parts = [self.layout.pairs(messages[way], way) for way in self._order]  # (K, batch, h', w')
        return torch.cat([part.permute(2, 3, 1, 0).flatten(0, 1) for part in parts]).log()

    def _maps(self, rows: Tensor) -> Tensor:
        """(ways, K, nodes) of such rows, brought into the bounds of what their tables can make of any beliefs."""
        maps = self.unary.new_ones(len(self.layout.ways), *self.unary.shape)
        sizes = [len(self.layout.graph.blocks[way // 2]) for way in self._order]
        for way, part in zip(self._order, rows.split(sizes), strict=True):
            window = self.layout.pairs(maps[way], way)  # (K, batch, h', w')
            least = self.tables[way // 2].detach().amin()
            top = part.amax(-1, keepdim=True)
            shift = top - top.clamp(float(least.log()), math.log(len(self.unary)))
            values = (part - shift).exp().clamp_min(least)
            window.copy_(values.permute(2, 1, 0).reshape(window.shape))
        return maps

    @property
    def _order(self) -> list[int]:
        """The ways in the order of the network's rows."""
        return [way for forth in range(0, len(self.layout.ways), 2) for way in (forth + 1, forth)]


def fits(unary: Tensor, tables: Sequence[Tensor]) -> bool:
    """Whether neither messages nor beliefs can leave the range of their floating-point numbers.

    Args:
        unary: (..., K) log-potentials of the nodes.
        tables: the largest entry of each table being 1.
    """
    limits = torch.finfo(unary.dtype)
    least, most = torch.aminmax(unary.detach(), dim=-1)
    ranges = [-math.log(float(table.detach().amin().clamp_min(limits.tiny))) for table in tables]
    smallest = float((most - least).amax()) + 2 * sum(ranges) + max(ranges)
    largest = 2 * len(tables) * math.log(unary.shape[-1])
    return max(smallest, largest) < -HEADROOM * math.log(limits.tiny)


def _weight_maps(layout: Layout, weights: Tensor) -> Tensor:
    """ρ of every row of a network, (rows, 1, 1), as (ways, nodes)."""
    maps = weights.new_ones(len(layout.ways), layout.nodes)
    sizes = [len(block) for block in layout.graph.blocks for _ in range(2)]
    for way, part in enumerate(weights.flatten().split(sizes)):
        window = layout.pairs(maps[way], way)
        window.copy_(part.view(window.shape[1:]))
    return maps


class _Propagate(torch.autograd.Function):
    """The last messages, (ways, K, nodes), and the logs of the beliefs they make, (K, nodes)."""

    @staticmethod
    def forward(
        ctx: Any,
        grid: LinearGrid,
        settings: PassingSettings,
        progress: list[Progress],
        start: Tensor | None,
        unary: Tensor,
        *tables: Tensor,
    ) -> tuple[Tensor, Tensor]:
        steps = LinearSteps(grid.layout, unary, tables, grid.weights, settings.damping)
        keep = any(ctx.needs_input_grad)
        first = steps.new_maps() if start is None else steps.maps(start)
        trail = [first]

        def step(messages: Maps) -> tuple[Maps, Tensor | None]:
            new = steps.new_maps() if keep or len(trail) == 1 else trail.pop(0)
            steps.advance(messages, new)
            trail.append(new)
            return new, None if settings.tolerance is None else steps.largest_change(new, messages)

        last, done = iterate(step, first, settings)
        progress.append(done)
        if keep:
            ctx.steps = steps
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*(messages.values for messages in trail))
        return last.values.detach(), steps.log_beliefs(last)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_messages: Tensor | None, of_beliefs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        of_unary, of_tables = ctx.steps.gradients(of_messages, of_beliefs, ctx.saved_tensors)
        return None, None, None, None, of_unary, *of_tables
