"""What does not fit is refused in one line that names the fix; what is merely empty is not."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError
from messagenet.graph.typed import TypedGraph
from messagenet.message_passing import FactorType, GraphMessagePassing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_classes": 1}, "num_classes is 1"),
        ({"num_classes": {"x": 3, "y": 1}}, "num_classes of 'y'"),
        ({"iterations": 0}, "iterations is 0"),
        ({"hidden": 2.0}, "hidden is 2.0"),
        ({"in_channels": 0}, "length of a variable's features"),
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
        ({"factors": {"a": 2}, "known": ["b"]}, "known names 'b'"),
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
    with pytest.raises(InputError, match=r"convert one with \.to\(dtype\)"):
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
    with pytest.raises(InputError, match="called with known messages of"):
        head(features, graph, extra, {"pair": torch.zeros(1)})
    with pytest.raises(InputError, match="at least 1"):
        head.run(features, graph, extra, iterations=0)


def test_variable_types_must_stand_where_they_belong():
    kinds = {"a": FactorType(2, variable_types=("x", "y"))}
    head = GraphMessagePassing(4, {"x": 2, "y": 3}, kinds, hidden=4)
    types = {"x": [0, 1], "y": [2]}
    assert head(torch.randn(3, 4), TypedGraph.build(3, {"a": [[0, 2]]}, types)).shape == (3, 3)
    with pytest.raises(
        InputError, match="position 0 should hold a variable of type 'x', one of them holds a 'y'"
    ):
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
    assert head.run(torch.randn(0, 4), TypedGraph.build(0, {}), tolerance=0.1).settled
    lonely = TypedGraph.build(3, {"pair": torch.zeros(0, 2), "clique": []})
    features = torch.randn(3, 4)
    unary = head(features, lonely)
    torch.testing.assert_close(unary, head.estimators[0]["unary"][0](features))
    with_pair = head(features, TypedGraph.build(3, {"pair": [[0, 1]]}))
    assert torch.equal(with_pair[2], unary[2])
    assert not torch.equal(with_pair[:2], unary[:2])
