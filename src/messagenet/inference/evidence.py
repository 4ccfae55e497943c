"""Conditioning: inference with some variables restricted to some of their states.

    P(y | y_v = k) ∝ exp Σ_F θ_F(y_F),  y_v = k

Observing y_v = k slices every table that touches v, which shrinks scopes and breaks loops; states that a factor forbids
are left out in the same way. Variables keep their indices. One with a single state left leaves all scopes, and a factor
without variables becomes a constant. Results are mapped back to the original states; excluded ones get probability 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, FactorGroup, Potentials
from messagenet.inference.engine import Engine, Result, align, refuse_impossible
from messagenet.inference.log_math import INF


@dataclass(frozen=True, eq=False)
class _Piece:
    """Factors of one group that keep the same number of states at each position."""

    group: int
    rows: Tensor  # (factors,) within the original group
    states: tuple[Tensor, ...]  # per position (factors, kept states)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(kept.shape[1] for kept in self.states)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the new tables, without positions of a single state."""
        return tuple(size for size in self.sizes if size > 1)

    def index(self) -> tuple[Tensor, ...]:
        """Advanced index of the kept entries: broadcasts to (factors, *sizes)."""
        order = len(self.states)
        rows = self.rows.reshape(-1, *[1] * order)
        return rows, *(
            kept.reshape(len(kept), *[1] * position, -1, *[1] * (order - 1 - position))
            for position, kept in enumerate(self.states)
        )


