"""Synchronous belief propagation on a grid without a logarithm.

Without zeros, and if the range of all potentials fits the dtype, messages can stay positive numbers μ = exp β: sums of
logs become products, and a message is one product with the table. The result is that of `belief_propagation`, constants
included. With q = p + o, u = exp θ_p and T = exp(θ_pq / ρ), whose largest entry is 1,

    b_p     = u_p Π_q μ_{q→p}^ρ
    c_{p→q} = b_p / μ_{q→p},  divided by its largest entry
    μ_{p→q} = Tᵀ c_{p→q}
    damped:   μ ← μ^(1 − damping) · (the old μ)^damping

The first gradient is taken in log μ. With n the gradient in log μ after an iteration and a = c ⊙ T (n / μ) in log c,

    A_p = Σ_q a_{p→q};    dθ_p += A_p;    dT += c (n / μ)ᵀ;    before the iteration n_{p→q} = ρ A_q − a_{q→p}

n sums to zero over the classes; the rounding error of that sum would grow with each iteration and is subtracted. Only
messages are stored for the backward pass: cavities cost less to recompute than to store.

Range: a message is a weighted mean of its table's rows, so its range is at most the table's, and no message is above K.
A belief's range is at most that of the node's potentials times those of all tables around it.

Layout: a map is (K, nodes), the nodes of all images in turn. Block e of a `GridFactorGraph` has two *directions*: 2e
from the first nodes of its pairs to the second, 2e + 1 back, so `direction ^ 1` is the opposite. A message is stored at
its sender; where a direction leaves the grid, its map holds unused ones. Maps are processed in strips that fit a cache.
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
from messagenet.inference.engine import PassingSettings, Propagation, Trace, iterate

if TYPE_CHECKING:
    from messagenet.inference.belief_propagation import Propagator

NODES_PER_STRIP = 4096


class Direction(NamedTuple):
    """One direction of a block's pairs: rows and columns of the senders and of the receivers."""

    senders: Area
    receivers: Area


@dataclass(frozen=True)
class Strip:
    """Some images, or some rows of one image; `nodes` is the strip on a flat map."""

    images: slice
    rows: slice
    nodes: slice

    def __len__(self) -> int:
        return int(self.nodes.stop - self.nodes.start)

    def image(self, values: Tensor, index: int | None) -> Tensor:
        """One image of a map of the strip, (..., nodes of the strip), or all of them."""
        if index is None:
            return values
        nodes = len(self) // (self.images.stop - self.images.start)
        return values[..., index * nodes : (index + 1) * nodes]


@dataclass(frozen=True)
class GridLayout:
    """The maps of a batch of images on one grid."""

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
    def directions(self) -> tuple[Direction, ...]:
        """Two for every block."""
        both = (((b.first, b.second), (b.second, b.first)) for b in self.graph.blocks)
        return tuple(Direction(*ends) for pair in both for ends in pair)

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
    def whole(self) -> Strip:
        """All nodes as one strip."""
        return self._strip(slice(0, self.batch), slice(0, self.graph.grid.height))

    def _strip(self, images: slice, rows: slice) -> Strip:
        _, height, width = self.shape
        start, stop = ((images.start * height + rows.start) * width, ((images.stop - 1) * height + rows.stop) * width)
        return Strip(images, rows, slice(start, stop))

    def window(self, strip: Strip, area: Area) -> Area:
        """The part of an area in a strip, counted from the strip's first row."""
        start = max(strip.rows.start, area[0].start)
        stop = max(start, min(strip.rows.stop, area[0].stop))
        return slice(start - strip.rows.start, stop - strip.rows.start), area[1]

    def local(self, strip: Strip, values: Tensor, area: Area) -> Tensor:
        """The part of an area in a strip, on a map of the strip: (..., rows, columns)."""
        rows = strip.rows.stop - strip.rows.start
        return values.view(*values.shape[:-1], -1, rows, self.shape[2])[(..., *self.window(strip, area))]

    def shifted(self, strip: Strip, values: Tensor, area: Area, moved: Area) -> Tensor:
        """The same part of an area after a shift, on a map of all nodes."""
        rows, _ = self.window(strip, area)
        shift = strip.rows.start + moved[0].start - area[0].start
        on_grid = values.view(*values.shape[:-1], *self.shape)
        return on_grid[..., strip.images, rows.start + shift : rows.stop + shift, moved[1]]

    def pairs_in(self, strip: Strip, direction: int) -> slice:
        """Which pairs of a direction's block begin in a strip of an image, as a range of them all."""
        senders = self.directions[direction].senders
        rows, columns = self.window(strip, senders)
        width, shift = columns.stop - columns.start, strip.rows.start - senders[0].start
        return slice((rows.start + shift) * width, (rows.stop + shift) * width)

    def at_senders(self, values: Tensor, direction: int) -> Tensor:
        """The values of a direction's senders: (..., nodes) to (..., batch, height', width')."""
        return values.view(*values.shape[:-1], *self.shape)[(..., *self.directions[direction].senders)]


