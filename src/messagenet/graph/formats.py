"""Model, evidence and result files of the UAI inference competitions, and libDAI's `.fg` models.

A UAI model lists MARKOV or BAYES, the number of variables, their cardinalities, the number of factors, one scope per
factor, and one table per factor: its number of entries, then the entries (potentials, not logarithms), the LAST
variable of the scope varying fastest. In a BAYES file a table is the distribution of the last variable of its scope
given the others. Format: https://uaicompetition.github.io/uci-2022/file-formats/

Evidence is the number of observed variables, then a variable and its state for each (optionally preceded by "1", the
number of samples). Results are

    PR                      MAR                                     MAP
    log10 Z                 n  K_0 p p ..  K_1 p p p ..  ..         n  y_0 y_1 ..

A `.fg` file (Mooij, "libDAI", JMLR 2010) lists the number of factors, then for each: how many variables, their labels,
their cardinalities, how many entries are not zero, and those entries as index and value, the FIRST variable varying
fastest. `#` starts a comment. Variables are indexed by label; an unused label is a variable with one state.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import MAX_ORDER, MAX_STATES, FactorGraph, Potentials

UaiKind = Literal["MARKOV", "BAYES"]


class Tokens:
    """The words of a text one after another; errors name the line."""

    def __init__(self, text: str, name: str, comment: str | None = None) -> None:
        lines = text.splitlines()
        if comment is not None:
            lines = [line.split(comment, 1)[0] for line in lines]
        self._words = [line.split() for line in lines]
        self._flat = [word for words in self._words for word in words]
        self._name = name
        self._next = 0

    @property
    def remaining(self) -> int:
        """How many words are left."""
        return len(self._flat) - self._next

    def error(self, problem: str, position: int | None = None) -> InputError:
        """An error naming the file and the line of a word (by default the last one read)."""
        left = self._next - 1 if position is None else position
        for line, words in enumerate(self._words, start=1):
            if left < len(words):
                return InputError(f"{self._name}, line {line}: {problem}")
            left -= len(words)
        return InputError(f"{self._name}, line {max(1, len(self._words))}: {problem}")

    def word(self, what: str) -> str:
        """The next word."""
        if not self.remaining:
            raise self.error(f"the file ends where {what} should be; it is truncated", len(self._flat))
        self._next += 1
        return self._flat[self._next - 1]

    def integer(self, what: str, minimum: int = 0, below: int | None = None) -> int:
        """The next word as a whole number within bounds."""
        word = self.word(what)
        try:
            value = int(word)
        except ValueError:
            raise self.error(f'{what} should be a whole number, not "{word}"') from None
        if value < minimum or (below is not None and value >= below):
            bounds = f"at least {minimum}" if below is None else f"from {minimum} to {below - 1}"
            raise self.error(f"{what} is {value}; it must be {bounds}")
        return value

    def potential(self, what: str) -> float:
        """The next word as a finite number that is not negative."""
        word = self.word(what)
        try:
            value = float(word)
        except ValueError:
            raise self.error(f'{what}: potential should be a number, not "{word}"') from None
        if not 0 <= value < math.inf:
            raise self.error(f"{what}: potential {word} must be finite and not negative")
        return value

    def finish(self) -> None:
        """Refuses anything after the end."""
        if self.remaining:
            word = self.word("the end")
            raise self.error(f'unexpected "{word}" and {self.remaining} more words after the end')


def read_text(path: str | Path) -> str:
    """The text of a file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({getattr(error, 'strerror', 'not UTF-8')}); check the path") from None


def read_uai(path: str | Path) -> tuple[FactorGraph, tuple[Tensor, ...]]:
    """A model file as a graph and its log-potentials, in double precision."""
    return parse_uai(read_text(path), Path(path).name)


