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
from messagenet.models import KINDS, SegmentationNet
from messagenet.prediction import Predictor
from messagenet.training import apply_overrides, load_config
from messagenet.training.batches import AugmentedData, Plan
from messagenet.training.build import build_network

FOLDER = Path(__file__).parent
GOLDENS = json.loads((FOLDER / "goldens.json").read_text())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def first_weights(kind: str) -> str:
    overrides = [f"model.kind={kind}", *(["model.backbone=efficientnet_lite0"] if kind == "fcn8s" else [])]
    config = apply_overrides(load_config("tiny"), overrides)
    net = build_network(config.model, SCENE_CLASSES, 0).net
    tensors = (values.contiguous().numpy().tobytes() for values in net.state_dict().values())
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
    return digest(batch.images.numpy().tobytes() + batch.masks.numpy().tobytes())


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert first_weights(kind) == GOLDENS[f"init/{kind}"]


def test_every_system_has_a_golden():
    assert {key.removeprefix("init/") for key in GOLDENS if key.startswith("init/")} == set(KINDS)


def test_generated_scene():
    sample = open_data("synthetic:20")[0]
    assert digest(sample.image.tobytes() + sample.mask.tobytes()) == GOLDENS["scene/0"]


def test_order_of_samples():
    assert first_keys() == [tuple(key) for key in GOLDENS["order"]]


def test_augmented_batch():
    assert first_batch() == GOLDENS["batch/0"]


@pytest.mark.skipif(not photographs(), reason="needs scikit-image's photographs")
def test_bundled_model_on_photographs():
    predictor = Predictor(SegmentationNet.from_pretrained())
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
    assert not changed, (
        "the error texts changed; list them anew as error_texts.py says, and review the difference"
    )


def goldens() -> dict[str, Any]:
    """All digests of this version."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sample = open_data("synthetic:20")[0]
    found: dict[str, Any] = {f"init/{kind}": first_weights(kind) for kind in KINDS}
    found |= {
        "scene/0": digest(sample.image.tobytes() + sample.mask.tobytes()),
        "order": first_keys(),
        "batch/0": first_batch(),
    }
    predictor = Predictor(SegmentationNet.from_pretrained())
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
