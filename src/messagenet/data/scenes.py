"""Generated scenes: one data set that needs context, and one that needs smoothing.

`SyntheticScenes` has sky over land over water, with blobs: four materials but nine classes, by their arrangement.

    material   above the land   on the land   below the land
    blue       sky              ·             water
    earth      ·                land          ·
    white      cloud            snow          foam
    red        balloon          house         buoy

Within a row, local appearance carries no information about the column: every material is a stationary random field
(waves and light with uniformly random phases, independent noise), and blobs have one distribution of shapes and sizes,
all drawn independently of the arrangement. So P(patch | sky) = P(patch | water) for every patch inside the material,
and a network whose receptive field is smaller than a blob can only learn the material. For most nodes the land is
within the relations `above` and `below` (0.4 of the size, see `messagenet.graph`); the others need a second iteration.
The height of the land varies, so that the position in the image alone is a poor predictor.

In `NoisyScenes` the label is the material, but blotches of false colour, a few pixels wide, cover everything: a single
cell is often wrong, most of its neighbours are right, and edges between materials remain visible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.data.dataset import Sample, SegmentationData
from messagenet.data.images import ImageArray, LabelArray
from messagenet.data.sampling import random_stream
from messagenet.errors import InputError, nearest
from messagenet.settings import register

Field = NDArray[np.float32]

SPLITS = {"train": 2000, "val": 200, "test": 200}  # scenes where no count is given
SKY, LAND, WATER = 0, 1, 2  # the bands; white blobs add 3 to the band's id, red ones 6
SCENE_CLASSES = Classes(
    ("sky", "land", "water", "cloud", "snow", "foam", "balloon", "house", "buoy"),
    (
        *((142, 202, 230), (106, 153, 78), (29, 78, 137)),
        *((255, 255, 255), (190, 172, 220), (64, 224, 208)),
        *((110, 40, 200), (193, 18, 31), (255, 214, 10)),
    ),
)
MIN_SIZE = 32
REACH = 0.18  # the largest half-extent of a blob, as a fraction of the size
GAP = 0.03  # between a blob in the blue and the land


class SyntheticScenes(SegmentationData):
    """Scenes generated on demand from (seed, split, index) alone.

    Args:
        count: Number of scenes.
        size: Height and width in pixels; everything in a scene scales with it.
        seed: Seed of the scenes.
        split: `train`, `val` or `test`, which are disjoint.

    >>> scene = SyntheticScenes(10)[3]
    >>> scene.image.shape, scene.mask.shape, scene.name
    ((96, 96, 3), (96, 96), 'train-00003')
    """

    def __init__(self, count: int = 2000, size: int = 96, seed: int = 0, split: str = "train") -> None:
        if count < 1:
            raise InputError(f"count is {count}; ask for at least 1 scene")
        if size < MIN_SIZE:
            raise InputError(f"size is {size}; a scene needs at least {MIN_SIZE} pixels a side")
        if seed < 0:
            raise InputError(f"seed is {seed}; use 0 or a positive number")
        if split not in SPLITS:
            raise InputError(f'there is no split "{split}" of the synthetic scenes; {nearest(split, SPLITS)}')
        self.name = f"synthetic {split}"
        self.classes = SCENE_CLASSES
        self.count, self.size, self.seed, self.split = count, size, seed, split

    def __len__(self) -> int:
        return self.count

    def sample_name(self, index: int) -> str:
        """Split and index, such as `val-00012`."""
        return f"{self.split}-{index:05d}"

    def load(self, index: int) -> Sample:
        """Draws one scene."""
        return Sample(*_draw_scene(self._stream("scene", index), self.size), self.sample_name(index))

    def _stream(self, purpose: str, index: int) -> np.random.Generator:
        return random_stream(purpose, self.seed, list(SPLITS).index(self.split), index)


class Blob(NamedTuple):
    """A white or red shape: the band its centre is in, and the centre as fractions of width and height."""

    band: int
    red: bool
    x: float
    y: float


class Material(NamedTuple):
    """A colour with a stationary texture, defined over the whole canvas."""

    colour: Field  # (3,)
    texture: Field  # (3,), what the wave adds to the colour
    wave: Field  # (S, S)

    def at(self, rows: slice, columns: slice) -> Field:
        """The colours in a window, (h, w, 3)."""
        return self.colour + self.wave[rows, columns, None] * self.texture


def _draw_scene(rng: np.random.Generator, size: int) -> tuple[ImageArray, LabelArray]:
    """One scene and its mask: first the arrangement, then materials independent of it."""
    axis = ((np.arange(size) + 0.5) / size).astype(np.float32)
    upper, lower = _draw_land(rng, axis)
    blobs = _place_blobs(rng, axis, upper, lower)
    blue, earth, white, red = _draw_materials(rng, axis)
    canvas = slice(0, size)
    depth = np.minimum(axis[:, None] - upper, lower - axis[:, None])  # (S, S), positive inside the land
    image = _paint(blue.at(canvas, canvas), earth.at(canvas, canvas), depth * size)
    mask = np.where(depth > 0, LAND, np.where(axis[:, None] < upper, SKY, WATER)).astype(np.uint8)
    for blob in blobs:
        rows, columns = _window(blob.y, size), _window(blob.x, size)
        across, down = axis[columns] - blob.x, axis[rows] - blob.y
        depth = _draw_block(rng, across, down) if blob.red else _draw_puff(rng, across, down)
        material = red if blob.red else white
        image[rows, columns] = _paint(image[rows, columns], material.at(rows, columns), depth * size)
        mask[rows, columns][depth > 0] = blob.band + (6 if blob.red else 3)
    light = 1 + 0.10 * _waves(rng, axis, count=1, cycles=(0.8, 0.8)) + rng.uniform(-0.12, 0.06)
    noise = 0.02 * rng.standard_normal(image.shape, dtype=np.float32)
    lit = (image * light[:, :, None].astype(np.float32) + noise) * 255 + 0.5
    return np.clip(lit, 0, 255).astype(np.uint8), mask


def _window(centre: float, size: int) -> slice:
    """The pixels a blob can cover along one axis, and one more for its smooth edge."""
    return slice(max(0, int((centre - REACH) * size) - 1), int((centre + REACH) * size) + 2)


def _draw_land(rng: np.random.Generator, axis: Field) -> tuple[Field, Field]:
    """The upper and the lower edge of the land in every column, (S,) each, as fractions of the height, downwards."""
    slope = rng.uniform(-0.7, 0.7)
    middle = np.clip(rng.uniform(0.13, 0.87) + slope * (axis - 0.5), 0.05, 0.95)
    half = rng.uniform(0.09, 0.16)
    turns = 2 * np.pi * np.arange(1, 5)  # waves of 1 to 4 periods, the short ones lower
    height = rng.normal(0, 1, (2, 4)) * np.array([0.035, 0.014, 0.008, 0.005])
    phase = rng.uniform(0, 2 * np.pi, (2, 4))
    upper, lower = (height[:, :, None] * np.sin(turns[:, None] * axis + phase[:, :, None])).sum(1)  # (S,) each
    upper, lower = np.minimum(middle - half + upper, middle - 0.05), np.maximum(middle + half + lower, middle + 0.05)
    return upper.astype(np.float32), lower.astype(np.float32)


def _place_blobs(rng: np.random.Generator, axis: Field, upper: Field, lower: Field) -> list[Blob]:
    """Centres for at most one blob per kind and band, with room for the largest: size is independent of the band."""
    y = axis[:, None]
    near = np.abs(axis[:, None] - axis) <= REACH  # (S, S): columns a blob centred in another can cover
    highest = np.where(near, upper, np.inf).min(1)
    lowest = np.where(near, lower, -np.inf).max(1)
    middle, thickness = (upper + lower) / 2, lower - upper
    inside = (np.abs(y - 0.5) < 0.5 - 0.6 * REACH) & (np.abs(axis - 0.5) < 0.5 - 0.4 * REACH)
    allowed = {
        SKY: inside & (y + REACH + GAP < highest),
        LAND: inside & (np.abs(y - middle) < 0.25 * thickness),
        WATER: inside & (y - REACH - GAP > lowest),
    }
    blobs: list[Blob] = []
    free = np.ones_like(inside)
    for kind in rng.permutation(6):
        band, red = int(kind) % 3, bool(kind >= 3)
        positions = np.flatnonzero(allowed[band] & free)
        if rng.random() > (0.6 if band == LAND else 0.9) or len(positions) == 0:
            continue
        row, column = divmod(int(rng.choice(positions)), len(axis))
        blob = Blob(band, red, float(axis[column]), float(axis[row]))
        free &= (axis - blob.x) ** 2 + (y - blob.y) ** 2 > (2 * REACH) ** 2
        blobs.append(blob)
    return blobs


def _draw_puff(rng: np.random.Generator, across: Field, down: Field) -> Field:
    """Depth inside a union of discs, cloud-like, as a fraction of the size; negative outside, (h, w)."""
    radius = rng.uniform(0.8, 1.0) * REACH
    lobe = np.append(rng.uniform(0.25, 0.55, 9), 0.7)
    angle = rng.uniform(0, 2 * np.pi, 10)
    x = radius * (1 - lobe) * np.cos(angle)
    y = radius * (1 - lobe) * np.sin(angle) * 0.8
    squared = (across - x[:, None])[:, None, :] ** 2 + (down - y[:, None])[:, :, None] ** 2  # (10, h, w)
    depth: Field = (radius * lobe[:, None, None] - np.sqrt(squared)).max(0).astype(np.float32)
    return depth


def _draw_block(rng: np.random.Generator, across: Field, down: Field) -> Field:
    """Depth inside a superellipse, anything from an ellipse to a rounded square; negative outside, (h, w)."""
    half = rng.uniform(0.75, 1.0, 2) * REACH
    power = rng.uniform(2.0, 4.0)
    norm = ((np.abs(across) / half[0]) ** power + (np.abs(down) / half[1])[:, None] ** power) ** (1 / power)
    depth: Field = ((1 - norm) * half.min()).astype(np.float32)
    return depth


def _draw_materials(rng: np.random.Generator, axis: Field) -> list[Material]:
    """Blue, earth, white and red, each a little different in every scene."""
    tone = rng.uniform(0, 1)
    earth = (0.72 - 0.32 * tone, 0.62 - 0.04 * tone, 0.38 - 0.10 * tone)  # from ochre to green
    return [
        Material(
            (np.array(colour) + rng.uniform(-spread, spread, 3)).astype(np.float32),
            np.array(texture, dtype=np.float32),
            _waves(rng, axis, count, cycles),
        )
        for colour, spread, texture, count, cycles in (
            ((0.38, 0.62, 0.86), 0.05, (0.06, 0.045, 0.025), 5, (4.0, 12.0)),
            (earth, 0.04, (0.07, 0.06, 0.05), 7, (10.0, 10.0)),
            ((0.93, 0.94, 0.96), 0.02, (0.035, 0.03, 0.02), 4, (5.0, 5.0)),
            ((0.84, 0.22, 0.19), 0.04, (0.06, 0.03, 0.03), 4, (5.0, 5.0)),
        )
    ]


def _waves(rng: np.random.Generator, axis: Field, count: int, cycles: tuple[float, float]) -> Field:
    """A stationary field of unit variance, √(2/n) Σ sin(2π(u·x + v·y) + φ) with φ uniform, u and v within ±`cycles`."""
    frequency = 2 * np.pi * rng.uniform(-1, 1, (2, count)) * np.array(cycles)[:, None]
    phase = rng.uniform(0, 2 * np.pi, count)
    across = frequency[0, :, None] * axis  # (count, S)
    down = frequency[1, :, None] * axis + phase[:, None]
    x = np.concatenate([np.sin(across), np.cos(across)]).astype(np.float32)  # (2 count, S)
    y = np.concatenate([np.cos(down), np.sin(down)]).astype(np.float32)
    field: Field = np.float32(np.sqrt(2 / count)) * (y.T @ x)  # by the addition theorem
    return field


def _paint(below: Field, above: Field, depth: Field) -> Field:
    """Composites a material over another where depth (in pixels) is positive, with a smooth edge and a dark rim."""
    cover = np.clip(depth + 0.5, 0, 1)[:, :, None]
    rim = 1 - 0.22 * np.exp(-np.maximum(depth, 0) / 1.2)[:, :, None]
    painted: Field = below + cover * (above * rim - below)
    return painted


MATERIALS = Classes(("blue", "earth", "white", "red"), ((64, 128, 210), (106, 153, 78), (240, 240, 240), (193, 18, 31)))
BLOTCHES_ACROSS = 24  # about one for every 4 pixels of a scene of 96
_MATERIAL_OF_CLASS = np.array([0, 1, 0, 2, 2, 2, 3, 3, 3], np.uint8)


class NoisyScenes(SyntheticScenes):
    """Synthetic scenes under blotches of standard deviation `noise` (1 is black to white), labelled by material.

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
        image = add_blotches(scene.image, self.noise, self._stream("blotches", index))
        return Sample(image, _MATERIAL_OF_CLASS[scene.mask], scene.name)


