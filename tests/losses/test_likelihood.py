"""The likelihood and its gradient: exact on trees, beliefs less indicators everywhere, blind to void nodes."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from messagenet.inference import BeliefPropagation, Exact
from messagenet.losses.crf import MessageMemory, PairTable, likelihood, pair_graph

VOID = 255
ENGINE = BeliefPropagation(max_iterations=200, tolerance=1e-13)


def random_problem(height, width, offsets, num_classes=3, batch=2, seed=0):
    torch.manual_seed(seed)
    options = {"dtype": torch.float64, "requires_grad": True}
    unary = torch.randn(batch, height, width, num_classes, **options)
    tables = [
        torch.randn(batch, height - abs(dy), width - abs(dx), num_classes, num_classes, **options)
        for dy, dx in offsets
    ]
    pairs = [PairTable(offset, lambda t=table: t) for offset, table in zip(offsets, tables, strict=True)]
    labels = torch.randint(0, num_classes, (batch, height, width))
    return unary, tables, pairs, labels


def naive_score(unary, tables, offsets, labels, image):
    """Σ θ of one labelling, nodes and pairs with void left out, one factor at a time."""
    height, width = labels.shape
    score = sum(
        unary[image, y, x, labels[y, x]]
        for y, x in product(range(height), range(width))
        if labels[y, x] != VOID
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
    assert loss.nodes == (labels != VOID).sum()
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
    assert loss.nodes == 0
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
    memory, brief = MessageMemory(), BeliefPropagation(max_iterations=1, tolerance=None)
    gaps = []
    for _ in range(40):
        total = likelihood(unary, [pairs], labels, brief, memory=memory, names=["a", "b"]).total
        gaps.append(abs(float(total - converged)))
    assert len(memory) == 2
    assert gaps[0] > 1e-3
    assert gaps[-1] < 1e-9


def test_images_are_remembered_by_name_whatever_batch_they_come_in():
    unary, _, pairs, labels = random_problem(3, 4, [(0, 1), (1, 0)])
    memory, brief = MessageMemory(), BeliefPropagation(max_iterations=2, tolerance=None)
    likelihood(unary, [pairs], labels, brief, memory=memory, names=["a", "b"])
    flipped = [PairTable(pair.offset, lambda t=pair.table: t().flip(0)) for pair in pairs]
    swapped = likelihood(unary.flip(0), [flipped], labels.flip(0), brief, memory=memory, names=["b", "a"])
    other = MessageMemory()
    for _ in range(2):
        straight = likelihood(unary, [pairs], labels, brief, memory=other, names=["a", "b"])
    torch.testing.assert_close(swapped.total, straight.total)
