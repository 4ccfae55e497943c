"""Sequential tree-reweighted max-product (TRW-S): the most probable state, with a bound on its score.

Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 2006. The graph is cut into
chains along the order of the variables; n_s = max(earlier, later neighbours of s) of them pass through s. Variables are
visited in order, then back, each sending to those still to come

    b_s          = θ_s + Σ_t M_{t→s}
    M_{s→t}(y_t) = max_{y_s} [ b_s(y_s) / n_s − M_{t→s}(y_s) + θ_st(y_s, y_t) ] − δ_st,      so that max M = 0

After a pass the chains' best scores sum to a bound on every score from above (on the energy from below):

    max_y score(y) ≤ Σ_st δ_st + Σ_s (1 − out_s / n_s) max b_s,      out_s: edges of s along the pass

The bound never gets worse. A state is decoded in each iteration; when its score meets the bound it is optimal. The
bound is summed in float64; where rounding moves it below the score of that state, the score is reported instead.
Variables with no edge between them are visited together, so a pass over an H×W grid is H + W steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph, Potentials
from messagenet.inference.engine import Problem, Result, align, check_number, check_settings
from messagenet.inference.evidence import ConditionalEngine
from messagenet.inference.factors import add_on_axes, collect, num_rows, rows_by_label
from messagenet.inference.log_math import INF, log_normalise, subtract
from messagenet.settings import register

ROUNDS = 10  # iterations over which the bound has to stall: it may pause for a few and go on


@register("engine", "trws")
@dataclass(frozen=True)
class SequentialTRW(ConditionalEngine):
    """Settings of TRW-S, for graphs whose factors touch at most two variables.

    In its result `log_z` is the upper bound on the largest score, `map_state` the best state found (optimal if its
    score equals `log_z`), `history` the lower bound on the energy after each iteration (summed over the batch), and the
    marginals are the max-marginals of the chains.

    Attributes:
        max_iterations: at most so many passes forward and back.
        tolerance: stop when the bound's relative gap to the score, or its change in ten iterations, is at most this.
    """

    max_iterations: int = 200
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        check_settings(self)
        check_number("tolerance", self.tolerance, "a number", lambda size: size == size)

    def _infer(self, graph: FactorGraph, potentials: Potentials) -> Result:
        """Passes messages forward and back and keeps the best state found."""
        problem = align(graph, potentials)
        for group in graph.groups:
            if group.order > 2:
                raise InputError(
                    f"factor {int(group.factor_ids[0])} touches {group.order} variables; SequentialTRW handles at "
                    "most 2: use TreeReweighted or BeliefPropagation with temperature=0"
                )
        chains = _Chains.build(problem)
        messages = chains.unary.new_zeros(num_rows(graph), *chains.unary.shape[1:])
        bounds = [torch.full_like(problem.constant(), INF, dtype=torch.float64).detach()]
        best, best_score = torch.empty(0), torch.full_like(bounds[0], -INF)
        converged = False
        while len(bounds) <= self.max_iterations and not converged:
            messages, _ = chains.sweep(messages, forward=True)
            messages, computed = chains.sweep(messages, forward=False)
            problem.require_possible(problem.mask(chains.beliefs(messages)))
            states = chains.decode(messages)  # (variables, batch)
            score = graph.score(problem.potentials, problem.to_user_layout(states)).detach()
            improved = score > best_score
            best = torch.where(improved, states, best) if len(bounds) > 1 else states
            best_score = torch.maximum(score.to(best_score), best_score)
            bounds.append(torch.maximum(torch.minimum(computed.detach(), bounds[-1]), best_score))
            converged = self._has_converged(bounds, best_score, torch.finfo(messages.dtype).eps)
        bound = computed + (bounds[-1] - computed).detach()  # the gradient is that of the last pass
        return Result(
            log_marginals=problem.to_user_layout(chains.log_marginals(messages)),
            iterations=len(bounds) - 1,
            converged=converged,
            history=tuple(-float(each.sum()) for each in bounds[1:]),
            compute_log_z=lambda: problem.to_user_batch(bound.to(messages.dtype)),
            compute_log_factor_marginals=lambda: problem.to_user_factors(chains.log_factor_marginals(messages)),
            compute_map_state=lambda: problem.to_user_layout(best),
        )

    def _has_converged(self, bounds: list[Tensor], best_score: Tensor, precision: float) -> bool:
        """Whether every item's bound is met by its state, or has stalled; never finer than the dtype's precision."""
        allowed = max(self.tolerance, 4 * precision) * bounds[-1].abs().clamp_min(1)
        met = bounds[-1] - best_score <= allowed
        stalled = bounds[max(0, len(bounds) - 1 - ROUNDS)] - bounds[-1] <= allowed
        return bool((met | stalled).all())


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges from the variables of one step to later (or earlier) ones, seen from the sender."""

    table: Tensor  # (edges or 1, batch or 1, sender states, receiver states)
    sender: Tensor  # (edges,)
    receiver: Tensor  # (edges,)
    to_sender: Tensor  # (edges,) rows of the messages
    to_receiver: Tensor


