"""Each command as one call: what the calls refuse, because nothing would use it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import messagenet as mn
from messagenet.api import as_predictor
from messagenet.data.classes import as_classes
from messagenet.prediction.predictor import PredictOptions
from messagenet.training import TrainCallback

QUICK = {"run.steps": 1, "run.batch_size": 2, "run.workers": 0}


def predictor(**options) -> mn.Predictor:
    return mn.Predictor(mn.MessageNet("tiny", 3, hidden=4), PredictOptions(**options))


@pytest.mark.parametrize(
    "options", [{"flip": True}, {"scales": (0.5, 1)}, {"tile": 64}, {"longest_side": 32}, {"refine": True}]
)
def test_a_predictor_has_its_own_options(options, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(mn.InputError, match=r"a Predictor has its own options; build it with them"):
        mn.predict(tmp_path / "a.png", predictor(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    if "refine" not in options:  # which scores the model a second time
        with pytest.raises(mn.InputError, match="a Predictor has its own options"):
            mn.evaluate(predictor(), "synthetic:2", **options)


def test_a_predictor_with_options_is_taken_as_it_is(tmp_path):
    ready = predictor(flip=True)
    assert as_predictor(ready, PredictOptions()) is ready


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
