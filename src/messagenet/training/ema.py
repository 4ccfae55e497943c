"""A running average of the weights, which predicts better than the last weights do.

    θ̄ ← d_t θ̄ + (1 − d_t) θ,        d_t = min(d, (1 + t) / (10 + t))

after every step t = 0, 1, …; the second term of the minimum lets the average forget the random weights it began
with (Polyak & Juditsky, SIAM J. Control Optim. 1992; the warm-up is TensorFlow's). Statistics of batch norms are
averaged likewise, counters are copied, frozen parameters are left alone.
"""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

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
