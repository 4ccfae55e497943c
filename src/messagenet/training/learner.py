"""One optimiser step, however its images are divided among batches and processes.

With Σ over all batches and processes of a step, the gradient is ∇ Σ total / Σ count. Each process back-propagates its
own totals, divided by a constant to stay in the range of half precision; the distributed wrapper averages over the W
processes; the remaining factor is W · constant / Σ count. Random draws in the model depend on (seed, step, process).

The rate has linear warm-up and "poly" decay (Chen et al., DeepLab, arXiv 1606.00915):

    factor(t) = (t + 1) / w                       t < w, the warm-up
    factor(t) = (1 − (t − w) / (T − w))^power     t ≥ w, of T steps; w is at most half of them

An exponential moving average of the weights predicts better than the last weights (Polyak & Juditsky, SIAM J. Control
Optim. 1992). It includes the statistics of batch norms; counters are copied, frozen parameters are left alone.

    θ̄ ← d_t θ̄ + (1 − d_t) θ,        d_t = min(d, (1 + t) / (10 + t)), which forgets the random first weights
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn

from messagenet.data import Batch
from messagenet.data.sampling import random_stream
from messagenet.losses import Loss, LossSum
from messagenet.models import SegmentationModel
from messagenet.settings import build
from messagenet.training.build import InitialisedModel
from messagenet.training.config import TrainConfig
from messagenet.training.distributed import keep_strides
from messagenet.training.optimisers import Optimiser, set_rate


class TrainStep(nn.Module):
    """A loss as a module: distributed wrappers synchronise the gradients of a `forward`."""

    def __init__(self, model: SegmentationModel, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Batch) -> LossSum:
        """The loss of a batch, as a sum and a count."""
        return self.loss(self.model, batch)


def poly_factor(step: int, total: int, warmup: int = 0, power: float = 0.9) -> float:
    """The learning rate of a step from 0 to total − 1, as a fraction of the peak.

    >>> [round(poly_factor(step, total=8, warmup=2, power=1.0), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.83, 0.67, 0.5, 0.33, 0.17]
    """
    warmup = min(warmup, total // 2)
    if step < warmup:
        return (step + 1) / warmup
    return float((1 - (step - warmup) / (total - warmup)) ** power)


def decay_at(step: int, decay: float) -> float:
    """d_t.

    >>> decay_at(0, 0.999), decay_at(10**6, 0.999)
    (0.1, 0.999)
    """
    return min(decay, (1 + step) / (10 + step))


class ModelAverage:
    """The averaged copy of a network, in evaluation mode and without gradients."""

    def __init__(self, model: SegmentationModel, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._source = model
        self._frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after a step."""
        values = self._source.state_dict()  # anew every time: moving a module replaces its tensors
        means, towards = [], []
        for name, mean in self.model.state_dict().items():
            if name in self._frozen:
                continue
            if mean.is_floating_point():
                means.append(mean)
                towards.append(values[name])
            else:
                mean.copy_(values[name])
        torch._foreach_lerp_(means, towards, 1 - decay_at(step, self.decay))


UNIT = 1024.0


class StepLoss(NamedTuple):
    """What a step measured, summed over all processes."""

    sums: Tensor  # (3,): total loss, labelled nodes or pixels, processes that were asked to stop
    ids: tuple[str, ...]  # of this process's images

    @property
    def mean(self) -> Tensor:
        """The loss of the step."""
        return self.sums[0] / self.sums[1].clamp(min=1)


class Learner:
    """Everything that a step changes: model, optimiser, average."""

    def __init__(
        self, config: TrainConfig, initial: InitialisedModel, accelerator: Accelerator, total_steps: int
    ) -> None:
        self.config, self.accelerator, self.total_steps = config, accelerator, total_steps
        model = initial.model.to(accelerator.device)
        if config.run.freeze_backbone:
            model.backbones.requires_grad_(False)
        if config.run.norm == "sync":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model.skip_finite_checks()  # `NaNGuard` sees the loss, without waiting for the device in every step
        if accelerator.num_processes > 1:
            keep_strides(model)
        self.model: SegmentationModel = model
        self.average = ModelAverage(model, config.run.ema) if config.run.ema else None
        self.rates: Optimiser = build("optimiser", config.optimiser, path="optimiser")
        optimiser = self.rates.build(model, initial.pretrained)
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        step = TrainStep(model, build("loss", config.loss, path="loss"))
        self.train_step, self.optimiser = accelerator.prepare(step, optimiser)

    @property
    def scored(self) -> SegmentationModel:
        """The model to score and to save: the average if there is one."""
        return self.model if self.average is None else self.average.model

    def train_mode(self) -> None:
        """Prepares for steps, for example after scoring."""
        self.model.train()
        if self.config.run.freeze_backbone:
            self.model.backbones.eval()
        if self.config.run.norm == "frozen":
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:  # a neck still standardises
                    module.eval()

    def zeros(self, count: int) -> Tensor:
        """Sums to begin with, in the best precision of the device."""
        device = self.accelerator.device
        return torch.zeros(count, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def gradient(self, step: int, fetch: Callable[[], Batch], stop: bool = False) -> StepLoss:
        """Back-propagates the batches of a step; `stop` is this process's wish to end."""
        run = self.config.run
        key = (step, self.accelerator.process_index)
        torch.manual_seed(int(random_stream("step", run.seed, *key).integers(2**62)))
        sums = self.zeros(3)
        sums[2] += stop
        ids: tuple[str, ...] = ()
        for index in range(run.accumulate):
            batch = fetch()
            ids += batch.ids
            last = index + 1 == run.accumulate
            with nullcontext() if last else self.accelerator.no_sync(self.train_step):
                loss = self.train_step(batch)
                self.accelerator.backward(loss.total / UNIT)
            sums[0] += loss.total.detach()
            sums[1] += loss.count
        return StepLoss(self.accelerator.reduce(sums, "sum"), ids)

    def update(self, step: int, loss: StepLoss) -> None:
        """Takes the step."""
        factor = self.accelerator.num_processes * UNIT / loss.sums[1].clamp(min=1)
        self.accelerator.unscale_gradients(self.optimiser)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradients, factor.float())
        if self.rates.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.rates.clip)
        set_rate(self.optimiser, self.rate_factor(step))
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(step)

    def rate_factor(self, step: int) -> float:
        """The learning rate of a step, as a fraction of the peak."""
        return poly_factor(step, self.total_steps, self.config.schedule.warmup, self.config.schedule.power)

    def tensors(self) -> dict[str, Tensor]:
        """All that steps change, by name."""
        found = {f"model/{name}": values for name, values in self.model.state_dict().items()}
        if self.average is not None:
            found |= {f"average/{name}": values for name, values in self.average.model.state_dict().items()}
        for index, entries in self.optimiser.state_dict()["state"].items():
            found |= {f"optimiser/{index}/{key}": v for key, v in entries.items() if isinstance(v, Tensor)}
        return found

    def extras(self) -> dict[str, Any]:
        """The state that is no tensor: the gradient scale of half precision."""
        scaler = self.accelerator.scaler
        return {"scaler": None if scaler is None else scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], extras: Mapping[str, Any]) -> None:
        """Restores the state that `tensors` and `extras` returned."""
        self.model.load_state_dict(_under("model/", tensors))
        if self.average is not None:
            self.average.model.load_state_dict(_under("average/", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, values in _under("optimiser/", tensors).items():
            index, _, key = name.partition("/")
            state.setdefault(int(index), {})[key] = values
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        if self.accelerator.scaler is not None and extras.get("scaler"):
            self.accelerator.scaler.load_state_dict(dict(extras["scaler"]))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
