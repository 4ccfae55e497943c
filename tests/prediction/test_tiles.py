"""Node logits at pixels strip by strip, and joined from tiles."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from messagenet.geometry import pixel_strips, upsample
from messagenet.prediction.predictor import most_probable
from messagenet.prediction.tiles import join_tiles, tile_spans, tiles


@pytest.mark.parametrize("rows", [7, 16, 32])
@pytest.mark.parametrize(
    ("size", "stride"), [((37, 50), 4.0), ((16, 16), 16.0), ((41, 30), 40 / 3), ((1, 1), 8.0), ((97, 33), 8.0)]
)
def test_strips_equal_one_enlargement(size, stride, rows):
    nodes = [int(-(-side // stride)) for side in size]
    logits = torch.randn(1, 5, *nodes, dtype=torch.float64)
    whole = upsample(logits, size, stride)[0]
    strips = torch.cat(list(pixel_strips(logits[0], size, stride, rows)), 1)
    assert strips.shape[1:] == size
    tolerance = 1e-6 if stride == int(stride) else 0.05  # a fractional stride is rounded to whole pixels in `upsample`
    torch.testing.assert_close(strips, whole, rtol=tolerance, atol=tolerance * float(whole.abs().max()))


def test_strips_beyond_the_last_node_repeat_it():
    logits = torch.randn(3, 4, 2)  # 4 rows of nodes for 7 of cells
    strips = torch.cat(list(pixel_strips(logits, (56, 16), 8.0, rows=8)), 1)
    torch.testing.assert_close(strips, torch.cat(list(pixel_strips(logits, (56, 16), 8.0, rows=7)), 1))
    torch.testing.assert_close(strips[:, 40:], strips[:, 40:41].expand(-1, 16, -1))


@pytest.mark.parametrize("num_classes", [1, 2, 21, 255])
def test_the_first_of_equally_probable_classes(num_classes):
    values = torch.randint(0, 5, (num_classes, 20, 30)).float()
    values[-1, 0] = 9
    assert (most_probable(values) == values.numpy().argmax(0)).all()


@pytest.mark.parametrize("stride", [4.0, 16.0, 40 / 3])
def test_tiles_of_a_constant_are_constant(stride):
    def run(tile):
        size = [int(-(-side // stride)) for side in tile.shape[2:]]
        return torch.ones(1, 2, *size)

    joined = join_tiles(torch.zeros(1, 3, 333, 479), run, 160, 48, stride)
    torch.testing.assert_close(joined, torch.ones_like(joined))
    assert abs(joined.shape[2] * stride - 333) <= 2 * stride


@pytest.mark.parametrize("length", [1, 47, 48, 49, 63, 64, 65, 100, 333, 1000])
def test_tile_spans_cover_and_overlap(length):
    windows = tile_spans(length, 48, 16, 16)
    assert windows[0][0] == 0
    assert windows[-1][1] == length
    for (_, end), (start, _) in pairwise(windows):
        assert start % 16 == 0
        assert end - start >= 16


def test_tiles_lie_on_whole_nodes():
    for stride in (4.0, 16.0, 40 / 3):
        for tile in tiles(333, 479, 160, 48, stride):
            assert tile.top == pytest.approx(tile.node_top * stride)
            assert tile.left == pytest.approx(tile.node_left * stride)
            assert tile.bottom <= 333
            assert tile.right <= 479


def test_tiles_of_a_batch_are_joined_together():
    torch.manual_seed(0)
    images = torch.rand(2, 3, 100, 130)

    def run(tile):
        return torch.nn.functional.avg_pool2d(tile, 4, ceil_mode=True, count_include_pad=False)

    joined = join_tiles(images, run, 64, 16, 4.0)
    torch.testing.assert_close(joined, run(images), rtol=1e-5, atol=1e-6)
    alone = torch.cat([join_tiles(image[None], run, 64, 16, 4.0) for image in images])
    torch.testing.assert_close(joined, alone)
