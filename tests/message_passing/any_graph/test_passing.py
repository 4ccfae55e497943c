"""Equal numbers by every road: grid or graph, alone or in a batch, chunked or whole, computed or learned."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from messagenet import (
    InputError,
    MessagePassing,
    Relation,
    above,
    below,
    four_neighbours,
    left,
    right,
    surrounding,
)
from messagenet.graph.builders import random_graph
from messagenet.graph.typed import TypedGraph, batch_graphs
from messagenet.message_passing import FactorType, GraphMessagePassing, from_grid

SETTINGS = [
    ([four_neighbours()], {}),
    ([surrounding(0.6), above(0.4), below(0.4)], {"iterations": 3}),
    ([below(cells=2), above(cells=2)], {"iterations": 2, "tied": False, "aggregation": "mean"}),
    ([left(cells=1), right(cells=1)], {"iterations": 3, "cavity": "none", "aggregation": "sqrt"}),
    ([above(cells=2)], {"iterations": 2, "initial": "unary", "aggregation": "sum"}),
    ([surrounding(cells=3), surrounding(cells=3, form="box", name="box")], {"iterations": 2}),
    ([below(cells=2, form="box")], {"iterations": 3, "dependent": "mean"}),
    ([Relation("arrow", offsets=[(0, 2), (1, 1)])], {"iterations": 2}),
]


@pytest.mark.parametrize(("relations", "options"), SETTINGS)
def test_grid_and_graph_give_the_same_numbers_and_gradients(relations, options):
    torch.manual_seed(0)
    height, width, images = 5, 6, 2
    head = MessagePassing(3, 4, relations, hidden=5, **options).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    graph_head, graph = from_grid(head, height, width)
    features = torch.randn(images, 3, height, width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(images, 4, height, width, dtype=torch.float64)
    inputs = [features, *head.parameters()]
    logits = head(features)
    rows = features.flatten(2).transpose(1, 2).flatten(0, 1)
    by_graph = graph_head(rows, batch_graphs([graph] * images))
    by_graph = by_graph.reshape(images, height, width, 4).permute(0, 3, 1, 2)
    torch.testing.assert_close(by_graph, logits, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad((by_graph * weights).sum(), inputs)
    expected = torch.autograd.grad((logits * weights).sum(), inputs)
    for gradient, right_gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, right_gradient, rtol=1e-9, atol=1e-9)


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
    head(features, graph)  # lays out the slots, which are the graph's own
    layout = graph.layout("pair", ordered=True, sends_to=None)
    indices = [layout.receivers, *(t for p in layout.slots for t in (p.receivers, p.senders, p.reverse))]
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


def test_passing_stops_when_beliefs_have_settled():
    torch.manual_seed(0)
    head = GraphMessagePassing(2, 3, {"pair": FactorType(2, ordered=False)}, hidden=8, iterations=2).double()
    graph = TypedGraph.build(5, {"pair": [[0, 1], [1, 2], [2, 3], [3, 4]]})
    features = torch.randn(5, 2).double()
    passed = head.run(features, graph, iterations=100, tolerance=1e-10)
    assert passed.settled
    assert passed.iterations == len(passed.changes) < 30
    assert passed.changes[-1] <= 1e-10 < passed.changes[-2]
    assert passed.note == f"trained for 2 iterations, run for {passed.iterations}"
    longer = head.run(features, graph, iterations=passed.iterations + 20)
    assert longer.settled is None
    torch.testing.assert_close(passed.logits, longer.logits, rtol=1e-8, atol=1e-8)
    short = head.run(features, graph, iterations=3, tolerance=0.0)
    assert (short.iterations, short.settled) == (3, False)
    usual = head.run(features, graph)
    assert (usual.iterations, usual.note) == (2, "")
    torch.testing.assert_close(usual.logits, head(features, graph))


def test_untied_estimators_run_exactly_as_trained():
    head = GraphMessagePassing(2, 3, {"pair": 2}, hidden=4, iterations=2, tied=False)
    graph = TypedGraph.build(2, {"pair": [[0, 1]]})
    assert head.run(torch.randn(2, 2), graph).iterations == 2
    for options in ({"iterations": 3}, {"tolerance": 0.1}):
        with pytest.raises(InputError, match="tied=True"):
            head.run(torch.randn(2, 2), graph, **options)


def test_order_of_positions_matters_only_where_it_should():
    torch.manual_seed(0)
    features = torch.randn(3, 2)
    for ordered in (True, False):
        head = GraphMessagePassing(2, 3, {"t": FactorType(3, ordered=ordered)}, hidden=8, iterations=2)
        results = [
            head(features, TypedGraph.build(3, {"t": [list(scope)]}))
            for scope in itertools.permutations(range(3))
        ]
        same = [torch.allclose(result, results[0], atol=1e-6) for result in results]
        assert all(same) is not ordered


def test_a_factor_graph_brings_its_own_types():
    graph = random_graph(6, 5, order=3, cardinality=(2, 3), generator=torch.Generator().manual_seed(0))
    typed = TypedGraph.from_factor_graph(graph)
    states = {f"states_{k}": k for k in sorted(set(graph.cardinalities.tolist()))}
    kinds = {
        name: FactorType(3, variable_types=tuple(f"states_{k}" for k in name.split("_")[1:]))
        for name in typed.orders
    }
    logits = GraphMessagePassing(2, states, kinds, hidden=4, iterations=2)(torch.randn(6, 2), typed)
    assert torch.equal(logits.isfinite(), graph.valid_states)
    named = TypedGraph.from_factor_graph(graph, ["unary"] * 6 + ["even", "odd"] * 2 + ["even"])
    assert (named.num_factors("even"), named.num_factors("odd")) == (3, 2)
    assert [tuple(s) for b in named.factors["odd"] for s in b.scopes.tolist()] == [
        graph.scopes()[7],
        graph.scopes()[9],
    ]
