"""The cost of message passing in a training step, and how it grows with the number of classes.

MessageNet(efficientnet_lite0), T = 1, the paper's three relations, against UnaryNet with the same backbone, on
a 384×384 image: forward, loss and backward. Then the head alone at K = 21 and K = 150.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from common import QUICK, finish, seconds, start
from messagenet import MessagePassing
from messagenet.graph.relations import PAPER_RELATIONS
from messagenet.losses import marginal_cross_entropy
from messagenet.models import MessageNet, SegmentationModel, UnaryNet

SIDE, BATCH = (96 if QUICK else 384), 2


def training_step(model: SegmentationModel, images: torch.Tensor, masks: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        marginal_cross_entropy(model(images), masks, model.output_stride).mean.backward()

    return step


def head_step(num_classes: int, features: torch.Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    head = MessagePassing(features.shape[1], num_classes, PAPER_RELATIONS, hidden=256)
    masks = torch.randint(0, num_classes, (BATCH, *features.shape[2:]))

    def step() -> None:
        head.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(head(features), masks).backward()

    return step


def main() -> None:
    start(__doc__)
    torch.manual_seed(0)
    images, masks = torch.rand(BATCH, 3, SIDE, SIDE), torch.randint(0, 21, (BATCH, SIDE, SIDE))
    steps = {
        name: training_step(kind("efficientnet_lite0", 21).train(), images, masks)
        for name, kind in (("messages", MessageNet), ("unary", UnaryNet))
    }
    whole = seconds(steps, turns=15, budget=120)
    features = torch.randn(BATCH, 256, SIDE // 16, SIDE // 16)
    heads = seconds({f"K={k}": head_step(k, features) for k in (21, 150)}, turns=20)
    for title, times in ((f"training step, batch {BATCH}, {SIDE}×{SIDE}", whole), ("head alone", heads)):
        print(f"{title}, forward + backward: " + ", ".join(f"{n} {1e3 * s:.1f} ms" for n, s in times.items()))
    finish(train_step_vs_unary=whole["messages"] / whole["unary"], k150_vs_k21=heads["K=150"] / heads["K=21"])


if __name__ == "__main__":
    main()
