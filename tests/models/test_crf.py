"""The CRF head: potentials against loops over pairs, marginals against engines on an index-list graph."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError, Relation, above, below, four_neighbours, left, right, surrounding
from messagenet.inference import BeliefPropagation, MeanField
from messagenet.losses import Likelihood, Piecewise, PseudoLikelihood
from messagenet.losses.crf import likelihood, piecewise
from messagenet.models.base import ignore_padding
from messagenet.models.crf import CRFHead, PairwisePotentials, lattice, pair_graph, pair_offsets, paired_relations
from messagenet.settings import build
from oracles.pseudo_likelihood import conditional_logits, pseudo_likelihood

VOID = 255
PAPER = (surrounding(0.5), above(0.5), below(0.5))


# Pairs of nodes.

OFFSET = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).filter(lambda offset: offset != (0, 0))


def unordered_pairs(offsets, size=(7, 8)):
    nodes = [(y, x) for y in range(size[0]) for x in range(size[1])]
    pairs = [frozenset(((y, x), (y + dy, x + dx))) for y, x in nodes for dy, dx in offsets if (y + dy, x + dx) in nodes]
    return pairs


@settings(max_examples=40, deadline=None)
@given(st.lists(OFFSET, unique=True, min_size=1, max_size=10))
def test_each_pair_once_and_none_lost(offsets):
    pairs = unordered_pairs(pair_offsets(tuple(offsets), "all"))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set(unordered_pairs(offsets))


@pytest.mark.parametrize("relation", [surrounding(0.4), above(0.4), surrounding(1.0), left(0.7), below(0.3)])
@pytest.mark.parametrize("size", [(13, 20), (32, 32), (50, 41)])
def test_the_lattice_is_part_of_the_box_and_spans_it(relation, size):
    box = relation.offsets_on(*size)
    chosen = lattice(box)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(box)
    assert len(chosen) == min(len(box), 24)
    for axis in (0, 1):
        assert {min(o[axis] for o in chosen), max(o[axis] for o in chosen)} == {
            min(o[axis] for o in box),
            max(o[axis] for o in box),
        }


def test_the_lattice_of_a_symmetric_box_is_symmetric():
    for cells in range(5, 30):
        chosen = lattice(surrounding(cells=cells).offsets_on(99, 99))
        assert {(-dy, -dx) for dy, dx in chosen} == set(chosen)
        assert len(pair_offsets(chosen)) == 12


def test_small_boxes_and_odd_sets_stay_whole():
    for offsets in (surrounding(cells=3).offsets_on(9, 9), tuple((i, i * i % 7) for i in range(1, 40)), ()):
        assert lattice(offsets) == offsets


def test_narrow_boxes_lose_only_the_node_itself():
    row = Relation("row", offsets=tuple((0, dx) for dx in range(-20, 21) if dx)).offsets_on(9, 9)
    assert lattice(row) == ((0, -20), (0, -10), (0, 10), (0, 20))


def test_a_mirror_image_adds_no_pairs():
    def names(*relations):
        return [relation.name for relation in paired_relations(relations)]

    assert names(below(0.4), surrounding(0.4), above(0.4)) == ["below", "surrounding"]
    assert names(left(0.4), right(0.2)) == ["left", "right"]
    assert names(four_neighbours()) == ["four_neighbours"]
    assert paired_relations([above(0.4, form="box"), below(0.4)]) == (above(0.4),)


# Potentials.


def test_relations_may_be_text():
    texts = [relation.to_setting() for relation in PAPER]
    assert CRFHead(4, 3, texts).relations == CRFHead(4, 3, PAPER).relations


def random_potentials(relations=PAPER, num_classes=3, in_channels=4, hidden=5, **options):
    torch.manual_seed(0)
    crf = CRFHead(in_channels, num_classes, relations, hidden=hidden, **options).double()
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
    pairwise = random_potentials(neighbours=neighbours).pairwise
    features = torch.randn(2, 6, 7, 4, dtype=torch.float64)
    for relation, network, pairs in zip(pairwise.relations, pairwise.networks, pairwise.tables(features), strict=True):
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
    few = random_potentials((surrounding(0.4), above(0.4), below(0.4))).pairwise.tables(features)
    many = random_potentials((surrounding(0.4), above(0.4), below(0.4)), neighbours="all").pairwise.tables(features)
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
    crf = random_potentials(relations)
    torch.manual_seed(seed)
    features = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    labels = random_labels(2, *size)
    loss = PseudoLikelihood().on_features(crf, features, labels)
    ((_, grid),) = crf.potentials(features)
    expected = pseudo_likelihood(grid.unary, grid.scale().relations, labels)
    torch.testing.assert_close(loss.total, expected.total)
    assert loss.count == expected.count
    inputs = [features, *crf.parameters()]
    found = torch.autograd.grad(loss.total, inputs, allow_unused=True)
    wanted = torch.autograd.grad(expected.total, inputs, allow_unused=True)
    for gradient, correct, value in zip(found, wanted, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(zeros if gradient is None else gradient, zeros if correct is None else correct)


def test_scaling_divides_by_the_factors_of_an_inner_node():
    crf = random_potentials((surrounding(cells=3),))
    ((_, grid),) = crf.potentials(torch.randn(1, 4, 5, 5, dtype=torch.float64))
    for raw, scaled in zip(grid.relations[0], grid.scale(3.0).relations[0], strict=True):
        assert raw.offset == scaled.offset
        torch.testing.assert_close(scaled.table(), raw.table() * 3 / 8)


@pytest.mark.parametrize("loss", [Piecewise(), PseudoLikelihood()], ids=["piecewise", "pseudo_likelihood"])
def test_padding_changes_nothing(loss):
    crf = random_potentials()
    sizes = [(6, 7), (6, 7), (5, 9)]
    maps = [torch.randn(1, 4, *size, dtype=torch.float64) for size in sizes]
    truths = [random_labels(1, *size) for size in sizes]
    alone = [loss.on_features(crf, f, t) for f, t in zip(maps, truths, strict=True)]
    batch = torch.full((3, 4, 6, 9), 1e6, dtype=torch.float64)
    labels, valid = torch.ones(3, 6, 9, dtype=torch.long), torch.zeros(3, 6, 9, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes):
        batch[i, :, :h, :w], labels[i, :h, :w], valid[i, :h, :w] = maps[i][0], truths[i][0], True
    whole = loss.on_features(crf, batch, ignore_padding(labels, valid), valid)
    torch.testing.assert_close(whole.total, sum(part.total for part in alone))
    assert whole.count == sum(part.count for part in alone)


def test_maps_say_which_nodes_exist():
    crf = random_potentials()
    valid = torch.ones(2, 6, 7, dtype=torch.bool)
    valid[1, 0, 0] = False
    ((numbers, grid),) = crf.potentials(torch.randn(2, 4, 6, 7, dtype=torch.float64), valid)
    assert numbers.tolist() == [0, 1]
    assert torch.equal(grid.present, valid)


def test_piecewise_loss_is_the_objective_on_unscaled_tables():
    crf = random_potentials()
    features, labels = torch.randn(2, 4, 6, 6, dtype=torch.float64), random_labels(2, 6, 6)
    ((_, grid),) = crf.potentials(features)
    expected = piecewise(grid.unary, grid.relations, labels)
    torch.testing.assert_close(Piecewise().on_features(crf, features, labels).total, expected.total)


def test_features_by_factor_type():
    crf = random_potentials()
    maps = {name: torch.randn(1, 4, 6, 6, dtype=torch.float64) for name in ("unary", "surrounding", "above", "below")}
    labels = random_labels(1, 6, 6)
    ((_, grid),) = crf.potentials(maps)
    logits = conditional_logits(grid.unary, grid.scale().relations, labels)
    expected = torch.nn.functional.cross_entropy(logits.permute(0, 3, 1, 2), labels, ignore_index=VOID, reduction="sum")
    torch.testing.assert_close(PseudoLikelihood().on_features(crf, maps, labels).total, expected)
    with pytest.raises(InputError, match="no features for above"):
        list(crf.potentials({"unary": maps["unary"], "surrounding": maps["unary"]}))


def test_bad_potentials_name_the_fix():
    with pytest.raises(InputError, match='did you mean "lattice"'):
        PairwisePotentials(4, 3, PAPER, neighbours="latice")
    with pytest.raises(InputError, match="two relations are called"):
        PairwisePotentials(4, 3, [above(0.4), above(0.2)])
    with pytest.raises(InputError, match="this head takes"):
        list(random_potentials().potentials(torch.zeros(1, 5, 6, 6)))


# Inference.


def random_head(**options):
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
    crf = random_head(inference=inference, neighbours=neighbours, inference_iterations=3, pairwise_scale=1.7)
    features = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    ((_, grid),) = crf.potentials(features)
    scaled = grid.scale(1.7)
    graph, potentials, _ = pair_graph(scaled.unary, scaled.relations)
    lists = graph.to_factor_graph()
    if inference == "mean_field":
        start = torch.softmax(grid.unary, -1).flatten(1, 2)
        result = MeanField("parallel", max_iterations=3, tolerance=None).run(lists, potentials, start)
    else:
        result = BeliefPropagation(max_iterations=3, tolerance=None).run(lists, potentials)
    torch.testing.assert_close(crf(features), graph.as_map(result.log_marginals))


def test_without_a_pairwise_scale_it_is_the_unary():
    crf = random_head(pairwise_scale=0.0)
    features = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    alone = crf.unary(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(crf(features), alone.log_softmax(1))


@pytest.mark.filterwarnings("ignore:on an image this small")
def test_padding_changes_neither_marginals_nor_likelihood():
    crf, likelihood = random_head(), Likelihood(iterations=5)
    maps, labels, features, truth, valid = batch_of([(6, 7), (6, 7), (5, 9), (1, 1)])
    together = crf(features, valid)
    assert not together[~valid[:, None].expand_as(together)].any()
    for i, own in enumerate(maps):
        h, w = own.shape[2:]
        torch.testing.assert_close(together[i : i + 1, :, :h, :w], crf(own))
    alone = [likelihood.on_features(crf, f, t) for f, t in zip(maps, labels, strict=True)]
    whole = likelihood.on_features(crf, features, ignore_padding(truth, valid), valid)
    torch.testing.assert_close(whole.total, sum(loss.total for loss in alone), rtol=1e-4, atol=1e-4)
    assert whole.count == sum(loss.count for loss in alone)


def test_losses_are_those_of_the_potentials():
    crf = random_head()
    features, labels = torch.randn(1, 4, 5, 5, dtype=torch.float64), torch.randint(0, 3, (1, 5, 5))
    ((_, grid),) = crf.potentials(features)
    scaled, engine = grid.scale(), Likelihood().engine
    for loss, expected in (
        (Piecewise(), piecewise(grid.unary, grid.relations, labels)),
        (PseudoLikelihood(), pseudo_likelihood(scaled.unary, scaled.relations, labels)),
        (Likelihood(), likelihood(scaled.unary, scaled.relations, labels, engine)),
    ):
        found = loss.on_features(crf, features, labels)
        torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=1e-12)
        assert found.count == expected.count
        crf.zero_grad()
        found.total.backward()
        assert all(parameter.grad is not None for parameter in crf.parameters())


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match='did you mean "likelihood"'):
        build("loss", "liklihood")
    with pytest.raises(InputError, match="unknown inference"):
        random_head(inference="magic")
    with pytest.raises(InputError, match="inference_iterations is 0; give at least 1"):
        random_head(inference_iterations=0)
