"""Each command as one call: what the calls refuse because nothing would use it; from model files to result files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import messagenet as mn
from messagenet.api import as_predictor, format_result, solve
from messagenet.data.classes import as_classes
from messagenet.errors import InputError
from messagenet.graph.formats import format_pr
from messagenet.inference import BeliefPropagation
from messagenet.prediction.predictor import PredictOptions
from messagenet.settings import kinds
from messagenet.training import TrainCallback, override
from result_files import read_map, read_mar, read_pr

QUICK = {"run.steps": 1, "run.batch_size": 2, "run.workers": 0}


def predictor(**options) -> mn.Predictor:
    return mn.Predictor(mn.MessageNet("tiny", 3, hidden=4), PredictOptions(**options))


@pytest.mark.parametrize("given", [{"options": PredictOptions(flip=True)}, {"refine": True}])
def test_a_predictor_has_its_own_options(given, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(mn.InputError, match=r"a Predictor has its own options; build it with them"):
        mn.predict(tmp_path / "a.png", predictor(), tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
    if "refine" not in given:  # which scores the model a second time
        with pytest.raises(mn.InputError, match="a Predictor has its own options"):
            mn.evaluate(predictor(), "synthetic:2", **given)


def test_a_predictor_with_options_is_taken_as_it_is():
    ready = predictor(flip=True)
    assert as_predictor(ready) is ready


def test_images_in_memory_are_for_a_predictor(tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    for given in (Image.fromarray(image), image, torch.zeros(3, 8, 8), [image]):
        with pytest.raises(mn.InputError, match=r"is not a file; .* mn\.Predictor\(model\)\.labels\(image\)$") as error:
            mn.predict(given, predictor(), tmp_path / "out")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_scoring_needs_data():
    for call in (mn.evaluate, lambda: mn.evaluate(predictor()), lambda: mn.evaluate_models({"a": predictor()})):
        with pytest.raises(mn.InputError, match="say which data set to open: --data folder:DIR"):
            call()


def test_a_model_is_no_system(tmp_path):
    with pytest.raises(mn.InputError, match='a system is a name such as "message", not a MessageNet') as error:
        mn.train("synthetic:4", tmp_path / "run", system=predictor().model)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_training_takes_a_configuration(tmp_path):
    config = override(mn.load_config("tiny"), {**QUICK, "data.spec": "synthetic:8", "data.val_limit": 1})
    mn.train(out=tmp_path, config=config)
    assert mn.load_config(tmp_path / "config.yaml") == config


def torch_data(count: int = 10) -> TensorDataset:
    data = TensorDataset(torch.rand(count, 3, 16, 16), torch.randint(0, 2, (count, 16, 16)))
    data.classes = ("one", "two")
    return data


@pytest.mark.parametrize(
    "settings",
    [{"data.val_split": None}, {"data.keep": ["one"]}, {"data": {"spec": "synthetic"}}, ["data.train_split=train+val"]],
)
def test_settings_of_named_data_are_not_for_torch_data(settings, tmp_path):
    with pytest.raises(mn.InputError, match=r"data\.\w+ is for a data set by name; leave it out"):
        mn.train(torch_data(), tmp_path, preset="tiny", settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_torch_data_heed(tmp_path):
    found = []

    class Callback(TrainCallback):
        def start(self, run):
            found.append(run.val_images)

    settings = {**QUICK, "data.val_limit": 1, "data.balance": 0.5, "model.head.relations": ["surrounding:3cells"]}
    mn.train(torch_data(20), tmp_path, preset="tiny", settings=settings, progress=Callback())
    assert found == [1]


def test_void_values_of_the_training_are_for_data_that_take_them():
    spec = mn.InputSpec(as_classes(["blue", "earth", "white", "red"]), void_values=(11,))
    model = mn.SegmentationModel("tiny", spec, "unary")
    assert mn.evaluate(model, "noisy:2").mean_iou is not None
    with pytest.raises(mn.InputError, match="noisy data take no void_values"):
        mn.evaluate(model, "noisy:2", void_values=[11])


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
