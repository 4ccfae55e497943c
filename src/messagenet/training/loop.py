"""The training run: steps, and between them the log, the scores, the checkpoints.

    out/config.yaml      every setting
    out/log.jsonl        loss, learning rate, speed, scores
    out/tensorboard/     the same for TensorBoard
    out/last, out/best   models (`MessageNet.from_pretrained`); averaged weights if the run averages them
    out/checkpoint/      what resuming needs

A run is a function of its configuration: killed at any moment and resumed, it ends with the weights of a run that
was not; on several processes it takes the steps that one process would take with as many images per step (batch
norms with local statistics apart, see `run.norm`).

What a line of the log says about the steps since the line before.

Training that has gone wrong: a loss or a weight that is no number any more.

On a GPU, looking at a loss waits for it, so losses are kept and looked at now and then; on a CPU at every step,
before the weights are changed. Either way nothing is written to disk in between.

Ctrl-C as a request: the first lets the step finish, the second stops at once.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn

from messagenet.data import SegmentationData, Subset, balanced_indices, collate
from messagenet.errors import InputError
from messagenet.training.batches import (
    AugmentedData,
    Plan,
    PlannedBatches,
    Shown,
    default_workers,
    make_loader,
)
from messagenet.training.build import DataSets, build_network, check_data, check_reach, open_sets
from messagenet.training.checkpoint import (
    Checkpoint,
    Layout,
    check_folder,
    find_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from messagenet.training.config import TrainConfig, save_config
from messagenet.training.distributed import start_processes
from messagenet.training.feature_cache import (
    CacheSettings,
    Entry,
    FeatureCache,
    collate_entries,
    scoring_cache,
)
from messagenet.training.inference_machine import fit_machine
from messagenet.training.learner import Learner, StepLoss, TrainBatch
from messagenet.training.progress import Progress, RunInfo, RunLog, Silent, TrainResult
from messagenet.training.validate import Validation, score_record


class Fetch:
    """The next batch on the device, and how long the steps have waited for theirs."""

    def __init__(self, batches: Iterator[TrainBatch], device: torch.device) -> None:
        self.batches, self.device = batches, device
        self.waited = 0.0

    def __call__(self) -> TrainBatch:
        """Waits for a batch."""
        before = time.perf_counter()
        batch = next(self.batches)
        self.waited += time.perf_counter() - before
        return batch.to(self.device, non_blocking=True)


class Meter:
    """Mean loss and speed of the steps since the last reading; time outside steps is not counted.

    Args:
        sums: Loss and nodes of steps before, when a run resumes between two lines of its log.
        like: A tensor of the type and device of the losses to come.
    """

    def __init__(self, sums: Sequence[float], like: Tensor) -> None:
        self._sums = like.new_tensor(sums)
        self._busy, self._steps = 0.0, 0

    def timed(self, step: Callable[[], StepLoss]) -> StepLoss:
        """Takes a step and measures it."""
        before = time.perf_counter()
        loss = step()
        self._sums += loss.sums[:2]
        self._steps += 1
        self._busy += time.perf_counter() - before
        return loss

    def sums(self) -> list[float]:
        """Loss and nodes since the last reading."""
        values: list[float] = self._sums.tolist()
        return values

    def read(self, images_per_step: int, fetch: Fetch) -> dict[str, Any]:
        """Mean loss, images per second, and the share of the time spent waiting for data; then starts over."""
        before = time.perf_counter()
        total, nodes = self.sums()
        busy = self._busy + time.perf_counter() - before  # on a GPU the steps are finished only here
        record = {
            "loss": total / max(nodes, 1),
            "images_per_second": self._steps * images_per_step / busy,
            "waiting": fetch.waited / busy,
        }
        self._sums.zero_()
        self._busy, self._steps, fetch.waited = 0.0, 0, 0.0
        return record


NAMES_SHOWN = 8


class Watch:
    """Remembers the losses of the last steps and the files they are from."""

    def __init__(self, lr: float, immediate: bool) -> None:
        self.lr = lr
        self.immediate = immediate
        self._recent: list[tuple[int, Tensor, Sequence[str]]] = []
        self._last: tuple[int, Sequence[str]] = (-1, ())

    def record(self, step: int, loss: Tensor, names: Sequence[str]) -> None:
        """Takes note of a step; raises at once if that costs nothing."""
        self._recent.append((step, loss, names))
        self._last = (step, names)
        if self.immediate:
            self.check()

    def check(self, net: nn.Module | None = None) -> None:
        """Raises if a recent loss, or a weight of the network, is not finite."""
        recent, self._recent = self._recent, []
        losses = torch.stack([loss for _, loss, _ in recent]).tolist() if recent else []
        for value, (step, _, names) in zip(losses, recent, strict=True):
            if not math.isfinite(value):
                raise self._error(f"the loss became {value}", step, names)
        if net is not None and not all(bool(torch.isfinite(values).all()) for values in net.parameters()):
            raise self._error("a weight became infinite or NaN", *self._last)

    def _error(self, what: str, step: int, names: Sequence[str]) -> InputError:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        return InputError(
            f"{what} in step {step + 1} with optimiser.lr = {self.lr:g}, on {', '.join(names[:NAMES_SHOWN])}{more}; "
            f"try a lower rate, such as {self.lr / 10:g}, or look at these images (nothing was overwritten)"
        )


class Interrupt:
    """While entered, turns SIGINT and SIGTERM into a flag; a second signal acts as it did before.

    Outside the main thread signals cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    data: DataSets | None = None,
) -> TrainResult:
    """Trains a network in this process, or together with those that `torchrun` or `accelerate launch` started.

    Ctrl-C lets the step finish, writes a checkpoint and returns; `resume` goes on from there.

    Args:
        config: Every setting; `load_config("tiny")` is one.
        out: The folder of the run, which must be empty unless the run is resumed.
        resume: Whether to go on with the run in that folder; one that never wrote a checkpoint begins again,
            and nothing happens to one that is complete.
        progress: What to tell about the run's course, such as a `Bar`.
        data: Data sets of one's own, instead of those that `config.data` names.
    """
    layout = Layout(Path(out))
    check_folder(layout.folder, resume)
    accelerator, sets = start_processes(config.run.precision), data or open_sets(config.data)
    if config.run.method != "gradient":
        return fit_machine(config, layout, accelerator, sets, progress or Silent())
    return _Run(config, layout, accelerator, sets, progress or Silent(), resume).go()


