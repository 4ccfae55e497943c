"""libDAI's `.fg` files (Mooij, "libDAI: a free and open source C++ library for discrete approximate inference",
JMLR 2010).

The number of factors, then for each: how many variables, their labels, their cardinalities, how many entries
are not zero, and those entries as index and value, where the FIRST listed variable varies fastest. `#` starts
a comment. Variables are numbered by their labels; a label that no factor uses is a variable with one state.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from messagenet.graph.factor_graph import MAX_ORDER, MAX_STATES, FactorGraph
from messagenet.graph.uai import Tokens, read_text

# A file lists only entries that are not zero and labels that occur, so a short one could ask for any amount.
MAX_ENTRIES = 2**27
MAX_LABEL = 2**24


def read_fg(path: str | Path) -> tuple[FactorGraph, tuple[Tensor, ...]]:
    """A `.fg` file as a graph and its log-potentials, in double precision."""
    return parse_fg(read_text(path), Path(path).name)


def parse_fg(text: str, name: str = "model") -> tuple[FactorGraph, tuple[Tensor, ...]]:
    """The text of a `.fg` file as a graph and its log-potentials.

    >>> graph, potentials = parse_fg("1  2  0 1  2 3  2  1 5.0  2 7.0")
    >>> potentials[0].exp().round().tolist()
    [[[0.0, 7.0, 0.0], [5.0, 0.0, 0.0]]]
    """
    tokens = Tokens(text, name, comment="#")
    states: dict[int, int] = {}
    scopes: list[list[int]] = []
    tables: list[Tensor] = []
    for number in range(tokens.integer("the number of factors", least=1)):
        order = tokens.integer(f"the number of variables of factor {number}", below=MAX_ORDER + 1)
        scope = [tokens.integer(f"a variable of factor {number}", below=MAX_LABEL + 1) for _ in range(order)]
        repeated = {variable for variable in scope if scope.count(variable) > 1}
        if repeated:
            raise tokens.error(f"the scope of factor {number} repeats variable {min(repeated)}; list it once")
        shape = [
            tokens.integer(f"a cardinality of factor {number}", least=1, below=MAX_STATES + 1)
            for _ in range(order)
        ]
        for variable, size in zip(scope, shape, strict=True):
            if states.setdefault(variable, size) != size:
                raise tokens.error(
                    f"factor {number} gives variable {variable} {size} states, an earlier one {states[variable]}"
                )
        scopes.append(scope)
        tables.append(_table(tokens, number, shape))
    tokens.finish()
    count = 1 + max(states, default=0)
    graph = FactorGraph.from_scopes([states.get(variable, 1) for variable in range(count)], scopes)
    return graph, graph.pack(tables)


def _table(tokens: Tokens, number: int, shape: list[int]) -> Tensor:
    size = math.prod(shape)
    if size > MAX_ENTRIES:
        raise tokens.error(
            f"factor {number} has a table of more than the {MAX_ENTRIES} entries that can be read"
        )
    values = [0.0] * size
    seen: set[int] = set()
    for _ in range(tokens.integer(f"the number of entries of factor {number}", below=size + 1)):
        index = tokens.integer(f"an index of factor {number}", below=size)
        if index in seen:
            raise tokens.error(f"factor {number} gives entry {index} twice")
        seen.add(index)
        values[index] = tokens.potential(f"factor {number}")
    table = torch.tensor(values, dtype=torch.float64).log().reshape(shape[::-1])
    return table.permute(list(reversed(range(len(shape)))))
