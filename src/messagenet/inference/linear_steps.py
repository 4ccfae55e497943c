"""One iteration of `linear_grid` and its gradient, on plain numbers.

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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.inference.grid_maps import Layout, Strip
from messagenet.inference.grid_tables import GridTables, TableGradients


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
