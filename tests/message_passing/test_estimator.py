"""What heads on grids and on graphs share: one estimator, options from the signature, one result."""

from __future__ import annotations

import inspect

import pytest
import torch

from messagenet import InputError, four_neighbours
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.graph.typed import TypedGraph
from messagenet.message_passing import GraphMessagePassing, MessageEstimator, MessagePassing
from messagenet.message_passing.estimator import IterativeHead

GRAPH = TypedGraph.build(4, {"next": [[0, 1], [1, 2], [2, 3]]})


def grid_head(**options):
    return MessagePassing(3, 4, [four_neighbours()], **{"hidden": 8, **options})


def graph_head(**options):
    return GraphMessagePassing(3, 4, {"next": 2}, **{"hidden": 8, **options})


HEADS = {"grid": (grid_head, (torch.randn(2, 3, 4, 5),)), "graph": (graph_head, (torch.randn(4, 3), GRAPH))}


@pytest.mark.parametrize("kind", HEADS)
class TestEveryHead:
    def test_options_are_the_keyword_only_parameters(self, kind):
        head = HEADS[kind][0](iterations=2, cavity="none")
        signatures = [inspect.signature(each).parameters.values() for each in (IterativeHead, type(head))]
        names = [p.name for parameters in signatures for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert list(head.options) == names
        assert (head.options["iterations"], head.options["cavity"]) == (2, "none")
        assert "iterations=2" in repr(head)
        assert "cavity='none'" in repr(head)

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ({"hidden": 0}, "hidden is 0; give a whole number, at least 1"),
            ({"hidden": 2.0}, "hidden is 2.0"),
            ({"iterations": True}, "iterations is True"),
            ({"initial": "unarie"}, "unknown initial 'unarie'; did you mean \"unary\""),
            ({"aggregation": 3}, "unknown aggregation 3; choose one of"),
        ],
    )
    def test_options_are_checked_against_their_annotations(self, kind, option, words):
        with pytest.raises(InputError, match=words):
            HEADS[kind][0](**option)

    def test_the_result_has_the_vocabulary_of_inference(self, kind):
        build, inputs = HEADS[kind]
        head = build(iterations=2)
        result = head.run(*inputs, iterations=50, tolerance=1e-5)
        assert result.converged
        assert len(result.history) == result.iterations
        assert not result.logits.requires_grad
        torch.testing.assert_close(sum(result.messages.values()), result.logits)
        assert list(result.messages) == head.factor_types
        torch.testing.assert_close(result.marginals, torch.softmax(result.logits, 1))
        torch.testing.assert_close(result.log_marginals.exp(), result.marginals)
        assert torch.equal(result.map_state, result.logits.argmax(1))
        usual = head.run(*inputs)
        assert (usual.converged, usual.history, usual.iterations) == (None, (), 2)
        torch.testing.assert_close(usual.logits, head(*inputs))

    def test_more_iterations_change_nothing_without_a_dependent_input(self, kind):
        build, inputs = HEADS[kind]
        head = build(iterations=1)
        result = head.run(*inputs, iterations=5, tolerance=0.0)
        assert (result.converged, result.iterations) == (True, 2)
        torch.testing.assert_close(result.logits, head(*inputs))


def test_the_papers_relations_are_the_default():
    head = MessagePassing(3, 4)
    assert (head.relations, head.hidden) == (PAPER_RELATIONS, 256)
    assert MessagePassing(3, 4, ()).factor_types == ["unary"]


def test_an_estimator_is_two_layers_on_the_concatenation():
    torch.manual_seed(0)
    estimator = MessageEstimator(3, 7, 4, dependent_channels=4, factor_channels=2)
    parts = [torch.randn(5, width) for width in (3, 3, 4, 2)]
    layers = [estimator.receiver, estimator.sender, estimator.dependent, estimator.factor]
    weight = torch.cat([layer.weight for layer in layers], 1)
    hidden = torch.relu(torch.cat(parts, 1) @ weight.T + estimator.receiver.bias)
    torch.testing.assert_close(estimator(*parts), estimator.output(hidden))
    assert (MessageEstimator(3, 7, 4, zero_init=True)(*parts[:2]) == 0).all()
