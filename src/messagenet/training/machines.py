"""Inference machines trained as Ross et al. (CVPR 2011) train them: predictors fitted one after another, no gradient
through the iterations.

The features do not change, so they are computed once. A run with the gradient loop sees steps × batch_size images;
here as many are looked at, or all of them if there are fewer, up to a limit that keeps the collected nodes in memory.
"""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

from messagenet.data import SegmentationData, Subset, collate, distinct
from messagenet.errors import InputError
from messagenet.learning import node_labels
from messagenet.models import InferenceMachineNet
from messagenet.models.machine_training import Fit, NodeBatch, train_dagger, train_forward
from messagenet.models.segmentation_net import map_size
from messagenet.training.batches import Plan
from messagenet.training.build import DataSets, build_network
from messagenet.training.config import LossConfig, TrainConfig
from messagenet.training.config_files import save_config
from messagenet.training.log import RunLog
from messagenet.training.progress import Progress, RunInfo, TrainResult
from messagenet.training.resume import Layout
from messagenet.training.validate import Validation, score_record

LIMIT = 200
HELD_OUT = 10
FIT = Fit(steps=100, nodes_per_image=64)


def fit_machine(
    config: TrainConfig,
    layout: Layout,
    accelerator: Accelerator,
    data: DataSets,
    progress: Progress,
    *,
    rounds: int = 5,
    fit: Fit = FIT,
) -> TrainResult:
    """Fits an inference machine and writes what a run of the loop writes, checkpoints apart: it begins anew.

    Args:
        config: Its model, loss, budget and method: "forward", for an untied machine, or "dagger", for a tied one.
        layout: Where to write.
        accelerator: The process.
        data: What to learn from; every tenth image is held out, for DAgger to choose its best round by.
        progress: What to tell.
        rounds: Of DAgger.
        fit: How predictors are fitted.
    """
    started = time.perf_counter()
    if accelerator.num_processes > 1:
        raise InputError(f"{config.run.method} training is for one process; start it without torchrun")
    net = build_network(config.model, data.train.classes, config.run.seed, config.data.void_values).net
    assert isinstance(net, InferenceMachineNet), "refused by the configuration"
    net.to(accelerator.device)
    save_config(config, layout.config)
    images = Subset(data.train, distinct(data.train))
    chosen = _chosen(config, len(images))
    progress.start(_info(config, layout, accelerator, data, net, len(chosen)))
    seen = node_batches(net, Subset(images, chosen), config.loss)
    judges, batches = seen[::HELD_OUT], [batch for n, batch in enumerate(seen) if n % HELD_OUT]
    if config.run.method == "forward":
        train_forward(net.head, batches, fit)
    else:
        train_dagger(net.head, batches, rounds=rounds, held_out=judges, fit=fit)
    progress.step(1, None)
    iou = _scored(net, data, accelerator, layout, progress)
    net.save(layout.last)
    net.save(layout.best)
    result = TrainResult(layout.folder, 1, iou, iou, time.perf_counter() - started, interrupted=False)
    progress.finished(result)
    return result


def _chosen(config: TrainConfig, images: int) -> list[int]:
    """Which images to look at: as many as a run with the gradient loop would see, at most `LIMIT`, at least two."""
    steps = Plan.of(config.run, images, 1).total_steps
    order = torch.randperm(images, generator=torch.Generator().manual_seed(config.run.seed))
    chosen: list[int] = order[: max(2, min(LIMIT, steps * config.run.batch_size))].tolist()
    if len(chosen) < 2:
        raise InputError("fitting a machine needs at least two images, one of them held out; give more")
    return chosen


def _info(
    config: TrainConfig,
    layout: Layout,
    accelerator: Accelerator,
    data: DataSets,
    net: InferenceMachineNet,
    images: int,
) -> RunInfo:
    return RunInfo(
        layout.folder,
        0,
        1,
        1,
        images,
        0 if data.val is None else len(data.val),
        sum(parameter.numel() for parameter in net.head.parameters()),
        str(accelerator.device),
        1,
        None,
    )


def _scored(
    net: InferenceMachineNet, data: DataSets, accelerator: Accelerator, layout: Layout, progress: Progress
) -> float | None:
    """The mean IoU on the images to score, written down; None if there are none."""
    if data.val is None:
        return None
    confusion = Validation(data.val, accelerator, 0).score(net)
    record = {"step": 1, "epoch": 1.0, **score_record(confusion, data.train.classes.names)}
    log = RunLog(layout.folder, 0)
    log.write(record)
    log.close()
    progress.evaluated(record)
    mean: float = record["mean_iou"]
    return mean


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