@dataclass(frozen=True, eq=False)
class _Step:
    variables: Tensor
    later: tuple[_Edges, ...]
    earlier: tuple[_Edges, ...]


@dataclass(frozen=True, eq=False)
class _Chains:
    problem: Problem
    unary: Tensor  # (variables, batch, max_cardinality)
    steps: tuple[_Step, ...]
    through: Tensor  # (variables, 1, 1): n_s
    ending: tuple[Tensor, Tensor]  # (variables, 1): 1 - out_s / n_s, going back and forward

    @classmethod
    def build(cls, problem: Problem) -> _Chains:
        graph, unary = problem.graph, problem.unary()
        counts = unary.new_zeros(2, graph.num_variables)  # earlier, later neighbours
        for group in graph.groups:
            if group.order == 2:
                for sender, receiver in (group.scopes.T, group.scopes.flip(1).T):
                    later = (receiver > sender).long()
                    counts.index_put_((later, sender), counts.new_ones(len(group)), accumulate=True)
        through = counts.amax(0).clamp_min(1)
        ending = 1 - counts / through
        return cls(problem, unary, _steps(problem), through[:, None, None], (ending[0][:, None], ending[1][:, None]))

    def beliefs(self, messages: Tensor) -> Tensor:
        return self.unary + collect(messages, self.problem.graph)

    def sweep(self, messages: Tensor, *, forward: bool) -> tuple[Tensor, Tensor]:
        """One pass; returns the messages and the (batch,) bound on the score, in float64."""
        beliefs = self.beliefs(messages)
        bound = self.problem.constant().double()
        for step in self.steps if forward else reversed(self.steps):
            for edges in step.later if forward else step.earlier:
                sent, offset = self._send(edges, beliefs, messages)
                old = messages[edges.to_receiver]
                moved = (sent - old).masked_fill((sent == -INF) & (old == -INF), 0)
                bound = bound + offset.sum(0, dtype=torch.float64)
                if self.problem.requires_grad:
                    beliefs = beliefs.index_add(0, edges.receiver, moved)
                    messages = messages.index_copy(0, edges.to_receiver, sent)
                else:
                    beliefs.index_add_(0, edges.receiver, moved)
                    messages.index_copy_(0, edges.to_receiver, sent)
        tops = self.problem.mask(beliefs).amax(-1)
        share = self.ending[int(forward)]
        return messages, bound + torch.where(share > 0, share * tops, 0).sum(0, dtype=torch.float64)

    def _send(self, edges: _Edges, beliefs: Tensor, messages: Tensor) -> tuple[Tensor, Tensor]:
        """M_{s→t}, widened, and δ_st (edges, batch)."""
        states = edges.table.shape[2]
        shared = (beliefs[edges.sender] / self.through[edges.sender])[..., :states]
        cavity = subtract(shared, messages[edges.to_sender][..., :states])
        best = (edges.table + cavity[..., None]).amax(2)  # (edges, batch, receiver states)
        offset = best.amax(-1, keepdim=True)
        sent = subtract(best, offset)
        return pad(sent, (0, self.unary.shape[-1] - sent.shape[-1])), offset[..., 0]

    def decode(self, messages: Tensor) -> Tensor:
        """(variables, batch) best state of each variable given the states of earlier ones and later messages."""
        with torch.no_grad():
            scores = self.unary.clone()
            states = torch.zeros(scores.shape[:2], dtype=torch.long, device=scores.device)
            for step in self.steps:
                for edges in step.later:
                    scores.index_add_(0, edges.sender, messages[edges.to_sender])
                for edges in step.earlier:
                    sizes = (len(edges.sender), scores.shape[1], *edges.table.shape[2:])
                    chosen = states[edges.receiver][..., None, None].expand(*sizes[:3], 1)
                    column = edges.table.expand(sizes).gather(-1, chosen)[..., 0]
                    scores.index_add_(0, edges.sender, pad(column, (0, scores.shape[-1] - sizes[2])))
                valid = self.problem.graph.valid_states[step.variables, None]
                states[step.variables] = scores[step.variables].masked_fill(~valid, -INF).argmax(-1)
        return states

    def log_marginals(self, messages: Tensor) -> Tensor:
        return log_normalise(self.problem.mask(self.beliefs(messages) / self.through))

    def log_factor_marginals(self, messages: Tensor) -> list[Tensor]:
        graph, shared = self.problem.graph, self.beliefs(messages) / self.through
        marginals: list[Tensor] = []
        for group, table, starts in zip(graph.groups, self.problem.aligned, graph.incidence.starts, strict=True):
            if group.order == 0:
                marginals.append(self.unary.new_zeros(len(group), self.unary.shape[1]))
                continue
            ends = [shared[group.scopes[:, position], :, :size] for position, size in enumerate(group.shape)]
            if group.order == 2:
                ends = [
                    subtract(end, messages[start : start + len(group), :, : end.shape[-1]])
                    for end, start in zip(ends, starts, strict=True)
                ]
                marginals.append(log_normalise(add_on_axes(table, ends), (2, 3)))
            else:
                marginals.append(log_normalise(ends[0]))
        return marginals


