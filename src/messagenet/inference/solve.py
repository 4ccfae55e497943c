"""From model files (`.uai`, `.fg`) to UAI result files (`MAR`, `PR` or `MAP`): what `messagenet infer` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.formats import format_map, format_mar, format_pr, read_evidence, read_fg, read_uai
from messagenet.inference.belief_propagation import BeliefPropagation
from messagenet.inference.engine import Engine, Result
from messagenet.inference.evidence import observe
from messagenet.inference.mean_field import MeanField
from messagenet.inference.tree_reweighted import TreeReweighted
from messagenet.inference.trw_s import SequentialTRW
from messagenet.settings import find, options

Task = Literal["mar", "pr", "map"]

# Settings for careful answers, where an engine's defaults prefer speed.
CAREFUL: dict[Any, dict[str, Any]] = {
    BeliefPropagation: {"damping": 0.5, "max_iterations": 2000, "tolerance": 1e-9},
    TreeReweighted: {"max_iterations": 5000, "tolerance": 1e-9},
    MeanField: {"tolerance": 1e-9},
}


def engine_for(name: str, task: Task) -> Engine:
    """The engine registered under a name, with careful settings; max-product when the task is MAP.

    >>> engine_for("bp", "map").temperature
    0.0
    """
    make = find("engine", name)
    if make is SequentialTRW and task != "map":
        raise InputError('engine "trws" only finds the most probable state; use task "map" or engine "trw"')
    values = dict(CAREFUL.get(make, {}))
    if "temperature" in options(make):
        values["temperature"] = 0.0 if task == "map" else 1.0
    engine: Engine = make(**values)
    return engine


def solve(
    model_path: str | Path, evidence_path: str | Path | None = None, engine: str | Engine = "exact", task: Task = "mar"
) -> tuple[FactorGraph, Result]:
    """Reads a `.uai` or libDAI `.fg` model and UAI evidence, and runs an engine, given by its name or with settings."""
    if task not in get_args(Task):
        raise InputError(f'task "{task}" is not known; {nearest(task, get_args(Task))}')
    chosen = engine_for(engine, task) if isinstance(engine, str) else engine
    graph, potentials = read_fg(model_path) if Path(model_path).suffix == ".fg" else read_uai(model_path)
    if evidence_path is None:
        return graph, chosen.run(graph, potentials)
    return graph, observe(graph, potentials, read_evidence(evidence_path, graph)).run(chosen)


def format_result(graph: FactorGraph, result: Result, task: Task) -> str:
    """A UAI result file: `MAR` marginals, `PR` log10 Z, or `MAP` the most probable state."""
    if task == "mar":
        return format_mar(graph, result.marginals)
    return format_pr(float(result.log_z)) if task == "pr" else format_map(result.map_state)
