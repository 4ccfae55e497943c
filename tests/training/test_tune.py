"""Searching what training does not learn."""

from __future__ import annotations

import pytest
import torch

from messagenet.data import Subset, SyntheticScenes
from messagenet.errors import InputError
from messagenet.models import CRFNet, DeepLabCRF, UnaryNet
from messagenet.prediction import Predictor, score
from messagenet.training.validate import tune

SCENES = SyntheticScenes(3, size=32)


def test_the_best_of_all_combinations_is_set_and_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    net = CRFNet("tiny", SCENES.classes, hidden=8)
    told: list[tuple[int, int]] = []
    trials = tune(net, SCENES, {"pairwise_scale": (0.0, 3.0, 9.0)}, progress=lambda *at: told.append(at))
    assert told == [(number, len(SCENES)) for number in range(1, len(SCENES) + 1)]
    assert [trial.mean_iou for trial in trials] == sorted((t.mean_iou for t in trials), reverse=True)
    for trial in trials:
        net.adjust(**trial.values)
        assert score(Predictor(net), SCENES).mean_iou == pytest.approx(trial.mean_iou)
    tune(net, SCENES, {"pairwise_scale": (0.0, 3.0, 9.0)})
    loaded = CRFNet.from_pretrained(net.save(tmp_path))
    assert loaded.settings["pairwise_scale"] == trials[0].values["pairwise_scale"]
    image = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(image), net(image))


def test_kernels_of_a_dense_crf() -> None:
    net = DeepLabCRF("tiny", SCENES.classes, hidden=8)
    seen: list[object] = []
    net.backbones["shared"].register_forward_hook(lambda *_: seen.append(1))
    trials = tune(net, Subset(SCENES, [0]), {"bilateral_weight": (1.0, 2.0), "bilateral_colour": (5.0,)})
    assert len(trials) == 2
    assert len(seen) == 1  # the features do not depend on the kernels
    assert score(Predictor(net), Subset(SCENES, [0])).mean_iou == pytest.approx(trials[0].mean_iou)
    assert net.kernels[1].weight == trials[0].values["bilateral_weight"]
    assert net.kernels[1].colour == 5.0


def test_nothing_to_tune_and_nothing_to_tune_on() -> None:
    assert tune(UnaryNet("tiny", SCENES.classes, hidden=8), SCENES) == []
    with pytest.raises(InputError, match="at least one"):
        tune(CRFNet("tiny", SCENES.classes, hidden=8), Subset(SCENES, []))
    with pytest.raises(InputError, match="pairwise_scale"):
        CRFNet("tiny", 3, hidden=8).adjust(pairwise_scal=2.0)
