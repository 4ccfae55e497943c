"""One optimiser step, however its images are divided among batches and processes.

With Σ over all batches and processes of a step, the gradient is ∇ Σ total / Σ count. Each process back-propagates
its own totals (divided by a constant, to stay in range of half precision); the distributed wrapper averages over
the W processes in the last batch; what remains is one factor, W · constant / Σ count, known only then.

Random draws inside the network, if any, are seeded by (seed, step, process): a resumed run repeats them.

The network's loss as a module, because a distributed wrapper synchronises the gradients of a `forward` it has seen.

    J = Σ_batches total  /  Σ_batches #labelled nodes

A mean of means would weigh a batch with few labelled nodes as much as one with many, and so depend on how a
step's images are divided among batches and processes. The sums do not.

Parameter groups: which parameters decay, and which learn more slowly.

Weight decay is for the weights of linear maps and convolutions, the parameters with two axes or more. Biases and
the scales and shifts of norms are spared: decaying them changes what the network computes without regularising
it. Parameters that came from pretrained weights learn at `backbone_lr` times the rate of the new ones.

The learning rate of every step: a straight rise, then the "poly" fall (Chen et al., DeepLab, arXiv 1606.00915).

    factor(t) = (t + 1) / w                       t < w, the warm-up
    factor(t) = (1 − (t − w) / (T − w))^power     t ≥ w, of T steps; w is at most half of them

A function of the step alone, so nothing has to be remembered to resume it.

A running average of the weights, which predicts better than the last weights do.

    θ̄ ← d_t θ̄ + (1 − d_t) θ,        d_t = min(d, (1 + t) / (10 + t))

after every step t = 0, 1, …; the second term of the minimum lets the average forget the random weights it began
with (Polyak & Juditsky, SIAM J. Control Optim. 1992; the warm-up is TensorFlow's). Statistics of batch norms are
averaged likewise, counters are copied, frozen parameters are left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from messagenet.data import Batch
from messagenet.data.sampling import random_stream
from messagenet.losses.cross_entropy import Loss
from messagenet.models import SegmentationNet
from messagenet.models.base import Features
from messagenet.training.build import Network
from messagenet.training.config import LossConfig, OptimiserConfig, TrainConfig
from messagenet.training.distributed import keep_strides
from messagenet.training.feature_cache import FeatureBatch


class Objective(nn.Module):
    """Images and truth in, a summed loss and its count out."""

    def __init__(self, net: SegmentationNet, config: LossConfig) -> None:
        super().__init__()
        self.net = net
        self.config = config

    def forward(
        self,
        inputs: Features,
        truth: Tensor,
        valid: Tensor | None,
        names: tuple[str, ...] = (),
        are_features: bool = False,
    ) -> Loss:
        """The loss of a batch: see `SegmentationNet.loss`."""
        return self.net.loss(
            inputs,
            truth,
            valid,
            are_features=are_features,
            resolution=self.config.resolution,
            cell_label=self.config.cell_label,
            label_smoothing=self.config.label_smoothing,
            names=names,
        )


def parameter_groups(net: nn.Module, pretrained: Set[str], config: OptimiserConfig) -> list[dict[str, Any]]:
    """The trainable parameters in up to four groups, each with its `name`, `initial_lr` and `weight_decay`.

    Args:
        net: The network.
        pretrained: Names of the parameters that did not begin at random.
        config: Rates and decay.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        decays, known = parameter.ndim > 1, name in pretrained
        title = f"{'pretrained' if known else 'new'}, {'decayed' if decays else 'not decayed'}"
        rate = config.lr * (config.backbone_lr if known else 1.0)
        group = groups.setdefault(
            title,
            {
                "name": title,
                "params": [],
                "lr": rate,
                "initial_lr": rate,
                "weight_decay": config.weight_decay if decays else 0.0,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())


def build_optimiser(net: nn.Module, pretrained: Set[str], config: OptimiserConfig) -> Optimizer:
    """SGD with momentum or AdamW over `parameter_groups`."""
    groups = parameter_groups(net, pretrained, config)
    if config.name == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum)
    return AdamW(groups, lr=config.lr)


def set_rate(optimiser: Optimizer, factor: float) -> None:
    """Sets the learning rate of every group to `factor` times its largest."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["initial_lr"]


def poly_factor(step: int, total: int, warmup: int = 0, power: float = 0.9) -> float:
    """What the largest learning rate is multiplied with at a step from 0 to total − 1.

    >>> [round(poly_factor(step, total=8, warmup=2, power=1.0), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.83, 0.67, 0.5, 0.33, 0.17]
    """
    warmup = min(warmup, total // 2)
    if step < warmup:
        return (step + 1) / warmup
    return float((1 - (step - warmup) / (total - warmup)) ** power)


Net = TypeVar("Net", bound=nn.Module)


def decay_at(step: int, decay: float) -> float:
    """d_t.

    >>> decay_at(0, 0.999), decay_at(10**6, 0.999)
    (0.1, 0.999)
    """
    return min(decay, (1 + step) / (10 + step))


class Average(Generic[Net]):
    """The averaged copy of a network.

    Attributes:
        net: The copy; in evaluation mode, without gradients.
    """

    def __init__(self, net: Net, decay: float) -> None:
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self._source = net
        self._frozen = {name for name, parameter in net.named_parameters() if not parameter.requires_grad}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after a step."""
        values = self._source.state_dict()  # anew every time: moving a module replaces its tensors
        means, towards = [], []
        for name, mean in self.net.state_dict().items():
            if name in self._frozen:
                continue
            if mean.is_floating_point():
                means.append(mean)
                towards.append(values[name])
            else:
                mean.copy_(values[name])
        torch._foreach_lerp_(means, towards, 1 - decay_at(step, self.decay))


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
