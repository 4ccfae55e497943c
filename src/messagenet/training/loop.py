"""The training run: steps, and between them the log, the scores, the checkpoints.

    out/config.yaml      every setting
    out/log.jsonl        loss, learning rate, speed, scores; the same in out/tensorboard/
    out/last, out/best   models (`SegmentationModel.from_pretrained`); averaged weights if the run averages them
    out/checkpoint/      what resuming needs

A run that is killed and resumed reaches the same weights. Several processes take the steps of one process with as many
images per step (except for local batch norms, see `run.norm`). A loss or weight that is not finite ends the run before
anything is written: on a CPU every loss is checked at once, on a GPU (where that would wait) when it is logged.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn

from messagenet.data import Batch, SegmentationData, Subset, balanced_indices, collate
from messagenet.errors import InputError, some
from messagenet.settings import find, register
from messagenet.training.batches import AugmentedData, Plan, RepeatedData, default_workers, make_loader
from messagenet.training.build import DataSets, build_model, check_reach, check_training_data, open_sets
from messagenet.training.checkpoint import (
    Checkpoint,
    RunFolder,
    check_folder,
    find_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from messagenet.training.config import TrainConfig, save_config
from messagenet.training.distributed import start_processes
from messagenet.training.feature_cache import (
    CachedFeatures,
    FeatureCache,
    collate_features,
    scoring_cache,
    training_cache,
)
from messagenet.training.learner import Learner, StepLoss
from messagenet.training.progress import RunInfo, RunLog, TrainCallback, TrainResult
from messagenet.training.validate import Validation, score_record


class Fetch:
    """The next batch on the device, and how long the steps have waited for theirs."""

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self.batches, self.device = batches, device
        self.waited = 0.0

    def __call__(self) -> Batch:
        """Waits for a batch."""
        before = time.perf_counter()
        batch = next(self.batches)
        self.waited += time.perf_counter() - before
        return batch.to(self.device, non_blocking=True)


class Meter:
    """Mean loss and speed since the last reading; `sums` are those of a resumed run, `ref` has the type and device."""

    def __init__(self, sums: Sequence[float], ref: Tensor) -> None:
        self._sums = ref.new_tensor(sums)
        self._busy, self._steps = 0.0, 0

    def timed(self, step: Callable[[], StepLoss]) -> StepLoss:
        """Takes a step and measures it; time between steps is not counted."""
        before = time.perf_counter()
        loss = step()
        self._sums += loss.sums[:2]
        self._steps += 1
        self._busy += time.perf_counter() - before
        return loss

    def sums(self) -> list[float]:
        """Loss and count since the last reading."""
        values: list[float] = self._sums.tolist()
        return values

    def read(self, images_per_step: int, fetch: Fetch) -> dict[str, Any]:
        """Mean loss, images per second, and the share of the time spent waiting for data; then starts over."""
        before = time.perf_counter()
        total, count = self.sums()
        busy = self._busy + time.perf_counter() - before  # on a GPU the steps are finished only here
        record = {
            "loss": total / max(count, 1),
            "images_per_second": self._steps * images_per_step / busy,
            "waiting": fetch.waited / busy,
        }
        self._sums.zero_()
        self._busy, self._steps, fetch.waited = 0.0, 0, 0.0
        return record


MAX_IDS_SHOWN = 8


class NaNGuard:
    """Checks that losses and weights are finite, and names the images of the step where one is not."""

    def __init__(self, lr: float, immediate: bool) -> None:
        self.lr = lr
        self.immediate = immediate
        self._recent: list[tuple[int, Tensor, Sequence[str]]] = []
        self._last: tuple[int, Sequence[str]] = (-1, ())

    def record(self, step: int, loss: Tensor, ids: Sequence[str]) -> None:
        """Records the loss of a step; checks it at once if that costs nothing."""
        self._recent.append((step, loss, ids))
        self._last = (step, ids)
        if self.immediate:
            self.check()

    def check(self, model: nn.Module | None = None) -> None:
        """Raises if a recent loss, or a weight of the model, is not finite."""
        recent, self._recent = self._recent, []
        losses = torch.stack([loss for _, loss, _ in recent]).tolist() if recent else []
        for value, (step, _, ids) in zip(losses, recent, strict=True):
            if not math.isfinite(value):
                raise self._error(f"the loss became {value}", step, ids)
        if model is not None and not all(bool(torch.isfinite(values).all()) for values in model.parameters()):
            raise self._error("a weight became infinite or NaN", *self._last)

    def _error(self, what: str, step: int, ids: Sequence[str]) -> InputError:
        return InputError(
            f"{what} in step {step + 1} with optimiser.lr = {self.lr:g}, on {some(ids, MAX_IDS_SHOWN)}; "
            f"try a lower rate, such as {self.lr / 10:g}, or look at these images (nothing was overwritten)"
        )


class Interrupt:
    """Turns SIGINT and SIGTERM into a flag, in the main thread only; a second signal acts as before."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def run_training(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    progress: TrainCallback | None = None,
    data: DataSets | None = None,
) -> TrainResult:
    """Trains a model in this process, or together with those that `torchrun` or `accelerate launch` started.

    Ctrl-C lets the step finish, writes a checkpoint and returns. `resume` continues the run in `out`; if it has no
    checkpoint, it starts over, and a complete run is left as it is. `data` replaces the data sets of `config.data`.
    """
    folder = RunFolder(Path(out))
    check_folder(folder.root, resume)
    accelerator, sets = start_processes(config.run.precision, config.run.norm), data or open_sets(config.data)
    method = find("method", config.run.method)
    result: TrainResult = method(config, folder, accelerator, sets, progress or TrainCallback(), resume).go()
    return result


