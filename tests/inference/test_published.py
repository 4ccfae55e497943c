"""Public models with answers that other programs computed (skipped where they are not beside the checkout)."""

from __future__ import annotations

import math

import pytest
import torch

from messagenet.inference import BeliefPropagation, Exact, MeanField, SequentialTRW, TreeReweighted
from messagenet.inference.tree_reweighted import spanning_tree_probabilities
from result_files import read_map, read_mar, read_pr

pytestmark = pytest.mark.shared
close = torch.testing.assert_close

SMALL = [
    "libdai_alarm",
    "libdai_testfast",
    "libdai_twofactors",
    "libdai_zeroes1",
    "made_grid4x4_K5",
    "made_grid6x5_K3_strong",
    "made_tree15_K4",
    "merlin_ChestClinic",
    "merlin_cancer",
    "merlin_simple5",
    "merlin_uai-test-model",
    "merlin_uai-test-model2",
]
SEGMENTATION = ["Segmentation_11", "Segmentation_12", "Segmentation_13"]
DETECTION = ["ObjectDetection_11", "ObjectDetection_28"]
GRIDS = ["Grids_11", "Grids_12", "Grids_15"]
PRECISE = {"tolerance": 1e-12, "max_iterations": 4000}


@pytest.mark.parametrize("name", SMALL)
def test_exact_matches_another_junction_tree(load_model, reference, name):
    graph, potentials = load_model(name)
    expected = reference(name)["exact_jtree"]
    result = Exact().run(graph, potentials)
    close(result.marginals, expected["marginals"], atol=1e-10, rtol=0)
    assert float(result.log_z) == pytest.approx(expected["logZ"], abs=1e-10)


@pytest.mark.parametrize("name", [*SEGMENTATION, *DETECTION, *GRIDS])
def test_exact_matches_competition_answers(published, load_model, reference, name):
    graph, potentials = load_model(name)
    result = Exact().run(graph, potentials)
    path = published / "uai2014" / f"{name}.uai"
    marginals = torch.tensor(read_mar(f"{path}.MAR"), dtype=torch.float64)
    close(result.marginals, marginals, atol=2e-6, rtol=0)
    assert float(result.log_z) / math.log(10) == pytest.approx(read_pr(f"{path}.PR"), rel=1e-5)
    if "exact_jtree" in reference(name):
        expected = reference(name)["exact_jtree"]
        close(result.marginals, expected["marginals"], atol=1e-10, rtol=0)
        assert float(result.log_z) == pytest.approx(expected["logZ"], abs=1e-9)
    if name not in ("ObjectDetection_28", "Grids_15"):  # large enough already
        published_score = float(graph.score(potentials, read_map(f"{path}.MAP")))
        assert float(graph.score(potentials, result.map_state)) >= published_score - 1e-9


BP_RUNS = {
    "bp_parallel_converged": BeliefPropagation(**PRECISE),
    "bp_parallel_damped0.5": BeliefPropagation(damping=0.5, **PRECISE),
    "maxprod_parallel": BeliefPropagation(temperature=0, **PRECISE),
    "maxprod_damped0.5": BeliefPropagation(temperature=0, damping=0.5, **PRECISE),
}


@pytest.mark.parametrize("name", [*SMALL, *SEGMENTATION, *DETECTION])
@pytest.mark.parametrize("run", BP_RUNS)
def test_belief_propagation_fixed_points(load_model, reference, name, run):
    expected = reference(name)[run]
    if not expected["converged"]:
        pytest.skip("the reference implementation did not converge here")
    graph, potentials = load_model(name)
    result = BP_RUNS[run].run(graph, potentials)
    assert result.converged
    close(result.marginals, expected["marginals"], atol=1e-8, rtol=0)
    if run.startswith("bp"):  # the reference's log Z of max-product is an entropy-corrected one
        assert float(result.log_z) == pytest.approx(expected["logZ"], abs=1e-8)


@pytest.mark.parametrize("name", [*SMALL, "Segmentation_12"])
@pytest.mark.parametrize("schedule", ["sequential", "residual"])
def test_other_schedules_reach_the_same_fixed_points(load_model, reference, name, schedule):
    expected = reference(name)["bp_seq_converged"]
    graph, potentials = load_model(name)
    result = BeliefPropagation(schedule=schedule, residual_fraction=0.3, **PRECISE).run(graph, potentials)
    assert result.converged
    close(result.marginals, expected["marginals"], atol=1e-8, rtol=0)
    assert float(result.log_z) == pytest.approx(expected["logZ"], abs=1e-8)


def test_belief_propagation_can_be_confidently_wrong(load_model, reference):
    graph, potentials = load_model("Segmentation_13")
    exact = reference("Segmentation_13")["exact_jtree"]["marginals"]
    result = BeliefPropagation().run(graph, potentials)
    assert result.converged
    assert float((result.marginals - exact).abs().max()) > 0.5


TREE_MODELS = [
    *(name for name in SMALL if name.startswith(("made", "libdai_t", "libdai_z"))),
    "merlin_simple5",
    *SEGMENTATION,
    "Grids_15",
]


@pytest.mark.parametrize("name", TREE_MODELS)
def test_tree_reweighted_fixed_points(load_model, reference, name):
    expected = reference(name)["trwbp_ust"]
    graph, potentials = load_model(name)
    weights = torch.tensor(expected["factor_weights"], dtype=torch.float64)
    close(spanning_tree_probabilities(graph), weights, atol=1e-10, rtol=0)
    result = TreeReweighted(tolerance=1e-11, max_iterations=4000).run(graph, potentials)
    close(result.marginals, expected["marginals"], atol=1e-8, rtol=0)
    assert float(result.log_z) == pytest.approx(expected["logZ"], abs=1e-8)


@pytest.mark.parametrize("name", [*SMALL, *SEGMENTATION, *GRIDS])
def test_mean_field_fixed_points(load_model, reference, name):
    """Several fixed points exist where couplings are strong; the reference's must be one of ours."""
    if "mf_naive_uniform" not in reference(name):
        pytest.skip("no mean-field reference for a model with zeros")
    expected = reference(name)["mf_naive_uniform"]
    graph, potentials = load_model(name)
    engine = MeanField(tolerance=1e-12)
    for start in (None, expected["marginals"]):
        if start is None and (name in GRIDS or name.endswith("strong")):
            continue
        result = engine.run(graph, potentials, start)
        assert result.converged
        close(result.marginals, expected["marginals"], atol=1e-8, rtol=0)
        assert float(result.log_z) == pytest.approx(expected["logZ"], abs=1e-8)


@pytest.mark.parametrize("name", [*GRIDS, *SEGMENTATION, *DETECTION])
def test_sequential_trw_brackets_the_best_score(published, load_model, name):
    graph, potentials = load_model(name)
    result = SequentialTRW().run(graph, potentials)
    published_score = float(graph.score(potentials, read_map(published / "uai2014" / f"{name}.uai.MAP")))
    assert float(result.log_z) >= published_score - 1e-9
    if name not in GRIDS:
        assert float(result.log_z) == pytest.approx(float(graph.score(potentials, result.map_state)), abs=1e-6)


def test_libdai_prints_the_same_four_digits(published, load_model):
    lines = (published / "libdai" / "testfast.out").read_text().splitlines()
    first = lines.index("EXACT                                  \t") + 1
    printed = [[float(x) for x in line.split("(")[2].rstrip(")").split(",")] for line in lines[first : first + 16]]
    graph, potentials = load_model("libdai_testfast")
    close(Exact().run(graph, potentials).marginals, torch.tensor(printed, dtype=torch.float64), atol=5e-5, rtol=0)
