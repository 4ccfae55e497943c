"""Interpolates the backbone of a trained model with its pretrained weights (Wortsman et al., arXiv 2109.01903).

    θ = share · θ_fine-tuned + (1 − share) · θ_pretrained

    python recipes/blend.py runs/animals/last 0.8 runs/animals/blended

Fine-tuning on a few thousand images forgets some of what ImageNet taught; the interpolation recovers part of it. With
--quick alone, blends the bundled model into a temporary folder.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch

from messagenet.models import SegmentationModel
from messagenet.models.backbones import load_pretrained
from messagenet.settings import build


@torch.no_grad()
def main(source: str, share: str, folder: str) -> None:
    """Reads a model, interpolates, and writes the result as a model."""
    model = SegmentationModel.from_pretrained(source)
    backbone = build("backbone", model.config["backbone"])
    random = load_pretrained(backbone, "package")
    pretrained = dict(backbone.named_parameters())
    tuned = {key: w for key, w in model.backbones["shared"].named_parameters() if key not in random}
    for key, weights in tuned.items():
        weights.lerp_(pretrained[key], 1 - float(share))
    print(model.save(folder))
    print(json.dumps({"share": float(share), "blended_tensors": len(tuned), "other_tensors": len(random)}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        with tempfile.TemporaryDirectory() as folder:
            main("voc-animals", "0.8", f"{folder}/blended")
    else:
        main(*sys.argv[1:])
