"""Synchronous belief propagation on a grid without a logarithm.

Where no potential is zero and the range of all of them together fits the floating-point numbers, messages can stay
positive numbers μ = exp β from the first iteration to the last: sums of logs are products, and a message is one
product with the table. They are the messages of the log domain (`network`), constants and all, so that every answer
is the same. The equations and their gradient (the first only) are in `linear_steps`, the windows in `grid_maps`.

A message is a mean of the rows of its table, weighted by the sender's beliefs, so its range is at most the table's;
a belief's is then at most that of the node's own potentials times those of all tables around it, and no message is
above K. `fits` compares that with what a number can hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from messagenet.graph.grid_factors import GridFactorGraph
from messagenet.inference.grid_maps import Layout
from messagenet.inference.linear_steps import LinearSteps, Maps
from messagenet.inference.network import Network
from messagenet.inference.passing import Outcome, PassingSettings, Progress, iterate

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
