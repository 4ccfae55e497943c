"""The CRF head: its marginals against the engines on an index-list graph, its objectives, padding."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError, above, below, surrounding
from messagenet.inference import BeliefPropagation, MeanField
from messagenet.losses.crf import likelihood, pair_graph
from messagenet.models.crf import CRFHead

PAPER = (surrounding(0.5), above(0.5), below(0.5))


def head(**options):
    torch.manual_seed(0)
    crf = CRFHead(4, 3, PAPER, hidden=5, **options).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return crf


def batch_of(sizes):
    """Maps alone, and padded to one size with rubbish."""
    maps = [torch.randn(1, 4, *size, dtype=torch.float64) for size in sizes]
    labels = [torch.randint(0, 3, (1, *size)) for size in sizes]
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    features = torch.full((len(sizes), 4, height, width), 1e3, dtype=torch.float64)
    truth = torch.ones(len(sizes), height, width, dtype=torch.long)
    valid = torch.zeros(len(sizes), height, width, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes):
        features[i, :, :h, :w], truth[i, :h, :w], valid[i, :h, :w] = maps[i][0], labels[i][0], True
    return maps, labels, features, truth, valid


@pytest.mark.parametrize("inference", ["mean_field", "belief_propagation"])
@pytest.mark.parametrize("neighbours", ["lattice", "all"])
def test_marginals_are_those_of_the_scaled_potentials(inference, neighbours):
    crf = head(inference=inference, neighbours=neighbours, inference_iterations=3, pairwise_scale=1.7)
    features = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    ((_, grid),) = crf.maps(features)
    scaled = grid.scaled(1.7)
    graph, potentials, _ = pair_graph(scaled.unary, scaled.relations)
    lists = graph.to_factor_graph()
    if inference == "mean_field":
        start = torch.softmax(grid.unary, -1).flatten(1, 2)
        result = MeanField("parallel", max_iterations=3, tolerance=None).run(lists, potentials, start)
    else:
        result = BeliefPropagation(max_iterations=3, tolerance=None).run(lists, potentials)
    torch.testing.assert_close(crf(features), graph.as_map(result.log_marginals))


def test_without_a_pairwise_scale_it_is_the_unary():
    crf = head(pairwise_scale=0.0)
    features = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    alone = crf.unary(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(crf(features), alone.log_softmax(1))


@pytest.mark.filterwarnings("ignore:on an image this small")
def test_padding_changes_neither_marginals_nor_likelihood():
    crf = head(objective="likelihood", likelihood_iterations=5)
    maps, labels, features, truth, valid = batch_of([(6, 7), (6, 7), (5, 9), (1, 1)])
    together = crf(features, valid)
    assert not together[~valid[:, None].expand_as(together)].any()
    for i, own in enumerate(maps):
        h, w = own.shape[2:]
        torch.testing.assert_close(together[i : i + 1, :, :h, :w], crf(own))
    alone = [crf.loss(f, t) for f, t in zip(maps, labels, strict=True)]
    whole = crf.loss(features, truth, valid)
    torch.testing.assert_close(whole.total, sum(loss.total for loss in alone), rtol=1e-4, atol=1e-4)
    assert whole.nodes == sum(loss.nodes for loss in alone)


@pytest.mark.parametrize("objective", ["piecewise", "pseudo_likelihood", "likelihood"])
def test_the_objective_is_the_one_asked_for(objective):
    crf = head(objective=objective)
    features, labels = torch.randn(1, 4, 5, 5, dtype=torch.float64), torch.randint(0, 3, (1, 5, 5))
    ((_, grid),) = crf.maps(features)
    scaled = grid.scaled()
    expected = {
        "piecewise": lambda: crf.piecewise_loss(features, labels),
        "pseudo_likelihood": lambda: crf.pseudo_likelihood_loss(features, labels),
        "likelihood": lambda: likelihood(scaled.unary, scaled.relations, labels, crf.engine),
    }[objective]()
    assert crf.loss(features, labels).total == expected.total
    crf.loss(features, labels).total.backward()
    assert all(parameter.grad is not None for parameter in crf.parameters())


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match='did you mean "likelihood"'):
        head(objective="liklihood")
    with pytest.raises(InputError, match="unknown inference"):
        head(inference="magic")
