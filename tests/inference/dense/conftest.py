"""Dense CRFs by plain loops over pixels and classes, straight from the equations."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from messagenet.inference.dense import Bilateral


def kernel_table(kernel, image):
    """k(i, j) for all pixels of an image (3, H, W) in 0..1, as nested lists."""
    height, width = image.shape[1:]
    pixels = list(itertools.product(range(height), range(width)))
    table = []
    for y, x in pixels:
        row = []
        for z, v in pixels:
            exponent = ((y - z) ** 2 + (x - v) ** 2) / (2 * kernel.position**2)
            if isinstance(kernel, Bilateral):
                apart = (image[:, y, x] - image[:, z, v]).tolist()
                exponent += sum((255 * part) ** 2 for part in apart) / (2 * kernel.colour**2)
            row.append(math.exp(-exponent))
        table.append(row)
    return table


def normalised(table, how):
    sums = [sum(row) for row in table]
    factor = {
        "symmetric": lambda i, j: 1 / math.sqrt(sums[i] * sums[j]),
        "after": lambda i, j: 1 / sums[i],
        "before": lambda i, j: 1 / sums[j],
        "none": lambda i, j: 1.0,
    }[how]
    return [[value * factor(i, j) for j, value in enumerate(row)] for i, row in enumerate(table)]


def softmax(logits):
    top = max(logits)
    parts = [math.exp(value - top) for value in logits]
    return [part / sum(parts) for part in parts]


def potts(classes):
    return [[float(k != other) for other in range(classes)] for k in range(classes)]


def mean_field(unary, tables, weights, compatibility, iterations):
    """q[i][k] from unary[i][k], one table per kernel, weights[m][k] and compatibility[k][l]."""
    pixels, classes = range(len(unary)), range(len(unary[0]))
    q = [softmax(row) for row in unary]
    for _ in range(iterations):
        updated = []
        for i in pixels:
            message = [
                sum(w[c] * sum(t[i][j] * q[j][c] for j in pixels) for t, w in zip(tables, weights, strict=True))
                for c in classes
            ]
            logits = [unary[i][k] - sum(compatibility[k][c] * message[c] for c in classes) for k in classes]
            updated.append(softmax(logits))
        q = updated
    return q


def score(unary, tables, weights, compatibility, labels):
    """log P(y) + log Z: each unordered pair once, with the symmetric part of its table."""
    total = sum(unary[i][label] for i, label in enumerate(labels))
    for (i, a), (j, b) in itertools.combinations(enumerate(labels), 2):
        for table, w in zip(tables, weights, strict=True):
            cost = 0.5 * (compatibility[a][b] * w[b] + compatibility[b][a] * w[a])
            total -= 0.5 * (table[i][j] + table[j][i]) * cost
    return total


def log_z(unary, tables, weights, compatibility):
    states = itertools.product(range(len(unary[0])), repeat=len(unary))
    scores = [score(unary, tables, weights, compatibility, labels) for labels in states]
    return max(scores) + math.log(sum(math.exp(value - max(scores)) for value in scores))


def bound(unary, tables, weights, compatibility, q):
    """E_q[score] + H(q) by listing every joint state."""
    total = -sum(p * math.log(p) for row in q for p in row)
    for labels in itertools.product(range(len(unary[0])), repeat=len(unary)):
        probability = math.prod(q[i][label] for i, label in enumerate(labels))
        total += probability * score(unary, tables, weights, compatibility, labels)
    return total


@pytest.fixture(scope="session")
def naive():
    return SimpleNamespace(
        kernel_table=kernel_table, normalised=normalised, potts=potts, mean_field=mean_field, log_z=log_z, bound=bound
    )


@pytest.fixture(scope="session")
def photograph():
    """Draws an image (3, H, W) with regions of different colour and some noise, in 0..1."""

    def draw(seed, height, width, noise=0.03):
        generator = torch.Generator().manual_seed(seed)
        colours = torch.rand(4, 3, generator=generator, dtype=torch.float64)
        rows, columns = torch.arange(height)[:, None], torch.arange(width)
        region = 2 * (rows > height // 2) + (columns + rows // 2 > width // 2)
        image = colours[region].permute(2, 0, 1)
        return (image + noise * torch.randn(image.shape, generator=generator, dtype=torch.float64)).clamp(0, 1)

    return draw


@pytest.fixture(scope="session")
def published():
    path = Path(__file__).resolve().parents[3].parent / "shared" / "fixtures" / "pydensecrf"
    file = path / "synthetic_32x40_K5.npz"
    if not file.exists():
        pytest.skip("the reference files are not beside the checkout")
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
