"""Forward training and DAgger: optimal fits, on exactly the messages that the machine receives; and whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from messagenet import InputError, Relation, four_neighbours
from messagenet.data import SyntheticScenes
from messagenet.geometry import Features
from messagenet.losses.cross_entropy import cross_entropy_sum
from messagenet.models import SegmentationModel
from messagenet.models.inference_machine import InferenceMachine, LogisticPredictor
from messagenet.training import DataSets, TrainCallback, TrainConfig, load_config, override, read_log, run_training
from messagenet.training.build import build_model
from messagenet.training.inference_machine import (
    NodeBatch,
    PredictorFit,
    Samples,
    fit_predictor,
    mean_loss,
    node_batches,
    train_dagger,
    train_forward,
)
from messagenet.training.progress import RunInfo
from messagenet.training.systems import apply_system

VOID = 255
COLUMN = Relation("column", offsets=[(-1, 0), (1, 0)])


def stacks(count, seed=0, height=7):
    """Columns whose top row alone shows the class of the whole column: context decides all others."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count, 1, 6), generator=generator).expand(-1, height, -1).clone()
    features = 0.1 * torch.randn(count, 3, height, 6, generator=generator, dtype=torch.float64)
    features[:, :, 0] += 4 * torch.nn.functional.one_hot(labels[:, 0], 3).permute(0, 2, 1)
    return NodeBatch(features, labels)


def machine(**options):
    chosen = {"neighbours": COLUMN, "iterations": 4, "position": False, **options}
    return InferenceMachine(3, 3, **chosen).double()


def test_a_fit_is_the_logistic_regression_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    torch.manual_seed(0)
    own, incoming = torch.randn(300, 4, dtype=torch.float64), torch.rand(300, 2, 3, dtype=torch.float64)
    truth = (own[:, :3] + incoming.sum(1) + 0.5 * torch.randn(300, 3)).argmax(1)
    asked = torch.zeros(300, 3, dtype=torch.bool)
    asked[:, -1] = True
    predictor = LogisticPredictor(4, 3, 2).double()
    halves = [Samples(own[part], incoming[part], asked[part], truth[part]) for part in (slice(0, 100), slice(100, 300))]
    fit_predictor(predictor, halves, PredictorFit(ridge=0.01))
    inputs = torch.cat([own, incoming.flatten(1)], 1)
    right = linear_model.LogisticRegression(C=1 / (0.01 * 300), tol=1e-10, max_iter=1000)
    right.fit(inputs.numpy(), truth.numpy())
    expected = torch.from_numpy(right.predict_log_proba(inputs.numpy()))
    found = torch.log_softmax(predictor.belief(own, incoming), -1).detach()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_replies_are_fitted_without_the_message_they_leave_out():
    """A row that is asked for its reply to neighbour i is a row whose message from i is uniform."""
    torch.manual_seed(0)
    own, incoming = torch.randn(80, 2, dtype=torch.float64), torch.randn(80, 2, 3, dtype=torch.float64)
    truth = torch.randint(0, 3, (80,))
    asked = torch.rand(80, 3) < 0.6
    rows = []
    for i, answers in enumerate(asked):
        for slot in answers.nonzero().flatten().tolist():
            without = incoming[i].clone()
            if slot < 2:
                without[slot] = 0
            rows.append((own[i], without, truth[i]))
    plain = Samples(
        torch.stack([row[0] for row in rows]),
        torch.stack([row[1] for row in rows]),
        torch.tensor([[False, False, True]]).expand(len(rows), -1),
        torch.stack([row[2] for row in rows]),
    )
    first, second = LogisticPredictor(2, 3, 2).double(), LogisticPredictor(2, 3, 2).double()
    one = fit_predictor(first, [Samples(own, incoming, asked, truth)], PredictorFit(ridge=0.1))
    two = fit_predictor(second, [plain], PredictorFit(ridge=0.1))
    assert one == pytest.approx(two, rel=1e-6)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cavity", ["factor", "none"])
def test_forward_training_carries_context_one_row_per_iteration(cavity):
    train, val = [stacks(10), stacks(10, seed=1)], [stacks(20, seed=2)]
    trained = {}
    for iterations in (1, 3, 7):
        trained[iterations] = machine(tied=False, iterations=iterations, cavity=cavity)
        objectives = train_forward(trained[iterations], train, PredictorFit(ridge=1e-4, steps=100))
        assert len(objectives) == iterations
    for iterations, net in trained.items():
        right = (net(val[0].features).argmax(1) == val[0].labels).double().mean((0, 2))
        assert right[:iterations].min() > 0.95
        assert right[iterations:].numel() == 0 or right[iterations:].max() < 0.6


