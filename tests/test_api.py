"""From model files to result files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from messagenet.api import format_result, solve
from messagenet.errors import InputError
from messagenet.graph.formats import format_pr
from messagenet.inference import BeliefPropagation
from messagenet.settings import kinds
from result_files import read_map, read_mar, read_pr

# P(rain) = 0.2; P(wet | dry) = 0.1, P(wet | rain) = 0.9
RAIN = "BAYES\n2\n2 2\n2\n1 0\n2 0 1\n\n2\n 0.8 0.2\n\n4\n 0.9 0.1\n 0.1 0.9\n"
RAIN_FG = "2\n\n1\n0\n2\n2\n0 0.8\n1 0.2\n\n2\n0 1\n2 2\n4\n0 0.9\n1 0.1\n2 0.1\n3 0.9\n"


def infer(model_path, evidence_path=None, engine="exact", task="mar"):
    return format_result(*solve(model_path, evidence_path, engine, task), task)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "rain.uai"
    path.write_text(RAIN)
    return path


@pytest.fixture
def wet(tmp_path: Path) -> Path:
    path = tmp_path / "wet.evid"
    path.write_text("1 1 1\n")
    return path


@pytest.mark.parametrize("engine", ["exact", "bp", "trw"])
def test_marginals_and_evidence_probability(tmp_path, model, wet, engine):
    answer = tmp_path / "answer"
    answer.write_text(infer(model, wet, engine, "mar"))
    rain, seen = read_mar(answer)
    assert rain == pytest.approx([0.08 / 0.26, 0.18 / 0.26], abs=1e-8)
    assert seen == [0.0, 1.0]
    answer.write_text(infer(model, wet, engine, "pr"))
    assert read_pr(answer) == pytest.approx(math.log10(0.26), abs=1e-8)
    answer.write_text(infer(model, None, engine, "pr"))
    assert read_pr(answer) == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize("engine", kinds("engine"))
def test_most_probable_state(tmp_path, model, wet, engine):
    answer = tmp_path / "answer"
    answer.write_text(infer(model, wet, engine, "map"))
    assert read_map(answer).tolist() == [1, 1]


def test_fg_models(tmp_path, model):
    path = tmp_path / "rain.fg"
    path.write_text(RAIN_FG)
    assert infer(path, None, "exact", "mar") == infer(model, None, "exact", "mar")


def test_own_engine_settings_and_convergence(model):
    _, result = solve(model, None, BeliefPropagation(max_iterations=1, tolerance=0.0), "mar")
    assert not result.converged
    assert result.iterations == 1


def test_impossible_bound_is_written():
    assert format_pr(-math.inf) == "PR\n-inf\n"


def test_bad_requests_are_refused(tmp_path, model):
    with pytest.raises(InputError, match='there is no engine "belief"'):
        infer(model, None, "belief", "mar")
    with pytest.raises(InputError, match='task "marginal" is not known'):
        infer(model, None, "exact", "marginal")
    with pytest.raises(InputError, match="only finds the most probable state"):
        infer(model, None, "trws", "pr")
    with pytest.raises(InputError, match=r"cannot read .*nowhere\.uai"):
        infer(tmp_path / "nowhere.uai")
