"""A brute-force oracle written without the library's tensor code, and the published models beside the checkout."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.formats import read_fg, read_uai

INF = float("inf")


@dataclass(frozen=True)
class Enumeration:
    """Exact answers by listing every joint state (unbatched)."""

    log_z: float
    marginals: Tensor
    factor_marginals: list[Tensor]
    max_score: float
    max_marginals: Tensor
    map_state: list[int]


def _brute_force(graph: FactorGraph, potentials: Any) -> Enumeration:
    cardinalities = graph.cardinalities.tolist()
    scopes = graph.scopes()
    tables = [table.tolist() for table in graph.unpack(potentials)]
    scored = []
    for state in itertools.product(*(range(size) for size in cardinalities)):
        score = 0.0
        for scope, table in zip(scopes, tables, strict=True):
            entry = table
            for variable in scope:
                entry = entry[state[variable]]
            score += entry
        scored.append((score, state))
    top, best = max(scored)
    z = sum(math.exp(score - top) for score, _ in scored)
    shape = (len(cardinalities), max(cardinalities))
    marginals = torch.zeros(shape, dtype=torch.float64)
    maxima = torch.full(shape, -INF, dtype=torch.float64)
    factors = [torch.zeros([cardinalities[v] for v in scope], dtype=torch.float64) for scope in scopes]
    for score, state in scored:
        probability = math.exp(score - top) / z
        for variable, value in enumerate(state):
            marginals[variable, value] += probability
            maxima[variable, value] = max(float(maxima[variable, value]), score)
        for scope, table in zip(scopes, factors, strict=True):
            table[tuple(state[v] for v in scope)] += probability
    return Enumeration(top + math.log(z), marginals, factors, top, maxima, list(best))


@pytest.fixture(scope="session")
def brute_force() -> Callable[[FactorGraph, Any], Enumeration]:
    return _brute_force


@pytest.fixture(scope="session")
def random_model() -> Callable[..., tuple[FactorGraph, tuple[Tensor, ...]]]:
    """A small graph, loopy more often than not, with mixed orders and cardinalities and some zeros.

    Zeros never touch one hidden joint state, so that some state is possible.
    """

    def build(
        seed: int,
        *,
        variables: int = 5,
        most_states: int = 3,
        orders: tuple[int, ...] = (1, 2, 2, 2, 3),
        zeros: float = 0.0,
    ) -> tuple[FactorGraph, tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(seed)
        cardinalities = torch.randint(1, most_states + 1, (variables,), generator=generator).tolist()
        scopes = [torch.randperm(variables, generator=generator)[: min(order, variables)].tolist() for order in orders]
        hidden = [int(torch.randint(size, (), generator=generator)) for size in cardinalities]
        tables = []
        for scope in scopes:
            shape = [cardinalities[v] for v in scope]
            table = torch.randn(shape, dtype=torch.float64, generator=generator)
            forbidden = torch.rand(shape, generator=generator) < zeros
            forbidden[tuple(hidden[v] for v in scope)] = False
            tables.append(table.masked_fill(forbidden, -INF))
        graph = FactorGraph(cardinalities, scopes)
        return graph, graph.pack(tables)

    return build


@pytest.fixture(scope="session")
def published() -> Path:
    """The folder of public models with answers, beside the checkout."""
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures"
    if not folder.is_dir():
        pytest.skip("the published models (shared/fixtures beside the checkout) are not here")
    return folder


@pytest.fixture(scope="session")
def load_model(published: Path) -> Callable[[str], tuple[FactorGraph, tuple[Tensor, ...]]]:
    def load(name: str) -> tuple[FactorGraph, tuple[Tensor, ...]]:
        if name.startswith("libdai_"):
            return read_fg(published / "libdai" / f"{name.removeprefix('libdai_')}.fg")
        folder = {"made": "made", "merlin": "merlin"}.get(name.split("_")[0], "uai2014")
        return read_uai(published / folder / f"{name.removeprefix('merlin_')}.uai")

    return load


@pytest.fixture(scope="session")
def reference(published: Path) -> Callable[[str], dict[str, Any]]:
    """Answers another program computed for a model, with marginals padded to one tensor."""

    def load(name: str) -> dict[str, Any]:
        stored = json.loads((published / "libdai_refs" / f"{name}.json").read_text())
        width = max(stored["card"])
        for result in stored["results"].values():
            rows = [row + [0.0] * (width - len(row)) for row in result["marginals"]]
            result["marginals"] = torch.tensor(rows, dtype=torch.float64)
        return dict(stored["results"])

    return load
