"""Factor graphs of discrete variables: structure only.

    P(y) = 1/Z · exp Σ_F θ_F(y_F),      θ_F = −E_F the log-potential of factor F over its scope y_F

A `FactorGraph` holds scopes. Log-potentials are plain tensors beside it (as in PGMax: Zhou et al., JMLR 2024), so
inference is a pure function of them and gradients flow to them. They are given

    per factor, in the order of the scopes:   (*shape)            or  (batch, *shape)
    or per group:                             (factors, *shape)   or  (batch, factors, *shape)

A group holds the factors of equal shape, so that they take one tensor operation. Its leading axes may have size 1, to
share a table among all factors or items of the batch. Engines take both forms and answer in the one they were given.
"""

from __future__ import annotations

import operator
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
    """Factors whose variables have the same cardinalities, position by position."""

    shape: tuple[int, ...]  # cardinality at each position of the scope; () for constants
    scopes: Tensor  # (factors, order) variable indices, in the order of the table's axes
    factor_ids: Tensor  # (factors,) index of each factor in the user's list

    @property
    def order(self) -> int:
        """Number of variables each factor touches."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.scopes.shape[0]


@dataclass(frozen=True, eq=False)
class Incidence:
    """Every (factor, position) of order two or more as one flat list: the rows of a message tensor.

    Rows run over groups, then positions, then factors: the messages of a group at one position are a contiguous slice.
    """

    variables: Tensor  # (rows,) the variable of each row
    starts: tuple[tuple[int, ...], ...]  # by group, the first row of each position; empty for orders below two
    by_variable: Tensor  # (rows,) rows sorted by variable
    offsets: Tensor  # (variables,) where each variable's rows begin in `by_variable`

    def __len__(self) -> int:
        return self.variables.shape[0]


@dataclass(frozen=True, eq=False, init=False)
class FactorGraph:
    """Which variables exist, how many states each has, and which factors touch them.

    Args:
        cardinalities: Number of states of each variable.
        scopes: For each factor the indices of its variables, in the order of its table's axes.

    >>> graph = FactorGraph([2, 3], [[0], [1, 0]])
    >>> [group.shape for group in graph.groups]
    [(2,), (3, 2)]
    """

    cardinalities: Tensor  # (variables,) number of states of each
    groups: tuple[FactorGroup, ...]  # the factors, grouped by shape

    def __init__(self, cardinalities: Sequence[int] | Tensor, scopes: Sequence[Sequence[int]] | Tensor) -> None:
        built = FactorGraph._build(cardinalities, _blocks_by_order(scopes))
        object.__setattr__(self, "cardinalities", built.cardinalities)
        object.__setattr__(self, "groups", built.groups)

    @classmethod
    def from_groups(cls, cardinalities: Tensor, groups: Iterable[FactorGroup]) -> FactorGraph:
        """A graph from valid groups; nothing is checked."""
        graph = object.__new__(FactorGraph)
        object.__setattr__(graph, "cardinalities", cardinalities)
        object.__setattr__(graph, "groups", tuple(groups))
        return graph

    @classmethod
    def from_blocks(cls, cardinalities: Sequence[int] | Tensor, blocks: Iterable[Tensor]) -> FactorGraph:
        """A graph from (factors, order) blocks of scopes, its factors in that order.

        Blocks are never merged: each can share a table of its own. Mixed cardinalities make several groups of a block.
        """
        listed: list[tuple[Tensor, Tensor]] = []
        first = 0
        for block in blocks:
            scopes = torch.as_tensor(block, dtype=torch.long)
            if scopes.ndim != 2:
                raise InputError(f"a block of scopes must be (factors, order); got shape {tuple(scopes.shape)}")
            listed.append((scopes, torch.arange(first, first + len(scopes))))
            first += len(scopes)
        return cls._build(cardinalities, listed)

    @classmethod
    def _build(cls, cardinalities: Sequence[int] | Tensor, blocks: Sequence[tuple[Tensor, Tensor]]) -> FactorGraph:
        states = _integers(cardinalities)
        if states is None or states.ndim != 1:
            raise InputError("cardinalities are whole numbers, one for each variable; give a list such as [2, 3]")
        if len(states) == 0:
            raise InputError("a factor graph needs at least one variable; give a list of cardinalities such as [2, 3]")
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
        return cls.from_groups(states, groups)

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
        """Number of states of the largest variable: the width of every belief tensor."""
        return int(self.cardinalities.max())

    @cached_property
    def valid_states(self) -> Tensor:
        """(variables, max_cardinality) mask of the states that each variable has."""
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
        return Incidence(variables, tuple(starts), torch.argsort(variables, stable=True), counts.cumsum(0) - counts)

    def to(self, device: torch.device | str) -> FactorGraph:
        """The same graph with its index tensors on another device."""
        groups = (FactorGroup(g.shape, g.scopes.to(device), g.factor_ids.to(device)) for g in self.groups)
        return FactorGraph.from_groups(self.cardinalities.to(device), groups)

    def scopes(self) -> list[tuple[int, ...]]:
        """The scope of every factor, in the user's order."""
        scopes: list[tuple[int, ...]] = [()] * self.num_factors
        for group in self.groups:
            for index, scope in zip(group.factor_ids.tolist(), group.scopes.tolist(), strict=True):
                scopes[index] = tuple(scope)
        return scopes

    def is_per_factor(self, potentials: Potentials) -> bool:
        """Whether potentials are one table per factor, rather than one tensor per group.

        If every group has one factor, (1, *shape) tensors are read as groups; `pack` makes groups of tables in batches
        of 1.
        """
        if len(potentials) != self.num_factors:
            return False
        return len(potentials) != len(self.groups) or not all(
            table.ndim in (group.order + 1, group.order + 2) and table.shape[table.ndim - group.order - 1] == 1
            for group, table in zip(self.groups, map(torch.as_tensor, potentials), strict=True)
        )

    def as_groups(self, potentials: Potentials) -> Potentials:
        """Potentials of either form as one tensor per group."""
        return self.pack(potentials) if self.is_per_factor(potentials) else potentials

    def pack(self, tables: Potentials) -> tuple[Tensor, ...]:
        """Stacks one log-potential table per factor into one tensor per group.

        Tables are (*shape) or (batch, *shape); a batch of size 1 is shared.

        >>> graph = FactorGraph([2, 3], [[0], [1, 0]])
        >>> [tuple(p.shape) for p in graph.pack([torch.zeros(2), torch.zeros(3, 2)])]
        [(1, 2), (1, 3, 2)]
        """
        if len(tables) != self.num_factors:
            raise InputError(f"the graph has {self.num_factors} factors but {len(tables)} tables were given")
        each = [torch.as_tensor(table) for table in tables]
        check_dtypes(each)
        packed = []
        for group in self.groups:
            ids = group.factor_ids.tolist()
            for index in ids:
                shape = tuple(each[index].shape)
                if shape[len(shape) - group.order :] != group.shape or len(shape) > group.order + 1:
                    raise InputError(
                        f"factor {index}: its table is {shape}, its scope needs {group.shape}, with at most one "
                        "batch axis before"
                    )
            together = _same_batch([each[index] for index in ids], group.order)
            packed.append(torch.stack(together, dim=-1 - group.order))
        return tuple(packed)

    def unpack(self, potentials: Potentials) -> list[Tensor]:
        """One table per factor, in the user's order: the inverse of `pack`."""
        tables = [torch.empty(0)] * self.num_factors
        for group, potential in zip(self.groups, potentials, strict=True):
            axis = potential.ndim - 1 - group.order
            sizes = list(potential.shape)
            sizes[axis] = len(group)
            members = potential.expand(sizes).unbind(axis)
            for index, table in zip(group.factor_ids.tolist(), members, strict=True):
                tables[index] = table
        return tables

    def score(self, potentials: Potentials, states: Tensor) -> Tensor:
        """Σ_F θ_F(y_F) = −E(y): the unnormalised log-probability of whole assignments, summed in float64.

        `potentials` have either form; `states` are (variables,) or (batch, variables).
        """
        grouped = self.as_groups(potentials)
        total = torch.zeros((), dtype=torch.float64, device=states.device)
        for group, potential in zip(self.groups, grouped, strict=True):
            index = states.new_zeros(*states.shape[:-1], len(group))  # (*batch, F)
            for position, size in enumerate(group.shape):
                index = index * size + states[..., group.scopes[:, position]]
            flat = potential.flatten(potential.ndim - group.order) if group.order else potential[..., None]
            batch = torch.broadcast_shapes(flat.shape[:-2], index.shape[:-1])
            flat = flat.expand(*batch, len(group), flat.shape[-1])
            entries = flat.gather(-1, index.expand(*batch, len(group))[..., None])[..., 0]
            total = total + entries.sum(-1, dtype=torch.float64)
        return total.to(grouped[0].dtype if grouped else torch.get_default_dtype())


