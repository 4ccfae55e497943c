"""Segmentations read back from disk, to be looked at: the same whether one machine or a cluster has written them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from PIL import Image

from messagenet.data import read_image, read_mask
from messagenet.errors import InputError
from messagenet.prediction.files import Predicted
from messagenet.prediction.outputs import check_kinds
from messagenet.report import Segmented, found_text, write_gallery

MOST_SHOWN = 200


def check_shown(kinds: Sequence[str], path: str | Path) -> None:
    """Refuses outputs that a page cannot be made from, and a place where it cannot be."""
    check_kinds(kinds)
    if Path(path).is_dir():
        raise InputError(
            f"the report cannot be {path}, which is a folder; give a file such as {path}/report.html"
        )
    if "mask" not in kinds:
        raise InputError(f"a report shows the masks; save them too: {','.join(['mask', *kinds])}")


def found_in(predicted: Predicted, image: Path) -> str:
    """What was found in an image whose mask was written: "cat 61%, background 39%"."""
    return found_text(read_mask(predicted.by_kind(image)["mask"]), predicted.classes)


def write_predictions_page(predicted: Predicted, path: str | Path) -> Path:
    """A page of what was predicted, of the first images if there are very many."""
    title = "Segmentations"
    if len(predicted.written) > MOST_SHOWN:
        title += f", the first {MOST_SHOWN} of {len(predicted.written):,}"
    shown = islice(_segmented(predicted), MOST_SHOWN)
    return write_gallery(shown, path, classes=predicted.classes, title=title)


def _segmented(predicted: Predicted) -> Iterator[Segmented]:
    for image in predicted.written:
        files = predicted.by_kind(image)
        entropy = Image.open(files["entropy"]).convert("RGB") if "entropy" in files else None
        yield Segmented(image.name, read_image(image), read_mask(files["mask"]), entropy)
