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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from messagenet.inference.grid_maps import Layout, Strip
from messagenet.inference.grid_tables import GridTables, TableGradients


class Sight(NamedTuple):
    """How a strip sees a set of messages: views of memory, for each way.

    Attributes:
        heard: places in the strip's beliefs, the messages that arrive there, and their ρ if it is not one.
        told: places in the strip's beliefs, what the node to be spoken to has said, and where the cavity goes.
        sent: the strip's own messages, (K, nodes of the strip).
    """

    heard: list[tuple[Tensor, Tensor, Tensor | None]]
    told: list[tuple[Tensor, Tensor, Tensor]]
    sent: list[Tensor]


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

    def new_maps(self) -> Maps:
        """Messages that say nothing."""
        return self.maps(self._unary.new_ones(len(self._layout.ways), *self._unary.shape))

    def maps(self, values: Tensor) -> Maps:
        """Messages (ways, K, nodes) with their views."""
        return Maps(values, [self._sight(strip, values.unbind()) for strip in self._layout.strips])

    def _sight(self, strip: Strip, values: Sequence[Tensor]) -> Sight:
        layout = self._layout
        beliefs, cavities = self._beliefs[:, : len(strip)], self._cavities[..., : len(strip)]
        sight = Sight([], [], [sent[:, strip.nodes] for sent in values])
        for way, (senders, receivers) in enumerate(layout.ways):
            weights = None
            if self._weights is not None:
                weights = layout.there(strip, self._weights[way], receivers, senders)
            heard = layout.there(strip, values[way], receivers, senders)
            sight.heard.append((layout.here(strip, beliefs, receivers), heard, weights))
            told = layout.there(strip, values[way ^ 1], senders, receivers)
            cavity = layout.here(strip, cavities[way], senders)
            sight.told.append((layout.here(strip, beliefs, senders), told, cavity))
        return sight

    def advance(self, messages: Maps, out: Maps) -> None:
        """New messages from old ones."""
        for strip, sight, renewed in zip(self._layout.strips, messages.sights, out.sights, strict=True):
            self._tables.multiply(strip, self._cavities_of(strip, sight).unbind(), renewed.sent)
        if self._damping:
            out.values.mul_((messages.values / out.values).pow_(self._damping))

    def _cavities_of(self, strip: Strip, sight: Sight) -> Tensor:
        """c along all ways from the nodes of a strip; the next call overwrites it."""
        self._beliefs_of(strip, sight)
        for beliefs, told, out in sight.told:
            torch.div(beliefs, told, out=out)
        cavities = self._cavities[..., : len(strip)]
        return cavities.div_(cavities.amax(1, keepdim=True))

    def _beliefs_of(self, strip: Strip, sight: Sight) -> Tensor:
        """b of the nodes of a strip, (K, nodes); the next call overwrites it."""
        beliefs = self._beliefs[:, : len(strip)].copy_(self._unary[:, strip.nodes])
        for places, heard, weights in sight.heard:
            places *= heard if weights is None else heard**weights
        return beliefs

    def log_beliefs(self, messages: Maps) -> Tensor:
        """(K, nodes) log b."""
        out = torch.empty_like(self._unary)
        for strip, sight in zip(self._layout.strips, messages.sights, strict=True):
            torch.log(self._beliefs_of(strip, sight), out=out[:, strip.nodes])
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
        shares, in_logs = torch.zeros_like(trail[-1]), torch.zeros_like(trail[-1])
        if of_beliefs is not None:
            of_unary += of_beliefs
            self._before(of_unary, shares, in_logs)
        if of_messages is not None:
            in_logs.addcmul_(of_messages, trail[-1])
        at_nodes, scratch = torch.empty_like(of_unary), torch.empty_like(self._cavities)
        for before, after in zip(trail[-2::-1], trail[:0:-1], strict=True):
            for strip, sight in zip(self._layout.strips, self.maps(before).sights, strict=True):
                cavities, part = self._cavities_of(strip, sight), shares[..., strip.nodes]
                products = after[..., strip.nodes]
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
            self._before(at_nodes, shares, in_logs)
        return of_unary, of_tables.finish()

    def _before(self, at_nodes: Tensor, shares: Tensor, in_logs: Tensor) -> None:
        """ρ A_q − a_{q→p}, the gradient in log μ_{p→q} before an iteration; damping keeps some of that after it."""
        layout = self._layout
        for way, (senders, receivers) in enumerate(layout.ways):
            heard = layout.there(layout.everything, at_nodes, senders, receivers)
            if self._weights is not None:
                heard = heard * layout.pairs(self._weights[way], way)
            told = layout.there(layout.everything, shares[way ^ 1], senders, receivers)
            places = layout.pairs(in_logs[way], way)
            if self._damping:
                places.mul_(self._damping).add_(heard).sub_(told)
            else:
                torch.sub(heard, told, out=places)
