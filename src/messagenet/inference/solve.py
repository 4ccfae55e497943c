"""From model files to result files: what `messagenet infer` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from messagenet.errors import InputError, nearest
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.formats import format_map, format_mar, format_pr, read_evidence, read_fg, read_uai
from messagenet.inference.belief_propagation import BeliefPropagation
from messagenet.inference.engine import Engine, Result
from messagenet.inference.evidence import observe
from messagenet.inference.exact import Exact
from messagenet.inference.mean_field import MeanField
from messagenet.inference.tree_reweighted import TreeReweighted
from messagenet.inference.trw_s import SequentialTRW

Task = Literal["mar", "pr", "map"]
TASKS: tuple[Task, ...] = ("mar", "pr", "map")

ENGINES: dict[str, Callable[[float], Engine]] = {
    "exact": lambda temperature: Exact(temperature=temperature),
    "bp": lambda temperature: BeliefPropagation(
        temperature=temperature, damping=0.5, max_iterations=2000, tolerance=1e-9
    ),
    "trw": lambda temperature: TreeReweighted(temperature=temperature, max_iterations=5000, tolerance=1e-9),
    "trws": lambda temperature: SequentialTRW(),
    "mf": lambda temperature: MeanField(tolerance=1e-9),
}


def engine_for(name: str, task: Task) -> Engine:
    """The engine a command line names, with settings for careful answers; max-product when the task is MAP.

    >>> engine_for("bp", "map").temperature
    0.0
    """
    if name not in ENGINES:
        raise InputError(f'engine "{name}" is not known; {nearest(name, ENGINES)}')
    if name == "trws" and task != "map":
        raise InputError('engine "trws" only finds the most probable state; use task "map" or engine "trw"')
    return ENGINES[name](0.0 if task == "map" else 1.0)


def solve(
    model_path: str | Path,
    evidence_path: str | Path | None = None,
    engine: str | Engine = "exact",
    task: Task = "mar",
) -> tuple[FactorGraph, Result]:
    """Reads a `.uai` or `.fg` model and evidence, and runs the engine on it."""
    if task not in TASKS:
        raise InputError(f'task "{task}" is not known; {nearest(task, TASKS)}')
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


def infer(
    model_path: str | Path,
    evidence_path: str | Path | None = None,
    engine: str | Engine = "exact",
    task: Task = "mar",
) -> str:
    """The text of the UAI result file for a model, its evidence, an engine and a task.

    Args:
        model_path: `.uai` (MARKOV or BAYES) or libDAI `.fg` file.
        evidence_path: UAI evidence file, if any.
        engine: "exact", "bp", "trw", "trws", "mf", or an engine with settings of your own.
        task: "mar", "pr" or "map".
    """
    graph, result = solve(model_path, evidence_path, engine, task)
    return format_result(graph, result, task)