def test_each_stage_is_fitted_to_what_the_stages_before_it_say():
    """Retraining the last stage on the messages that the machine itself sends changes nothing."""
    data = stacks(20)
    net = machine(tied=False, iterations=3)
    settings = PredictorFit(ridge=1e-3, nodes_per_image=10_000)
    train_forward(net, [data], settings)
    own = net.own_features(data.features)
    incoming = net.initial_messages(own)
    for step in range(2):
        incoming = net.exchange(step, own, incoming, None).detach()
    belief_only = torch.zeros(data.labels.numel(), 3, dtype=torch.bool)
    belief_only[:, -1] = True
    samples = Samples(own.flatten(0, 2), incoming.flatten(0, 2), belief_only, data.labels.flatten())
    fresh = LogisticPredictor(3, 3, 2).double()
    fit_predictor(fresh, [samples], settings)
    for found, expected in zip(net.predictor(2).parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_dagger_fits_one_predictor_and_keeps_the_best_round():
    train, val = [stacks(10), stacks(10, seed=1)], [stacks(20, seed=2)]
    net = machine(iterations=7)
    losses = train_dagger(net, train, rounds=3, held_out=val, fit=PredictorFit(ridge=1e-4, steps=100))
    assert len(losses) == 3
    assert mean_loss(net, val) == pytest.approx(min(losses))
    assert losses[0] > min(losses)  # the first round has received only true labels
    right = (net(val[0].features).argmax(1) == val[0].labels).double().mean()
    assert right > 0.8


def test_back_propagation_lowers_the_loss_of_a_forward_trained_machine():
    data = stacks(20)
    net = machine(tied=False, iterations=4)
    train_forward(net, [data], PredictorFit(ridge=1e-2))
    before = mean_loss(net, [data])
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        cross_entropy_sum(net(data.features).permute(0, 2, 3, 1), data.labels).mean.backward()
        optimiser.step()
    assert mean_loss(net, [data]) < before - 0.01


def test_void_and_padding_are_not_learned_from():
    data = stacks(10)
    features = torch.cat([data.features, torch.full((10, 3, 7, 2), 50.0, dtype=torch.float64)], 3)
    labels = torch.cat([data.labels, torch.zeros(10, 7, 2, dtype=torch.long)], 2)
    valid = torch.ones(10, 7, 8, dtype=torch.bool)
    valid[:, :, 6:] = False
    settings = PredictorFit(ridge=1e-2, nodes_per_image=10_000)
    plain, padded = (
        machine(tied=False, neighbours=four_neighbours()),
        machine(tied=False, neighbours=four_neighbours()),
    )
    one = train_forward(plain, [data], settings)
    two = train_forward(padded, [NodeBatch(features, labels, valid)], settings)
    assert one == pytest.approx(two, rel=1e-5)
    unknown = NodeBatch(data.features, torch.full_like(data.labels, VOID))
    assert train_forward(machine(tied=False), [unknown], settings) == [0.0] * 4


def test_the_same_seed_chooses_the_same_nodes():
    results = []
    for seed in (0, 0, 1):
        net = machine(tied=False, iterations=2)
        results.append(train_forward(net, [stacks(5)], PredictorFit(ridge=0.01, nodes_per_image=4, seed=seed)))
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_wrong_machines_name_the_fix():
    data = [stacks(2)]
    with pytest.raises(InputError, match="tied=False"):
        train_forward(machine(), data)
    with pytest.raises(InputError, match="tied=True"):
        train_dagger(machine(tied=False), data)
    with pytest.raises(InputError, match="at least 1"):
        train_dagger(machine(), data, rounds=0)
    with pytest.raises(InputError, match="only once"):
        train_dagger(machine(), iter(data))


SCENES = DataSets(SyntheticScenes(24, size=48), SyntheticScenes(2, size=48, split="val"))


def machine_config(method: str, tied: bool, *more: str) -> TrainConfig:
    chosen = [
        f"run.method={method}",
        f"model.head.tied={str(tied).lower()}",
        "run.steps=20",
        "run.batch_size=1",
        "model.head.iterations=2",
    ]
    return override(apply_system(load_config("tiny"), "inference_machine"), [*chosen, *more])


@pytest.mark.parametrize(("method", "tied"), [("forward", False), ("dagger", True)])
def test_fitted_machines_predict_better_than_chance(method: str, tied: bool, tmp_path: Path) -> None:
    config = machine_config(method, tied)
    result = run_training(config, tmp_path, data=SCENES)
    model = SegmentationModel.from_pretrained(result.folder / "best")
    untrained = build_model(config, SCENES.train.classes).model
    assert SCENES.val is not None
    batches = node_batches(model, SCENES.val, config.loss["cell_label"])
    assert model.feature_stride == 4
    fitted, before = (mean_loss(each.head, batches) for each in (model, untrained))
    assert fitted < 0.8 * before
    (record,) = read_log(tmp_path / "log.jsonl")
    assert record["mean_iou"] == result.best_iou
    assert load_config(tmp_path / "config.yaml") == config


def test_only_machines_are_fitted() -> None:
    with pytest.raises(InputError, match=r"model\.head\.kind=inference_machine and model\.head\.tied=true"):
        machine_config("dagger", False)
    with pytest.raises(InputError, match=r"set model\.head\.kind=inference_machine"):
        override(load_config("tiny"), ["run.method=forward", "model.head.tied=false"])


@pytest.mark.parametrize(("method", "tied"), [("forward", False), ("dagger", True)])
def test_large_images_are_reduced_as_in_prediction(
    method: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[torch.Size] = set()
    forward = SegmentationModel.forward_features

    def record(self: SegmentationModel, images: torch.Tensor) -> Features:
        seen.add(images.shape[2:])
        return forward(self, images)

    monkeypatch.setattr(SegmentationModel, "forward_features", record)
    result = run_training(machine_config(method, tied, "augment.longest_side=32", "run.steps=4"), tmp_path, data=SCENES)
    assert seen == {(32, 32)}
    assert SegmentationModel.from_pretrained(result.folder / "best").input.longest_side == 32


@pytest.mark.parametrize(("accumulate", "images"), [(1, 3), (2, 6)])
def test_as_many_images_as_the_steps_would_show(accumulate: int, images: int, tmp_path: Path) -> None:
    started: list[RunInfo] = []

    class Callback(TrainCallback):
        def start(self, run: RunInfo) -> None:
            started.append(run)

    config = machine_config("forward", False, "run.steps=3", f"run.accumulate={accumulate}")
    run_training(config, tmp_path, data=SCENES, progress=Callback())
    assert started[0].images == images
