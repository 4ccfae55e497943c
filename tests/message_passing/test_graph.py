"""The head over graphs against its definition, on random graphs of random types, and the errors it reports."""

from __future__ import annotations

import copy
import itertools
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messagenet import InputError
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.typed import TypedGraph, batch_graphs
from messagenet.message_passing import FactorType, GraphMessagePassing
from messagenet.message_passing import graph as graph_module
from oracles.naive_graph_messages import naive_graph_logits
from random_graphs import random_graph


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
                if v not in scope and (kind.variable_types is None or of == kind.variable_type(position))
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
    aggregation=st.sampled_from(["sum", "mean", "fixed"]),
    dependent=st.sampled_from(["sum", "mean", "concat", "gate"]),
    chunk=st.sampled_from([1, 3, None]),
)
def test_equals_definition_in_values_and_gradients(
    seed, classes, iterations, tied, cavity, initial, aggregation, dependent, chunk
):
    torch.manual_seed(seed)
    dice = random.Random(seed)
    kinds = list(classes)
    kind_of = [dice.choice(kinds) for _ in range(dice.randint(1, 7))]
    factors = {f"type_{i}": random_kind(dice, kinds, dependent == "concat") for i in range(dice.randint(0, 3))}
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

    context = head.context(features, graph, extra)
    steps = [context.mask_classes(beliefs.logits) for beliefs in head.iterate(context)]
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


def some_graphs():
    pairs = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
    return [
        TypedGraph.build(4, {"pair": pairs, "clique": [[0, 1, 2], [1, 2, 3, 0]]}),
        TypedGraph.build(1, {}),
        TypedGraph.build(3, {"clique": [[2, 1]]}),
        TypedGraph.build(6, {"pair": [[5, 1]], "clique": [[3, 1, 0], [5, 4, 3, 2], [0, 4, 5]]}),
        TypedGraph.build(0, {"pair": torch.zeros(0, 2)}),
    ]


def some_head(**options):
    torch.manual_seed(1)
    kinds = {"pair": FactorType(2, features=2), "clique": FactorType(None, ordered=False)}
    return GraphMessagePassing(3, 4, kinds, hidden=6, **{"iterations": 3, **options}).double()


@pytest.mark.parametrize("cavity", ["factor", "none"])
def test_a_batch_gives_what_its_graphs_give_alone(cavity):
    head = some_head(cavity=cavity)
    graphs = some_graphs()
    features = [torch.randn(g.num_variables, 3, dtype=torch.float64) for g in graphs]
    extra = [torch.randn(g.num_factors("pair"), 2, dtype=torch.float64) for g in graphs]
    batch = batch_graphs([batch_graphs(graphs[:2]), *graphs[2:]])
    together = batch.split(head(torch.cat(features), batch, {"pair": torch.cat(extra)}))
    for graph, own, pair, logits in zip(graphs, features, extra, together, strict=True):
        torch.testing.assert_close(head(own, graph, {"pair": pair}), logits, rtol=1e-12, atol=1e-12)


def test_hidden_units_are_not_kept_for_the_backward_pass():
    hidden, classes, iterations = 64, 3, 4
    head = GraphMessagePassing(2, classes, {"pair": 2}, hidden=hidden, iterations=iterations, chunk=50)
    pairs = torch.randint(20, (2000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    graph = TypedGraph.build(20, {"pair": pairs})
    features = torch.randn(20, 2)
    head(features, graph)  # indexes the slots, which the graph keeps
    index = graph.message_index("pair", ordered=True, sends_to=None)
    indices = [index.receivers, *(t for p in index.slots for t in (p.receivers, p.senders, p.reverse))]
    ours = {tensor.untyped_storage().data_ptr() for tensor in indices}
    saved: dict[int, int] = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            saved[storage.data_ptr()] = storage.size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = head(features, graph)
    slots, per_variable = 2 * len(pairs), 20 * hidden
    kept = 4 * ((iterations - 1) * slots * classes + 40 * per_variable)
    assert sum(saved.values()) < kept < 4 * slots * hidden
    logits.sum().backward()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"iterations": 1}, [False, False]),
        ({"iterations": 2, "cavity": "none"}, [False] * 4),
        ({"iterations": 3}, [True] * 4 + [False] * 2),
    ],
)
def test_messages_are_kept_only_for_cavities(options, kept, monkeypatch):
    calls = []
    operator = graph_module.pass_slots

    def spy(receiver, sender, slots, dependent, factor, output=None, chunk=None):
        calls.append((output is not None, dependent is not None))
        return operator(receiver, sender, slots, dependent, factor, output, chunk)

    monkeypatch.setattr(graph_module, "pass_slots", spy)
    head = GraphMessagePassing(3, 4, {"pair": 2}, hidden=6, **options)
    head(torch.randn(4, 3), TypedGraph.build(4, {"pair": [[0, 1], [1, 2], [2, 3]]}))
    assert [keep for keep, _ in calls] == kept
    if options.get("cavity") == "none" or options["iterations"] == 1:
        assert not any(has_dependent for _, has_dependent in calls)  # d is part of Q


