"""Messages kept from one training step to the next.

Potentials change little between two visits of an image, and so do their messages: belief propagation that begins
where it ended last time needs a few iterations instead of many. The same thought as persistent chains for sampling
(Tieleman, ICML 2008). It holds only for images that stay as they are; another crop has other messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class MessageMemory:
    """The last messages of every image, by name, in main memory.

    >>> memory = MessageMemory()
    >>> memory.keep(["cat"], torch.ones(1, 5, 3))
    >>> memory.recall(["cat", "dog"], (5, 3)).sum((1, 2))
    tensor([15.,  0.])
    """

    def __init__(self) -> None:
        self._messages: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def recall(self, names: Sequence[str], shape: tuple[int, int]) -> Tensor:
        """Messages to begin with, (B, rows, K); zeros for images not met before, or met with another map.

        Args:
            names: Of the images.
            shape: Rows and classes of their messages.
        """
        kept = (self._messages.get(name) for name in names)
        nothing = torch.zeros(shape)
        return torch.stack([nothing if m is None or m.shape != shape else m for m in kept])

    def keep(self, names: Sequence[str], messages: Tensor) -> None:
        """Remembers the messages (B, rows, K) of some images."""
        for name, own in zip(names, messages.detach().cpu(), strict=True):
            self._messages[name] = own.clone()
