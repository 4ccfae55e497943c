"""The fast head against its definition, and the things a head must survive."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from messagenet import InputError, MessagePassing, Relation, above, below, four_neighbours, left, right, surrounding
from messagenet.message_passing import fused_sum, use_backend
from oracles.naive_messages import naive_logits

BOX = "box"
RELATION_SETS = {
    "none": ([], {}),
    "surrounding": ([surrounding(cells=3)], {"surrounding": "s"}),
    "paper": ([surrounding(0.4), above(0.4), below(0.4)], {"surrounding": "s", "above": "ab", "below": "ab"}),
    "larger than the map": (
        [surrounding(cells=14), below(cells=9), above(cells=9)],
        {"surrounding": "s", "above": "ab", "below": "ab"},
    ),
    "one way": ([above(cells=2)], {"above": None}),
    "sides": ([left(cells=2), right(cells=2)], {"left": "lr", "right": "lr"}),
    "knight": ([Relation("knight", offsets=[(-2, -1), (2, 1), (-1, 2), (1, -2)])], {"knight": "k"}),
    "arrow": (
        [Relation("there", offsets=[(0, 2), (1, 1)]), Relation("back", offsets=[(-1, -1), (0, -2)])],
        {"there": "a", "back": "a"},
    ),
    "box": ([surrounding(cells=5, form=BOX), above(cells=3, form=BOX)], {}),
    "odd box": ([Relation("cross", offsets=[(0, 1), (1, 0), (-2, 0)], form=BOX)], {}),
    "mixed": ([four_neighbours(), surrounding(cells=5, form=BOX), below(cells=2, form=BOX)], {"four_neighbours": "f"}),
}


def heads():
    return st.builds(
        dict,
        relations=st.sampled_from(sorted(RELATION_SETS)),
        iterations=st.integers(1, 3),
        tied=st.booleans(),
        cavity=st.sampled_from(["factor", "none"]),
        initial=st.sampled_from(["zero", "unary"]),
        aggregation=st.sampled_from(["sum", "mean", "fixed"]),
        dependent=st.sampled_from(["sum", "mean", "gate"]),
        in_channels=st.integers(1, 3),
        hidden=st.integers(1, 5),
        num_classes=st.integers(2, 4),
    )


def build(options: dict, dtype=torch.float64) -> tuple[MessagePassing, dict]:
    options = dict(options)
    relations, family = RELATION_SETS[options.pop("relations")]
    return MessagePassing(relations=relations, **options).to(dtype), family


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    options=heads(),
    size=st.one_of(
        st.tuples(st.integers(1, 5), st.integers(1, 5)),
        st.tuples(st.just(1), st.integers(1, 9)),
        st.tuples(st.integers(1, 9), st.just(1)),
    ),
    seed=st.integers(0, 2**31),
    backend=st.sampled_from(["numba", "loop"]),
)
def test_equals_definition_in_values_and_gradients(options, size, seed, backend):
    torch.manual_seed(seed)
    head, family = build(options)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    features = torch.randn(2, options["in_channels"], *size, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, options["num_classes"], *size, dtype=torch.float64)
    inputs = [features, *head.parameters()]

    with use_backend(backend), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        logits = head(features)
        gradients = torch.autograd.grad((logits * weights).sum(), inputs, allow_unused=True)
    expected = torch.stack([naive_logits(head, image, family) for image in features])
    expected_gradients = torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True)

    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    for gradient, expected_gradient, value in zip(gradients, expected_gradients, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(
            zeros if gradient is None else gradient,
            zeros if expected_gradient is None else expected_gradient,
            rtol=1e-9,
            atol=1e-9,
        )


@pytest.mark.parametrize(("size", "iterations"), [((6, 7), 2), ((10, 11), 1), ((7, 6), 3)])
def test_the_papers_relations_equal_their_definition_on_larger_maps(size, iterations):
    torch.manual_seed(0)
    options = {"relations": "paper", "iterations": iterations, "in_channels": 2, "hidden": 3, "num_classes": 3}
    head, family = build(options)
    features = torch.randn(1, 2, *size, dtype=torch.float64)
    expected = naive_logits(head, features[0], family)
    torch.testing.assert_close(head(features)[0], expected, rtol=1e-9, atol=1e-9)


def test_head_can_be_exported():
    head = MessagePassing(4, 3, [four_neighbours()], hidden=8, iterations=2)
    features = torch.randn(1, 4, 5, 6)
    program = torch.export.export(head, (features,))
    torch.testing.assert_close(program.module()(features), head(features))


@pytest.mark.parametrize("relations", ["paper", "mixed", "box"])
@pytest.mark.parametrize("iterations", [1, 2])
def test_padded_batch_equals_images_alone(relations, iterations):
    torch.manual_seed(0)
    head, _ = build({"relations": relations, "iterations": iterations, "in_channels": 4, "hidden": 8, "num_classes": 3})
    images = [torch.randn(4, h, w, dtype=torch.float64) for h, w in [(7, 9), (10, 6), (7, 9), (5, 12)]]
    padded = torch.full((4, 4, 10, 12), 1e3, dtype=torch.float64)
    valid = torch.zeros(4, 10, 12, dtype=torch.bool)
    for i, image in enumerate(images):
        padded[i, :, : image.shape[1], : image.shape[2]] = image
        valid[i, : image.shape[1], : image.shape[2]] = True
    logits = head(padded, valid)
    for i, image in enumerate(images):
        torch.testing.assert_close(logits[i, :, : image.shape[1], : image.shape[2]], head(image[None])[0])
        assert (logits[i][:, ~valid[i]] == 0).all()


def test_holes_in_the_mask_send_nothing():
    torch.manual_seed(0)
    for relations in ("paper", "mixed"):
        for iterations in (1, 2):
            head, _ = build(
                {"relations": relations, "iterations": iterations, "in_channels": 3, "hidden": 6, "num_classes": 3}
            )
            features = torch.randn(1, 3, 8, 8, dtype=torch.float64, requires_grad=True)
            valid = torch.ones(1, 8, 8, dtype=torch.bool)
            valid[0, 3:5, 2:4] = False
            seen = head(features, valid)[:, :, valid[0]]
            (gradient,) = torch.autograd.grad(seen.square().sum(), features)
            assert gradient.isfinite().all()
            assert (head(features, valid)[:, :, ~valid[0]] == 0).all()
            torch.testing.assert_close(head(features, 255 * valid.byte()), head(features, valid))
            assert (gradient[:, :, ~valid[0]] == 0).all()
            assert (gradient[:, :, valid[0]] != 0).any()


@pytest.mark.parametrize("relations", ["paper", "mixed"])
def test_what_padding_holds_reaches_nobody(relations):
    options = {"relations": relations, "iterations": 2, "in_channels": 3, "hidden": 6, "num_classes": 3}
    head, _ = build(options)
    features = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    valid = torch.ones(2, 8, 8, dtype=torch.bool)
    valid[0, 3:5, 2:4] = False
    valid[1, :, 6:] = False
    clean = torch.where(valid[:, None], features, 0.0)
    filled = torch.where(valid[:, None], features, torch.nan)
    expected, found = head(clean, valid), head(filled, valid)
    assert torch.equal(found, expected)
    parameters = list(head.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(found.square().sum(), parameters, allow_unused=True),
        torch.autograd.grad(expected.square().sum(), parameters, allow_unused=True),
        strict=True,
    ):
        assert mine is None or torch.equal(mine, theirs)
    with pytest.raises(InputError, match="NaN or infinity"):
        head(filled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("iterations", [1, 2])
def test_low_precision_follows_double(dtype, iterations):
    torch.manual_seed(0)
    head, _ = build({"relations": "paper", "iterations": iterations, "in_channels": 8, "hidden": 16, "num_classes": 4})
    features = torch.randn(2, 8, 9, 11, dtype=torch.float64)
    expected = head(features)
    logits = head.to(dtype)(features.to(dtype))
    assert logits.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    assert (logits.double() - expected).abs().max() < tolerance * expected.abs().max()
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in head.parameters())


def test_autocast_runs_and_keeps_its_meaning():
    torch.manual_seed(0)
    head = MessagePassing(8, 4, [surrounding(cells=3)], hidden=16, iterations=2)
    features = torch.randn(1, 8, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(features)
        logits.float().sum().backward()
    torch.testing.assert_close(logits.float(), head(features), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("iterations", [1, 2])
def test_compiles_without_a_break(iterations):
    torch.manual_seed(0)
    head, _ = build({"relations": "mixed", "iterations": iterations, "in_channels": 4, "hidden": 8, "num_classes": 3})
    features = torch.randn(2, 4, 6, 7, dtype=torch.float64, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features), head(features))
    (gradient,) = torch.autograd.grad(compiled(features).square().sum(), features)
    (expected,) = torch.autograd.grad(head(features).square().sum(), features)
    torch.testing.assert_close(gradient, expected)


def test_copies_saves_and_runs_without_gradients(tmp_path):
    head, _ = build({"relations": "paper", "iterations": 2, "in_channels": 4, "hidden": 8, "num_classes": 3})
    features = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    expected = head(features)
    twin = copy.deepcopy(head)
    torch.testing.assert_close(twin(features), expected, rtol=0, atol=0)
    other, _ = build({"relations": "paper", "iterations": 2, "in_channels": 4, "hidden": 8, "num_classes": 3})
    assert not torch.equal(other(features), expected)
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other(features), expected, rtol=0, atol=0)
    with torch.no_grad():
        assert not head(features).requires_grad
    assert "surrounding" in repr(head)


def test_trace_sums_to_the_logits():
    head, _ = build({"relations": "mixed", "iterations": 3, "in_channels": 4, "hidden": 8, "num_classes": 3})
    features = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    trace = head.trace(features)
    assert len(trace) == 3
    assert list(trace[0]) == ["unary", "four_neighbours", "surrounding", "below"]
    torch.testing.assert_close(sum(trace[-1].values()), head(features))


def test_separate_features_reach_their_own_estimators():
    head = MessagePassing(3, 2, [surrounding(cells=3), above(cells=2, form="box")], hidden=4).double()
    maps = {name: torch.randn(1, 3, 4, 5, dtype=torch.float64) for name in head.factor_types}
    totals = head.trace(maps)[0]
    for name in head.factor_types:
        torch.testing.assert_close(totals[name], head.trace(maps[name])[0][name])


def test_memory_kept_for_backward_is_messages_not_hidden_units():
    hidden, classes, cells = 64, 3, 5
    head = MessagePassing(8, classes, [surrounding(cells=cells)], hidden=hidden, iterations=2)
    features = torch.randn(1, 8, 12, 12)
    saved: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (saved.update({t.untyped_storage().data_ptr(): t.untyped_storage().size()}), t)[1], lambda t: t
    ):
        head(features)
    nodes, neighbours = 144, cells**2 - 1
    messages, per_node = nodes * neighbours * classes, nodes * hidden
    assert sum(saved.values()) < 4 * (2 * messages + 12 * per_node) < 4 * nodes * neighbours * hidden
    head_one = MessagePassing(8, classes, [surrounding(cells=cells)], hidden=hidden)
    saved.clear()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (saved.update({t.untyped_storage().data_ptr(): t.untyped_storage().size()}), t)[1], lambda t: t
    ):
        head_one(features)
    assert sum(saved.values()) < 8 * nodes * hidden * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_classes": 1}, "at least 2 classes"),
        ({"iterations": 0}, "at least 1"),
        ({"cavity": "factors"}, 'did you mean "factor"'),
        ({"aggregation": "average"}, "choose one of"),
        ({"relations": [surrounding(0.4), surrounding(0.2)]}, "another name"),
        ({"relations": [surrounding(0.4, name="forward")]}, "choose another"),
        ({"relations": surrounding(0.4)}, "must be a list"),
        ({"relations": "surrounding"}, "must be a list"),
        ({"relations": ["surounding"]}, 'relations: relation "surounding" .* did you mean "surrounding"'),
        ({"relations": [0.4]}, "relations: relation 0.4 is neither a word nor settings"),
        ({"hiden": 3}, '^MessagePassing has no option "hiden"; did you mean "hidden"'),
        ({"in_channels": 0}, "in_channels is 0; give a whole number"),
        ({"num_classes": 3.0}, "whole number"),
    ],
)
def test_bad_settings_name_the_fix(change, words):
    with pytest.raises(InputError, match=words):
        MessagePassing(**{"in_channels": 4, "num_classes": 3, **change})


def test_relations_may_be_text():
    head = MessagePassing(4, 3, ["surrounding:0.4", "near=surrounding:3cells:box", below(0.4)])
    assert head.relations == (surrounding(0.4), surrounding(cells=3, form="box", name="near"), below(0.4))
    assert head.config["relations"] == ["surrounding:0.4", "near=surrounding:3cells:box", "below:0.4"]


def test_bad_features_name_the_fix():
    head = MessagePassing(4, 3, [surrounding(cells=3)], hidden=4)
    with pytest.raises(InputError, match="NaN or infinity"):
        head(torch.full((1, 4, 3, 3), torch.nan))
    with pytest.raises(InputError, match=r"takes \(batch, 4"):
        head(torch.zeros(1, 5, 3, 3))
    with pytest.raises(InputError, match="one flag per node"):
        head(torch.zeros(1, 4, 3, 3), torch.ones(1, 3, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="no features for surrounding"):
        head({"unary": torch.zeros(1, 4, 3, 3)})
    two = {"unary": torch.zeros(1, 4, 3, 3), "surrounding": torch.zeros(1, 4, 3, 3)}
    with pytest.raises(InputError, match=r"features are torch.float64, the head is torch.float32; .*\.to"):
        head(two | {"surrounding": two["surrounding"].double()})
    with pytest.raises(InputError, match=r"features are torch.int64"):
        head(torch.zeros(1, 4, 3, 3, dtype=torch.int64))
    with pytest.raises(InputError, match="features are on meta, the head is on cpu"):
        head(two | {"surrounding": two["surrounding"].to("meta")})
    with pytest.raises(InputError, match="differ in batch or size"):
        head(two | {"surrounding": torch.zeros(1, 4, 3, 4)})


def test_relation_too_small_for_the_map_warns_and_sends_nothing():
    small = surrounding(0.4, name="too_small")  # a relation of its own: each is warned of once
    head = MessagePassing(4, 3, [small], hidden=4)
    with pytest.warns(RuntimeWarning, match="in cells"):
        totals = head.trace(torch.randn(1, 4, 3, 4))[0]
    assert (totals["too_small"] == 0).all()


@pytest.mark.parametrize("cavity", ["factor", "none"])
def test_another_number_of_iterations_is_a_head_trained_for_it(cavity):
    torch.manual_seed(0)
    relations = [surrounding(cells=3), above(cells=2), below(cells=2), left(cells=2, form="box")]
    options = {"hidden": 8, "cavity": cavity, "aggregation": "sum"}
    short = MessagePassing(4, 3, relations, iterations=2, **options).double()
    long = MessagePassing(4, 3, relations, iterations=5, **options).double()
    long.load_state_dict(short.state_dict())
    features = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    result = short.run(features, iterations=5)
    torch.testing.assert_close(result.logits, long(features))
    assert (result.iterations, result.converged) == (5, None)
    assert result.note == "trained for 2 iterations, run for 5"
    assert short.run(features).note == ""
    torch.testing.assert_close(short.run(features).logits, short(features))


def test_run_stops_at_convergence():
    torch.manual_seed(1)
    head = MessagePassing(4, 3, [four_neighbours()], hidden=8, iterations=2).double()
    features, valid = torch.randn(3, 4, 5, 6, dtype=torch.float64), torch.ones(3, 5, 6, dtype=torch.bool)
    valid[1, 3:] = False
    result = head.run(features, valid, iterations=60, tolerance=1e-6)
    assert result.converged
    assert 2 < result.iterations < 60
    assert len(result.history) == result.iterations
    assert result.history[-1] <= 1e-6 < result.history[-2]
    further = head.run(features, valid, iterations=result.iterations + 5)
    torch.testing.assert_close(torch.softmax(further.logits, 1), torch.softmax(result.logits, 1), atol=1e-5, rtol=0)
    assert not head.run(features, valid, iterations=2, tolerance=1e-9).converged


def test_untied_heads_on_a_grid_run_exactly_as_trained():
    head = MessagePassing(4, 3, [four_neighbours()], hidden=8, iterations=2, tied=False)
    with pytest.raises(InputError, match="separate estimators"):
        head.run(torch.randn(1, 4, 3, 3), iterations=3)


class Recorder(TorchDispatchMode):
    """Counts the library's operators, and the largest result of any other operation."""

    def __init__(self):
        super().__init__()
        self.operators: dict[str, int] = {}
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("messagenet::")
        if func.namespace == "messagenet" and not name.startswith("rectangle_sum"):  # over nodes, not edges
            if name == "pass_edges":
                name += " keep" if args[-1] else " sum"
            self.operators[name] = self.operators.get(name, 0) + 1
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"relu_sum": 3}),
        ({"iterations": 3, "cavity": "none"}, {"relu_sum": 9}),
        ({"initial": "unary"}, {"relu_sum": 3}),
        ({"initial": "unary", "dependent": "gate"}, {"gated_relu_sum": 3}),
        ({"iterations": 3, "cavity": "none", "dependent": "gate"}, {"gated_relu_sum": 9}),
        ({"iterations": 2, "dependent": "gate"}, {"pass_edges keep": 3, "pass_edges sum": 3}),
        ({"iterations": 3}, {"pass_edges keep": 6, "pass_edges sum": 3}),
        ({"iterations": 2, "tied": False}, {"pass_edges keep": 3, "pass_edges sum": 3}),
    ],
)
def test_the_cheapest_operators_are_taken(options, expected):
    """One fused sum per relation unless the next iteration needs cavities; only then do messages of edges exist."""
    nodes, hidden, classes = 15 * 15, 8, 5
    head = MessagePassing(4, classes, hidden=hidden, **options)
    with Recorder() as recorder:
        logits = head(torch.randn(1, 4, 15, 15))
        logits.sum().backward()
    backward = {f"{name.split()[0]}_backward" for name in expected}
    counts = {name: n for name, n in recorder.operators.items() if not name.endswith("_backward")}
    assert counts == expected
    assert recorder.operators.keys() - expected.keys() == backward
    neighbours = max(len(relation.offsets_on(15, 15)) for relation in head.relations)
    if "pass_edges keep" not in expected:
        assert recorder.largest <= nodes * max(hidden, classes) < nodes * neighbours
    else:
        assert recorder.largest <= nodes * neighbours * classes