TERMS_AT_ONCE = 4  # iterations whose gradients in tables of single pairs are summed in one product


class Part(NamedTuple):
    """Nodes of a strip that have the same table, or one for each pair they begin."""

    image: int | None  # of the strip; None for all of them
    tables: Tensor  # (K, K) or (pairs, K, K)


@dataclass(frozen=True, eq=False)
class GridTables:
    """Products of the tables of all blocks with maps, strip by strip, and their gradients.

        forward:  Tᵀ x along the directions 2e, T x along the directions 2e + 1
        adjoint:  T x along the directions 2e, Tᵀ x along the directions 2e + 1

    A table shared by all pairs of a block is one matrix product with a strip; a table per pair, one batched product.
    """

    layout: GridLayout
    tables: tuple[Tensor, ...]  # per block (pairs or 1, batch or 1, K, K)

    def multiply(self, strip: Strip, values: Sequence[Tensor], out: Sequence[Tensor], *, adjoint: bool = False) -> None:
        """Products with the maps of a strip, per direction (K, nodes of the strip)."""
        for direction, (source, target) in enumerate(zip(values, out, strict=True)):
            turned = (direction % 2 == 0) != adjoint
            for image, tables in self.parts(self.tables[direction // 2], direction, strip):
                operand, product = strip.image(source, image), strip.image(target, image)
                if tables.ndim == 2:
                    torch.mm(tables.T if turned else tables, operand, out=product)
                else:
                    rows = self.by_pair(strip, operand, direction)[:, None]  # (pairs, 1, K)
                    sums = torch.bmm(rows, tables if turned else tables.transpose(1, 2))
                    window = self.layout.local(strip, product, self.layout.directions[direction].senders)
                    window.copy_(sums.view(*window.shape[1:], len(window)).movedim(-1, 0))

    def parts(self, tables: Tensor, direction: int, strip: Strip) -> Iterator[Part]:
        """The parts of a strip with their slice of a block's tables (or of tensors of that shape)."""
        if tables.shape[:2] == (1, 1):
            yield Part(None, tables[0, 0])
            return
        pairs = self.layout.pairs_in(strip, direction) if len(tables) > 1 else None
        for index, image in enumerate(range(strip.images.start, strip.images.stop)):
            own = tables[:, 0 if tables.shape[1] == 1 else image]
            yield Part(index, own[0] if pairs is None else own[pairs])

    def by_pair(self, strip: Strip, values: Tensor, direction: int) -> Tensor:
        """A copy of the values of one image's senders in a strip, from a map (K, nodes): (pairs, K)."""
        rows, columns = self.layout.window(strip, self.layout.directions[direction].senders)
        nodes = values.T.clone(memory_format=torch.contiguous_format)
        return nodes.view(-1, self.layout.shape[2], len(values))[rows, columns].flatten(0, 1)


class TableGradients:
    """Gradients in the tables, summed over iterations and strips."""

    def __init__(self, tables: GridTables) -> None:
        self._tables = tables
        self._totals = [torch.zeros_like(table) for table in tables.tables]
        self._waiting: dict[tuple[int, int, int], list[tuple[Tensor, Tensor]]] = {}

    def add(self, strip: Strip, values: Sequence[Tensor], of_products: Sequence[Tensor]) -> None:
        """Adds the gradient of one step, given the factors of the products and the gradient in the products."""
        for direction, (source, grad) in enumerate(zip(values, of_products, strict=True)):
            first, second = (source, grad) if direction % 2 == 0 else (grad, source)
            for image, total in self._tables.parts(self._totals[direction // 2], direction, strip):
                left, right = strip.image(first, image), strip.image(second, image)
                if image is None or total.ndim == 2:
                    total.addmm_(left, right.T)
                    continue
                waiting = self._waiting.setdefault((direction, strip.nodes.start, image), [])
                by_pair = self._tables.by_pair
                waiting.append((by_pair(strip, left, direction), by_pair(strip, right, direction)))
                if len(waiting) == TERMS_AT_ONCE:
                    _add_products(total, waiting)

    def finish(self) -> list[Tensor]:
        """Per block, shaped like its tables."""
        for strip in self._tables.layout.strips:
            for direction in range(len(self._tables.layout.directions)):
                for image, total in self._tables.parts(self._totals[direction // 2], direction, strip):
                    if image is not None and total.ndim == 3:
                        _add_products(total, self._waiting.get((direction, strip.nodes.start, image), []))
        return self._totals


def _add_products(total: Tensor, waiting: list[tuple[Tensor, Tensor]]) -> None:
    """Adds Σ left ⊗ right for every pair, (pairs, K) each, and empties the list."""
    if waiting:
        left, right = (torch.stack(side, 1) for side in zip(*waiting, strict=True))  # (pairs, terms, K)
        total.baddbmm_(left.transpose(1, 2), right)
        waiting.clear()


class MessageViews(NamedTuple):
    """Views of the messages of one strip, for each direction."""

    incoming: list[Tensor]  # to the strip's nodes
    reverse: list[Tensor]  # from the receivers of the strip's nodes back to them; a cavity leaves them out
    outgoing: list[Tensor]  # from the strip's nodes, (K, nodes of the strip)


class Workspace(NamedTuple):
    """Scratch memory of one strip, for each direction: views of buffers that all strips share."""

    receivers: list[Tensor]  # beliefs of the receiving nodes
    weights: list[Tensor | None]  # ρ of the messages they receive; None: 1
    senders: list[Tensor]  # beliefs of the sending nodes
    cavities: list[Tensor]  # their beliefs without the reverse message


@dataclass(frozen=True, eq=False)
class MessageMaps:
    """Messages (directions, K, nodes), and the views of each strip."""

    values: Tensor
    views: list[MessageViews]


class LinearSteps:
    """One iteration and its gradient, with arguments as in `LinearGrid`; buffers are allocated once for a run."""

    def __init__(
        self, layout: GridLayout, unary: Tensor, tables: Sequence[Tensor], weights: Tensor | None, damping: float
    ) -> None:
        self._layout, self._weights, self._damping = layout, weights, damping
        self._unary = (unary - unary.amax(0)).exp().contiguous()
        self._tables = GridTables(layout, tuple(tables))
        widest = max(map(len, layout.strips))
        self._beliefs = self._unary.new_empty(len(unary), widest)
        self._cavities = self._unary.new_ones(len(layout.directions), len(unary), widest)
        self._workspaces = [self._workspace(strip) for strip in layout.strips]

    def _workspace(self, strip: Strip) -> Workspace:
        layout, directions = self._layout, self._layout.directions
        beliefs, cavities = self._beliefs[:, : len(strip)], self._cavities[..., : len(strip)]
        weights: list[Tensor | None] = [None] * len(directions)
        if self._weights is not None:
            each = zip(self._weights, directions, strict=True)
            weights = [layout.shifted(strip, rho, direction.receivers, direction.senders) for rho, direction in each]
        return Workspace(
            [layout.local(strip, beliefs, direction.receivers) for direction in directions],
            weights,
            [layout.local(strip, beliefs, direction.senders) for direction in directions],
            [layout.local(strip, own, direction.senders) for own, direction in zip(cavities, directions, strict=True)],
        )

    def new_maps(self) -> MessageMaps:
        """Uniform messages."""
        return self.maps(self._unary.new_ones(len(self._layout.directions), *self._unary.shape))

    def maps(self, values: Tensor) -> MessageMaps:
        """Messages (directions, K, nodes) with their views."""
        return MessageMaps(values, [self._views(strip, values.unbind()) for strip in self._layout.strips])

    def _views(self, strip: Strip, values: Sequence[Tensor]) -> MessageViews:
        shifted, directions = self._layout.shifted, self._layout.directions
        return MessageViews(
            [shifted(strip, values[i], ends.receivers, ends.senders) for i, ends in enumerate(directions)],
            [shifted(strip, values[i ^ 1], ends.senders, ends.receivers) for i, ends in enumerate(directions)],
            [own[:, strip.nodes] for own in values],
        )

    def advance(self, messages: MessageMaps, out: MessageMaps) -> None:
        """New messages from old ones."""
        for index, strip in enumerate(self._layout.strips):
            cavities = self._cavities_of(index, messages)
            self._tables.multiply(strip, cavities.unbind(), out.views[index].outgoing)
        if self._damping:
            out.values.mul_((messages.values / out.values).pow_(self._damping))

    def _cavities_of(self, index: int, messages: MessageMaps) -> Tensor:
        """c along all directions from the nodes of a strip; the next call overwrites it."""
        self._beliefs_of(index, messages)
        workspace = self._workspaces[index]
        for beliefs, reverse, out in zip(
            workspace.senders, messages.views[index].reverse, workspace.cavities, strict=True
        ):
            torch.div(beliefs, reverse, out=out)
        cavities = self._cavities[..., : len(self._layout.strips[index])]
        return cavities.div_(cavities.amax(1, keepdim=True))

    def _beliefs_of(self, index: int, messages: MessageMaps) -> Tensor:
        """b of the nodes of a strip, (K, nodes); the next call overwrites it."""
        strip, workspace = self._layout.strips[index], self._workspaces[index]
        beliefs = self._beliefs[:, : len(strip)].copy_(self._unary[:, strip.nodes])
        incoming = messages.views[index].incoming
        for receivers, message, rho in zip(workspace.receivers, incoming, workspace.weights, strict=True):
            receivers *= message if rho is None else message**rho
        return beliefs

    def log_beliefs(self, messages: MessageMaps) -> Tensor:
        """(K, nodes) log b."""
        out = torch.empty_like(self._unary)
        for index, strip in enumerate(self._layout.strips):
            torch.log(self._beliefs_of(index, messages), out=out[:, strip.nodes])
        return out

    def largest_change(self, new: MessageMaps, old: MessageMaps) -> Tensor:
        """Of any log-message."""
        extremes: list[Tensor] = []
        for direction in range(len(self._layout.directions)):
            ratio = self._layout.at_senders(new.values[direction], direction) / self._layout.at_senders(
                old.values[direction], direction
            )
            extremes += torch.aminmax(ratio)
        return torch.stack(extremes).log_().abs_().amax()

    def gradients(
        self, of_messages: Tensor | None, of_beliefs: Tensor | None, history: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Gradients in the unary log-potentials and tables, from those in the last messages and log-beliefs (None: 0).

        `history` has the messages (directions, K, nodes) before the first iteration and after each.
        """
        of_unary, of_tables = torch.zeros_like(self._unary), TableGradients(self._tables)
        at_nodes, scratch = torch.zeros_like(of_unary), torch.empty_like(self._cavities)
        in_cavities, in_logs = torch.zeros_like(history[-1]), torch.zeros_like(history[-1])
        step_back = self._step_back(at_nodes, in_cavities, in_logs)
        if of_beliefs is not None:
            at_nodes += of_beliefs
            of_unary += of_beliefs
            step_back()
        if of_messages is not None:
            in_logs.addcmul_(of_messages, history[-1])
        for old, new in zip(history[-2::-1], history[:0:-1], strict=True):
            messages = self.maps(old)
            for index, strip in enumerate(self._layout.strips):
                cavities, part = self._cavities_of(index, messages), in_cavities[..., strip.nodes]
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
            step_back()
        return of_unary, of_tables.finish()

    def _step_back(self, at_nodes: Tensor, in_cavities: Tensor, in_logs: Tensor) -> Callable[[], None]:
        """A function that sets n = ρ A_q − a_{q→p}, the gradient in log μ_{p→q} before an iteration, from A and a."""
        layout, whole, views = self._layout, self._layout.whole, []
        for index, direction in enumerate(layout.directions):
            at_receivers = layout.shifted(whole, at_nodes, direction.senders, direction.receivers)
            reverse = layout.shifted(whole, in_cavities[index ^ 1], direction.senders, direction.receivers)
            rho = None if self._weights is None else layout.at_senders(self._weights[index], index)
            views.append((at_receivers, reverse, rho, layout.at_senders(in_logs[index], index)))

        def step_back() -> None:
            for at_receivers, reverse, rho, out in views:
                summed = at_receivers if rho is None else at_receivers * rho
                if self._damping:
                    out.mul_(self._damping).add_(summed).sub_(reverse)
                else:
                    torch.sub(summed, reverse, out=out)

        return step_back


HEADROOM = 0.9  # share of the dtype's exponents that messages may use


@dataclass(frozen=True, eq=False)
class LinearGrid:
    """A grid whose messages can be computed without logarithms."""

    layout: GridLayout
    unary: Tensor  # (K, nodes) log-potentials
    tables: tuple[Tensor, ...]  # per block (pairs or 1, batch or 1, K, K) exp(θ_pq / ρ), the largest entry of each 1
    weights: Tensor | None  # (directions, nodes) ρ at the senders; None where all are one

    @classmethod
    def build(cls, propagator: Propagator) -> LinearGrid | None:
        """The potentials as maps; None if this is no grid, maximises, or has zeros or too large a range."""
        graph = propagator.problem.graph
        if not isinstance(graph, GridFactorGraph) or propagator.problem.has_zeros or propagator.maximise:
            return None
        tables = tuple(table.scaled for table in propagator.tables if table and table.scaled is not None)
        if not tables or not fits(propagator.unary, tables):
            return None
        layout = GridLayout(graph, propagator.unary.shape[1])
        unary = propagator.unary.permute(2, 1, 0).flatten(1)
        weights = None if propagator.weights is None else _weight_maps(layout, propagator.weights)
        return cls(layout, unary, tables, weights)

    def propagate(self, settings: PassingSettings, start: Tensor | None = None) -> Propagation:
        """Runs the schedule, from zeros or from messages (rows, batch, K)."""
        traces: list[Trace] = []
        first = None if start is None else self._maps(start)
        messages, beliefs = _Propagate.apply(  # type: ignore[no-untyped-call]
            self, settings, traces, first, self.unary, *self.tables
        )
        by_variable = beliefs.unflatten(1, (self.layout.batch, -1)).permute(2, 1, 0)
        return Propagation(traces[0], by_variable, lambda: self._rows(messages))

    def _rows(self, messages: Tensor) -> Tensor:
        """(rows, batch, K) logs of messages, in the order of the propagator."""
        parts = [self.layout.at_senders(messages[i], i) for i in self._order]  # (K, batch, h', w')
        return torch.cat([part.permute(2, 3, 1, 0).flatten(0, 1) for part in parts]).log()

    def _maps(self, rows: Tensor) -> Tensor:
        """(directions, K, nodes) of such rows, clamped to the range that their tables can give for any beliefs."""
        maps = self.unary.new_ones(len(self.layout.directions), *self.unary.shape)
        sizes = [len(self.layout.graph.blocks[direction // 2]) for direction in self._order]
        for direction, part in zip(self._order, rows.split(sizes), strict=True):
            window = self.layout.at_senders(maps[direction], direction)  # (K, batch, h', w')
            lowest = self.tables[direction // 2].detach().amin()
            top = part.amax(-1, keepdim=True)
            shift = top - top.clamp(float(lowest.log()), math.log(len(self.unary)))
            values = (part - shift).exp().clamp_min(lowest)
            window.copy_(values.permute(2, 1, 0).reshape(window.shape))
        return maps

    @property
    def _order(self) -> list[int]:
        """The directions in the order of the propagator's rows, which go by receiver."""
        return [index ^ 1 for index in range(len(self.layout.directions))]


def fits(unary: Tensor, tables: Sequence[Tensor]) -> bool:
    """Whether messages and beliefs stay in the dtype's range: unary (..., K), the largest entry of each table 1."""
    limits = torch.finfo(unary.dtype)
    low, high = torch.aminmax(unary.detach(), dim=-1)
    ranges = [-math.log(float(table.detach().amin().clamp_min(limits.tiny))) for table in tables]
    smallest = float((high - low).amax()) + 2 * sum(ranges) + max(ranges)
    largest = 2 * len(tables) * math.log(unary.shape[-1])
    return max(smallest, largest) < -HEADROOM * math.log(limits.tiny)


def _weight_maps(layout: GridLayout, weights: Tensor) -> Tensor:
    """ρ of every row of a propagator, (rows, 1, 1), as (directions, nodes)."""
    maps = weights.new_ones(len(layout.directions), layout.nodes)
    sizes = [len(block) for block in layout.graph.blocks for _ in range(2)]
    for direction, part in enumerate(weights.flatten().split(sizes)):
        window = layout.at_senders(maps[direction], direction)
        window.copy_(part.view(window.shape[1:]))
    return maps


class _Propagate(torch.autograd.Function):
    """The last messages, (directions, K, nodes), and the logs of the beliefs they make, (K, nodes)."""

    @staticmethod
    def forward(
        ctx: Any,
        grid: LinearGrid,
        settings: PassingSettings,
        traces: list[Trace],
        start: Tensor | None,
        unary: Tensor,
        *tables: Tensor,
    ) -> tuple[Tensor, Tensor]:
        steps = LinearSteps(grid.layout, unary, tables, grid.weights, settings.damping)
        keep_history = any(ctx.needs_input_grad)
        first = steps.new_maps() if start is None else steps.maps(start)
        history = [first]

        def step(messages: MessageMaps) -> tuple[MessageMaps, Tensor | None]:
            new = steps.new_maps() if keep_history or len(history) == 1 else history.pop(0)
            steps.advance(messages, new)
            history.append(new)
            return new, None if settings.tolerance is None else steps.largest_change(new, messages)

        last, trace = iterate(step, first, settings.max_iterations, settings.tolerance)
        traces.append(trace)
        if keep_history:
            ctx.steps = steps
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*(messages.values for messages in history))
        return last.values.detach(), steps.log_beliefs(last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_messages: Tensor | None, of_beliefs: Tensor | None) -> tuple[Tensor | None, ...]:
        of_unary, of_tables = ctx.steps.gradients(of_messages, of_beliefs, ctx.saved_tensors)
        return None, None, None, None, of_unary, *of_tables
