"""Inference machines trained as Ross et al. (CVPR 2011) train them: predictors fitted one after another, no gradient
through the iterations.

The features do not change, so they are computed once. A run with the gradient loop sees steps × batch_size images;
here as many are looked at, or all of them if there are fewer, up to a limit that keeps the collected nodes in memory.

Two ways to train an inference machine without differentiating through it (Ross et al., CVPR 2011).

A predictor should give the true label from whatever it is told. What it is told depends on the predictors:

    forward   one predictor per iteration; each is fitted to what those before it produce
    DAgger    one predictor for all; in every round the machine runs with the predictor of the round before, all that
              was said is added to what earlier rounds have collected, and a new predictor is fitted to everything
              (Ross, Gordon & Bagnell, AISTATS 2011). In the first round the neighbours tell the truth.

Fitting is a convex problem, solved to the end: with M collected rows,

    min_{W, U, b}  1/M Σ −log softmax(…)[ŷ]  +  ridge/2 (‖W‖² + ‖U‖²).

A node gives one row for each thing that it is asked: what to tell each neighbour or, in the last iteration, what
it believes. Nodes without a label give none, and their neighbours hear from them as from all others.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional

from messagenet.data import SegmentationData, Subset, collate, distinct
from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.geometry import node_labels
from messagenet.losses.cross_entropy import cross_entropy_total
from messagenet.models import InferenceMachineNet
from messagenet.models.base import known, map_size
from messagenet.models.inference_machine import InferenceMachine, LogisticPredictor
from messagenet.training.batches import Plan
from messagenet.training.build import DataSets, build_network
from messagenet.training.checkpoint import Layout
from messagenet.training.config import LossConfig, TrainConfig, save_config
from messagenet.training.progress import Progress, RunInfo, RunLog, TrainResult
from messagenet.training.validate import Validation, score_record

_CHUNK = 65536  # nodes that are classified at a time


class NodeBatch(NamedTuple):
    """Maps to learn from.

    Attributes:
        features: (B, r, h, w).
        labels: Classes of the nodes and 255 for void, (B, h, w).
        valid: Which nodes exist, (B, h, w); None if all do.
    """

    features: Tensor
    labels: Tensor
    valid: Tensor | None = None


@dataclass(frozen=True)
class Fit:
    """How predictors are fitted.

    Attributes:
        ridge: Pull of the weights towards zero.
        steps: At most so many steps of L-BFGS.
        nodes_per_image: Nodes that are collected from an image at a time, at most.
        seed: Which ones.
    """

    ridge: float = 1e-4
    steps: int = 200
    nodes_per_image: int = 256
    seed: int = 0


class Samples(NamedTuple):
    """Collected nodes.

    Attributes:
        own: Their features, (M, r).
        told: What they were told, less 1/K, (M, n, K).
        asked: Whether they have to tell each neighbour something, and in the last column their belief, (M, n + 1).
        truth: Their labels, (M,).
    """

    own: Tensor
    told: Tensor
    asked: Tensor
    truth: Tensor


def train_forward(
    machine: InferenceMachine, batches: Iterable[NodeBatch], fit: Fit | None = None
) -> list[float]:
    """Fits the predictors one after the other; returns the objective of each.

    Args:
        machine: The machine, untied.
        batches: What to learn from; gone through once for every iteration of the machine.
        fit: How predictors are fitted.
    """
    if machine.tied and machine.iterations > 1:
        raise InputError(
            "forward training fits one predictor per iteration; build the machine with tied=False"
        )
    _check_repeatable(batches)
    fit = fit or Fit()
    generator = torch.Generator().manual_seed(fit.seed)
    objectives = []
    for step in range(machine.iterations):
        collected = []
        for batch in batches:
            own, told = _conversation(machine, batch, step)
            collected.append(_collected(machine, step, own, told[step], batch, fit, generator))
        objectives.append(fit_predictor(machine.predictor(step), collected, fit))
    return objectives


def train_dagger(
    machine: InferenceMachine,
    batches: Iterable[NodeBatch],
    *,
    rounds: int = 5,
    held_out: Iterable[NodeBatch] | None = None,
    fit: Fit | None = None,
) -> list[float]:
    """Fits one predictor to ever more of what it is told; keeps the best round's, and returns the loss of each.

    Args:
        machine: The machine, tied.
        batches: What to learn from; gone through once a round.
        rounds: How often to collect and fit.
        held_out: What to choose the best round by; the training batches unless told.
        fit: How predictors are fitted.
    """
    if not machine.tied:
        raise InputError("DAgger fits one predictor for all iterations; build the machine with tied=True")
    if rounds < 1:
        raise InputError(f"rounds is {rounds}; give at least 1")
    judges = batches if held_out is None else held_out
    _check_repeatable(batches)
    _check_repeatable(judges)
    fit = fit or Fit()
    generator = torch.Generator().manual_seed(fit.seed)
    collected: list[Samples] = []
    losses: list[float] = []
    best = copy.deepcopy(machine.state_dict())
    for number in range(rounds):
        for batch in batches:
            own, told = _conversation(machine, batch, machine.iterations - 1, truthful=number == 0)
            collected += [
                _collected(machine, step, own, heard, batch, fit, generator)
                for step, heard in enumerate(told)
            ]
        fit_predictor(machine.predictor(0), collected, fit)
        losses.append(mean_loss(machine, judges))
        if losses[-1] == min(losses):
            best = copy.deepcopy(machine.state_dict())
    machine.load_state_dict(best)
    return losses


@torch.no_grad()
def mean_loss(machine: InferenceMachine, batches: Iterable[NodeBatch]) -> float:
    """The mean cross-entropy of the machine's beliefs over the labelled nodes of some batches."""
    losses = [machine.loss(*batch) for batch in batches]
    return float(sum(loss.total for loss in losses) / max(1, sum(int(loss.nodes) for loss in losses)))