def test_trace_sums_to_the_logits():
    head = some_head()
    graph = some_graphs()[3]
    features, extra = torch.randn(6, 3).double(), {"pair": torch.randn(1, 2).double()}
    trace = head.trace(features, graph, extra)
    assert [list(totals) for totals in trace] == [["unary", "pair", "clique"]] * 3
    torch.testing.assert_close(sum(trace[-1].values()), head(features, graph, extra))


def test_low_precision_follows_double():
    head = some_head()
    graph = some_graphs()[0]
    features, extra = torch.randn(4, 3).double(), torch.randn(4, 2).double()
    expected = head(features, graph, {"pair": extra})
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        low = copy.deepcopy(head).to(dtype)
        logits = low(features.to(dtype), graph, {"pair": extra.to(dtype)})
        assert logits.dtype == dtype
        torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)
        logits.sum().backward()
        assert all(p.grad is not None and p.grad.dtype == dtype for p in low.parameters())


def test_autocast_runs_and_keeps_its_meaning():
    head = some_head().float()
    graph = some_graphs()[0]
    features, extra = torch.randn(4, 3), {"pair": torch.randn(4, 2)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(features, graph, extra)
        logits.float().sum().backward()
    torch.testing.assert_close(logits.float(), head(features, graph, extra), rtol=0.1, atol=0.1)


def test_run_stops_at_convergence():
    torch.manual_seed(0)
    head = GraphMessagePassing(2, 3, {"pair": FactorType(2, ordered=False)}, hidden=8, iterations=2).double()
    graph = TypedGraph.build(5, {"pair": [[0, 1], [1, 2], [2, 3], [3, 4]]})
    features = torch.randn(5, 2).double()
    result = head.run(features, graph, iterations=100, tolerance=1e-10)
    assert result.converged
    assert result.iterations == len(result.history) < 30
    assert result.history[-1] <= 1e-10 < result.history[-2]
    assert result.note == f"trained for 2 iterations, run for {result.iterations}"
    longer = head.run(features, graph, iterations=result.iterations + 20)
    assert longer.converged is None
    torch.testing.assert_close(result.logits, longer.logits, rtol=1e-8, atol=1e-8)
    short = head.run(features, graph, iterations=3, tolerance=0.0)
    assert (short.iterations, short.converged) == (3, False)
    usual = head.run(features, graph)
    assert (usual.iterations, usual.note) == (2, "")
    torch.testing.assert_close(usual.logits, head(features, graph))


def test_untied_estimators_run_exactly_as_trained():
    head = GraphMessagePassing(2, 3, {"pair": 2}, hidden=4, iterations=2, tied=False)
    graph = TypedGraph.build(2, {"pair": [[0, 1]]})
    assert head.run(torch.randn(2, 2), graph).iterations == 2
    for options in ({"iterations": 3}, {"tolerance": 0.1}):
        with pytest.raises(InputError, match="tied=true"):
            head.run(torch.randn(2, 2), graph, **options)


def test_order_of_positions_matters_only_where_it_should():
    torch.manual_seed(0)
    features = torch.randn(3, 2)
    for ordered in (True, False):
        head = GraphMessagePassing(2, 3, {"t": FactorType(3, ordered=ordered)}, hidden=8, iterations=2)
        results = [
            head(features, TypedGraph.build(3, {"t": [list(scope)]})) for scope in itertools.permutations(range(3))
        ]
        same = [torch.allclose(result, results[0], atol=1e-6) for result in results]
        assert all(same) is not ordered


def test_a_factor_graph_brings_its_own_types():
    graph = random_graph(6, 5, order=3, cardinality=(2, 3), generator=torch.Generator().manual_seed(0))
    typed = TypedGraph.from_factor_graph(graph)
    states = {f"states_{k}": k for k in sorted(set(graph.cardinalities.tolist()))}
    kinds = {
        name: FactorType(3, variable_types=tuple(f"states_{k}" for k in name.split("_")[1:])) for name in typed.orders
    }
    logits = GraphMessagePassing(2, states, kinds, hidden=4, iterations=2)(torch.randn(6, 2), typed)
    assert torch.equal(logits.isfinite(), graph.valid_states)
    named = TypedGraph.from_factor_graph(graph, ["unary"] * 6 + ["even", "odd"] * 2 + ["even"])
    assert (named.num_factors("even"), named.num_factors("odd")) == (3, 2)
    assert [tuple(s) for b in named.factors["odd"] for s in b.scopes.tolist()] == [graph.scopes()[7], graph.scopes()[9]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_classes": 1}, "num_classes is 1"),
        ({"num_classes": {"x": 3, "y": 1}}, "num_classes of 'y'"),
        ({"iterations": 0}, "iterations is 0"),
        ({"hidden": 2.0}, "hidden is 2.0"),
        ({"in_channels": 0}, "in_channels is 0; give a whole number"),
        ({"chunk": 0}, "chunk is 0"),
        ({"cavity": "factors"}, 'did you mean "factor"'),
        ({"dependent": "concatenate"}, 'did you mean "concat"'),
        ({"aggregation": "average"}, "choose one of"),
        ({"factors": {"a": 1}}, "unary factor is there anyway"),
        ({"factors": {"unary": 2}}, 'other than "unary"'),
        ({"factors": {"keys": 2}}, "choose another"),
        ({"factors": {"a": FactorType(None)}}, "ordered=False"),
        ({"factors": {"a": None}, "dependent": "concat"}, "factors of one order"),
        ({"factors": {"a": FactorType(2, sends_to=(0, 2))}}, "name positions from 0"),
        ({"factors": {"a": FactorType(2, features=-1)}}, "length of a factor's features"),
        ({"factors": {"a": FactorType(2, degree=0)}}, "above 0"),
        ({"factors": {"a": 2}, "num_classes": {"x": 2, "y": 3}}, "which of x, y stands at each position"),
        ({"factors": {"a": FactorType(2, variable_types=("x", "z"))}, "num_classes": {"x": 2}}, "type 'z'"),
        ({"factors": {"a": FactorType(2, variable_types=("x",))}, "num_classes": {"x": 2}}, "give one each"),
        (
            {
                "factors": {"a": FactorType(2, ordered=False, variable_types=("x", "y"))},
                "num_classes": {"x": 2, "y": 3},
            },
            "leave ordered=True",
        ),
        ({"factors": {"a": 2}, "computed": ["b"]}, "computed names 'b'"),
    ],
)
def test_bad_settings(change, words):
    with pytest.raises(InputError, match=words):
        GraphMessagePassing(**{"in_channels": 4, "num_classes": 3, **change})


