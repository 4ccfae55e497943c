"""Losses of CRFs: piecewise and pseudo-likelihood against loops over pairs, the likelihood against all labellings."""

from __future__ import annotations

import math
import weakref
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError
from messagenet.inference import BeliefPropagation, Exact
from messagenet.losses import Likelihood
from messagenet.losses.crf import likelihood, piecewise
from messagenet.models.crf import PairTable, pair_graph
from oracles.pseudo_likelihood import conditional_logits, pseudo_likelihood
from oracles.systems import SIZES, SYSTEMS, pad_together, random_batch, with_features

VOID = 255
HALF = [(0, 1), (1, -1), (1, 0), (1, 1), (2, 0), (-1, 0), (7, 0)]


def random_tables(size, relations, num_classes, batch=2):
    """For each relation, leaf tensors (B, h', w', K, K) by offset; offsets that leave the map have none."""
    height, width = size
    return [
        {
            (dy, dx): torch.randn(
                *(batch, max(0, height - abs(dy)), max(0, width - abs(dx)), num_classes, num_classes),
                dtype=torch.float64,
                requires_grad=True,
            )
            for dy, dx in offsets
        }
        for offsets in relations
    ]


def promises(tables):
    return [
        [PairTable(offset, lambda values=values: values * 1.0) for offset, values in relation.items()]
        for relation in tables
    ]


def pairs_of(size, offset):
    """(first node, second node, row and column of the pair in its table)."""
    (height, width), (dy, dx) = size, offset
    for y in range(height):
        for x in range(width):
            if 0 <= y + dy < height and 0 <= x + dx < width:
                yield (y, x), (y + dy, x + dx), (y - max(0, -dy), x - max(0, -dx))


def naive_piecewise(unary, tables, labels):
    batch, height, width, _ = unary.shape
    total = torch.zeros((), dtype=torch.float64)
    for b in range(batch):
        for y in range(height):
            for x in range(width):
                if labels[b, y, x] != VOID:
                    total = total - torch.log_softmax(unary[b, y, x], 0)[labels[b, y, x]]
        for relation in tables:
            for offset, values in relation.items():
                for p, q, (i, j) in pairs_of((height, width), offset):
                    yp, yq = labels[b][p], labels[b][q]
                    if yp != VOID and yq != VOID:
                        table = values[b, i, j]
                        log_z = torch.logsumexp(table.flatten(), 0)
                        total = total - (table[yp, yq] - log_z) / len(relation)
    return total, (labels != VOID).sum()


def random_labels(size, num_classes, generator, batch=2):
    labels = torch.randint(0, num_classes, (batch, *size), generator=generator)
    labels[torch.rand(batch, *size, generator=generator) < 0.25] = VOID
    return labels


