"""Inference machines against their definition, node by node and message by message."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError, Relation, four_neighbours, surrounding
from messagenet.models.backbones.hand_crafted import positions
from messagenet.models.inference_machine import InferenceMachine

RELATIONS = {
    "four": four_neighbours(),
    "one way": Relation("arrow", offsets=[(0, 1), (-2, 0)]),
    "partly": Relation("partly", offsets=[(0, 1), (0, -1), (2, 1)]),
    "too far": Relation("far", offsets=[(9, 9), (-9, -9), (1, 0)]),
}


def naive(machine, features, absent):
    """Beliefs after the last iteration for one image (r, H, W), from lists of messages."""
    _, height, width = features.shape
    classes, offsets = machine.num_classes, machine.offsets
    nodes = [(y, x) for y in range(height) for x in range(width) if (y, x) not in absent]
    uniform = torch.full((classes,), 1 / classes, dtype=features.dtype)
    valid = torch.ones(1, height, width, dtype=torch.bool)
    place = positions(valid)[0].to(features.dtype)
    own = {
        (y, x): torch.cat([features[:, y, x], place[y, x]]) if machine.position else features[:, y, x] for y, x in nodes
    }

    def predict(step, p, messages):
        """Softmax of the logistic regression on the node's features and one message per neighbour."""
        predictor = machine.predictors[0 if machine.tied else step]
        logits = predictor.own.weight @ own[p] + predictor.own.bias
        if predictor.others is not None:
            surplus = torch.cat([message - uniform for message in messages])
            logits = logits + predictor.others.weight @ surplus
        return torch.softmax(logits, 0)

    messages = {p: [uniform] * len(offsets) for p in nodes}
    for step in range(machine.iterations - 1):
        fresh = {p: [uniform] * len(offsets) for p in nodes}
        for y, x in nodes:
            for i, (dy, dx) in enumerate(offsets):
                q = (y + dy, x + dx)
                if q not in nodes:
                    continue
                told = list(messages[q])
                if machine.cavity == "factor" and (-dy, -dx) in offsets:
                    told[offsets.index((-dy, -dx))] = uniform
                fresh[y, x][i] = predict(step, q, told)
        messages = fresh
    last = machine.iterations - 1
    return {p: predict(last, p, messages[p]) for p in nodes}


@settings(max_examples=25, deadline=None)
@given(
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    relation=st.sampled_from(sorted(RELATIONS)),
    iterations=st.integers(1, 3),
    tied=st.booleans(),
    cavity=st.sampled_from(["factor", "none"]),
    position=st.booleans(),
    hole=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_its_definition_in_value_and_gradient(size, relation, iterations, tied, cavity, position, hole, seed):
    torch.manual_seed(seed)
    machine = InferenceMachine(
        2, 3, neighbours=RELATIONS[relation], iterations=iterations, tied=tied, cavity=cavity, position=position
    ).double()
    for parameter in machine.parameters():
        torch.nn.init.normal_(parameter)
    features = torch.randn(1, 2, *size, dtype=torch.float64, requires_grad=True)
    valid = torch.ones(1, *size, dtype=torch.bool)
    if hole and size[0] > 1:
        valid[0, 0, 0] = False
    beliefs = torch.softmax(machine(features, valid if hole else None), 1)[0]
    expected = naive(machine, features[0], {(0, 0)} if not valid.all() else set())

    weights = torch.randn(3, *size, dtype=torch.float64)
    total = sum((weights[:, y, x] * values).sum() for (y, x), values in expected.items())
    found = sum((weights[:, y, x] * beliefs[:, y, x]).sum() for y, x in expected)
    for (y, x), values in expected.items():
        torch.testing.assert_close(beliefs[:, y, x], values)
    inputs = [features, *machine.parameters()]
    gradients = torch.autograd.grad(found, inputs, allow_unused=True)
    wanted = torch.autograd.grad(total, inputs, allow_unused=True)
    for gradient, right, value in zip(gradients, wanted, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(zeros if gradient is None else gradient, zeros if right is None else right)


def test_one_prediction_hears_nobody():
    machine = InferenceMachine(2, 3, iterations=1)
    assert machine.predictor(0).others is None
    assert InferenceMachine(2, 3, iterations=2, tied=False).predictor(0).others is None


def test_what_a_node_said_does_not_come_back_to_it():
    """With two nodes and cavities, a message never contains an echo; without them it does."""

    def influence(cavity):
        torch.manual_seed(0)
        pair = Relation("pair", offsets=[(0, 1), (0, -1)])
        machine = InferenceMachine(2, 3, neighbours=pair, iterations=3, cavity=cavity, position=False).double()
        for parameter in machine.parameters():
            torch.nn.init.normal_(parameter)
        features = torch.randn(1, 2, 1, 2, dtype=torch.float64)
        own = machine.own_features(features)
        told = machine.exchange(1, own, machine.exchange(0, own, machine.initial_messages(own)))
        features[0, :, 0, 0] += 1
        own = machine.own_features(features)
        changed = machine.exchange(1, own, machine.exchange(0, own, machine.initial_messages(own)))
        return (told - changed)[0, 0, 0].abs().max()  # what the left node is told

    assert influence("factor") == 0
    assert influence("none") > 0


def test_bad_machines_name_the_fix():
    for options, words in (
        ({"iterations": 0}, "at least 1"),
        ({"cavity": "factors"}, 'did you mean "factor"'),
        ({"neighbours": surrounding(0.4)}, "its size in cells"),
    ):
        with pytest.raises(InputError, match=words):
            InferenceMachine(2, 3, **options)
    assert len(InferenceMachine(2, 3, neighbours=surrounding(cells=3)).offsets) == 8
