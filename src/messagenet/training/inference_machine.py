"""Inference machines trained without differentiating through the iterations (Ross et al., CVPR 2011).

    forward   one predictor per iteration; each is fitted to the messages that those before it produce
    DAgger    one predictor for all; every round runs the machine with the predictor of the round before, adds all
              messages to those of earlier rounds, and fits a new predictor to everything (Ross, Gordon & Bagnell,
              AISTATS 2011). In the first round the neighbours send their labels (teacher forcing).

A predictor maps received messages to the target label. Its fit is a convex problem, solved to convergence: with M rows,

    min_{W, U, b}  1/M Σ −log softmax(…)[ŷ]  +  ridge/2 (‖W‖² + ‖U‖²).

A labelled node gives one row for each output wanted of it: the reply to each neighbour or, in the last iteration, its
belief. Unlabelled nodes give none, but send messages. Features are constant and computed once. A run looks at as many
images as the gradient loop would see (steps × images per step), up to a limit that keeps the collected nodes in memory.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from messagenet.data import Augment, SegmentationData, Subset, collate, generator, unique_indices
from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.geometry import CellLabel, map_size, node_targets
from messagenet.losses.cross_entropy import batch_features, cross_entropy_sum, sum_losses
from messagenet.models import SegmentationModel
from messagenet.models.base import ignore_padding
from messagenet.models.inference_machine import InferenceMachine, LogisticPredictor
from messagenet.settings import at_least, register
from messagenet.training.batches import Plan
from messagenet.training.build import build_model
from messagenet.training.config import TrainConfig, save_config
from messagenet.training.loop import TrainMethod
from messagenet.training.progress import RunInfo, RunLog, TrainResult
from messagenet.training.validate import Validation, score_record

_CHUNK = 65536  # nodes that are classified at a time


class NodeBatch(NamedTuple):
    """Maps to learn from."""

    features: Tensor  # (B, r, h, w)
    labels: Tensor  # (B, h, w), 255 for void
    mask: Tensor | None = None  # (B, h, w), which nodes exist; None if all do


@dataclass(frozen=True)
class PredictorFit:
    """How predictors are fitted."""

    ridge: float = 1e-4  # weight of the squared norm of the weights
    steps: int = 200  # at most, of L-BFGS
    nodes_per_image: int = 256  # at most, collected at random from an image at a time
    seed: int = 0


class Samples(NamedTuple):
    """M collected nodes."""

    own: Tensor  # features, (M, r)
    incoming: Tensor  # messages that they receive, less 1/K, (M, n, K)
    wanted: Tensor  # which replies are wanted of them and, in the last column, whether their belief is, (M, n + 1)
    target: Tensor  # labels, (M,)


def train_forward(
    machine: InferenceMachine, batches: Iterable[NodeBatch], fit: PredictorFit | None = None
) -> list[float]:
    """Fits the predictors of an untied machine one after the other; returns the objective of each."""
    if machine.tied and machine.iterations > 1:
        raise InputError("forward training fits one predictor per iteration; build the machine with tied=False")
    _check_repeatable(batches)
    fit = fit or PredictorFit()
    generator = torch.Generator().manual_seed(fit.seed)
    objectives = []
    for step in range(machine.iterations):
        collected = []
        for batch in batches:
            own, incoming = _rollout(machine, batch, step)
            collected.append(_collect(machine, step, own, incoming[step], batch, fit, generator))
        objectives.append(fit_predictor(machine.predictor(step), collected, fit))
    return objectives


def train_dagger(
    machine: InferenceMachine,
    batches: Iterable[NodeBatch],
    *,
    rounds: int = 5,
    held_out: Iterable[NodeBatch] | None = None,
    fit: PredictorFit | None = None,
) -> list[float]:
    """Fits a tied predictor to the messages of all rounds; keeps the best on `held_out`, returns every round's loss."""
    if not machine.tied:
        raise InputError("DAgger fits one predictor for all iterations; build the machine with tied=True")
    at_least(1, rounds=rounds)
    held_out = batches if held_out is None else held_out
    _check_repeatable(batches)
    _check_repeatable(held_out)
    fit = fit or PredictorFit()
    generator = torch.Generator().manual_seed(fit.seed)
    collected: list[Samples] = []
    losses: list[float] = []
    best = copy.deepcopy(machine.state_dict())
    for index in range(rounds):
        for batch in batches:
            own, incoming = _rollout(machine, batch, machine.iterations - 1, teacher_forced=index == 0)
            collected += [
                _collect(machine, step, own, messages, batch, fit, generator) for step, messages in enumerate(incoming)
            ]
        fit_predictor(machine.predictor(0), collected, fit)
        losses.append(mean_loss(machine, held_out))
        if losses[-1] == min(losses):
            best = copy.deepcopy(machine.state_dict())
    machine.load_state_dict(best)
    return losses