def test_bad_calls():
    head = GraphMessagePassing(4, 3, {"pair": FactorType(2, features=2)}, hidden=4)
    graph = TypedGraph.build(3, {"pair": [[0, 1]]})
    features, extra = torch.randn(3, 4), {"pair": torch.randn(1, 2)}
    with pytest.raises(InputError, match="2 rows of features for 3 variables"):
        head(features[:2], graph, extra)
    with pytest.raises(InputError, match=r"takes \(variables, 4\)"):
        head(features[:, :3], graph, extra)
    with pytest.raises(InputError, match=r"convert one of them with \.to\(dtype\)"):
        head(features.double(), graph, extra)
    with pytest.raises(InputError, match="features of factors 'pair' contain NaN"):
        head(features, graph, {"pair": torch.full((1, 2), torch.nan)})
    with pytest.raises(InputError, match="no features for pair"):
        head({"unary": features}, graph, extra)
    with pytest.raises(InputError, match="come with 2 features each"):
        head(features, graph)
    with pytest.raises(InputError, match=r"it must be \(1, 2\)"):
        head(features, graph, {"pair": torch.randn(2, 2)})
    with pytest.raises(InputError, match="not announced"):
        head(features, graph, {**extra, "pairs": torch.randn(1, 2)})
    with pytest.raises(InputError, match='did you mean "pair"'):
        head(features, TypedGraph.build(3, {"pairs": [[0, 1]]}), extra)
    with pytest.raises(InputError, match="order 3 in the graph but 2 in the head"):
        head(features, TypedGraph.build(3, {"pair": [[0, 1, 2]]}), extra)
    with pytest.raises(InputError, match="num_classes for each type"):
        head(features, TypedGraph.build(3, {}, {"x": [0, 1, 2]}), extra)
    with pytest.raises(InputError, match="called with computed messages of"):
        head(features, graph, extra, {"pair": torch.zeros(1)})
    with pytest.raises(InputError, match="at least 1"):
        head.run(features, graph, extra, iterations=0)


