"""One optimiser step, however its images are divided among batches and processes.

With Σ over all batches and processes of a step, the gradient is ∇ Σ total / Σ count. Each process back-propagates
its own totals (divided by a constant, to stay in range of half precision); the distributed wrapper averages over
the W processes in the last batch; what remains is one factor, W · constant / Σ count, known only then.

Random draws inside the network, if any, are seeded by (seed, step, process): a resumed run repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn

from messagenet.data import Batch
from messagenet.data.seeds import random_stream
from messagenet.models import SegmentationNet
from messagenet.training.build import Network
from messagenet.training.config import TrainConfig
from messagenet.training.ema import Average
from messagenet.training.entries import FeatureBatch
from messagenet.training.objective import Objective
from messagenet.training.optimiser import build_optimiser, set_rate
from messagenet.training.processes import keep_strides
from messagenet.training.schedule import poly_factor

TrainBatch = Batch | FeatureBatch
UNIT = 1024.0


class StepLoss(NamedTuple):
    """What a step measured, summed over all processes.

    Attributes:
        sums: Total loss, labelled nodes, and processes that were asked to stop, (3,).
        names: This process's images.
    """

    sums: Tensor
    names: tuple[str, ...]

    @property
    def mean(self) -> Tensor:
        """The loss of the step."""
        return self.sums[0] / self.sums[1].clamp(min=1)


class Learner:
    """Everything that a step changes: network, optimiser, average.

    Attributes:
        net: The network being trained.
        optimiser: Its optimiser.
        average: The running average of its weights, if there is one.
    """

    def __init__(
        self, config: TrainConfig, network: Network, accelerator: Accelerator, total_steps: int
    ) -> None:
        self.config, self.accelerator, self.total_steps = config, accelerator, total_steps
        net = network.net.to(accelerator.device)
        if config.run.freeze_backbone:
            net.backbones.requires_grad_(False)
        if config.run.norm == "sync" and accelerator.num_processes > 1 and accelerator.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(net)
        net.trust_features()  # `Watch` sees the loss, without waiting for the device in every step
        if accelerator.num_processes > 1:
            keep_strides(net)
        self.net: SegmentationNet = net
        self.average = Average(net, config.run.ema) if config.run.ema else None
        optimiser = build_optimiser(net, network.pretrained, config.optimiser)
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.objective, self.optimiser = accelerator.prepare(Objective(net, config.loss), optimiser)

    @property
    def scored(self) -> SegmentationNet:
        """The network to score and to save: the average if there is one."""
        return self.net if self.average is None else self.average.net

    def train_mode(self) -> None:
        """Prepares for steps, after scoring for example."""
        self.net.train()
        if self.config.run.freeze_backbone:
            self.net.backbones.eval()
        if self.config.run.norm == "frozen":
            for module in self.net.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def zeros(self, count: int) -> Tensor:
        """Sums to begin with, in the best precision of the device."""
        device = self.accelerator.device
        return torch.zeros(
            count, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device
        )

    def gradient(self, step: int, fetch: Callable[[], TrainBatch], stop: bool = False) -> StepLoss:
        """Back-propagates the batches of a step; `stop` is this process's wish to end."""
        run = self.config.run
        key = (step, self.accelerator.process_index)
        torch.manual_seed(int(random_stream("step", run.seed, *key).integers(2**62)))
        sums = self.zeros(3)
        sums[2] += stop
        names: tuple[str, ...] = ()
        for number in range(run.accumulate):
            batch = fetch()
            names += batch.names
            last = number + 1 == run.accumulate
            with nullcontext() if last else self.accelerator.no_sync(self.objective):
                loss = self.objective(*_arguments(batch))
                self.accelerator.backward(loss.total / UNIT)
            sums[0] += loss.total.detach()
            sums[1] += loss.nodes
        return StepLoss(self.accelerator.reduce(sums, "sum"), names)

    def update(self, step: int, loss: StepLoss) -> None:
        """Takes the step."""
        config = self.config
        factor = self.accelerator.num_processes * UNIT / loss.sums[1].clamp(min=1)
        self.accelerator.unscale_gradients(self.optimiser)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradients, factor.float())
        if config.optimiser.clip:
            nn.utils.clip_grad_norm_(self.parameters, config.optimiser.clip)
        set_rate(self.optimiser, self.rate_factor(step))
        self.optimiser.step()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(step)

    def rate_factor(self, step: int) -> float:
        """The learning rate of a step over the largest."""
        return poly_factor(step, self.total_steps, self.config.schedule.warmup, self.config.schedule.power)

    def tensors(self) -> dict[str, Tensor]:
        """All that steps change, by name."""
        found = {f"model/{name}": values for name, values in self.net.state_dict().items()}
        if self.average is not None:
            found |= {f"average/{name}": values for name, values in self.average.net.state_dict().items()}
        for number, entries in self.optimiser.state_dict()["state"].items():
            found |= {f"optimiser/{number}/{key}": v for key, v in entries.items() if isinstance(v, Tensor)}
        return found

    def extras(self) -> dict[str, Any]:
        """What is no tensor: the scale of half-precision gradients."""
        scaler = self.accelerator.scaler
        return {"scaler": None if scaler is None else scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], extras: Mapping[str, Any]) -> None:
        """Takes up what `tensors` and `extras` gave."""
        self.net.load_state_dict(_under("model/", tensors))
        if self.average is not None:
            self.average.net.load_state_dict(_under("average/", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, values in _under("optimiser/", tensors).items():
            number, _, key = name.partition("/")
            state.setdefault(int(number), {})[key] = values
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        if self.accelerator.scaler is not None and extras.get("scaler"):
            self.accelerator.scaler.load_state_dict(dict(extras["scaler"]))


def _arguments(batch: TrainBatch) -> tuple[Any, ...]:
    if isinstance(batch, FeatureBatch):
        return batch.features, batch.truth, batch.valid, batch.names, True
    return batch.images, batch.masks, batch.valid, batch.names


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
