"""What must not change by accident: first weights, data order, an augmented batch, a model's labels, error texts.

`goldens.json` holds digests that do not depend on the names of tensors or modules. A change that is meant to alter one
of them says so, and replaces it: python tests/goldens/test_goldens.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from messagenet.bundled import photographs
from messagenet.data import SCENE_CLASSES, Augment, collate, open_data, read_image
from messagenet.prediction import PredictOptions, Predictor
from messagenet.settings import kinds
from messagenet.training import load_config, override
from messagenet.training.batches import AugmentedData, Plan
from messagenet.training.build import build_model
from messagenet.training.systems import SYSTEMS

FOLDER = Path(__file__).parent
GOLDENS = json.loads((FOLDER / "goldens.json").read_text())
WITH_WEIGHTS = [key.removeprefix("init/") for key in GOLDENS if key.startswith("init/")]
"""Systems whose first weights have a digest; the others are the same models with other settings."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def first_weights(system: str) -> str:
    config = load_config("tiny")
    if system in ("fcn8s", "deconvnet"):
        config = override(config, {"model.backbone": "efficientnet_lite0"})
    model = build_model(SYSTEMS[system].apply(config), SCENE_CLASSES).model
    tensors = (values.contiguous().numpy().tobytes() for values in model.state_dict().values())
    return digest(b"".join(sorted(hashlib.sha256(each).digest() for each in tensors)))


def first_keys() -> list[tuple[int, int]]:
    plan = Plan(samples=20, batch_size=4, accumulate=1, processes=1, total_steps=3, seed=0)
    return [key for batch in plan.batches(0) for key in batch]


def first_batch() -> str:
    augment = Augment(
        scale_range=(0.7, 2.0), crop=64, mirror=True, brightness=0.3, contrast=0.3, saturation=0.3, paste=0.5
    )
    data = AugmentedData(open_data("synthetic:20"), augment, 0)
    batch = collate([data[key] for key in first_keys()[:4]])
    return digest(batch.images.numpy().tobytes() + batch.target.numpy().tobytes())


@pytest.mark.parametrize("system", WITH_WEIGHTS)
def test_first_weights(system):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert first_weights(system) == GOLDENS[f"init/{system}"]


def test_every_head_and_loss_has_a_golden():
    configs = [SYSTEMS[system].apply(load_config("tiny")) for system in WITH_WEIGHTS]
    assert {config.model.head["kind"] for config in configs} == set(kinds("head"))
    assert {config.loss["kind"] for config in configs} == set(kinds("loss"))


def test_generated_scene():
    sample = open_data("synthetic:20")[0]
    assert digest(sample.image.tobytes() + sample.mask.tobytes()) == GOLDENS["scene/0"]


def test_order_of_samples():
    assert first_keys() == [tuple(key) for key in GOLDENS["order"]]


def test_augmented_batch():
    assert first_batch() == GOLDENS["batch/0"]


@pytest.mark.skipif(not photographs(), reason="needs scikit-image's photographs")
def test_bundled_model_on_photographs():
    predictor = Predictor(options=PredictOptions(precision="float32"))  # the same on every processor
    for path in photographs():
        image = read_image(path)
        labels = np.load(FOLDER / f"{path.stem}.npz")["labels"]
        # A pixel on the border between two classes may fall to either side on another processor.
        assert (predictor.labels(image) != labels).mean() < 1e-3
        confidence = float(predictor.marginals(image).max(0).values.mean())
        assert confidence == pytest.approx(GOLDENS[f"mean max marginal/{path.name}"], abs=1e-4)


def test_error_texts():
    command = [sys.executable, str(FOLDER / "error_texts.py")]
    now = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    committed = (FOLDER / "error_texts.txt").read_text().splitlines()
    changed = sorted(set(now) ^ set(committed))
    assert not changed, "the error texts changed; list them anew as error_texts.py says, and review the difference"


def goldens() -> dict[str, Any]:
    """All digests of this version."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sample = open_data("synthetic:20")[0]
    found: dict[str, Any] = {f"init/{system}": first_weights(system) for system in WITH_WEIGHTS}
    found |= {
        "scene/0": digest(sample.image.tobytes() + sample.mask.tobytes()),
        "order": first_keys(),
        "batch/0": first_batch(),
    }
    predictor = Predictor(options=PredictOptions(precision="float32"))  # the same on every processor
    for path in photographs():
        image = read_image(path)
        labels = predictor.labels(image)
        np.savez_compressed(FOLDER / f"{path.stem}.npz", labels=labels)
        found[f"labels/{path.name}"] = digest(labels.tobytes())
        confidence = float(predictor.marginals(image).max(0).values.mean())
        found[f"mean max marginal/{path.name}"] = round(confidence, 6)
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    (FOLDER / "goldens.json").write_text(json.dumps(goldens(), indent=1) + "\n")
