"""Where nodes lie on pixels, against loops over cells and pixels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import InputError
from messagenet.geometry import (
    bilinear_sample,
    interpolation_matrix,
    node_centres,
    node_mask,
    node_targets,
    pixel_to_node,
    upsample,
)

VOID = 255


def naive_labels(mask, size, stride, rule):
    height, width = mask.shape
    out = torch.full(size, VOID)
    for i in range(size[0]):
        for j in range(size[1]):
            if rule == "centre":
                y, x = min(int((i + 0.5) * stride), height - 1), min(int((j + 0.5) * stride), width - 1)
                out[i, j] = mask[y, x]
                continue
            cell = mask[i * stride : (i + 1) * stride, j * stride : (j + 1) * stride].flatten().tolist()
            votes = [label for label in cell if label != VOID]
            if votes:
                out[i, j] = max(sorted(set(votes)), key=votes.count)
    return out


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    stride=st.sampled_from([1, 2, 4, 5]),
    rule=st.sampled_from(["centre", "majority"]),
    seed=st.integers(0, 2**31),
)
def test_node_targets_equal_a_loop_over_cells(size, stride, rule, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor([0, 1, 2, VOID])[torch.randint(0, 4, size, generator=generator)]
    nodes = (-(-size[0] // stride), -(-size[1] // stride))
    found = node_targets(mask[None], nodes, stride, rule)[0]
    assert torch.equal(found, naive_labels(mask, nodes, stride, rule))


def test_unknown_rules_name_the_nearest():
    with pytest.raises(InputError, match='did you mean "centre"'):
        node_targets(torch.zeros(1, 1, 1), (1, 1), 1, "center")


SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, stride=st.sampled_from([1, 2, 4, 5, 40 / 3, 3.3]))
def test_nodes_exist_where_their_cell_begins_on_the_image(sizes, stride):
    whole = [max(sides) for sides in zip(*sizes, strict=True)]
    nodes = tuple(-int(-side // stride) for side in whole)
    mask = node_mask(torch.tensor(sizes), nodes, stride)
    if len(set(sizes)) == 1:
        assert mask is None
        return
    for own, size in zip(mask, sizes, strict=True):
        rows, columns = (-int(-side // stride) for side in size)
        expected = torch.zeros(nodes, dtype=torch.bool)
        expected[:rows, :columns] = True
        assert torch.equal(own, expected)


def test_without_sizes_all_nodes_exist():
    assert node_mask(None, (3, 4), 8) is None


@settings(max_examples=60, deadline=None)
@given(
    sizes=SIZES,
    stride=st.sampled_from([1, 2, 4, 5, 3.3]),
    rule=st.sampled_from(["centre", "majority"]),
    seed=st.integers(0, 2**31),
)
def test_padded_targets_are_those_of_the_images_alone(sizes, stride, rule, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = [max(sides) for sides in zip(*sizes, strict=True)]
    nodes = tuple(-int(-side // stride) for side in whole)
    target = torch.full((len(sizes), *whole), VOID)
    for own, (height, width) in zip(target, sizes, strict=True):
        own[:height, :width] = torch.tensor([0, 1, VOID])[torch.randint(0, 3, (height, width), generator=generator)]
    found = node_targets(target, nodes, stride, rule, torch.tensor(sizes))
    for index, (height, width) in enumerate(sizes):
        h, w = (-int(-side // stride) for side in (height, width))
        alone = node_targets(target[index : index + 1, :height, :width], (h, w), stride, rule)[0]
        assert torch.equal(found[index, :h, :w], alone)
        assert (found[index, h:] == VOID).all()
        assert (found[index, :, w:] == VOID).all()


def test_upsampling_keeps_cells_in_place_where_the_last_one_is_cut():
    logits = torch.arange(4.0).reshape(1, 1, 1, 4)
    whole, cut = upsample(logits, (4, 16), 4), upsample(logits, (4, 13), 4)
    torch.testing.assert_close(cut, whole[..., :13])


@settings(max_examples=40, deadline=None)
@given(
    nodes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.sampled_from([1.0, 2.0, 4.0, 8.0]),
    over=st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
    seed=st.integers(0, 2**31),
)
def test_three_ways_of_upsampling_agree(nodes, stride, over, seed):
    """Interpolation, a matrix for each axis, and sampling at the positions of the pixels."""
    generator = torch.Generator().manual_seed(seed)
    size = tuple(max(1, round(n * stride) + extra) for n, extra in zip(nodes, over, strict=True))
    logits = torch.randn(1, 3, *nodes, dtype=torch.float64, generator=generator)
    expected = upsample(logits, size, stride)
    down, across = (interpolation_matrix(n, pixels, stride, logits) for n, pixels in zip(nodes, size, strict=True))
    torch.testing.assert_close(down @ logits @ across.T, expected)
    rows, columns = (pixel_to_node(torch.arange(side, dtype=torch.float64) + 0.5, stride) for side in size)
    torch.testing.assert_close(bilinear_sample(logits, rows, columns), expected)


@settings(max_examples=40, deadline=None)
@given(pixels=st.integers(1, 400), stride=st.sampled_from([1, 4, 8, 16.0, 40 / 3]))
def test_node_centres_are_the_nodes_themselves(pixels, stride):
    centres = node_centres(pixels, stride, torch.device("cpu"))
    assert len(centres) == -int(-pixels // stride)
    torch.testing.assert_close(
        pixel_to_node(centres, stride), torch.arange(len(centres), dtype=torch.float64), rtol=0, atol=1e-9
    )
