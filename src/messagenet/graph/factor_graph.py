"""Factor graphs of discrete variables: the structure, apart from the numbers on it.

    P(y) = 1/Z · exp Σ_F θ_F(y_F),      θ_F = −E_F the log-potential of factor F over its scope y_F

A `FactorGraph` holds scopes only. Log-potentials are plain tensors beside it, one per group of factors
(state apart from structure, as in PGMax: Zhou et al., "PGMax: Factor graphs for discrete probabilistic
graphical models and loopy belief propagation in JAX", JMLR 2024), so inference is a pure function of them
and gradients flow to them. A group gathers factors of equal shape, so that work over 100,000 factors is one
tensor operation per group:

    potentials[g]:  (factors, *shape)             or  (batch, factors, *shape)

where either leading axis may have size 1 to be shared by all factors (one table for every edge of a grid)
or by all items of the batch, without ever being copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from messagenet.errors import InputError

Potentials = Sequence[Tensor]
MAX_STATES = 2**20  # of one variable; beliefs have the width of the largest
MAX_ORDER = 48  # variables of one factor; each is an axis of a tensor


@dataclass(frozen=True, eq=False)
class FactorGroup:
    """Factors whose variables have the same cardinalities, position by position.

    Attributes:
        shape: cardinality at each position of the scope; () for constants.
        scopes: (factors, order) variable numbers, in the order of the table's axes.
        factor_ids: (factors,) number of each factor in the order the user listed them.
    """

    shape: tuple[int, ...]
    scopes: Tensor
    factor_ids: Tensor

    @property
    def order(self) -> int:
        """Number of variables each factor touches."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.scopes.shape[0]


@dataclass(frozen=True, eq=False)
class Incidence:
    """Every (factor, position) pair of order two or more as one flat list: the rows of a message tensor.

    Rows run over groups, then positions, then factors, so the messages of one group at one position are a
    contiguous slice.

    Attributes:
        variables: (rows,) the variable at the end of each row.
        starts: per group, the first row of each position; empty for groups of order below two.
        by_variable: (rows,) rows sorted by variable.
        offsets: (variables,) where each variable's rows begin in `by_variable`.
    """

    variables: Tensor
    starts: tuple[tuple[int, ...], ...]
    by_variable: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return self.variables.shape[0]


