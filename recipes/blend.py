"""Blends the backbone of a trained model with the weights that it started from (Wortsman et al., arXiv 2109.01903).

python recipes/blend.py runs/animals/last 0.8 runs/animals/blended

Fine-tuning on a few thousand images forgets some of what ImageNet taught; the blend, whose share of fine-tuned weights
is the number, has some of it back.
"""

from __future__ import annotations

import sys

import torch

from messagenet.models import SegmentationNet
from messagenet.models.backbones import build_backbone, load_pretrained


@torch.no_grad()
def main(model: str, share: str, folder: str) -> None:
    """Reads a model, blends, and writes the result as a model."""
    net = SegmentationNet.from_pretrained(model)
    name = net.settings["backbone"]
    first = build_backbone(name, **net.settings["backbone_options"])
    random = load_pretrained(first, name, "package")
    published = dict(first.named_parameters())
    for key, values in net.backbones["shared"].named_parameters():
        if key not in random:
            values.lerp_(published[key], 1 - float(share))
    print(net.save(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