@dataclass
class TrainMethod:
    """A way to train, which `run.method` names: `go` trains to the end and writes the run."""

    config: TrainConfig
    folder: RunFolder
    accelerator: Accelerator
    data: DataSets
    callback: TrainCallback
    resume: bool
    uses: ClassVar[tuple[str, ...]] = tuple(each.name for each in fields(TrainConfig))  # sections, or settings
    tied: ClassVar[bool | None] = None  # of the inference machine that it is for; None for any head


@register("method", "gradient")
@dataclass
class GradientTraining(TrainMethod):
    """Stochastic gradient descent on the loss."""

    def __post_init__(self) -> None:
        config, accelerator, data = self.config, self.accelerator, self.data
        if not accelerator.is_main_process:
            self.callback = TrainCallback()
        balance = config.data.balance
        self.indices = balanced_indices(data.train, balance, config.data.seed) if balance else range(len(data.train))
        self.plan = Plan.of(config.run, len(self.indices), accelerator.num_processes)
        workers = config.run.workers
        self.workers = default_workers(accelerator.num_processes) if workers is None else workers
        first = check_training_data(data, config.augment, config.run.seed)
        initial = build_model(config, data.train.classes)
        check_reach(initial.model, first)
        self.step, self.seconds = 0, 0.0
        self.best: float | None = None
        self.last: float | None = None
        self.sums = [0.0, 0.0]
        known = (self.folder, config, self.plan, data.train.classes)
        checkpoint = find_checkpoint(*known) if self.resume else None
        self.learner = Learner(config, initial, accelerator, self.plan.total_steps)
        if checkpoint is not None:
            self._restore(checkpoint)
        self.log: RunLog | None = None

    def go(self) -> TrainResult:
        """Takes the steps."""
        self.began = time.perf_counter()
        result = None
        try:
            if self.step >= self.plan.total_steps:
                if self.accelerator.is_main_process:
                    remove_leftovers(self.folder)
                self.callback.start(self._info())
                result = self._result()
            else:
                self._open()
                with Interrupt() as interrupt:
                    result = self._result(interrupted=self._loop(interrupt))
        finally:
            if self.log is not None:
                self.log.close()
            self.callback.finished(result)
        return result

    def _result(self, interrupted: bool = False) -> TrainResult:
        return TrainResult(self.folder.root, self.step, self.best, self.last, self._elapsed(), interrupted)

    def _open(self) -> None:
        """Writes the first files, once every process has looked at the folder."""
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            remove_leftovers(self.folder)
            save_config(self.config, self.folder.config)
            self.log = RunLog(self.folder.root, self.step)
        self.callback.start(self._info())
        model, cached = self.learner.model, self.config.run.cache_features
        self.train_cache = self._build_cache(training_cache, self.data.train) if cached else None
        self.validation = None
        if self.data.val is not None:
            cached &= "prediction" not in model.needs_images
            cache = self._build_cache(scoring_cache, self.data.val) if cached else None
            self.validation = Validation(self.data.val, self.accelerator, self.workers, cache)

    def _info(self) -> RunInfo:
        steps = (self.step, self.plan.total_steps, self.plan.steps_per_epoch)
        images = (len(self.data.train), 0 if self.data.val is None else len(self.data.val))
        parameters = sum(parameter.numel() for parameter in self.learner.parameters)
        device, processes = str(self.accelerator.device), self.accelerator.num_processes
        model = self.config.model.summary()
        return RunInfo(self.folder.root, model, *steps, *images, parameters, device, processes, self.best)

    def _build_cache(self, make: Callable[..., FeatureCache], data: SegmentationData) -> FeatureCache:
        folder = Path(self.config.run.cache_folder or self.folder.features)
        cache = make(self.learner.model, data, folder, self.config)
        cache.build(self.accelerator, self.workers, self.callback.caching)
        return cache

    def _batches(self) -> Iterator[Batch]:
        batches = self.plan.batches(self.accelerator.process_index, self.step)
        pin = self.accelerator.device.type == "cuda"
        if self.train_cache is not None:
            cached: RepeatedData[CachedFeatures] = RepeatedData(self.train_cache, self.indices)
            return make_loader(cached, batches, collate_features, self.workers, pin)
        repeated = Subset(self.data.train, self.indices)  # a repeated image varies in its own way each time
        data = AugmentedData(repeated, self.config.augment, self.config.run.seed)
        return make_loader(data, batches, collate, self.workers, pin)

    def _loop(self, interrupt: Interrupt) -> bool:
        """Takes the remaining steps; returns whether it was asked to stop before the last."""
        run, learner, plan = self.config.run, self.learner, self.plan
        device = self.accelerator.device
        guard = NaNGuard(self.learner.rates.lr, immediate=device.type == "cpu")
        fetch = Fetch(self._batches(), device)
        meter = Meter(self.sums, learner.zeros(2))
        evaluate_every = run.evaluate_every or plan.steps_per_epoch

        def take_step() -> StepLoss:
            loss = learner.gradient(self.step, fetch, interrupt.requested)
            guard.record(self.step, loss.mean, loss.ids)
            learner.update(self.step, loss)
            return loss

        stopped = False
        learner.train_mode()
        while self.step < plan.total_steps and not stopped:
            loss = meter.timed(take_step)
            self.step += 1
            ended = self.step == plan.total_steps
            logged = self.step % run.log_every == 0 or ended
            scored = self.step % evaluate_every == 0 or ended
            stopped = not ended and self._stop_requested(interrupt, loss, logged)
            record = None
            if logged:
                guard.check()
                rate = learner.rates.lr * learner.rate_factor(self.step - 1)
                record = self._log_record({"lr": rate, **meter.read(plan.global_batch, fetch)})
            self.callback.step(self.step, record)
            if scored or stopped or self.step % run.checkpoint_every == 0:
                guard.check(learner.model)
                if scored:
                    self._score()
                self.sums = meter.sums()
                self._checkpoint()
                learner.train_mode()
        return stopped

    def _stop_requested(self, interrupt: Interrupt, loss: StepLoss, logged: bool) -> bool:
        """Whether to stop, which all processes must decide alike; reading their votes waits for the device."""
        if self.accelerator.num_processes == 1:
            return interrupt.requested
        return (logged or self.accelerator.device.type == "cpu") and bool(loss.sums[2] > 0)

    def _log_record(self, figures: dict[str, Any]) -> dict[str, Any]:
        record = {"step": self.step, "epoch": self.step / self.plan.steps_per_epoch, **figures}
        if self.log is not None:
            self.log.write(record)
        return record

    def _score(self) -> None:
        model = self.learner.scored
        if self.validation is not None:
            record = self._log_record(score_record(self.validation.score(model), self.data.train.classes.names))
            self.last = record["mean_iou"]
            self.callback.evaluated(record)
        if self.last is None or self.best is None or self.last > self.best:
            self.best = self.last
            if self.accelerator.is_main_process:
                model.save(self.folder.best)

    def _checkpoint(self) -> None:
        if not self.accelerator.is_main_process:
            return
        self.learner.scored.save(self.folder.last)
        state = {
            "best": self.best,
            "last": self.last,
            "sums": self.sums,
            "seconds": self._elapsed(),
            "global_batch": self.plan.global_batch,
            "classes": list(self.data.train.classes.names),
            **self.learner.extras(),
        }
        write_checkpoint(self.folder.checkpoints, Checkpoint(self.step, self.learner.tensors(), state))

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.step = checkpoint.step
        self.best, self.last = checkpoint.state["best"], checkpoint.state["last"]
        self.sums, self.seconds = checkpoint.state["sums"], checkpoint.state["seconds"]
        self.learner.restore(checkpoint.tensors, checkpoint.state)

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.began
