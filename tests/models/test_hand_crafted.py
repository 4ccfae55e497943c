"""Hand-crafted features against loops over pixels."""

from __future__ import annotations

import math

import pytest
import torch

from messagenet import InputError
from messagenet.models.backbones.hand_crafted import HandCrafted, positions
from messagenet.models.base import check_backbone


def naive(image, stride, row, column):
    """The sixteen numbers of one cell of an image (3, H, W), pixel by pixel; edges are repeated."""
    _, height, width = image.shape
    light = image.mean(0)

    def at(y, x):
        return light[min(max(y, 0), height - 1), min(max(x, 0), width - 1)].item()

    cells = [
        (min(y, height - 1), min(x, width - 1))
        for y in range(row * stride, (row + 1) * stride)
        for x in range(column * stride, (column + 1) * stride)
    ]
    down, across, edges, texture = [], [], [[], [], [], []], []
    for y, x in cells:
        dy, dx = (at(y + 1, x) - at(y - 1, x)) / 2, (at(y, x + 1) - at(y, x - 1)) / 2
        angle, strength = math.atan2(dy, dx), math.hypot(dy, dx)
        down.append(abs(dy))
        across.append(abs(dx))
        for values, direction in zip(edges, (90, 0, 45, -45), strict=True):
            values.append(strength * max(0.0, math.cos(2 * (angle - math.radians(direction)))))
        texture.append(abs(at(y - 1, x) + at(y + 1, x) + at(y, x - 1) + at(y, x + 1) - 4 * at(y, x)))
    colours = torch.stack([image[:, y, x] for y, x in cells])  # (n, 3)
    lights = colours.mean(1)
    lists = [down, across, *edges, texture]
    return torch.cat(
        [
            colours.mean(0),
            colours.std(0, correction=0),
            lights.std(0, correction=0)[None],
            lights.min()[None],
            lights.max()[None],
            torch.tensor([sum(values) / len(values) for values in lists], dtype=image.dtype),
        ]
    )


@pytest.mark.parametrize(("size", "stride"), [((12, 8), 4), ((8, 6), 2), ((3, 3), 3), ((5, 5), 1)])
def test_equal_loops_over_pixels(size, stride):
    torch.manual_seed(0)
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    features = HandCrafted(stride)(images)
    assert features.shape == (2, 16, size[0] // stride, size[1] // stride)
    for row in range(features.shape[2]):
        for column in range(features.shape[3]):
            expected = naive(images[1], stride, row, column)
            torch.testing.assert_close(features[1, :, row, column], expected, rtol=1e-5, atol=2e-4)


def test_it_is_a_backbone_for_any_size():
    crafted = HandCrafted(stride=8)
    check_backbone(crafted)
    assert crafted(torch.rand(1, 3, 1, 1)).shape == (1, 16, 1, 1)
    assert crafted(torch.rand(1, 3, 17, 9)).shape == (1, 16, 3, 2)
    assert list(crafted.parameters()) == []
    with pytest.raises(InputError, match="stride must be"):
        HandCrafted(0)


def test_flat_images_have_finite_gradients():
    images = torch.zeros(1, 3, 8, 8, requires_grad=True)
    HandCrafted(4)(images).sum().backward()
    assert torch.isfinite(images.grad).all()


def test_a_node_sees_its_cell_and_one_pixel_around():
    torch.manual_seed(0)
    images = torch.randn(1, 3, 12, 12)
    changed = images.clone()
    changed[..., 6, 6] += 1  # inside the middle cell, two pixels from its edge
    moved = (HandCrafted(4)(changed) != HandCrafted(4)(images)).any(1)[0]
    assert moved.nonzero().tolist() == [[1, 1]]


def test_positions_are_those_in_the_image_itself():
    valid = torch.zeros(2, 4, 5, dtype=torch.bool)
    valid[0] = True
    valid[1, :2, :3] = True
    place = positions(valid)
    alone = positions(torch.ones(1, 2, 3, dtype=torch.bool))
    torch.testing.assert_close(place[1, :2, :3], alone[0])
    torch.testing.assert_close(place[0, :, 0, 0], torch.tensor([-0.75, -0.25, 0.25, 0.75]))
    torch.testing.assert_close(place[0, 0, :, 1], torch.tensor([-0.8, -0.4, 0.0, 0.4, 0.8]))
    torch.testing.assert_close(place[..., 2:], place[..., :2] ** 2)
