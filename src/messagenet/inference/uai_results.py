"""The result files of the UAI inference competitions: `PR`, `MAR` and `MAP`.

PR                      MAR                                     MAP
log10 Z                 n  K_0 p p ..  K_1 p p p ..  ..         n  y_0 y_1 ..
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.uai import Tokens, read_text


def format_pr(log_z: float) -> str:
    """The probability of the evidence (or the partition function), as log10.

    >>> format_pr(math.log(1000.0))
    'PR\\n3\\n'
    """
    return f"PR\n{log_z / math.log(10):.15g}\n"


def format_mar(graph: FactorGraph, marginals: Tensor) -> str:
    """All marginals, from (variables, max_cardinality) probabilities.

    >>> format_mar(FactorGraph.from_scopes([2], [[0]]), torch.tensor([[0.25, 0.75]]))
    'MAR\\n1 2 0.25 0.75\\n'
    """
    words = [str(graph.num_variables)]
    for size, row in zip(graph.cardinalities.tolist(), marginals.tolist(), strict=True):
        words += [str(size), *(f"{value:.12g}" for value in row[:size])]
    return "MAR\n" + " ".join(words) + "\n"


def format_map(states: Tensor) -> str:
    """A joint state.

    >>> format_map(torch.tensor([1, 0, 2]))
    'MAP\\n3 1 0 2\\n'
    """
    return "MAP\n" + " ".join(map(str, (len(states), *states.tolist()))) + "\n"


def _open(path: str | Path, kind: str) -> Tokens:
    tokens = Tokens(read_text(path), Path(path).name)
    found = tokens.word(kind)
    if found != kind:
        raise tokens.error(f'expected a {kind} result, found "{found}"')
    return tokens


def read_pr(path: str | Path) -> float:
    """log10 Z."""
    tokens = _open(path, "PR")
    word = tokens.word("log10 Z")
    try:
        return float(word)
    except ValueError:
        raise tokens.error(f'log10 Z should be a number, not "{word}"') from None


def read_mar(path: str | Path) -> list[list[float]]:
    """The marginals of each variable."""
    tokens = _open(path, "MAR")
    count = tokens.integer("the number of variables", least=1)
    marginals: list[list[float]] = []
    for variable in range(count):
        size = tokens.integer(f"the states of variable {variable}", least=1)
        marginals.append([tokens.potential(f"variable {variable}") for _ in range(size)])
    return marginals


def read_map(path: str | Path) -> Tensor:
    """(variables,) the joint state."""
    tokens = _open(path, "MAP")
    count = tokens.integer("the number of variables", least=1)
    return torch.tensor([tokens.integer(f"the state of variable {v}") for v in range(count)])
