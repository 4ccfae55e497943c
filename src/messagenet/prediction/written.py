"""Segmentations read back from disk, to be looked at: the same whether one machine or a cluster has written them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from PIL import Image

from messagenet.data import Classes, read_image, read_mask
from messagenet.errors import InputError
from messagenet.prediction.files import Predicted
from messagenet.prediction.outputs import by_kind
from messagenet.report import Segmented, write_gallery

MOST_SHOWN = 200


def check_shown(kinds: Sequence[str]) -> None:
    """Refuses outputs that a page cannot be made from."""
    if "mask" not in kinds:
        raise InputError(f"a report shows the masks; save them too: {','.join(['mask', *kinds])}")


def write_predictions_page(
    predicted: Predicted, kinds: Sequence[str], path: str | Path, classes: Classes
) -> Path:
    """A page of what was predicted, of the first images if there are very many.

    Args:
        predicted: What was written.
        kinds: What was written of every image.
        path: The HTML file.
        classes: What the labels mean.
    """
    title = "Segmentations"
    if len(predicted.written) > MOST_SHOWN:
        title += f", the first {MOST_SHOWN} of {len(predicted.written):,}"
    return write_gallery(islice(_segmented(predicted, kinds), MOST_SHOWN), path, classes=classes, title=title)


def _segmented(predicted: Predicted, kinds: Sequence[str]) -> Iterator[Segmented]:
    for image, files in predicted.written.items():
        written = by_kind(files, kinds)
        entropy = Image.open(written["entropy"]).convert("RGB") if "entropy" in kinds else None
        yield Segmented(image.name, read_image(image), read_mask(written["mask"]), entropy)
