"""The plainest training there is: Adam over a list of losses, in a new order every epoch, stopped early if asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from messagenet.errors import InputError


@dataclass(frozen=True)
class Fit:
    """How long and how fast to learn.

    Attributes:
        epochs: Times that every loss is used, at most.
        learning_rate: The highest; it rises for a tenth of the steps and falls to nothing along half a cosine.
        weight_decay: λ, decoupled from the gradient.
        clip: Longer gradients are shortened to this length: back-propagation through many iterations needs it.
        patience: Epochs without a better judgement after which to stop, where there is a judge.
        seed: Of the order of the losses.
    """

    epochs: int = 20
    learning_rate: float = 1e-2
    weight_decay: float = 0.0
    clip: float = 1.0
    patience: int = 10
    seed: int = 0


def minimise(
    parameters: Iterable[nn.Parameter],
    losses: Sequence[Callable[[], Tensor]],
    fit: Fit,
    judge: Callable[[], float] | None = None,
) -> list[float]:
    """Takes one step per loss and epoch; returns the mean loss of every epoch.

    >>> x = nn.Parameter(torch.tensor(3.0))
    >>> history = minimise([x], [lambda: (x - 1) ** 2], Fit(epochs=200, learning_rate=0.1))
    >>> abs(float(x.detach()) - 1) < 0.05 and history[-1] < history[0]
    True

    Args:
        parameters: What to change.
        losses: What to make small; each is called once per epoch and may draw new data every time.
        fit: How.
        judge: Called after every epoch, such as the loss on held-out data: the parameters are left at its lowest.
    """
    if not losses:
        raise InputError("there is nothing to learn from: give at least one example")
    learned = list(parameters)
    optimiser = torch.optim.AdamW(learned, lr=fit.learning_rate, weight_decay=fit.weight_decay)
    pace = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _pace(step, fit.epochs * len(losses)))
    generator = torch.Generator().manual_seed(fit.seed)
    history: list[float] = []
    best, kept, waiting = math.inf, [value.detach().clone() for value in learned], 0
    while len(history) < fit.epochs and waiting < fit.patience:
        total = 0.0
        for number in torch.randperm(len(losses), generator=generator).tolist():
            optimiser.zero_grad(set_to_none=True)
            loss = losses[number]()
            loss.backward()
            nn.utils.clip_grad_norm_(learned, fit.clip)
            optimiser.step()
            pace.step()
            total += float(loss.detach())
        history.append(total / len(losses))
        if judge is not None:
            judged = judge()
            waiting = 0 if judged < best else waiting + 1
            if judged < best:
                best, kept = judged, [value.detach().clone() for value in learned]
    if judge is not None:
        with torch.no_grad():
            for value, best_value in zip(learned, kept, strict=True):
                value.copy_(best_value)
    return history


def _pace(step: int, steps: int) -> float:
    """The learning rate of a step, as a part of the highest.

    >>> [round(_pace(step, 20), 2) for step in (0, 1, 10, 20)]
    [0.5, 0.99, 0.5, 0.0]
    """
    rising = min(1.0, (step + 1) / max(1.0, 0.1 * steps))
    return rising * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))
