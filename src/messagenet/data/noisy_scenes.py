"""Scenes whose labels can be seen anywhere, but badly: a data set that needs smoothing.

The opposite of the synthetic scenes they are made from. A label is the material alone, so every place shows its
own, and no arrangement has to be understood; but blotches of false colour, a few pixels wide, lie over everything.
One cell is often wrong then, while most cells of its neighbourhood are right, and the edges between materials are
still there to be found.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.data.dataset import Sample
from messagenet.data.images import ImageArray
from messagenet.data.seeds import random_stream
from messagenet.data.synthetic import SPLITS, SyntheticScenes

MATERIALS = Classes(
    ("blue", "earth", "white", "red"), ((64, 128, 210), (106, 153, 78), (240, 240, 240), (193, 18, 31))
)
BLOTCHES_ACROSS = 24  # about one for every 4 pixels of a scene of 96
_MATERIAL_OF_CLASS = np.array([0, 1, 0, 2, 2, 2, 3, 3, 3], np.uint8)


class NoisyScenes(SyntheticScenes):
    """Synthetic scenes under blotches, labelled by their material.

    Args:
        count: How many scenes.
        size: Height and width in pixels.
        seed: Another seed gives other scenes.
        split: `train`, `val` or `test`.
        noise: Standard deviation of the blotches, where 1 is from black to white.

    >>> scene = NoisyScenes(10)[3]
    >>> np.unique(scene.mask).tolist(), scene.name
    ([0, 1, 2, 3], 'train-00003')
    """

    def __init__(
        self, count: int = 2000, size: int = 96, seed: int = 0, split: str = "train", noise: float = 0.25
    ) -> None:
        super().__init__(count, size, seed, split)
        self.name = f"noisy {split}"
        self.classes = MATERIALS
        self.noise = noise

    def load(self, index: int) -> Sample:
        """Draws one scene and its blotches."""
        scene = super().load(index)
        assert scene.mask is not None
        rng = random_stream("blotches", self.seed, SPLITS.index(self.split), index)
        return Sample(blotched(scene.image, self.noise, rng), _MATERIAL_OF_CLASS[scene.mask], scene.name)


def blotched(image: ImageArray, noise: float, rng: np.random.Generator) -> ImageArray:
    """Adds a smooth random field of this standard deviation to every channel."""
    height, width = image.shape[:2]
    coarse = rng.standard_normal((3, BLOTCHES_ACROSS, BLOTCHES_ACROSS), dtype=np.float32)
    field = np.stack(
        [
            np.asarray(Image.fromarray(part).resize((width, height), Image.Resampling.BICUBIC))
            for part in coarse
        ],
        -1,
    )
    noisy = image + 255 * noise / field.std() * field
    result: ImageArray = np.clip(noisy + 0.5, 0, 255).astype(np.uint8)
    return result
