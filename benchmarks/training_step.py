"""A training step on photos on a CPU: with our kernels and fused frozen stages, and with PyTorch's own operators.

EfficientNet-Lite2 at stride 32, nodes 8 pixels apart, two frozen stages, box messages at three ranges: the bundled
model's network. Forward, loss at the pixels, backward; in float32, and in bf16 where the processor has instructions.
Then the two kernels alone: the gradient of a 5×5 depthwise kernel, and sums over a box with their gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch.nn import functional

from common import QUICK, finish, seconds, start
from messagenet import surrounding
from messagenet.losses import marginal_cross_entropy
from messagenet.message_passing import use_backend
from messagenet.message_passing.fused_sum import box_sum
from messagenet.models import SegmentationModel
from messagenet.models.backbones import efficientnet_lite, has_bf16_instructions

SIDE, BATCH, CHANNELS, NODES = (64, 2, 16, 8) if QUICK else (320, 8, 720, 20)


@contextmanager
def plain_operators(model: SegmentationModel) -> Iterator[None]:
    """PyTorch's operators for depthwise gradients, frozen stages and box sums."""
    backbone = model.backbones["shared"]
    frozen, backbone.frozen = backbone.frozen, []
    with patch.object(efficientnet_lite, "_trains_on_cpu", return_value=False), use_backend("loop"):
        yield
    backbone.frozen = frozen


def training_step(model: SegmentationModel, plain: bool, bf16: bool) -> Callable[[], None]:
    """Returns a function that takes a step."""
    images, target = torch.rand(BATCH, 3, SIDE, SIDE), torch.randint(0, 21, (BATCH, SIDE, SIDE))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with plain_operators(model) if plain else nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = model(images)
            loss = marginal_cross_entropy(logits, target, model.output_stride, resolution="pixels")
            loss.mean.backward()

    return step


def kernel_gradients() -> dict[str, Callable[[], object]]:
    """Both gradients of a 5×5 depthwise kernel."""
    maps = torch.randn(BATCH, CHANNELS, NODES, NODES).contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(CHANNELS, 1, 5, 5)
    grad = torch.randn_like(functional.conv2d(maps, kernel, None, 1, 2, groups=CHANNELS))
    settings = None, [1, 1], [2, 2], [1, 1], False, [0, 0], CHANNELS, [False, True, False]
    return {
        "ours": lambda: efficientnet_lite.kernel_gradient(grad, maps, 1, 2),
        "torch": lambda: torch.ops.aten.convolution_backward(grad, maps, kernel, *settings),
    }


def box_sums() -> dict[str, Callable[[], object]]:
    """Sums over a box and their gradient, with the kernel and by running totals."""
    values = torch.randn(BATCH, 2 * NODES, 2 * NODES, 64, requires_grad=True)
    offsets = surrounding(0.8).offsets_on(2 * NODES, 2 * NODES)

    def run(backend: str) -> object:
        with use_backend(backend):
            total = box_sum(values, offsets)
            return torch.autograd.grad(total, values, torch.ones_like(total))

    return {"ours": lambda: run("numba"), "torch": lambda: run("loop")}


def main() -> None:
    start(__doc__)
    torch.manual_seed(0)
    spec = {"kind": "efficientnet_lite2", "width": 128, "output_stride": 32, "node_stride": 8}
    spec |= {"frozen_norm": True, "frozen_stages": 2}
    boxes = ("surrounding:9cells:box", "surrounding:0.8:box", "surrounding:2.0:box", "above:0.8:box", "below:0.8:box")
    relations = [f"{name}={box}" for name, box in zip("abcde", boxes, strict=True)]
    head = {"kind": "message", "hidden": 64, "relations": relations}
    model = SegmentationModel(spec, 21, head, neck={"kind": "separable", "filters": 3}).train()
    precisions = {"float32": False} | ({"bf16": True} if has_bf16_instructions() else {})
    steps = {
        f"{name}, {kind}": training_step(model, kind == "plain", bf16)
        for name, bf16 in precisions.items()
        for kind in ("ours", "plain")
    }
    times = seconds(steps, turns=8, budget=120)
    for name, value in times.items():
        print(f"training step, {BATCH} images of {SIDE}×{SIDE}, {name}: {1e3 * value / BATCH:.0f} ms an image")
    ratios = {name: times[f"{name}, plain"] / times[f"{name}, ours"] for name in precisions}
    kernel, box = seconds(kernel_gradients(), turns=20), seconds(box_sums(), turns=20)
    print(
        f"gradient of {CHANNELS} depthwise kernels: {1e3 * kernel['ours']:.1f} ms, torch {1e3 * kernel['torch']:.1f} ms"
    )
    print(f"box sums and their gradient: {1e3 * box['ours']:.1f} ms, torch {1e3 * box['torch']:.1f} ms")
    finish(
        step_vs_plain=ratios["float32"],
        bf16_step_vs_plain=ratios.get("bf16", math.nan),
        kernel_gradient_vs_torch=kernel["torch"] / kernel["ours"],
        box_sum_vs_running_totals=box["torch"] / box["ours"],
    )


if __name__ == "__main__":
    main()
