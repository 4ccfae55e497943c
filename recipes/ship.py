"""Writes a trained model as a bundled one: half precision, and colours that are distinct for colour-blind readers.

    python recipes/ship.py runs/animals/blended src/messagenet/bundled/voc-animals

With --quick alone, writes the bundled model into a temporary folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace

from messagenet.data import Classes
from messagenet.models import SegmentationModel

OKABE_ITO = {
    "background": (0, 0, 0),
    "cat": (230, 159, 0),
    "cow": (86, 180, 233),
    "dog": (0, 158, 115),
    "horse": (240, 228, 66),
    "person": (204, 121, 167),
    "sheep": (0, 114, 178),
}


LONGEST_SIDE = 384
"""Working size in pixels: that of the training photos."""


def main(run: str, folder: str) -> None:
    """Reads the model of a run and writes it into the package's folder of models."""
    model = SegmentationModel.from_pretrained(run)
    names = model.classes.names
    classes = Classes(names, tuple(OKABE_ITO[name] for name in names))
    model.input = replace(model.input, classes=classes, longest_side=LONGEST_SIDE)
    saved = model.save(folder, half=True)
    print(saved)
    megabytes = sum(file.stat().st_size for file in saved.iterdir()) / 1e6
    print(json.dumps({"classes": len(names), "megabytes": round(megabytes, 3)}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        with tempfile.TemporaryDirectory() as folder:
            main("voc-animals", f"{folder}/bundled")
    else:
        main(*sys.argv[1:])