@settings(max_examples=25, deadline=None)
@given(
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    num_classes=st.integers(2, 4),
    relations=st.lists(st.lists(st.sampled_from(HALF), unique=True, max_size=3), max_size=2),
    seed=st.integers(0, 2**31),
)
def test_piecewise_equals_its_definition_in_value_and_gradient(size, num_classes, relations, seed):
    torch.manual_seed(seed)
    labels = random_labels(size, num_classes, torch.Generator().manual_seed(seed))
    unary = torch.randn(2, *size, num_classes, dtype=torch.float64, requires_grad=True)
    tables = random_tables(size, relations, num_classes)
    inputs = [unary, *(values for relation in tables for values in relation.values())]

    total, nodes = piecewise(unary, promises(tables), labels)
    expected, count = naive_piecewise(unary, tables, labels)
    torch.testing.assert_close(total, expected)
    assert nodes == count
    found = torch.autograd.grad(total + 0 * unary.sum(), inputs, allow_unused=True)
    wanted = torch.autograd.grad(expected + 0 * unary.sum(), inputs, allow_unused=True)
    for gradient, right, value in zip(found, wanted, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(zeros if gradient is None else gradient, zeros if right is None else right)


def test_the_pair_of_classes_number_255_is_not_void():
    labels = torch.tensor([[[12, 3]]])  # 12 · 21 + 3 = 255
    table = torch.randn(1, 1, 1, 21, 21)
    total, _ = piecewise(torch.zeros(1, 1, 2, 21), [[PairTable((0, 1), lambda: table)]], labels)
    expected = 2 * torch.tensor(21.0).log() + table.logsumexp((3, 4)).sum() - table[0, 0, 0, 12, 3]
    torch.testing.assert_close(total, expected)


def test_a_batch_is_the_sum_of_its_images():
    torch.manual_seed(0)
    labels = random_labels((4, 3), 3, torch.Generator().manual_seed(0))
    unary = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    tables = random_tables((4, 3), [HALF[:4]], 3)
    whole, _ = piecewise(unary, promises(tables), labels)
    parts = [
        piecewise(
            unary[b : b + 1],
            promises([{offset: values[b : b + 1] for offset, values in tables[0].items()}]),
            labels[b : b + 1],
        ).total
        for b in range(2)
    ]
    torch.testing.assert_close(whole, sum(parts))


def test_a_relation_weighs_as_much_as_the_unary():
    """On a map without borders to speak of, equal mistakes cost the same whatever the size of the box."""
    labels = torch.zeros(1, 60, 60, dtype=torch.long)
    flat = torch.zeros(1, 60, 60, 3)

    def cost(offsets):
        pairs = [
            PairTable((dy, dx), lambda dy=dy, dx=dx: torch.zeros(1, 60 - dy, 60 - abs(dx), 3, 3)) for dy, dx in offsets
        ]
        return piecewise(flat, [pairs], labels).mean

    log3 = torch.tensor(3.0).log()
    for offsets in ([(0, 1)], [(0, 1), (1, -1), (1, 0), (1, 1)]):
        torch.testing.assert_close(cost(offsets), 3 * log3, rtol=0.03, atol=0)


def test_nothing_labelled_is_no_loss_and_no_gradient():
    unary = torch.randn(1, 2, 2, 3, requires_grad=True)
    table = torch.randn(1, 2, 1, 3, 3, requires_grad=True)
    loss = piecewise(unary, [[PairTable((0, 1), lambda: table)]], torch.full((1, 2, 2), VOID))
    loss.mean.backward()
    assert loss.total == 0
    assert (unary.grad == 0).all()
    assert (table.grad == 0).all()


@pytest.mark.parametrize("gradient", [False, True])
def test_one_offsets_tables_exist_at_a_time(gradient):
    features = torch.randn(1, 6, 6, 4, requires_grad=gradient)
    alive: list[weakref.ref] = []
    most = 0

    def table(dy, dx):
        nonlocal most
        made = (features[:, : 6 - dy, : 6 - dx, :, None] * features[:, dy:, dx:, None, :]).exp()
        alive.append(weakref.ref(made))
        most = max(most, sum(reference() is not None for reference in alive))
        return made

    offsets = [(dy, dx) for dy in range(3) for dx in range(3) if (dy, dx) != (0, 0)]
    pairs = [PairTable(offset, lambda offset=offset: table(*offset)) for offset in offsets]
    labels = torch.randint(0, 4, (1, 6, 6))
    total = piecewise(features, [pairs], labels).total
    if gradient:
        total.backward()
        assert len(alive) == 2 * len(offsets)
    assert most == 1


OFFSETS = [(0, 1), (1, -1), (1, 0), (-2, 0), (-1, -1), (7, 0)]


def joint_score(unary, tables, labels):
    """Σ_p θ_p + Σ_pq θ_pq of one labelling; a node without a label has no factors."""
    height, width = labels.shape
    score = torch.zeros((), dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            if labels[y, x] == VOID:
                continue
            score = score + unary[y, x, labels[y, x]]
            for (dy, dx), values in tables.items():
                inside = 0 <= y + dy < height and 0 <= x + dx < width
                if inside and labels[y + dy, x + dx] != VOID:
                    pair = values[y - max(0, -dy), x - max(0, -dx)]
                    score = score + pair[labels[y, x], labels[y + dy, x + dx]]
    return score


def naive_pseudo_likelihood(unary, tables, labels):
    """− Σ_p log of the joint score's softmax over y_p alone."""
    total = torch.zeros((), dtype=torch.float64)
    for y, x in (labels != VOID).nonzero().tolist():
        scores = []
        for other in range(unary.shape[-1]):
            changed = labels.clone()
            changed[y, x] = other
            scores.append(joint_score(unary, tables, changed))
        total = total - torch.log_softmax(torch.stack(scores), 0)[labels[y, x]]
    return total


@settings(max_examples=15, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    num_classes=st.integers(2, 3),
    offsets=st.lists(st.sampled_from(OFFSETS), unique=True, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_pseudo_likelihood_equals_the_conditionals_of_the_joint_in_value_and_gradient(size, num_classes, offsets, seed):
    torch.manual_seed(seed)
    labels = torch.randint(0, num_classes, size)
    labels[torch.rand(size) < 0.25] = VOID
    unary = torch.randn(*size, num_classes, dtype=torch.float64, requires_grad=True)
    shapes = {(dy, dx): (max(0, size[0] - abs(dy)), max(0, size[1] - abs(dx))) for dy, dx in offsets}
    tables = {
        offset: torch.randn(*shape, num_classes, num_classes, dtype=torch.float64, requires_grad=True)
        for offset, shape in shapes.items()
    }
    pairs = [PairTable(offset, lambda values=values: values[None] * 1.0) for offset, values in tables.items()]

    total, nodes = pseudo_likelihood(unary[None], [pairs[:1], pairs[1:]], labels[None])
    expected = naive_pseudo_likelihood(unary, tables, labels)
    torch.testing.assert_close(total, expected)
    assert nodes == (labels != VOID).sum()
    inputs = [unary, *tables.values()]
    found = torch.autograd.grad(total + 0 * unary.sum(), inputs, allow_unused=True)
    wanted = torch.autograd.grad(expected + 0 * unary.sum(), inputs, allow_unused=True)
    for gradient, right, value in zip(found, wanted, inputs, strict=True):
        zeros = torch.zeros_like(value)
        torch.testing.assert_close(zeros if gradient is None else gradient, zeros if right is None else right)


def test_both_ends_of_a_pair_hear_each_other_in_their_own_order():
    table = torch.arange(9.0).reshape(1, 1, 1, 3, 3)
    logits = conditional_logits(torch.zeros(1, 1, 2, 3), [[PairTable((0, 1), lambda: table)]], torch.tensor([[[1, 2]]]))
    assert logits[0, 0, 0].tolist() == [2, 5, 8]  # the column of the second node's class
    assert logits[0, 0, 1].tolist() == [3, 4, 5]  # the row of the first node's class


def test_a_neighbour_without_a_label_tells_nothing():
    table = torch.full((1, 1, 1, 3, 3), torch.inf)
    logits = conditional_logits(
        torch.zeros(1, 1, 2, 3), [[PairTable((0, 1), lambda: table)]], torch.tensor([[[VOID, VOID]]])
    )
    assert (logits == 0).all()


ENGINE = BeliefPropagation(max_iterations=200, tolerance=1e-13)


def random_problem(height, width, offsets, num_classes=3, batch=2, seed=0):
    torch.manual_seed(seed)
    options = {"dtype": torch.float64, "requires_grad": True}
    unary = torch.randn(batch, height, width, num_classes, **options)
    tables = [
        torch.randn(batch, height - abs(dy), width - abs(dx), num_classes, num_classes, **options) for dy, dx in offsets
    ]
    pairs = [PairTable(offset, lambda t=table: t) for offset, table in zip(offsets, tables, strict=True)]
    labels = torch.randint(0, num_classes, (batch, height, width))
    return unary, tables, pairs, labels


def naive_score(unary, tables, offsets, labels, image):
    """Σ θ of one labelling, nodes and pairs with void left out, one factor at a time."""
    height, width = labels.shape
    score = sum(
        unary[image, y, x, labels[y, x]] for y, x in product(range(height), range(width)) if labels[y, x] != VOID
    )
    for (dy, dx), table in zip(offsets, tables, strict=True):
        for y, x in product(range(height), range(width)):
            if 0 <= y + dy < height and 0 <= x + dx < width:
                ends = labels[y, x], labels[y + dy, x + dx]
                if VOID not in ends:
                    score = score + table[image, y - max(0, -dy), x - max(0, -dx), ends[0], ends[1]]
    return score


def naive_loss(unary, tables, offsets, labels):
    """− log P(ŷ) by writing out all labellings of the labelled nodes."""
    total = unary.new_zeros(())
    for image, truth in enumerate(labels):
        known = (truth != VOID).nonzero().tolist()
        scores = []
        for states in product(range(unary.shape[-1]), repeat=len(known)):
            labelling = truth.clone()
            for (y, x), state in zip(known, states, strict=True):
                labelling[y, x] = state
            scores.append(naive_score(unary, tables, offsets, labelling, image))
        total = total + torch.logsumexp(torch.stack(scores), 0)
        total = total - naive_score(unary, tables, offsets, truth, image)
    return total


def gradients(total, unary, tables):
    return torch.autograd.grad(total, [unary, *tables])


@pytest.mark.parametrize("shape", [(1, 5), (4, 1)])
@pytest.mark.parametrize("void", [False, True])
def test_value_and_gradient_are_exact_on_chains(shape, void):
    offsets = [(0, 1) if shape[0] == 1 else (-1, 0)]
    unary, tables, pairs, labels = random_problem(*shape, offsets)
    if void:
        labels.view(2, -1)[0, 2] = labels.view(2, -1)[1, 0] = VOID
    loss = likelihood(unary, [pairs], labels, ENGINE)
    expected = naive_loss(unary, tables, offsets, labels)
    assert loss.count == (labels != VOID).sum()
    torch.testing.assert_close(loss.total, expected, rtol=1e-9, atol=1e-9)
    found, right = gradients(loss.total, unary, tables), gradients(expected, unary, tables)
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_the_gradient_on_a_chain_equals_that_of_the_exact_engine():
    unary, tables, pairs, labels = random_problem(1, 12, [(0, 1)], num_classes=4)
    graph, potentials, _ = pair_graph(unary, [pairs])
    exact = Exact().run(graph, potentials).log_z.sum()
    exact = exact - sum(naive_score(unary, tables, [(0, 1)], labels[image], image) for image in range(2))
    loss = likelihood(unary, [pairs], labels, ENGINE).total
    torch.testing.assert_close(loss, exact, rtol=1e-9, atol=1e-9)
    found, right = gradients(loss, unary, tables), gradients(exact, unary, tables)
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_with_an_exact_engine_loops_are_exact_as_well():
    offsets = [(0, 1), (1, 0), (1, 1)]
    unary, tables, pairs, labels = random_problem(2, 3, offsets, num_classes=2)
    labels[1, 0, 2] = VOID
    loss = likelihood(unary, [pairs[:2], pairs[2:]], labels, Exact())
    expected = naive_loss(unary, tables, offsets, labels)
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(gradients(loss.total, unary, tables), gradients(expected, unary, tables))


def test_on_loops_the_gradient_is_that_of_bethe_at_the_fixed_point():
    """Finite differences of the converged Bethe log Z: nothing is missing for not differentiating iterations."""
    offsets = [(0, 1), (1, 0), (2, 0)]
    unary, tables, pairs, labels = random_problem(3, 3, offsets, batch=1)
    total = likelihood(unary, [pairs], labels, ENGINE).total
    of_unary, *of_tables = gradients(total, unary, tables)
    step = 1e-5
    for value, gradient, place in (
        (unary, of_unary, (0, 1, 2, 0)),
        (tables[0], of_tables[0], (0, 2, 1, 1, 2)),
        (tables[2], of_tables[2], (0, 0, 1, 0, 2)),
    ):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                value[place] += sign * step
                ends.append(likelihood(unary, [pairs], labels, ENGINE).total)
                value[place] -= sign * step
        assert math.isclose((ends[0] - ends[1]) / (2 * step), gradient[place], rel_tol=1e-5, abs_tol=1e-7)


def test_nothing_labelled_costs_nothing():
    unary, tables, pairs, labels = random_problem(2, 3, [(0, 1)])
    loss = likelihood(unary, [pairs], torch.full_like(labels, VOID), ENGINE)
    assert loss.count == 0
    assert abs(float(loss.total.detach())) < 1e-9
    for gradient in gradients(loss.total, unary, tables):
        assert not gradient.any()


def test_nodes_without_pairs_are_classified_alone():
    unary, _, _, labels = random_problem(1, 4, [])
    expected = torch.nn.functional.cross_entropy(unary.flatten(0, 2), labels.flatten(), reduction="sum")
    torch.testing.assert_close(likelihood(unary, [], labels, ENGINE).total, expected)


def test_remembered_messages_carry_on_where_they_ended():
    """One iteration a visit reaches in time what many iterations in one visit reach."""
    unary, tables, pairs, labels = random_problem(3, 4, [(0, 1), (1, 0)])
    unary, tables = unary.detach() * 0.5, [table.detach() * 0.5 for table in tables]
    pairs = [PairTable(pair.offset, lambda t=table: t) for pair, table in zip(pairs, tables, strict=True)]
    converged = likelihood(unary, [pairs], labels, ENGINE).total
    memory, brief = {}, BeliefPropagation(max_iterations=1, tolerance=None)
    gaps = []
    for _ in range(40):
        total = likelihood(unary, [pairs], labels, brief, memory=memory, ids=["a", "b"]).total
        gaps.append(abs(float(total - converged)))
    assert len(memory) == 2
    assert gaps[0] > 1e-3
    assert gaps[-1] < 1e-9


def test_images_are_remembered_by_name_whatever_batch_they_come_in():
    unary, _, pairs, labels = random_problem(3, 4, [(0, 1), (1, 0)])
    memory, brief = {}, BeliefPropagation(max_iterations=2, tolerance=None)
    likelihood(unary, [pairs], labels, brief, memory=memory, ids=["a", "b"])
    flipped = [PairTable(pair.offset, lambda t=pair.table: t().flip(0)) for pair in pairs]
    swapped = likelihood(unary.flip(0), [flipped], labels.flip(0), brief, memory=memory, ids=["b", "a"])
    other = {}
    for _ in range(2):
        straight = likelihood(unary, [pairs], labels, brief, memory=other, ids=["a", "b"])
    torch.testing.assert_close(swapped.total, straight.total)


def test_a_loss_that_remembers_carries_on_in_whatever_batch_images_come():
    model = SYSTEMS["crf"].build()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batches = [with_features(model, batch) for batch in random_batch(SIZES)]
    converged = Likelihood(iterations=200)
    converged.engine = ENGINE
    wanted = sum(float(converged(model, batch).total.detach()) for batch in batches)
    loss = Likelihood(iterations=1, persistent_messages=True)
    gaps = []
    for visit in range(30):
        groups = ([0, 1], [2, 3]) if visit % 2 else ([0, 1, 2], [3])
        parts = [loss(model, pad_together([batches[i] for i in group])) for group in groups]
        gaps.append(abs(sum(float(part.total.detach()) for part in parts) - wanted))
    assert len(loss.memory) == 4
    assert gaps[0] > 1e-3
    assert gaps[-1] < 1e-3 * gaps[0]
    fresh = Likelihood(iterations=1)
    assert fresh.memory is None
    with pytest.raises(InputError, match="iterations is 0; give at least 1"):
        Likelihood(iterations=0)


def test_images_without_a_name_are_not_remembered():
    model, loss = SYSTEMS["crf"].build(), Likelihood(iterations=1, persistent_messages=True)
    (batch,) = random_batch(SIZES[:1])
    first, second = (loss(model, batch._replace(ids=())).total for _ in range(2))
    assert torch.equal(first, second)
    assert len(loss.memory) == 0