class _Run:
    """One run, from its first step or from a checkpoint."""

    def __init__(
        self,
        config: TrainConfig,
        layout: Layout,
        accelerator: Accelerator,
        data: DataSets,
        progress: Progress,
        resume: bool,
    ) -> None:
        self.config, self.layout, self.accelerator, self.data = config, layout, accelerator, data
        self.progress: Progress = progress if accelerator.is_main_process else Silent()
        balance = config.data.balance
        self.shown = (
            balanced_indices(data.train, balance, config.data.seed) if balance else range(len(data.train))
        )
        self.plan = Plan.of(config.run, len(self.shown), accelerator.num_processes)
        workers = config.run.workers
        self.workers = default_workers(accelerator.num_processes) if workers is None else workers
        first = check_data(data, config.augment, config.run.seed)
        network = build_network(config.model, data.train.classes, config.run.seed, config.data.void_values)
        check_reach(network.net, first)
        self.step, self.seconds = 0, 0.0
        self.best: float | None = None
        self.last: float | None = None
        self.sums = [0.0, 0.0]
        checkpoint = find_checkpoint(layout, config, self.plan, data.train.classes) if resume else None
        self.learner = Learner(config, network, accelerator, self.plan.total_steps)
        if checkpoint is not None:
            self._restore(checkpoint)
        self.log: RunLog | None = None

    def go(self) -> TrainResult:
        """Trains to the end, or until asked to stop."""
        self.began = time.perf_counter()
        result = None
        try:
            if self.step >= self.plan.total_steps:
                if self.accelerator.is_main_process:
                    remove_leftovers(self.layout)
                self.progress.start(self._info())
                result = self._result()
            else:
                self._open()
                with Interrupt() as interrupt:
                    result = self._result(interrupted=self._loop(interrupt))
        finally:
            if self.log is not None:
                self.log.close()
            self.progress.finished(result)
        return result

    def _result(self, interrupted: bool = False) -> TrainResult:
        return TrainResult(self.layout.folder, self.step, self.best, self.last, self._elapsed(), interrupted)

    def _open(self) -> None:
        """Writes the first files, once every process has looked at the folder."""
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            remove_leftovers(self.layout)
            save_config(self.config, self.layout.config)
            self.log = RunLog(self.layout.folder, self.step)
        self.progress.start(self._info())
        self.train_cache = self._built(self._training_cache())
        self.validation = None
        if self.data.val is not None:
            cache = self._built(self._scoring_cache(self.data.val))
            self.validation = Validation(self.data.val, self.accelerator, self.workers, cache)

    def _info(self) -> RunInfo:
        return RunInfo(
            self.layout.folder,
            self.step,
            self.plan.total_steps,
            self.plan.steps_per_epoch,
            len(self.data.train),
            0 if self.data.val is None else len(self.data.val),
            sum(parameter.numel() for parameter in self.learner.parameters),
            str(self.accelerator.device),
            self.accelerator.num_processes,
            self.best,
        )

    def _training_cache(self) -> FeatureCache | None:
        config, run = self.config, self.config.run
        if not run.cache_features:
            return None
        settings = CacheSettings(
            config.loss, config.augment, run.cache_variants, run.seed, run.cache_precision
        )
        return FeatureCache(self.learner.net, self.data.train, self._cache_folder, settings)

    def _scoring_cache(self, data: SegmentationData) -> FeatureCache | None:
        if not (self.config.run.cache_features and self.learner.net.decides_from_features):
            return None
        return scoring_cache(self.learner.net, data, self._cache_folder, self.config)

    @property
    def _cache_folder(self) -> Path:
        folder = self.config.run.cache_folder
        return Path(folder) if folder else self.layout.features

    def _built(self, cache: FeatureCache | None) -> FeatureCache | None:
        """The cache with all its entries."""
        if cache is not None:
            cache.build(self.accelerator, self.workers, self.progress.caching)
        return cache

    def _batches(self) -> Iterator[TrainBatch]:
        batches = PlannedBatches(self.plan, self.accelerator.process_index, self.step)
        pin = self.accelerator.device.type == "cuda"
        if self.train_cache is not None:
            cached: Shown[Entry] = Shown(self.train_cache, self.shown)
            return iter(make_loader(cached, batches, collate_entries, self.workers, pin))
        shown = Subset(self.data.train, self.shown)  # a repeated image varies in its own way each time
        data = AugmentedData(shown, self.config.augment, self.config.run.seed)
        return iter(make_loader(data, batches, collate, self.workers, pin))

    def _loop(self, interrupt: Interrupt) -> bool:
        """Takes the steps that are left; whether it was asked to stop before the last."""
        run, learner, plan = self.config.run, self.learner, self.plan
        device = self.accelerator.device
        watch = Watch(self.config.optimiser.lr, immediate=device.type == "cpu")
        fetch = Fetch(self._batches(), device)
        meter = Meter(self.sums, learner.zeros(2))
        evaluate_every = run.evaluate_every or plan.steps_per_epoch

        def take_step() -> StepLoss:
            loss = learner.gradient(self.step, fetch, interrupt.asked)
            watch.record(self.step, loss.mean, loss.names)
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
            stopped = not ended and self._asked(interrupt, loss, logged)
            record = None
            if logged:
                watch.check()
                rate = self.config.optimiser.lr * learner.rate_factor(self.step - 1)
                record = self._noted({"lr": rate, **meter.read(plan.global_batch, fetch)})
            self.progress.step(self.step, record)
            if scored or stopped or self.step % run.checkpoint_every == 0:
                watch.check(learner.net)
                if scored:
                    self._score()
                self.sums = meter.sums()
                self._checkpoint()
                learner.train_mode()
        return stopped

    def _asked(self, interrupt: Interrupt, loss: StepLoss, logged: bool) -> bool:
        """Whether to stop, which all processes must decide alike; reading their votes waits for the device."""
        if self.accelerator.num_processes == 1:
            return interrupt.asked
        return (logged or self.accelerator.device.type == "cpu") and bool(loss.sums[2] > 0)

    def _noted(self, figures: dict[str, Any]) -> dict[str, Any]:
        """A record of this step in the log."""
        record = {"step": self.step, "epoch": self.step / self.plan.steps_per_epoch, **figures}
        if self.log is not None:
            self.log.write(record)
        return record

    def _score(self) -> None:
        """Scores the network; the best so far is saved."""
        net = self.learner.scored
        if self.validation is not None:
            record = self._noted(score_record(self.validation.score(net), self.data.train.classes.names))
            self.last = record["mean_iou"]
            self.progress.evaluated(record)
        if self.last is None or self.best is None or self.last > self.best:
            self.best = self.last
            if self.accelerator.is_main_process:
                net.save(self.layout.best)

    def _checkpoint(self) -> None:
        if not self.accelerator.is_main_process:
            return
        self.learner.scored.save(self.layout.last)
        state = {
            "best": self.best,
            "last": self.last,
            "sums": self.sums,
            "seconds": self._elapsed(),
            "global_batch": self.plan.global_batch,
            "classes": list(self.data.train.classes.names),
            **self.learner.extras(),
        }
        write_checkpoint(self.layout.checkpoints, Checkpoint(self.step, self.learner.tensors(), state))

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.step = checkpoint.step
        self.best, self.last = checkpoint.state["best"], checkpoint.state["last"]
        self.sums, self.seconds = checkpoint.state["sums"], checkpoint.state["seconds"]
        self.learner.restore(checkpoint.tensors, checkpoint.state)

    def _elapsed(self) -> float:
        """Seconds spent, those before a resumption included."""
        return self.seconds + time.perf_counter() - self.began