def add_blotches(image: ImageArray, noise: float, rng: np.random.Generator) -> ImageArray:
    """Adds a smooth random field of this standard deviation to every channel."""
    height, width = image.shape[:2]
    coarse = rng.standard_normal((3, BLOTCHES_ACROSS, BLOTCHES_ACROSS), dtype=np.float32)
    field = np.stack(
        [np.asarray(Image.fromarray(part).resize((width, height), Image.Resampling.BICUBIC)) for part in coarse], -1
    )
    noisy = image + 255 * noise / field.std() * field
    result: ImageArray = np.clip(noisy + 0.5, 0, 255).astype(np.uint8)
    return result


@register("data", "synthetic")
def open_synthetic(location: str, *, split: str = "train", seed: int = 0) -> SyntheticScenes:
    """Generated scenes whose labels depend on context: `synthetic` or `synthetic:COUNT`."""
    return SyntheticScenes(_count("synthetic", location, split), seed=seed, split=split)


@register("data", "noisy")
def open_noisy(location: str, *, split: str = "train", seed: int = 0) -> NoisyScenes:
    """The same under blotches, labelled by material: `noisy` or `noisy:COUNT`."""
    return NoisyScenes(_count("noisy", location, split), seed=seed, split=split)


def _count(kind: str, location: str, split: str) -> int:
    if location and not location.isdecimal():
        raise InputError(f'"{kind}:{location}" needs a number of scenes, such as {kind}:500')
    return int(location) if location else SPLITS.get(split, 1)
