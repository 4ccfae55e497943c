"""The head over graphs against its definition: values and every gradient, on random graphs of random types."""

from __future__ import annotations

import random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messagenet.graph.typed import TypedGraph
from messagenet.message_passing import FactorType, GraphMessagePassing
from oracles.naive_graph_messages import naive_graph_logits


def random_kind(dice: random.Random, kinds: list[str], concat: bool) -> FactorType:
    order = dice.choice([2, 2, 3, 4] if concat else [2, 2, 3, 4, None])
    features, degree = dice.choice([0, 0, 2]), dice.choice([1.0, 2.5])
    if order is None:
        types = None if len(kinds) == 1 else (dice.choice(kinds),)
        return FactorType(None, False, dice.choice([None, (0,)]), types, features, degree)
    types = None if len(kinds) == 1 else tuple(dice.choice(kinds) for _ in range(order))
    ordered = (types is not None and len(set(types)) > 1) or dice.random() < 0.5
    sends_to = None
    if dice.random() < 0.3:
        sends_to = tuple(sorted(dice.sample(range(order), dice.randint(1, order))))
    return FactorType(order, ordered, sends_to, types, features, degree)


def random_scopes(dice: random.Random, kind: FactorType, kind_of: list[str]) -> list[list[int]]:
    found = []
    for _ in range(dice.randint(0, 5)):
        order = kind.order or dice.randint(2, 4)
        scope: list[int] = []
        for position in range(order):
            free = [
                v
                for v, of in enumerate(kind_of)
                if v not in scope and (kind.variable_types is None or of == kind.kind_at(position))
            ]
            if free:
                scope.append(dice.choice(free))
        if len(scope) == order:
            found.append(scope)
    return found


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**31),
    classes=st.sampled_from([{"variable": 3}, {"variable": 2}, {"a": 2, "b": 4}]),
    iterations=st.integers(1, 3),
    tied=st.booleans(),
    cavity=st.sampled_from(["factor", "none"]),
    initial=st.sampled_from(["zero", "unary"]),
    aggregation=st.sampled_from(["sum", "mean", "fixed", "sqrt"]),
    dependent=st.sampled_from(["sum", "mean", "concat"]),
    chunk=st.sampled_from([1, 3, None]),
)
def test_equals_definition_in_values_and_gradients(
    seed, classes, iterations, tied, cavity, initial, aggregation, dependent, chunk
):
    torch.manual_seed(seed)
    dice = random.Random(seed)
    kinds = list(classes)
    kind_of = [dice.choice(kinds) for _ in range(dice.randint(1, 7))]
    factors = {
        f"type_{i}": random_kind(dice, kinds, dependent == "concat") for i in range(dice.randint(0, 3))
    }
    scopes = {name: random_scopes(dice, kind, kind_of) for name, kind in factors.items()}
    head = GraphMessagePassing(
        2,
        classes if len(classes) > 1 else classes["variable"],
        factors,
        hidden=3,
        iterations=iterations,
        tied=tied,
        cavity=cavity,
        initial=initial,
        aggregation=aggregation,
        dependent=dependent,
        chunk=chunk,
    ).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    types = {kind: [v for v, of in enumerate(kind_of) if of == kind] for kind in kinds}
    graph = TypedGraph.build(len(kind_of), scopes, types if len(kinds) > 1 else None)
    features = torch.randn(len(kind_of), 2, dtype=torch.float64, requires_grad=True)
    extra = {
        name: torch.randn(len(scopes[name]), kind.features, dtype=torch.float64, requires_grad=True)
        for name, kind in factors.items()
        if kind.features
    }
    inputs = [features, *extra.values(), *head.parameters()]

    field = head.field(features, graph, extra)
    steps = [field.masked(beliefs.logits) for beliefs in head.iterate(field)]
    expected = naive_graph_logits(head, features, scopes, kind_of, extra)
    found, right = features.new_zeros(()), features.new_zeros(())
    for step, expected_step in zip(steps, expected, strict=True):
        for logits, expected_logits in zip(step, expected_step, strict=True):
            own = logits[: len(expected_logits)]
            assert (logits[len(expected_logits) :] == -torch.inf).all()
            torch.testing.assert_close(own, expected_logits, rtol=1e-9, atol=1e-9)
            weights = torch.randn(len(own), dtype=torch.float64)
            found, right = found + (own * weights).sum(), right + (expected_logits * weights).sum()
    torch.testing.assert_close(head(features, graph, extra), steps[-1], rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(found, inputs, allow_unused=True)
    expected_gradients = torch.autograd.grad(right, inputs, allow_unused=True)
    for gradient, expected_gradient, value in zip(gradients, expected_gradients, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(
            zeros if gradient is None else gradient,
            zeros if expected_gradient is None else expected_gradient,
            rtol=1e-9,
            atol=1e-9,
        )


def test_operator_passes_torchs_own_checks():
    torch.manual_seed(0)

    def values(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    receivers, senders = torch.tensor([0, 0, 2]), torch.tensor([[1, 2], [2, 1], [0, 1]])
    rows = torch.tensor([[0, 1], [2, 2], [1, 0]])
    for keep in (True, False):
        tensors = [values(3, 4), values(3, 4), values(3, 3), values(4, 5), values(3, 2), values(4, 2)]
        tensors += [values(2, 4), values(2), torch.ones(3, dtype=torch.float64)]
        arguments = (*tensors, receivers, senders, rows, [0, 2], [2, 3], [1.0, 0.5], 2, keep)
        if keep:
            torch.library.opcheck(torch.ops.messagenet.pass_slots, arguments)
        assert torch.autograd.gradcheck(torch.ops.messagenet.pass_slots, arguments)
