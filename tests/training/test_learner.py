"""One step: the loss as a sum and a count, the learning rate, the average of the weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from messagenet.data import Batch, SyntheticScenes, collate
from messagenet.data.classes import numbered_classes
from messagenet.losses import CrossEntropy, marginal_cross_entropy
from messagenet.models import MessageNet
from messagenet.training import load_config, override
from messagenet.training.build import build_model
from messagenet.training.distributed import start_processes
from messagenet.training.learner import Learner, ModelAverage, TrainStep, decay_at, poly_factor

LOSSES = [CrossEntropy(), CrossEntropy(cell_label="majority", label_smoothing=0.1), CrossEntropy(resolution="pixels")]


@pytest.mark.parametrize("loss", LOSSES)
def test_sums_of_parts_are_the_sum_of_the_whole(loss: CrossEntropy) -> None:
    data = SyntheticScenes(3, size=48)
    torch.manual_seed(0)
    model = MessageNet("tiny", data.classes, hidden=8).double()
    batch = collate([data[index] for index in range(3)])
    assert batch.images is not None
    assert batch.target is not None
    images, masks = batch.images.double(), batch.target.clone()
    masks[0, :30] = 255  # one image with far fewer labels than the others
    step = TrainStep(model, loss)
    whole = step(Batch(images, None, masks, batch.sizes, batch.ids))
    parts = [
        step(Batch(images[i : i + 1], None, masks[i : i + 1], batch.sizes[i : i + 1], batch.ids[i : i + 1]))
        for i in range(3)
    ]
    torch.testing.assert_close(whole.total, torch.stack([part.total for part in parts]).sum())
    assert int(whole.count) == sum(int(part.count) for part in parts)
    mean = marginal_cross_entropy(model(images), masks, model.output_stride, **loss.options).mean
    torch.testing.assert_close(whole.total / whole.count, mean)


def test_a_batch_without_labels_counts_nothing() -> None:
    data = SyntheticScenes(1, size=48)
    model = MessageNet("tiny", data.classes, hidden=8)
    batch = collate([data[0]])._replace(target=torch.full((1, 48, 48), 255))
    loss = TrainStep(model, CrossEntropy())(batch)
    assert (loss.total.item(), loss.count.item()) == (0.0, 0)
    loss.total.backward()


def written_out(total: int, warmup: int, power: float) -> list[float]:
    factors = []
    while warmup > total / 2:
        warmup -= 1
    for step in range(total):
        if step < warmup:
            factors.append((step + 1) / warmup)
        else:
            left = total - step
            factors.append((left / (total - warmup)) ** power)
    return factors


@given(total=st.integers(1, 60), warmup=st.integers(0, 70), power=st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_poly_with_warm_up(total: int, warmup: int, power: float) -> None:
    found = [poly_factor(step, total, warmup, power) for step in range(total)]
    for value, expected in zip(found, written_out(total, warmup, power), strict=True):
        assert abs(value - expected) < 1e-12
    assert max(found) == 1.0
    assert min(found) > 0


def test_it_begins_low_peaks_and_ends_near_zero() -> None:
    found = [poly_factor(step, 100, 10, 0.9) for step in range(100)]
    assert found[0] == 0.1
    assert found[9] == found[10] == 1.0
    assert sorted(found[10:], reverse=True) == found[10:]
    assert found[-1] < 0.02


def test_the_recurrence() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    average = ModelAverage(net, decay=0.6)
    expected = {name: values.clone() for name, values in net.state_dict().items()}
    for step in range(12):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += torch.randn_like(parameter)
        net(torch.randn(5, 3, dtype=torch.float64))
        average.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        for name, values in net.state_dict().items():
            mean = decay * expected[name] + (1 - decay) * values
            expected[name] = mean if values.is_floating_point() else values.clone()
    for name, values in average.model.state_dict().items():
        torch.testing.assert_close(values, expected[name], rtol=1e-12, atol=1e-12)
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_frozen_norms_are_those_with_weights() -> None:
    settings = {"run.norm": "frozen", "model.backbone": "tiny", "model.neck": {"width": 4, "normalise": True}}
    config = override(load_config("tiny"), settings)
    learner = Learner(config, build_model(config, numbered_classes(3)), start_processes(), 10)
    learner.train_mode()
    norms = {name: module.training for name, module in learner.model.neck.named_modules() if "norm" in name}
    assert norms == {"normalise": True, "project.norm": False}


def test_frozen_parameters_are_left_alone() -> None:
    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    before = net.weight.clone()
    average = ModelAverage(net, decay=0.5)
    with torch.no_grad():
        net.weight += 1
        net.bias += 1
    average.update(100)
    assert torch.equal(average.model.weight, before)
    torch.testing.assert_close(average.model.bias, (net.bias - 0.5).detach())


def test_a_network_that_was_moved_is_still_followed() -> None:
    net = nn.Linear(2, 2)
    average = ModelAverage(net, decay=0.5)
    net.weight.data = net.weight.data.clone() + 2
    average.update(100)
    torch.testing.assert_close(average.model.weight.detach(), net.weight.detach() - 1)


def test_the_decay_rises_to_its_limit() -> None:
    decays = [decay_at(step, 0.99) for step in range(2000)]
    assert decays[0] == 0.1
    assert decays == sorted(decays)
    assert decays[-1] == 0.99
