"""Three ways to train more than one iteration, on a task that needs several: carry the first label along a chain."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError
from messagenet.graph.typed import TypedGraph, batch_graphs
from messagenet.message_passing import GraphMessagePassing
from messagenet.training.graphs import (
    FitOptions,
    GraphExample,
    iteration_inputs,
    minimise,
    node_cross_entropy,
    supervised_loss,
    train_by_aggregation,
    train_stage_by_stage,
    train_through_iterations,
)

LENGTH = 3


def example(seed: int, copies: int = 8) -> GraphExample:
    """Chains whose first variable shows its label; all others have the same one and show nothing."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (copies,), generator=generator).repeat_interleave(LENGTH)
    features = torch.zeros(copies * LENGTH, 3)
    features[::LENGTH, :2] = torch.nn.functional.one_hot(labels[::LENGTH], 2).float()
    features[1:, 2] = 1
    chain = TypedGraph.build(LENGTH, {"next": [[i, i + 1] for i in range(LENGTH - 1)]})
    return GraphExample(batch_graphs([chain] * copies), features, labels)


def head(**options) -> GraphMessagePassing:
    torch.manual_seed(0)
    return GraphMessagePassing(3, 2, {"next": 2}, hidden=12, **{"iterations": LENGTH, **options})


def accuracy(model: GraphMessagePassing) -> float:
    unseen = example(99)
    return float((model(unseen.features, unseen.graph).argmax(1) == unseen.labels).float().mean())


@pytest.mark.parametrize("iteration_weights", [(), [1.0]], ids=["last", "every"])
def test_back_propagation_learns_to_carry(iteration_weights):
    model = head()
    history = train_through_iterations(
        model, [example(0), example(1)], FitOptions(epochs=40, learning_rate=0.02), iteration_weights
    )
    assert history[-1] < 0.3 * history[0]
    assert accuracy(model) == 1


def test_stage_by_stage_learns_to_carry_and_leaves_earlier_stages_alone():
    model = head(tied=False)
    history = train_stage_by_stage(model, [example(0), example(1)], FitOptions(epochs=30, learning_rate=0.02))
    ends = [losses[-1] for losses in history]
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < 0.3 * history[0][0]
    assert accuracy(model) == 1
    first = {name: value.clone() for name, value in model.estimators[0].state_dict().items()}
    train_stage_by_stage(model, [example(0)], FitOptions(epochs=0))
    assert all(torch.equal(value, first[name]) for name, value in model.estimators[0].state_dict().items())
    with pytest.raises(InputError, match="tied=False"):
        train_stage_by_stage(head(), [example(0)])


@pytest.mark.parametrize("initial", ["zero", "unary"])
def test_data_aggregation_learns_to_carry(initial):
    model = head(initial=initial)
    history = train_by_aggregation(model, [example(0), example(1)], FitOptions(epochs=8, learning_rate=0.03), rounds=3)
    assert len(history) == 4
    assert min(history) < 0.3 * history[0]
    seen = [example(0), example(1)]
    with torch.no_grad():
        losses = [node_cross_entropy(model(each.features, each.graph), each.labels) for each in seen]
    assert float(torch.stack(losses).mean()) == pytest.approx(min(history), rel=1e-4)
    assert accuracy(model) == 1
    with pytest.raises(InputError, match="tied=True"):
        train_by_aggregation(head(tied=False), [example(0)])


def test_inputs_of_iterations_are_the_beliefs_before_them():
    model, one = head(), example(0)
    states = iteration_inputs(model, one)
    assert len(states) == LENGTH
    assert (states[0].logits == 0).all()
    context = one.context(model)
    for number, state in enumerate(states):
        after = model.step(context, number, state)
        if number + 1 < LENGTH:
            torch.testing.assert_close(after.logits, states[number + 1].logits)
    torch.testing.assert_close(after.logits, model(one.features, one.graph))


def test_supervised_loss_is_the_weighted_mean_of_iterations():
    model, one = head(), example(0)
    context = one.context(model)
    each = [node_cross_entropy(beliefs.logits, one.labels) for beliefs in model.iterate(context)]
    torch.testing.assert_close(supervised_loss(model, one), each[-1])
    torch.testing.assert_close(supervised_loss(model, one, [1]), torch.stack(each).mean())
    weights = [0.5, *[0.0] * (LENGTH - 2)]
    torch.testing.assert_close(supervised_loss(model, one, weights), (0.5 * each[0] + each[-1]) / 1.5)
    with pytest.raises(InputError, match="3 iteration_weights for 2 earlier beliefs; give as many, or one for all"):
        supervised_loss(model, one, [1] * LENGTH)


def test_initial_beliefs_are_supervised_too():
    model, one = head(initial="unary"), example(0)
    steps = [node_cross_entropy(beliefs.logits, one.labels) for beliefs in model.all_beliefs(one.context(model))]
    assert len(steps) == LENGTH + 1
    torch.testing.assert_close(supervised_loss(model, one, [1]), torch.stack(steps).mean())


def test_variables_without_label_and_without_a_class_do_not_count():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [2.0, 0.0, 1.0], [1.0, 1.0, 1.0]], requires_grad=True)
    loss = node_cross_entropy(logits, torch.tensor([1, 0, -1]))
    expected = -(logits[0, :2].log_softmax(0)[1] + logits[1].log_softmax(0)[0]) / 2
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[2] == 0).all()
    assert node_cross_entropy(logits, torch.full((3,), -1)) == 0
    with pytest.raises(InputError, match="one for each of 3"):
        node_cross_entropy(logits, torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="nothing to learn"):
        minimise([], [], FitOptions())


def test_training_stops_early_and_keeps_the_best():
    x = torch.nn.Parameter(torch.tensor(0.0))
    seen = []

    def judge() -> float:
        seen.append(float(x.detach()))
        return abs(seen[-1] - 0.25)

    fit = FitOptions(epochs=100, learning_rate=0.1, patience=3)
    history = minimise([x], [lambda: (x - 1) ** 2], fit, judge)
    assert len(history) == len(seen) < 100
    best = min(range(len(seen)), key=lambda i: abs(seen[i] - 0.25))
    assert len(seen) == best + 4
    assert float(x.detach()) == seen[best]
