"""Features of nodes, and what estimators make of them before any message: the same in every iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn


class Projecting(Protocol):
    """The first layer of an estimator, split over receiver and sender."""

    receiver: nn.Linear
    sender: nn.Linear | None


class ProjectedFeatures:
    """Features by factor type, (..., r), and their projections, made once.

    Attributes:
        features: By the name of the factor type; "unary" is there always.
    """

    def __init__(self, features: Mapping[str, Tensor]) -> None:
        self.features = features
        self._projections: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    @property
    def like(self) -> Tensor:
        """A tensor with the type, the device and the nodes of the features."""
        return self.features["unary"]

    def projections(self, name: str, estimator: Projecting) -> tuple[Tensor, Tensor]:
        """P = A f + b and Q = B f, (..., hidden); made once per estimator."""
        key = (id(estimator), name)
        if key not in self._projections:
            assert estimator.sender is not None
            features = self.features[name]
            self._projections[key] = estimator.receiver(features), estimator.sender(features)
        return self._projections[key]