@dataclass(frozen=True, eq=False)
class ConditionedGraph:
    """A smaller problem and the way back to the original one."""

    graph: FactorGraph  # same variables, fewer states, smaller scopes
    potentials: tuple[Tensor, ...]
    original: FactorGraph
    states: Tensor  # (variables, max kept states) original indices; padded with max_cardinality
    pieces: tuple[_Piece, ...]  # origin of each new group
    per_factor: bool  # whether the original potentials were one table per factor

    def run(self, engine: Engine, messages: Tensor | None = None) -> Result:
        """Runs the engine on the smaller problem and answers about the original one."""
        if messages is not None:
            raise InputError("messages belong to the graph without evidence; leave out one of the two")
        return self.restore(engine.run(self.graph, self.potentials))

    def restore(self, result: Result) -> Result:
        """The same answers about the original states; excluded ones have probability 0."""
        return replace(
            result,
            log_marginals=self._marginals(result.log_marginals),
            compute_log_factor_marginals=lambda: self._factor_marginals(result.log_factor_marginals),
            compute_map_state=lambda: self._map_state(result.map_state),
            compute_messages=None,
        )

    def _marginals(self, logs: Tensor) -> Tensor:
        width = self.original.max_cardinality
        blank = logs.new_full((*logs.shape[:-1], width + 1), -INF)
        return blank.scatter(-1, self.states.expand(logs.shape), logs)[..., :width]

    def _map_state(self, chosen: Tensor) -> Tensor:
        table = self.states.expand(*chosen.shape, self.states.shape[1])
        return table.gather(-1, chosen[..., None])[..., 0]

    def _factor_marginals(self, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        whole: dict[int, Tensor] = {}  # (factors, *shape, *batch)
        batched = False
        for piece, part in zip(self.pieces, parts, strict=True):
            group = self.original.groups[piece.group]
            batched = part.ndim > 1 + len(piece.shape)
            last = part.movedim(0, -1) if batched else part
            batch = last.shape[1 + len(piece.shape) :]
            if piece.group not in whole:
                whole[piece.group] = part.new_full((len(group), *group.shape, *batch), -INF)
            kept = last.reshape(len(piece.rows), *piece.sizes, *batch)
            whole[piece.group] = whole[piece.group].index_put(piece.index(), kept)
        groups = tuple(table.movedim(-1, 0) if batched else table for _, table in sorted(whole.items()))
        return tuple(self.original.unpack(groups)) if self.per_factor else groups


def observe(graph: FactorGraph, potentials: Potentials, evidence: Mapping[int, int]) -> ConditionedGraph:
    """Fixes observed variables to their states, given as {variable: state}.

    >>> graph = FactorGraph([2, 2], [[0], [1], [0, 1]])
    >>> conditioned = observe(graph, [torch.zeros(2), torch.zeros(2), torch.zeros(2, 2)], {1: 0})
    >>> conditioned.graph.scopes()
    [(0,), (), (0,)]
    """
    align(graph, potentials)  # refuses potentials that do not fit the graph
    allowed = graph.valid_states.clone()
    for variable, state in evidence.items():
        if not 0 <= variable < graph.num_variables:
            raise InputError(
                f"evidence: variable {variable} does not exist; variables are 0 to {graph.num_variables - 1}"
            )
        if not 0 <= state < int(graph.cardinalities[variable]):
            raise InputError(
                f"evidence: variable {variable} has no state {state}; "
                f"its states are 0 to {int(graph.cardinalities[variable]) - 1}"
            )
        allowed[variable] = False
        allowed[variable, state] = True
    return restrict(graph, potentials, allowed)


def possible_states(graph: FactorGraph, potentials: Potentials) -> Tensor:
    """(variables, max_cardinality) mask without the states that some factor forbids in every batch item."""
    allowed = graph.valid_states.clone()
    for group, potential in zip(graph.groups, graph.as_groups(potentials), strict=True):
        open_ = potential.detach() != -INF
        open_ = open_.any(0) if potential.ndim > 1 + group.order else open_  # (factors or 1, *shape)
        for position, size in enumerate(group.shape):
            others = [axis + 1 for axis in range(group.order) if axis != position]
            support = (open_.amax(others) if others else open_).expand(len(group), size)
            forbidden = torch.zeros_like(allowed[:, :size], dtype=torch.long)
            forbidden.index_add_(0, group.scopes[:, position], (~support).long())
            allowed[:, :size] &= forbidden == 0
    return allowed


def restrict(graph: FactorGraph, potentials: Potentials, allowed: Tensor) -> ConditionedGraph:
    """Keeps only the allowed states, given as a (variables, max_cardinality) mask."""
    counts = allowed.sum(1)
    refuse_impossible((counts == 0).nonzero()[:, 0])
    width = int(counts.max())
    states = torch.where(allowed, torch.arange(allowed.shape[1], device=allowed.device), allowed.shape[1])
    states = states.sort(1).values[:, :width]
    pieces: list[_Piece] = []
    tables: list[Tensor] = []
    groups: list[FactorGroup] = []
    per_factor = graph.is_per_factor(potentials)
    grouped = graph.pack(potentials) if per_factor else potentials
    for group_index, (group, potential) in enumerate(zip(graph.groups, grouped, strict=True)):
        kept = counts[group.scopes]  # (factors, order)
        shapes, member = np.unique(kept.cpu().numpy(), axis=0, return_inverse=True)
        for index, sizes in enumerate(shapes.tolist()):
            rows = torch.from_numpy(np.flatnonzero(member.reshape(-1) == index)).to(kept.device)
            scopes = group.scopes[rows]
            held = tuple(states[scopes[:, position], :size] for position, size in enumerate(sizes))
            piece = _Piece(group_index, rows, held)
            pieces.append(piece)
            tables.append(_slice(potential, piece, group))
            remaining = [position for position, size in enumerate(sizes) if size > 1]
            groups.append(FactorGroup(piece.shape, scopes[:, remaining], group.factor_ids[rows]))
    smaller = FactorGraph.from_groups(counts, groups)
    return ConditionedGraph(smaller, tuple(tables), graph, states, tuple(pieces), per_factor)


def _slice(potential: Tensor, piece: _Piece, group: FactorGroup) -> Tensor:
    shared = potential.shape[-1 - group.order] == 1
    if shared and piece.sizes == group.shape == piece.shape:
        return potential
    rows, *states = piece.index()
    batch = [slice(None)] * (potential.ndim - 1 - group.order)
    index: list[slice | Tensor] = [*batch, torch.zeros_like(rows) if shared else rows, *states]
    kept = potential[tuple(index)]
    return kept.reshape(*kept.shape[: kept.ndim - group.order], *piece.shape)


class ConditionalEngine:
    """Base of engines that take evidence."""

    def run(self, graph: FactorGraph, potentials: Potentials, *, evidence: Mapping[int, int] | None = None) -> Result:
        """Infers marginals, log Z and the most probable state.

        Args:
            graph: The structure.
            potentials: One table of log-potentials per factor, or one tensor per group.
            evidence: Observed {variable: state}.
        """
        if evidence is not None:
            return observe(graph, potentials, evidence).run(self)
        return self._infer(graph, potentials)

    def _infer(self, graph: FactorGraph, potentials: Potentials) -> Result:
        """The answer without evidence."""
        raise NotImplementedError