def parse_uai(text: str, name: str = "model") -> tuple[FactorGraph, tuple[Tensor, ...]]:
    """The text of a model file as a graph and its log-potentials.

    >>> graph, potentials = parse_uai("MARKOV 2  2 2  1  2 0 1  4  1 2 3 4")
    >>> potentials[0].exp().round().tolist()
    [[[1.0, 2.0], [3.0, 4.0]]]
    """
    tokens = Tokens(text, name)
    kind = tokens.word("MARKOV or BAYES")
    if kind not in get_args(UaiKind):
        raise tokens.error(f'"{kind}" is not a kind of network; {nearest(kind, get_args(UaiKind))}')
    count = tokens.integer("the number of variables", minimum=1)
    cardinalities = [
        tokens.integer(f"the cardinality of variable {v}", minimum=1, below=MAX_STATES + 1) for v in range(count)
    ]
    scopes = [_scope(tokens, factor, count) for factor in range(tokens.integer("the number of factors"))]
    tables = []
    for index, scope in enumerate(scopes):
        shape = [cardinalities[variable] for variable in scope]
        size = tokens.integer(f"the number of entries of factor {index}", minimum=1)
        if size != math.prod(shape):
            raise tokens.error(f"factor {index} says {size} entries; its scope needs {math.prod(shape)}")
        entries = [tokens.potential(f"factor {index}") for _ in range(size)]
        tables.append(torch.tensor(entries, dtype=torch.float64).reshape(shape).log())
    tokens.finish()
    if kind == "BAYES":
        check_bayes(scopes, count, name)
    graph = FactorGraph(cardinalities, scopes)
    return graph, graph.pack(tables)


def _scope(tokens: Tokens, factor: int, count: int, order_name: str = "the order") -> list[int]:
    order = tokens.integer(f"{order_name} of factor {factor}", below=MAX_ORDER + 1)
    scope = [tokens.integer(f"a variable of factor {factor}", below=count) for _ in range(order)]
    repeated = {variable for variable in scope if scope.count(variable) > 1}
    if repeated:
        raise tokens.error(f"the scope of factor {factor} repeats variable {min(repeated)}; list it once")
    return scope


def check_bayes(scopes: Sequence[Sequence[int]], count: int, name: str) -> None:
    """Refuses what is not a directed acyclic graph with one table for each variable."""
    parents: dict[int, Sequence[int]] = {}
    for index, scope in enumerate(scopes):
        if not scope:
            raise InputError(f"{name}: factor {index} of a BAYES network has no child; give it a scope or use MARKOV")
        if scope[-1] in parents:
            raise InputError(
                f"{name}: factor {index} is a second table for variable {scope[-1]}, the last of its scope; "
                "a BAYES network has one for each, otherwise write MARKOV"
            )
        parents[scope[-1]] = scope[:-1]
    missing = set(range(count)) - parents.keys()
    if missing:
        raise InputError(f"{name}: no factor has variable {min(missing)} last in its scope, as BAYES needs; use MARKOV")
    try:
        graphlib.TopologicalSorter(parents).prepare()
    except graphlib.CycleError as error:
        raise InputError(
            f"{name}: the scopes of this BAYES network are cyclic at variable {min(error.args[1])}; use MARKOV"
        ) from None


def format_uai(graph: FactorGraph, potentials: Potentials, kind: UaiKind = "MARKOV") -> str:
    """A model file with 15 significant digits (unbatched potentials only).

    >>> graph, potentials = parse_uai("MARKOV 1 2 1 1 0 2 1 3")
    >>> print(format_uai(graph, potentials))
    MARKOV
    1
    2
    1
    1 0
    <BLANKLINE>
    2
    1 3
    """
    if any(p.ndim != 1 + group.order for group, p in zip(graph.groups, potentials, strict=True)):
        raise InputError("a UAI file holds one model: take one item of the batch")
    scopes = graph.scopes()
    if kind == "BAYES":
        check_bayes(scopes, graph.num_variables, "this graph")
    lines = [kind, str(graph.num_variables), " ".join(map(str, graph.cardinalities.tolist())), str(len(scopes))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in scopes]
    for table in graph.unpack(potentials):
        entries = table.detach().double().exp().flatten().tolist()
        lines += ["", str(len(entries)), " ".join(f"{entry:.15g}" for entry in entries)]
    return "\n".join(lines) + "\n"