def _integers(values: object) -> Tensor | None:
    """Integers as a tensor on the CPU; None for anything else."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    whole = tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex())
    return tensor.long().cpu() if whole else None


def _blocks_by_order(scopes: Sequence[Sequence[int]] | Tensor) -> list[tuple[Tensor, Tensor]]:
    """(factors, order) scopes of equal order, with the indices of their factors."""
    listed = scopes.tolist() if isinstance(scopes, (Tensor, np.ndarray)) else scopes
    by_order: dict[int, tuple[list[list[int]], list[int]]] = {}
    for index, scope in enumerate(listed):
        try:
            variables = [operator.index(variable) for variable in scope]
        except TypeError:
            raise InputError(
                f"factor {index}: its scope is {scope!r}; list the indices of its variables, such as [0, 1]"
            ) from None
        members, ids = by_order.setdefault(len(variables), ([], []))
        members.append(variables)
        ids.append(index)
    return [
        (torch.tensor(members, dtype=torch.long).reshape(len(ids), order), torch.tensor(ids))
        for order, (members, ids) in sorted(by_order.items())
    ]


def check_dtypes(tables: Sequence[Tensor]) -> None:
    """Refuses log-potentials of several dtypes, or of one that is not floating point."""
    dtypes = {table.dtype for table in tables}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        raise InputError(f"potentials must have one floating-point dtype; got {sorted(map(str, dtypes))}")


def _same_batch(tables: list[Tensor], order: int) -> list[Tensor]:
    """Tables of one group with the same leading axes, ready to be stacked."""
    if all(table.ndim == order for table in tables):
        return tables
    batched = [table if table.ndim > order else table[None] for table in tables]
    sizes = {len(table) for table in batched}
    if len(sizes - {1}) > 1:
        raise InputError(f"potentials have different batch sizes {sorted(sizes)}; use one size, or 1 to share")
    return [table.expand(max(sizes), *table.shape[1:]) for table in batched]


def _check_scopes(scopes: Tensor, ids: Tensor, num_variables: int) -> None:
    if scopes.shape[1] > MAX_ORDER:
        raise InputError(f"factor {int(ids[0])} touches {scopes.shape[1]} variables; at most {MAX_ORDER} can be used")
    check_members(scopes, ids, num_variables)


def check_members(scopes: Tensor, ids: Tensor, num_variables: int, where: str = "") -> None:
    """Refuses scopes (factors, order) with variables that do not exist or occur twice; `where` begins the error."""
    outside = ((scopes < 0) | (scopes >= num_variables)).nonzero()
    if len(outside):
        row, position = outside[0].tolist()
        raise InputError(
            f"{where}factor {int(ids[row])}: variable {int(scopes[row, position])} does not exist; "
            f"variables are 0 to {num_variables - 1}"
        )
    ordered = scopes.sort(dim=1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).nonzero()
    if len(repeated):
        row, position = repeated[0].tolist()
        raise InputError(
            f"{where}factor {int(ids[row])}: its scope repeats variable {int(ordered[row, position])}; list it once"
        )