@dataclass(frozen=True, eq=False)
class FactorGraph:
    """Which variables exist, how many states each has, and which factors touch them.

    >>> graph = FactorGraph.from_scopes([2, 3], [[0], [1, 0]])
    >>> [group.shape for group in graph.groups]
    [(2,), (3, 2)]

    Attributes:
        cardinalities: (variables,) number of states of each variable.
        groups: factors of equal shape, gathered; `potentials` has one tensor for each.
    """

    cardinalities: Tensor
    groups: tuple[FactorGroup, ...]

    @classmethod
    def from_scopes(
        cls, cardinalities: Sequence[int] | Tensor, scopes: Sequence[Sequence[int]]
    ) -> FactorGraph:
        """Builds a graph from one scope (list of variable numbers) per factor."""
        ids_by_order: dict[int, list[int]] = {}
        for number, scope in enumerate(scopes):
            ids_by_order.setdefault(len(scope), []).append(number)
        blocks = [
            (torch.tensor([list(scopes[i]) for i in ids], dtype=torch.long).reshape(len(ids), order), ids)
            for order, ids in sorted(ids_by_order.items())
        ]
        return cls._build(cardinalities, [(scope, torch.tensor(ids)) for scope, ids in blocks])

    @classmethod
    def from_blocks(cls, cardinalities: Sequence[int] | Tensor, blocks: Iterable[Tensor]) -> FactorGraph:
        """Builds a graph from (factors, order) blocks of scopes, numbering the factors in that order.

        Blocks are never merged: horizontal and vertical edges given apart may each share a table of their own.
        A block with mixed cardinalities becomes several groups.
        """
        numbered: list[tuple[Tensor, Tensor]] = []
        first = 0
        for block in blocks:
            scopes = torch.as_tensor(block, dtype=torch.long)
            if scopes.ndim != 2:
                raise InputError(
                    f"a block of scopes must be (factors, order); got shape {tuple(scopes.shape)}"
                )
            numbered.append((scopes, torch.arange(first, first + len(scopes))))
            first += len(scopes)
        return cls._build(cardinalities, numbered)

    @classmethod
    def _build(
        cls, cardinalities: Sequence[int] | Tensor, blocks: Sequence[tuple[Tensor, Tensor]]
    ) -> FactorGraph:
        states = torch.as_tensor(cardinalities, dtype=torch.long).cpu()
        if states.ndim != 1 or len(states) == 0:
            raise InputError("a factor graph needs at least one variable: give a list of cardinalities")
        wrong = ((states < 1) | (states > MAX_STATES)).nonzero()
        if len(wrong):
            raise InputError(
                f"variable {int(wrong[0])} has {int(states[wrong[0]])} states; it needs from 1 to {MAX_STATES}"
            )
        groups: list[FactorGroup] = []
        for scopes, ids in blocks:
            scopes = scopes.cpu()
            _check_scopes(scopes, ids, len(states))
            shapes, member = np.unique(states[scopes].numpy(), axis=0, return_inverse=True)
            for index, shape in enumerate(shapes.tolist()):
                rows = torch.from_numpy(np.flatnonzero(member.reshape(-1) == index))
                groups.append(FactorGroup(tuple(shape), scopes[rows].contiguous(), ids[rows]))
        return cls(states, tuple(groups))

    @property
    def num_variables(self) -> int:
        """Number of variables."""
        return len(self.cardinalities)

    @property
    def num_factors(self) -> int:
        """Number of factors over all groups."""
        return sum(len(group) for group in self.groups)

    @cached_property
    def max_cardinality(self) -> int:
        """Number of states of the largest variable: the width of every tensor of beliefs."""
        return int(self.cardinalities.max())

    @cached_property
    def valid_states(self) -> Tensor:
        """(variables, max_cardinality) mask: which states each variable really has."""
        states = torch.arange(self.max_cardinality, device=self.cardinalities.device)
        return states < self.cardinalities[:, None]

    @cached_property
    def incidence(self) -> Incidence:
        """Rows of the message tensor and their order by variable."""
        starts: list[tuple[int, ...]] = []
        columns: list[Tensor] = []
        row = 0
        for group in self.groups:
            if group.order < 2:
                starts.append(())
                continue
            starts.append(tuple(row + position * len(group) for position in range(group.order)))
            columns.append(group.scopes.T.reshape(-1))
            row += group.order * len(group)
        device = self.cardinalities.device
        variables = torch.cat(columns) if columns else torch.zeros(0, dtype=torch.long, device=device)
        counts = torch.bincount(variables, minlength=self.num_variables)
        return Incidence(
            variables, tuple(starts), torch.argsort(variables, stable=True), counts.cumsum(0) - counts
        )

    def to(self, device: torch.device | str) -> FactorGraph:
        """The same graph with its index tensors on another device."""
        groups = (FactorGroup(g.shape, g.scopes.to(device), g.factor_ids.to(device)) for g in self.groups)
        return FactorGraph(self.cardinalities.to(device), tuple(groups))

    def scopes(self) -> list[tuple[int, ...]]:
        """The scope of every factor, in the order the user listed them."""
        scopes: list[tuple[int, ...]] = [()] * self.num_factors
        for group in self.groups:
            for number, scope in zip(group.factor_ids.tolist(), group.scopes.tolist(), strict=True):
                scopes[number] = tuple(scope)
        return scopes

    def pack(self, tables: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gathers one log-potential table per factor into one tensor per group.

        >>> graph = FactorGraph.from_scopes([2, 3], [[0], [1, 0]])
        >>> [tuple(p.shape) for p in graph.pack([torch.zeros(2), torch.zeros(3, 2)])]
        [(1, 2), (1, 3, 2)]
        """
        if len(tables) != self.num_factors:
            raise InputError(f"the graph has {self.num_factors} factors but {len(tables)} tables were given")
        packed = []
        for group in self.groups:
            ids = group.factor_ids.tolist()
            for number in ids:
                if tuple(tables[number].shape[-group.order :] if group.order else ()) != group.shape:
                    raise InputError(
                        f"factor {number}: its table is {tuple(tables[number].shape)}, its scope needs {group.shape}"
                    )
            packed.append(torch.stack([tables[number] for number in ids], dim=-1 - group.order))
        return tuple(packed)

    def unpack(self, potentials: Potentials) -> list[Tensor]:
        """One table per factor, in the order the user listed them: the inverse of `pack`."""
        tables = [torch.empty(0)] * self.num_factors
        for group, potential in zip(self.groups, potentials, strict=True):
            axis = potential.ndim - 1 - group.order
            sizes = list(potential.shape)
            sizes[axis] = len(group)
            members = potential.expand(sizes).unbind(axis)
            for number, table in zip(group.factor_ids.tolist(), members, strict=True):
                tables[number] = table
        return tables

    def score(self, potentials: Potentials, states: Tensor) -> Tensor:
        """Σ_F θ_F(y_F) = −E(y): the unnormalised log-probability of whole assignments.

        Args:
            potentials: one tensor per group.
            states: (variables,) or (batch, variables) state of every variable.
        """
        total = torch.zeros((), dtype=potentials[0].dtype if potentials else None, device=states.device)
        for group, potential in zip(self.groups, potentials, strict=True):
            index = states.new_zeros(*states.shape[:-1], len(group))  # (*batch, F)
            for position, size in enumerate(group.shape):
                index = index * size + states[..., group.scopes[:, position]]
            flat = potential.flatten(potential.ndim - group.order) if group.order else potential[..., None]
            batch = torch.broadcast_shapes(flat.shape[:-2], index.shape[:-1])
            flat = flat.expand(*batch, len(group), flat.shape[-1])
            total = total + flat.gather(-1, index.expand(*batch, len(group))[..., None])[..., 0].sum(-1)
        return total


def _check_scopes(scopes: Tensor, ids: Tensor, num_variables: int) -> None:
    if scopes.shape[1] > MAX_ORDER:
        raise InputError(
            f"factor {int(ids[0])} touches {scopes.shape[1]} variables; at most {MAX_ORDER} can be used"
        )
    outside = ((scopes < 0) | (scopes >= num_variables)).nonzero()
    if len(outside):
        row, position = outside[0].tolist()
        raise InputError(
            f"factor {int(ids[row])}: variable {int(scopes[row, position])} does not exist; "
            f"variables are numbered 0 to {num_variables - 1}"
        )
    ordered = scopes.sort(dim=1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).nonzero()
    if len(repeated):
        row, position = repeated[0].tolist()
        raise InputError(
            f"factor {int(ids[row])}: its scope repeats variable {int(ordered[row, position])}; list it once"
        )