def fit_predictor(predictor: LogisticPredictor, collected: Sequence[Samples], fit: Fit) -> float:
    """Finds the predictor of least regularised cross-entropy; returns that.

    Args:
        predictor: Where to start from, and where the result goes.
        collected: What it is told, and what it should say.
        fit: Regularisation and effort.
    """
    rows = max(1, sum(int(samples.asked.sum()) for samples in collected))
    everything = [torch.cat(parts).split(_CHUNK) for parts in zip(*collected, strict=True)]
    chunks = [Samples(*parts) for parts in zip(*everything, strict=True)]
    weights = [parameter for parameter in predictor.parameters() if parameter.ndim > 1]
    optimiser = torch.optim.LBFGS(
        predictor.parameters(),
        max_iter=fit.steps,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def objective() -> float:
        optimiser.zero_grad()
        penalty = fit.ridge / 2 * torch.stack([weight.square().sum() for weight in weights]).sum()
        penalty.backward()
        value = penalty.detach()
        for samples in chunks:
            loss = _error(predictor, samples) / rows
            loss.backward()
            value = value + loss.detach()
        return float(value)

    with torch.enable_grad():
        optimiser.step(objective)
        return objective()


def _error(predictor: LogisticPredictor, samples: Samples) -> Tensor:
    """The summed cross-entropy of everything that the nodes were asked."""
    belief = predictor.belief(samples.own, samples.told).unsqueeze(-2)
    answers = torch.cat([predictor.replies(samples.own, samples.told), belief], -2)  # (M, n + 1, K)
    truth = torch.where(samples.asked, samples.truth[:, None], VOID)
    return cross_entropy_total(answers, truth).total


@torch.no_grad()
def _conversation(
    machine: InferenceMachine, batch: NodeBatch, last: int, truthful: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """x_p, and what the nodes have been told before each of the iterations 0 … last.

    Args:
        machine: Who speaks.
        batch: About what.
        last: Where to stop.
        truthful: Whether nodes send their label instead of what their predictor says.
    """
    own = machine.own_features(batch.features, batch.valid)
    told = [machine.silence(own)]
    for step in range(last):
        told.append(
            _truthful(machine, batch) if truthful else machine.exchanged(step, own, told[-1], batch.valid)
        )
    return own, told


def _truthful(machine: InferenceMachine, batch: NodeBatch) -> Tensor:
    """Messages of neighbours who know their label, less 1/K; a neighbour without one sends the uniform message."""
    labels = known(batch.labels, batch.valid)
    certain = functional.one_hot(torch.where(labels != VOID, labels, 0), machine.num_classes)
    sent = certain.to(batch.features.dtype) - 1 / machine.num_classes
    sent = torch.where((labels != VOID)[..., None], sent, 0)
    return torch.stack([machine.arriving(sent, offset) for offset in machine.offsets], -2)


@torch.no_grad()
def _collected(
    machine: InferenceMachine,
    step: int,
    own: Tensor,
    told: Tensor,
    batch: NodeBatch,
    fit: Fit,
    generator: torch.Generator,
) -> Samples:
    """A random choice of a batch's labelled nodes, with what they are told and asked in an iteration."""
    labels = known(batch.labels, batch.valid).flatten()
    asked = _asked(machine, step, own, batch.valid).flatten(0, 2)
    chosen = (labels != VOID).nonzero().flatten()
    order = torch.randperm(len(chosen), generator=generator)[: fit.nodes_per_image * len(batch.labels)]
    chosen = chosen[order.to(chosen.device)]
    return Samples(own.flatten(0, 2)[chosen], told.flatten(0, 2)[chosen], asked[chosen], labels[chosen])


def _asked(machine: InferenceMachine, step: int, own: Tensor, valid: Tensor | None) -> Tensor:
    """Which neighbours a node has to tell something, and whether its belief is wanted, (B, h, w, n + 1)."""
    ones = own.new_ones(*own.shape[:3], 1)
    last = step + 1 == machine.iterations
    replies = [
        torch.zeros_like(ones) if last or place is None else machine.arriving(ones, offset, valid)
        for offset, place in zip(machine.offsets, machine.reverse, strict=True)
    ]
    belief = ones if last or None in machine.reverse else torch.zeros_like(ones)
    return torch.cat([*replies, belief], -1) > 0


def _check_repeatable(batches: Iterable[NodeBatch]) -> None:
    if isinstance(batches, Iterator):
        raise InputError("the batches can be gone through only once; give a list or a data loader")


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
