"""A network as prediction runs it: its convolutions fused, as long as that is the same network.

The fused copy is made on the first call, and made again when the network's own parameters have changed or moved since.
It is never copied or sent elsewhere, for oneDNN's kernels cannot be: whoever receives a `Ready` makes one anew.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from messagenet.models import SegmentationNet
from messagenet.models.backbones import fused

State = tuple[tuple[int, int, int], ...]


class Ready:
    """Calls a network in the fastest way there is.

    Args:
        net: The network, in evaluation mode.
    """

    def __init__(self, net: SegmentationNet) -> None:
        self.net = net
        self._fused: SegmentationNet | None = None
        self._state: State = ()

    def __call__(self, images: Tensor) -> Tensor:
        """Logits at the nodes, (B, K, h, w), of images in 0..1, (B, 3, H, W)."""
        logits: Tensor = self._network(images.device)(images)
        return logits

    def _network(self, device: torch.device) -> SegmentationNet:
        if device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.is_grad_enabled():
            return self.net
        state = _state(self.net.backbones) + _state(self.net.neck or nn.Identity())
        if self._fused is None or state != self._state:
            self._fused, self._state = _with_fused_convolutions(self.net), state
        return self._fused

    def __getstate__(self) -> dict[str, Any]:
        return {"net": self.net, "_fused": None, "_state": ()}


def _with_fused_convolutions(net: SegmentationNet) -> SegmentationNet:
    """The network with other backbones and another neck; everything else is shared with it."""
    other = copy.copy(net)
    other._modules = dict(net._modules)
    other.backbones = nn.ModuleDict({name: fused(backbone) for name, backbone in net.backbones.items()})
    if other.neck is not None:
        other.neck = fused(other.neck)  # type: ignore[assignment]
    return other


def _state(module: nn.Module) -> State:
    """Changes whenever a parameter or buffer is replaced, moved or written to."""
    return tuple(
        (id(values), values.data_ptr(), 0 if values.is_inference() else values._version)
        for values in (*module.parameters(), *module.buffers())
    )
