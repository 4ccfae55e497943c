"""Puts a trained model into the box: half precision, and colours that every common form of colour vision keeps apart.

python recipes/ship.py runs/animals/blended src/messagenet/bundled/voc-animals
"""

from __future__ import annotations

import sys

from messagenet.data import Classes
from messagenet.models import SegmentationNet

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
"""Pixels, as the photographs have that it has learned from."""


def main(run: str, folder: str) -> None:
    """Reads the model of a run and writes it where the package looks for it."""
    net = SegmentationNet.from_pretrained(run)
    net.classes = Classes(net.classes.names, tuple(OKABE_ITO[name] for name in net.classes.names))
    net.longest_side = LONGEST_SIDE
    print(net.save(folder, half=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