def test_variable_types_must_stand_where_they_belong():
    kinds = {"a": FactorType(2, variable_types=("x", "y"))}
    head = GraphMessagePassing(4, {"x": 2, "y": 3}, kinds, hidden=4)
    types = {"x": [0, 1], "y": [2]}
    assert head(torch.randn(3, 4), TypedGraph.build(3, {"a": [[0, 2]]}, types)).shape == (3, 3)
    with pytest.raises(InputError, match="position 0 should hold a variable of type 'x', one of them holds a 'y'"):
        head(torch.randn(3, 4), TypedGraph.build(3, {"a": [[2, 0]]}, types))
    with pytest.raises(InputError, match="build the graph with variable_types"):
        head(torch.randn(3, 4), TypedGraph.build(3, {"a": [[0, 2]]}))
    with pytest.raises(InputError, match="type 'z', which this head does not know"):
        head(torch.randn(1, 4), TypedGraph.build(1, {}, {"z": [0]}))


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("cavity", ["factor", "none"])
def test_nothing_is_no_error(iterations, cavity):
    kinds = {"pair": 2, "clique": None}
    head = GraphMessagePassing(4, 3, kinds, hidden=4, iterations=iterations, cavity=cavity)
    assert head(torch.randn(0, 4), TypedGraph.build(0, {})).shape == (0, 3)
    assert head.run(torch.randn(0, 4), TypedGraph.build(0, {}), tolerance=0.1).converged
    lonely = TypedGraph.build(3, {"pair": torch.zeros(0, 2), "clique": []})
    features = torch.randn(3, 4)
    unary = head(features, lonely)
    torch.testing.assert_close(unary, head.estimators[0]["unary"][0](features))
    with_pair = head(features, TypedGraph.build(3, {"pair": [[0, 1]]}))
    assert torch.equal(with_pair[2], unary[2])
    assert not torch.equal(with_pair[:2], unary[:2])


def test_what_is_no_typed_graph_factor_or_tensor_names_the_fix():
    with pytest.raises(InputError, match=r"factors is \['next'\]; give the order of each type, as in {\"next\": 2}"):
        GraphMessagePassing(4, 3, ["next"])
    head, features = GraphMessagePassing(4, 3, {"next": 2}, hidden=8), torch.zeros(2, 4)
    with pytest.raises(InputError, match=r"graph is a FactorGraph; give a TypedGraph: TypedGraph\.from_factor_graph"):
        head(features, FactorGraph([3, 3], [[0, 1]]))
    with pytest.raises(InputError, match=r"features are of type ndarray; give a tensor, such as torch\.from_numpy"):
        head(features.numpy(), TypedGraph.build(2, {"next": [[0, 1]]}))