def _steps(problem: Problem) -> tuple[_Step, ...]:
    """Variables by the longest path of earlier neighbours, with their edges."""
    graph = problem.graph
    earlier: list[list[int]] = [[] for _ in range(graph.num_variables)]
    for group in graph.groups:
        if group.order == 2:
            for first, second in group.scopes.sort(1).values.tolist():
                earlier[second].append(first)
    depth: list[int] = []
    for before in earlier:
        depth.append(1 + max((depth[other] for other in before), default=-1))
    level = torch.tensor(depth, device=graph.cardinalities.device)
    edges: list[tuple[list[_Edges], list[_Edges]]] = [([], []) for _ in range(max(depth) + 1)]  # later, earlier
    for group, logs, starts in zip(graph.groups, problem.aligned, graph.incidence.starts, strict=True):
        if group.order != 2:
            continue
        for position in range(2):
            sender, receiver = group.scopes[:, position], group.scopes[:, 1 - position]
            table = logs if position == 0 else logs.transpose(2, 3)
            for side, on_side in enumerate((receiver > sender, receiver < sender)):
                chosen = on_side.nonzero()[:, 0]
                for step, selected in rows_by_label(level[sender[chosen]]):
                    rows = chosen[selected]
                    own = table if len(table) == 1 else table[rows]
                    at_ends = rows + starts[position], rows + starts[1 - position]
                    edges[step][side].append(_Edges(own, sender[rows], receiver[rows], *at_ends))
    members = dict(rows_by_label(level))
    return tuple(_Step(members[index], tuple(later), tuple(before)) for index, (later, before) in enumerate(edges))
