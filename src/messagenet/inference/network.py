"""Weighted message passing: belief propagation and its tree-reweighted form are one set of equations.

Give each factor F a weight ρ_F (1: belief propagation; the probability of appearing in a random spanning
tree: tree-reweighted, Wainwright, Jaakkola & Willsky, "A new class of upper bounds on the log partition
function", IEEE Trans. Information Theory 2005). With B_p the belief and n_{p→F} the message to a factor,

    B_p      = θ_p + Σ_F ρ_F β_{F→p}                       P(y_p) ∝ exp B_p
    n_{p→F}  = B_p − β_{F→p}
    β_{F→p}  = log Σ_{y_F \\ y_p} exp[ θ_F / ρ_F + Σ_{q≠p} n_{q→F} ]
    log Z    ≈ Σ_F ρ_F log Z_F + Σ_p (1 − Σ_{F∋p} ρ_F) log Z_p
    Z_F      = Σ_{y_F} exp[ θ_F / ρ_F + Σ_p n_{p→F} ],     Z_p = Σ_{y_p} exp B_p

At a fixed point the last expression is the (reweighted) Bethe free energy; it is stationary in the messages
(Yedidia, Freeman & Weiss, "Constructing free-energy approximations", 2005), so its gradient in θ is the
factor marginals. It never meets 0·log 0, and adding a constant to a message leaves it unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from messagenet.errors import InputError
from messagenet.inference.incidence import by_position, collect, gather, num_rows, widen
from messagenet.inference.logspace import INF, log_normalise, logsumexp, subtract
from messagenet.inference.messages import FactorTable
from messagenet.inference.problem import Problem


@dataclass(frozen=True, eq=False)
class Network:
    """A problem ready for message passing. Messages are (rows, batch, max_cardinality), 0 beyond the states.

    Attributes:
        problem: the graph and its potentials.
        unary: (variables, batch, max_cardinality) log-potentials of the variables themselves.
        tables: per group, θ_F / ρ_F; None for groups of order below two.
        weights: ρ_F at every row, (rows, 1, 1), or None when all are one.
        maximise: max-product instead of sum-product.
    """

    problem: Problem
    unary: Tensor
    tables: tuple[FactorTable | None, ...]
    weights: Tensor | None
    maximise: bool

    @classmethod
    def build(cls, problem: Problem, *, maximise: bool, factor_weights: Tensor | None = None) -> Network:
        """Prepares the tables, given ρ_F for each factor in the user's order."""
        tables: list[FactorTable | None] = []
        rows: list[Tensor] = []
        for group, logs in zip(problem.graph.groups, problem.aligned, strict=True):
            if group.order < 2:
                tables.append(None)
                continue
            if factor_weights is not None:
                weights = factor_weights.to(**problem.options)[group.factor_ids]
                rows.append(weights.repeat(group.order))
                logs = logs / weights.reshape(-1, *[1] * (logs.ndim - 1))
            tables.append(FactorTable.prepare(logs, maximise=maximise))
        row_weights = torch.cat(rows)[:, None, None] if rows else None
        return cls(problem, problem.unary(), tuple(tables), row_weights, maximise)

    def initial_messages(self) -> Tensor:
        """All zero: every state equally likely."""
        return self.unary.new_zeros(num_rows(self.problem.graph), *self.unary.shape[1:])

    def as_messages(self, given: Tensor) -> Tensor:
        """A user's messages, (*batch, rows, max_cardinality), checked and laid out."""
        expected = self.initial_messages()
        rows, batch, states = expected.shape
        shape = (rows, states) if self.problem.batch is None else (batch, rows, states)
        if given.shape != shape:
            raise InputError(
                f"messages have shape {tuple(given.shape)}; this graph's are {shape}, as in Result.messages"
            )
        possible = torch.isfinite(given) | ((given == -INF) & self.problem.has_zeros)
        if not bool(possible.all()):
            raise InputError("messages to begin with must be finite; leave them out to begin with zeros")
        return given.detach().reshape(-1, rows, states).movedim(0, 1).to(expected)

    def weigh(self, rows: Tensor) -> Tensor:
        """ρ_F times each row."""
        return rows if self.weights is None else rows * self.weights

    def beliefs(self, messages: Tensor) -> Tensor:
        """B_p, unnormalised: (variables, batch, max_cardinality)."""
        return self.unary + collect(self.weigh(messages), self.problem.graph)

    def cavities(self, beliefs: Tensor, messages: Tensor) -> Tensor:
        """n_{p→F} at every row."""
        return self.cavity(gather(beliefs, self.problem.graph), messages)

    def cavity(self, beliefs: Tensor, messages: Tensor) -> Tensor:
        """Takes messages off beliefs, minding zeros only where there are any."""
        return subtract(beliefs, messages) if self.problem.has_zeros else beliefs - messages

    def incoming(self, cavities: Tensor) -> list[list[Tensor]]:
        """The cavities by group and position, (factors, batch, states); none for groups of order below two."""
        return by_position(cavities, self.problem.graph)

    def update(self, messages: Tensor, spare: Tensor | None = None) -> Tensor:
        """Every β_{F→p} at once, from the messages of the previous iteration.

        Written into `spare` if given: memory reused is several times faster than memory asked for anew.
        """
        cavities = self.cavities(self.beliefs(messages), messages)
        parts = [
            self.widen(part)
            for table, incoming in zip(self.tables, self.incoming(cavities), strict=True)
            if table is not None
            for part in table.messages(incoming)
        ]
        return torch.cat(parts) if spare is None else torch.cat(parts, out=spare)

    def widen(self, message: Tensor) -> Tensor:
        """Fills the states a variable does not have with zeros."""
        return widen(message, self.unary.shape[-1])

    def log_marginals(self, beliefs: Tensor) -> Tensor:
        """(variables, batch, max_cardinality) normalised beliefs."""
        beliefs = self.problem.mask(beliefs)
        self.problem.require_possible(beliefs)
        return log_normalise(beliefs)

    def log_factor_marginals(self, messages: Tensor) -> list[Tensor]:
        """Per group (factors, batch, *shape) logs of joint probabilities, consistent at a fixed point."""
        beliefs = self.beliefs(messages)
        incoming = self.incoming(self.cavities(beliefs, messages))
        marginals: list[Tensor] = []
        for group, table, received in zip(self.problem.graph.groups, self.tables, incoming, strict=True):
            if table is not None:
                marginals.append(table.log_beliefs(received))
            elif group.order == 1:
                marginals.append(log_normalise(beliefs[group.scopes[:, 0], :, : group.shape[0]]))
            else:
                marginals.append(self.unary.new_zeros(len(group), self.unary.shape[1]))
        return marginals

    def log_z(self, messages: Tensor) -> Tensor:
        """(batch,) the reweighted Bethe estimate of log Z; of the largest score when maximising."""
        beliefs = self.beliefs(messages)
        incoming = self.incoming(self.cavities(beliefs, messages))
        valid = self.problem.mask(beliefs)
        per_variable = valid.amax(-1) if self.maximise else logsumexp(valid, [-1])[..., 0]
        total = self.problem.constant() + ((1 - self._degrees()) * per_variable).sum(0)
        for number, table in enumerate(self.tables):
            if table is not None:
                per_factor = table.log_partition(incoming[number])
                total = total + (self._group_weights(number) * per_factor).sum(0)
        return total

    def _degrees(self) -> Tensor:
        """(variables, 1) Σ_{F∋p} ρ_F."""
        graph = self.problem.graph
        ones = self.unary.new_ones(num_rows(graph), 1, 1)
        return collect(self.weigh(ones), graph)[..., 0]

    def _group_weights(self, number: int) -> Tensor | float:
        if self.weights is None:
            return 1.0
        start = self.problem.graph.incidence.starts[number][0]
        return self.weights[start : start + len(self.problem.graph.groups[number]), :, 0]


def damp(new: Tensor, old: Tensor, damping: float) -> Tensor:
    """(1 − damping)·new + damping·old in the log domain."""
    return new if damping == 0 else (1 - damping) * new + damping * old


def argmax_states(log_marginals: Tensor) -> Tensor:
    """(variables, batch) each variable's most probable state."""
    return log_marginals.argmax(-1)