def test_the_fused_sum_runs_in_numba_on_the_cpu(monkeypatch):
    calls = []
    numba = fused_sum.BACKENDS["numba"]
    spy = fused_sum.Backend(
        lambda *given: (calls.append("total"), numba.total(*given))[1],
        lambda *given: (calls.append("gradients"), numba.gradients(*given))[1],
    )
    monkeypatch.setitem(fused_sum.BACKENDS, "numba", spy)
    for name in ("loop", "windowed"):
        monkeypatch.setitem(fused_sum.BACKENDS, name, fused_sum.Backend(None, None))
    head = MessagePassing(4, 5, hidden=8)
    head(torch.randn(1, 4, 10, 10)).sum().backward()
    assert calls == ["total"] * 3 + ["gradients"] * 3


def test_box_relations_take_no_operator_over_edges():
    head = MessagePassing(4, 5, [surrounding(0.6, form=BOX)], hidden=8, iterations=3)
    with Recorder() as recorder:
        head(torch.randn(1, 4, 15, 15)).sum().backward()
    assert recorder.operators == {}
    assert recorder.largest <= 16 * 15 * 8


def test_an_array_is_no_tensor():
    with pytest.raises(InputError, match=r"features are of type ndarray; give a tensor, such as torch\.from_numpy"):
        MessagePassing(4, 3, [four_neighbours()], hidden=8)(torch.zeros(1, 4, 5, 6).numpy())
