"""What came of one row with one seed, as it is kept on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from messagenet.comparison.cost import Cost
from messagenet.errors import InputError
from messagenet.evaluation import Scores
from messagenet.files import write_atomically


@dataclass(frozen=True)
class Outcome:
    """A trained and scored row.

    Attributes:
        row: Its name.
        label: What it is, in words.
        seed: Of its training.
        mean_iou: On the scored images.
        trimap_iou: The same near boundaries, by width of the band in pixels.
        parameters: Numbers that training changes.
        outputs_per_factor: Numbers that a network computes for a factor.
        steps: Training steps.
        train_seconds: The whole training.
        cost: Measured on a model of its own kind.
        tuned: Settings found on held-out images.
        calibration_error: ECE of the marginals.
        small_accuracy: Mean class accuracy where a class covers little of its image.
        kind: Of its network.
    """

    row: str
    label: str
    seed: int
    mean_iou: float
    trimap_iou: dict[str, float]
    parameters: int
    outputs_per_factor: int
    steps: int
    train_seconds: float
    cost: Cost
    tuned: dict[str, float] = field(default_factory=dict)
    calibration_error: float | None = None
    small_accuracy: float | None = None
    kind: str = ""

    def save(self, path: Path) -> None:
        """Writes it as json."""
        write_atomically(path, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Reads what `save` wrote."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**values, "cost": Cost(**values["cost"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is no outcome of a row ({error}); delete it to train again") from None


def near_boundaries(scores: Scores) -> dict[str, float]:
    """Trimap IoU by width, where there are boundaries."""
    return {str(band.width): band.mean_iou for band in scores.bands if band.mean_iou is not None}
