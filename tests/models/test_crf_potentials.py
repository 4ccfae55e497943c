"""Potential networks against concatenate-and-multiply over pairs; their objectives against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError, Relation, above, below, four_neighbours, surrounding
from messagenet.losses.crf import conditional_logits, piecewise, pseudo_likelihood
from messagenet.models.crf import CRFPotentials, PairwisePotentials

VOID = 255
PAPER = (surrounding(0.5), above(0.5), below(0.5))


def potentials(relations=PAPER, num_classes=3, in_channels=4, hidden=5, **options):
    torch.manual_seed(0)
    crf = CRFPotentials(in_channels, num_classes, relations, hidden=hidden, **options).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return crf


def random_labels(*shape, num_classes=3):
    labels = torch.randint(0, num_classes, shape)
    labels[torch.rand(shape) < 0.2] = VOID
    return labels


def naive_table(network, f_p, f_q):
    weight = torch.cat([network.receiver.weight, network.sender.weight], 1)
    hidden = torch.clamp(weight @ torch.cat([f_p, f_q]) + network.receiver.bias, min=0)
    rows = network.output.weight @ hidden + network.output.bias
    k = int(len(rows) ** 0.5)
    return torch.stack([rows[y * k : (y + 1) * k] for y in range(k)])


@pytest.mark.parametrize("neighbours", ["lattice", "all"])
def test_tables_equal_the_network_on_concatenated_features(neighbours):
    pairwise = potentials(neighbours=neighbours).pairwise
    features = torch.randn(2, 6, 7, 4, dtype=torch.float64)
    for relation, network, pairs in zip(
        pairwise.relations, pairwise.networks, pairwise.on(features), strict=True
    ):
        assert pairs
        for (dy, dx), make in pairs:
            table = make()
            assert (dy, dx) in relation.offsets_on(6, 7)
            assert table.shape == (2, 6 - abs(dy), 7 - abs(dx), 3, 3)
            y, x = max(0, -dy), max(0, -dx)
            expected = naive_table(network, features[1, y, x], features[1, y + dy, x + dx])
            torch.testing.assert_close(table[1, 0, 0], expected)
            y, x = 5 - max(0, dy), 6 - max(0, dx)
            expected = naive_table(network, features[0, y, x], features[0, y + dy, x + dx])
            torch.testing.assert_close(table[0, -1, -1], expected)


def test_the_lattice_has_24_neighbours_and_the_whole_box_more():
    features = torch.randn(1, 32, 32, 4, dtype=torch.float64)
    few = potentials((surrounding(0.4), above(0.4), below(0.4))).pairwise.on(features)
    many = potentials((surrounding(0.4), above(0.4), below(0.4)), neighbours="all").pairwise.on(features)
    assert [len(pairs) for pairs in few] == [12, 24]  # half of 24; each pair above is a pair below
    assert [len(pairs) for pairs in many] == [84, 156]


@settings(max_examples=15, deadline=None)
@given(
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    relations=st.sampled_from(
        [
            (surrounding(cells=3), above(cells=2)),
            (four_neighbours(),),
            (Relation("knight", offsets=[(-2, -1), (2, 1), (-1, 2), (5, 5)]),),
            (surrounding(0.4),),
            (),
        ]
    ),
    seed=st.integers(0, 2**31),
)
@pytest.mark.filterwarnings("ignore:on an image this small")
def test_context_of_labels_needs_no_tables(size, relations, seed):
    """The fused sums equal the generic objective on tables, in value and gradient."""
    crf = potentials(relations)
    torch.manual_seed(seed)
    features = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    labels = random_labels(2, *size)
    loss = crf.pseudo_likelihood_loss(features, labels)
    ((_, grid),) = crf.maps(features)
    expected = pseudo_likelihood(grid.unary, grid.scaled().relations, labels)
    torch.testing.assert_close(loss.total, expected.total)
    assert loss.nodes == expected.nodes
    inputs = [features, *crf.parameters()]
    found = torch.autograd.grad(loss.total, inputs, allow_unused=True)
    wanted = torch.autograd.grad(expected.total, inputs, allow_unused=True)
    for gradient, right, value in zip(found, wanted, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(zeros if gradient is None else gradient, zeros if right is None else right)


def test_scaling_divides_by_the_factors_of_an_inner_node():
    crf = potentials((surrounding(cells=3),))
    ((_, grid),) = crf.maps(torch.randn(1, 4, 5, 5, dtype=torch.float64))
    for raw, scaled in zip(grid.relations[0], grid.scaled(3.0).relations[0], strict=True):
        assert raw.offset == scaled.offset
        torch.testing.assert_close(scaled.table(), raw.table() * 3 / 8)


@pytest.mark.parametrize("objective", ["piecewise_loss", "pseudo_likelihood_loss"])
def test_padding_and_silent_nodes_change_nothing(objective):
    crf = potentials()
    sizes = [(6, 7), (6, 7), (5, 9)]
    maps = [torch.randn(1, 4, *size, dtype=torch.float64) for size in sizes]
    truths = [random_labels(1, *size) for size in sizes]
    alone = [getattr(crf, objective)(f, t) for f, t in zip(maps, truths, strict=True)]
    batch = torch.full((3, 4, 6, 9), 1e6, dtype=torch.float64)
    labels, valid = torch.ones(3, 6, 9, dtype=torch.long), torch.zeros(3, 6, 9, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes):
        batch[i, :, :h, :w], labels[i, :h, :w], valid[i, :h, :w] = maps[i][0], truths[i][0], True
    loss = getattr(crf, objective)(batch, labels, valid)
    torch.testing.assert_close(loss.total, sum(part.total for part in alone))
    assert loss.nodes == sum(part.nodes for part in alone)


def test_maps_say_which_nodes_exist():
    crf = potentials()
    valid = torch.ones(2, 6, 7, dtype=torch.bool)
    valid[1, 0, 0] = False
    ((numbers, grid),) = crf.maps(torch.randn(2, 4, 6, 7, dtype=torch.float64), valid)
    assert numbers.tolist() == [0, 1]
    assert torch.equal(grid.present, valid)


def test_piecewise_loss_is_the_objective_on_unscaled_tables():
    crf = potentials()
    features, labels = torch.randn(2, 4, 6, 6, dtype=torch.float64), random_labels(2, 6, 6)
    ((_, grid),) = crf.maps(features)
    expected = piecewise(grid.unary, grid.relations, labels)
    torch.testing.assert_close(crf.piecewise_loss(features, labels).total, expected.total)


def test_features_by_factor_type():
    crf = potentials()
    maps = {
        name: torch.randn(1, 4, 6, 6, dtype=torch.float64)
        for name in ("unary", "surrounding", "above", "below")
    }
    labels = random_labels(1, 6, 6)
    ((_, grid),) = crf.maps(maps)
    logits = conditional_logits(grid.unary, grid.scaled().relations, labels)
    right = torch.nn.functional.cross_entropy(
        logits.permute(0, 3, 1, 2), labels, ignore_index=VOID, reduction="sum"
    )
    torch.testing.assert_close(crf.pseudo_likelihood_loss(maps, labels).total, right)
    with pytest.raises(InputError, match="no features for above"):
        list(crf.maps({"unary": maps["unary"], "surrounding": maps["unary"]}))


def test_bad_settings_name_the_fix():
    with pytest.raises(InputError, match='did you mean "lattice"'):
        PairwisePotentials(4, 3, PAPER, neighbours="latice")
    with pytest.raises(InputError, match="two relations are called"):
        PairwisePotentials(4, 3, [above(0.4), above(0.2)])
    with pytest.raises(InputError, match="this head takes"):
        list(potentials().maps(torch.zeros(1, 5, 6, 6)))
