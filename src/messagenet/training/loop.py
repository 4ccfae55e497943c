"""The training run: steps, and between them the log, the scores, the checkpoints.

    out/config.yaml      every setting
    out/log.jsonl        loss, learning rate, speed, scores
    out/tensorboard/     the same for TensorBoard
    out/last, out/best   models (`MessageNet.from_pretrained`); averaged weights if the run averages them
    out/checkpoint/      what resuming needs

A run is a function of its configuration: killed at any moment and resumed, it ends with the weights of a run that
was not; on several processes it takes the steps that one process would take with as many images per step (batch
norms with local statistics apart, see `run.norm`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]

from messagenet.data import SegmentationData, Subset, balanced_indices, collate
from messagenet.training.batches import (
    AugmentedData,
    Plan,
    PlannedBatches,
    Shown,
    default_workers,
    make_loader,
)
from messagenet.training.build import DataSets, build_network, check_data, check_reach, open_sets
from messagenet.training.cache import FeatureCache, scoring_cache
from messagenet.training.cache_key import CacheSettings
from messagenet.training.checkpoint import Checkpoint, write_checkpoint
from messagenet.training.config import TrainConfig
from messagenet.training.config_files import save_config
from messagenet.training.divergence import Watch
from messagenet.training.entries import Entry, collate_entries
from messagenet.training.interrupt import Interrupt
from messagenet.training.learner import Learner, StepLoss, TrainBatch
from messagenet.training.log import RunLog
from messagenet.training.machines import fit_machine
from messagenet.training.meter import Fetch, Meter
from messagenet.training.processes import start_processes
from messagenet.training.progress import Progress, RunInfo, Silent, TrainResult
from messagenet.training.resume import Layout, check_folder, find_checkpoint, remove_leftovers
from messagenet.training.validate import Validation, score_record


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
