"""Piecewise training against loops over nodes and pairs."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.losses.crf import PairTable, piecewise

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
def test_equals_its_definition_in_value_and_gradient(size, num_classes, relations, seed):
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
            PairTable((dy, dx), lambda dy=dy, dx=dx: torch.zeros(1, 60 - dy, 60 - abs(dx), 3, 3))
            for dy, dx in offsets
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