@torch.no_grad()
def mean_loss(machine: InferenceMachine, batches: Iterable[NodeBatch]) -> float:
    """The mean cross-entropy of the machine's beliefs over all labelled nodes."""
    loss = sum_losses(
        cross_entropy_sum(
            machine(batch.features, batch.mask).permute(0, 2, 3, 1), ignore_padding(batch.labels, batch.mask)
        )
        for batch in batches
    )
    return float(loss.mean)


def fit_predictor(predictor: LogisticPredictor, collected: Sequence[Samples], fit: PredictorFit) -> float:
    """Minimises the regularised cross-entropy of a predictor, from its present weights; returns the minimum."""
    rows = max(1, sum(int(samples.wanted.sum()) for samples in collected))
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
    belief = predictor.belief(samples.own, samples.incoming).unsqueeze(-2)
    outputs = torch.cat([predictor.replies(samples.own, samples.incoming), belief], -2)  # (M, n + 1, K)
    target = torch.where(samples.wanted, samples.target[:, None], VOID)
    return cross_entropy_sum(outputs, target).total


@torch.no_grad()
def _rollout(
    machine: InferenceMachine, batch: NodeBatch, last: int, teacher_forced: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """x_p, and the messages received before each of the iterations 0 … last; teacher-forced nodes send their label."""
    own = machine.own_features(batch.features, batch.mask)
    incoming = [machine.initial_messages(own)]
    for step in range(last):
        incoming.append(
            _label_messages(machine, batch) if teacher_forced else machine.exchange(step, own, incoming[-1], batch.mask)
        )
    return own, incoming


def _label_messages(machine: InferenceMachine, batch: NodeBatch) -> Tensor:
    """Messages of neighbours that send their label, less 1/K; one without a label sends the uniform message."""
    labels = ignore_padding(batch.labels, batch.mask)
    certain = functional.one_hot(torch.where(labels != VOID, labels, 0), machine.num_classes)
    sent = certain.to(batch.features.dtype) - 1 / machine.num_classes
    sent = torch.where((labels != VOID)[..., None], sent, 0)
    return torch.stack([machine.receive(sent, offset) for offset in machine.offsets], -2)


@torch.no_grad()
def _collect(
    machine: InferenceMachine,
    step: int,
    own: Tensor,
    incoming: Tensor,
    batch: NodeBatch,
    fit: PredictorFit,
    generator: torch.Generator,
) -> Samples:
    labels = ignore_padding(batch.labels, batch.mask).flatten()
    wanted = _wanted_outputs(machine, step, own, batch.mask).flatten(0, 2)
    chosen = (labels != VOID).nonzero().flatten()
    order = torch.randperm(len(chosen), generator=generator)[: fit.nodes_per_image * len(batch.labels)]
    chosen = chosen[order.to(chosen.device)]
    return Samples(own.flatten(0, 2)[chosen], incoming.flatten(0, 2)[chosen], wanted[chosen], labels[chosen])


def _wanted_outputs(machine: InferenceMachine, step: int, own: Tensor, mask: Tensor | None) -> Tensor:
    """Which replies to neighbours are wanted of a node, and whether its belief is, (B, h, w, n + 1)."""
    ones = own.new_ones(*own.shape[:3], 1)
    last = step + 1 == machine.iterations
    replies = [
        torch.zeros_like(ones) if last or index is None else machine.receive(ones, offset, mask)
        for offset, index in zip(machine.offsets, machine.reverse, strict=True)
    ]
    belief = ones if last or None in machine.reverse else torch.zeros_like(ones)
    return torch.cat([*replies, belief], -1) > 0


def _check_repeatable(batches: Iterable[NodeBatch]) -> None:
    if isinstance(batches, Iterator):
        raise InputError("the batches can be gone through only once; give a list or a data loader")


MAX_IMAGES = 200
HELD_OUT = 10
FIT = PredictorFit(steps=100, nodes_per_image=64)


class MachineTraining(TrainMethod):
    """Fits a machine and writes what the loop writes, except checkpoints; every tenth image is held out for DAgger."""

    uses = (
        *("model", "data", "augment.longest_side", "loss.cell_label"),
        *(f"run.{name}" for name in ("method", "epochs", "steps", "batch_size", "accumulate", "workers", "seed")),
    )

    def go(self) -> TrainResult:
        """Fits the machine."""
        started = time.perf_counter()
        config, data, accelerator, folder = self.config, self.data, self.accelerator, self.folder
        if accelerator.num_processes > 1:
            raise InputError(f"{config.run.method} training is for one process; start it without torchrun")
        model = build_model(config, data.train.classes).model.to(accelerator.device)
        save_config(config, folder.config)
        images = Subset(data.train, unique_indices(data.train))
        chosen = _choose_images(config, len(images))
        val = 0 if data.val is None else len(data.val)
        parameters = sum(parameter.numel() for parameter in model.head.parameters())
        sizes, device = (0, 1, 1, len(chosen), val, parameters), str(accelerator.device)
        info = RunInfo(folder.root, config.model.summary(), *sizes, device, 1, None)
        self.callback.start(info)
        nodes = node_batches(model, Subset(images, chosen), config.loss["cell_label"])
        batches = [batch for i, batch in enumerate(nodes) if i % HELD_OUT]
        if self.tied:
            train_dagger(model.head, batches, held_out=nodes[::HELD_OUT], fit=FIT)
        else:
            train_forward(model.head, batches, FIT)
        self.callback.step(1, None)
        iou = self._score(model)
        model.save(folder.last)
        model.save(folder.best)
        result = TrainResult(folder.root, 1, iou, iou, time.perf_counter() - started, interrupted=False)
        self.callback.finished(result)
        return result

    def _score(self, model: SegmentationModel) -> float | None:
        if self.data.val is None:
            return None
        confusion = Validation(self.data.val, self.accelerator, self.config.run.workers or 0).score(model)
        record = {"step": 1, "epoch": 1.0, **score_record(confusion, self.data.train.classes.names)}
        log = RunLog(self.folder.root, 0)
        log.write(record)
        log.close()
        self.callback.evaluated(record)
        mean: float = record["mean_iou"]
        return mean


@register("method", "forward")
class ForwardTraining(MachineTraining):
    """Forward training of an untied inference machine."""

    tied = False


@register("method", "dagger")
class DaggerTraining(MachineTraining):
    """Data aggregation for a tied inference machine."""

    tied = True


def _choose_images(config: TrainConfig, images: int) -> list[int]:
    plan = Plan.of(config.run, images, 1)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(config.run.seed))
    chosen: list[int] = order[: max(2, min(MAX_IMAGES, plan.total_steps * plan.global_batch))].tolist()
    if len(chosen) < 2:
        raise InputError("fitting a machine needs at least two images, one of them held out; give more")
    return chosen


@torch.no_grad()
def node_batches(model: SegmentationModel, data: SegmentationData, cell_label: CellLabel) -> list[NodeBatch]:
    """Features and labels of the nodes, one image at a time, at the model's working size."""
    model.eval()
    reduce = Augment(longest_side=model.input.longest_side)
    batches = []
    for sample in (reduce(each, generator(0, 0, 0)) for each in data):  # a reduction draws nothing at random
        features, target = batch_features(model, collate([sample]).to(model.device))
        assert isinstance(features, Tensor), "an inference machine has one feature map"
        labels = node_targets(target, map_size(features), model.feature_stride, cell_label)
        batches.append(NodeBatch(features, labels))
    return batches
