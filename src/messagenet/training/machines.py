"""Inference machines trained as Ross et al. (CVPR 2011) train them: predictors fitted one after another, no gradient
through the iterations.

The features do not change, so they are computed once. A run with the gradient loop sees steps × batch_size images;
here as many are looked at, or all of them if there are fewer, up to a limit that keeps the collected nodes in memory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import torch

from messagenet.data import SegmentationData, Subset, collate
from messagenet.errors import InputError
from messagenet.learning import node_labels
from messagenet.models import InferenceMachineNet
from messagenet.models.machine_training import Fit, NodeBatch, train_dagger, train_forward
from messagenet.models.segmentation_net import map_size
from messagenet.training.batches import Plan
from messagenet.training.build import build_network
from messagenet.training.config import LossConfig, TrainConfig
from messagenet.training.progress import TrainResult

LIMIT = 200
FIT = Fit(steps=100, nodes_per_image=64)


def train_machine(
    config: TrainConfig,
    folder: Path,
    method: Literal["forward", "dagger"],
    train: SegmentationData,
    held_out: SegmentationData,
    *,
    limit: int = LIMIT,
    rounds: int = 5,
    fit: Fit = FIT,
) -> TrainResult:
    """Fits an inference machine and saves it in `folder`/last.

    Args:
        config: Its model, loss and budget.
        folder: Where to save it.
        method: "forward", for an untied machine, or "dagger", for a tied one.
        train: What to learn from.
        held_out: What DAgger chooses its best round by.
        limit: Images to look at, at most.
        rounds: Of DAgger.
        fit: How predictors are fitted.
    """
    started = time.perf_counter()
    net = build_network(config.model, train.classes, config.run.seed, config.data.void_values).net
    if not isinstance(net, InferenceMachineNet):
        raise InputError(f"{method} training is for an inference machine; set model.kind=inference_machine")
    steps = Plan.of(config.run, len(train), 1).total_steps
    seen = min(limit, len(train), steps * config.run.batch_size)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.run.seed))
    batches = node_batches(net, Subset(train, order[:seen].tolist()), config.loss)
    if method == "forward":
        train_forward(net.head, batches, fit)
    else:
        judges = node_batches(net, held_out, config.loss)
        train_dagger(net.head, batches, rounds=rounds, held_out=judges, fit=fit)
    net.save(folder / "last")
    return TrainResult(folder, 0, None, None, time.perf_counter() - started, interrupted=False)


@torch.no_grad()
def node_batches(net: InferenceMachineNet, data: SegmentationData, loss: LossConfig) -> list[NodeBatch]:
    """Features and labels of the nodes, one image at a time."""
    net.eval()
    batches = []
    for sample in data:
        batch = collate([sample])
        if batch.masks is None:
            raise InputError(f"{sample.name} has no mask to learn from; use a split with masks")
        features = net.features(batch.images.to(net.device))
        assert isinstance(features, torch.Tensor), "a machine has one feature map"
        labels = node_labels(
            batch.masks.to(net.device), map_size(features), net.feature_stride, loss.cell_label
        )
        batches.append(NodeBatch(features, labels))
    return batches