def write_uai(path: str | Path, graph: FactorGraph, potentials: Potentials, kind: UaiKind = "MARKOV") -> None:
    """Writes a model file."""
    Path(path).write_text(format_uai(graph, potentials, kind), encoding="utf-8")


def read_evidence(path: str | Path, graph: FactorGraph) -> dict[int, int]:
    """An evidence file as {variable: state}, checked against the graph."""
    return parse_evidence(read_text(path), graph, Path(path).name)


def parse_evidence(text: str, graph: FactorGraph, name: str = "evidence") -> dict[int, int]:
    """The text of an evidence file as {variable: state}.

    >>> graph = FactorGraph([2, 3], [[0, 1]])
    >>> parse_evidence("1  1 2", graph), parse_evidence("0", graph), parse_evidence("1  1  1 2", graph)
    ({1: 2}, {}, {1: 2})
    """
    tokens = Tokens(text, name)
    count = tokens.integer("the number of observed variables")
    if count == 1 and tokens.remaining and tokens.remaining % 2 == 1:  # a leading number of samples
        count = tokens.integer("the number of observed variables")
    if tokens.remaining != 2 * count:
        raise tokens.error(
            f"{count} observations need {2 * count} numbers (variable and state each), {tokens.remaining} follow"
        )
    evidence: dict[int, int] = {}
    for _ in range(count):
        variable = tokens.integer("the observed variable", below=graph.num_variables)
        state = tokens.integer(f"the state of variable {variable}", below=int(graph.cardinalities[variable]))
        if evidence.setdefault(variable, state) != state:
            raise tokens.error(f"variable {variable} is observed in two states")
    return evidence


# A file lists only nonzero entries and labels that occur: without limits, a short one could need any memory.
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
    for index in range(tokens.integer("the number of factors", minimum=1)):
        scope = _scope(tokens, index, MAX_LABEL + 1, "the number of variables")
        shape = [tokens.integer(f"a cardinality of factor {index}", minimum=1, below=MAX_STATES + 1) for _ in scope]
        for variable, size in zip(scope, shape, strict=True):
            if states.setdefault(variable, size) != size:
                raise tokens.error(
                    f"factor {index} gives variable {variable} {size} states, an earlier one {states[variable]}"
                )
        scopes.append(scope)
        tables.append(_table(tokens, index, shape))
    tokens.finish()
    count = 1 + max(states, default=0)
    graph = FactorGraph([states.get(variable, 1) for variable in range(count)], scopes)
    return graph, graph.pack(tables)


def _table(tokens: Tokens, factor: int, shape: list[int]) -> Tensor:
    size = math.prod(shape)
    if size > MAX_ENTRIES:
        raise tokens.error(f"factor {factor} has a table of more than the {MAX_ENTRIES} entries that can be read")
    values = [0.0] * size
    seen: set[int] = set()
    for _ in range(tokens.integer(f"the number of entries of factor {factor}", below=size + 1)):
        index = tokens.integer(f"an index of factor {factor}", below=size)
        if index in seen:
            raise tokens.error(f"factor {factor} gives entry {index} twice")
        seen.add(index)
        values[index] = tokens.potential(f"factor {factor}")
    table = torch.tensor(values, dtype=torch.float64).log().reshape(shape[::-1])
    return table.permute(list(reversed(range(len(shape)))))


def format_pr(log_z: float) -> str:
    """The probability of the evidence (or the partition function), as log10.

    >>> format_pr(math.log(1000.0))
    'PR\\n3\\n'
    """
    return f"PR\n{log_z / math.log(10):.15g}\n"


def format_mar(graph: FactorGraph, marginals: Tensor) -> str:
    """All marginals, from (variables, max_cardinality) probabilities.

    >>> format_mar(FactorGraph([2], [[0]]), torch.tensor([[0.25, 0.75]]))
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
