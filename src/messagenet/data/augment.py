"""Random changes of scale, position, direction and colour, made to image and mask together.

The functions are pure and exact; `Augment` draws their arguments. Images are resized bilinearly (with
anti-aliasing when they shrink), masks by nearest neighbour, so no label is ever invented; what lies outside
the picture is the mean colour in the image and void in the mask. A crop of a resized sample is computed
without resizing the rest.

Draws come from `generator(seed, epoch, index)`: a sample's augmentation depends on neither workers nor order.

Objects of one image pasted onto another, so that they are seen in places where no photograph shows them.

Copy-paste (Ghiasi et al., arXiv 2012.07177) takes the objects; without a background to tell them from, half of the
classes are taken (ClassMix, Olsson et al., arXiv 2007.07936).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from messagenet.data.classes import BACKGROUND, VOID, Classes
from messagenet.data.dataset import Sample, SegmentationData
from messagenet.data.images import MEAN_COLOUR, ImageArray, LabelArray
from messagenet.data.sampling import random_stream
from messagenet.errors import InputError

MEAN_BYTES = tuple(round(255 * value) for value in MEAN_COLOUR)


def generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random stream that augments one sample in one epoch."""
    return random_stream("augment", seed, epoch, index)


def resize(sample: Sample, height: int, width: int) -> Sample:
    """The sample at another size."""
    return resized_window(sample, (height, width), (0, 0), (height, width))


def resized_window(
    sample: Sample, size: tuple[int, int], corner: tuple[int, int], extent: tuple[int, int]
) -> Sample:
    """The window of `extent` (height, width) at `corner` (top, left) of the sample resized to `size`.

    The window must lie inside `size`.
    """
    (top, left), (height, width) = corner, extent
    if sample.image.shape[:2] == size:
        window = np.s_[top : top + height, left : left + width]
        return replace(
            sample, image=sample.image[window], mask=None if sample.mask is None else sample.mask[window]
        )
    down, across = sample.image.shape[0] / size[0], sample.image.shape[1] / size[1]
    box = (left * across, top * down, (left + width) * across, (top + height) * down)

    def scaled(array: NDArray[np.uint8], filter: Image.Resampling) -> NDArray[np.uint8]:
        return np.asarray(Image.fromarray(array).resize((width, height), filter, box))

    mask = None if sample.mask is None else scaled(sample.mask, Image.Resampling.NEAREST)
    return replace(sample, image=scaled(sample.image, Image.Resampling.BILINEAR), mask=mask)


def pad(sample: Sample, height: int, width: int) -> Sample:
    """The sample extended to at least this size, at the bottom and on the right."""
    down, across = max(0, height - sample.image.shape[0]), max(0, width - sample.image.shape[1])
    if down == across == 0:
        return sample
    image = np.empty((sample.image.shape[0] + down, sample.image.shape[1] + across, 3), np.uint8)
    image[:] = MEAN_BYTES
    image[: sample.image.shape[0], : sample.image.shape[1]] = sample.image
    border = ((0, down), (0, across))
    mask = None if sample.mask is None else np.pad(sample.mask, border, constant_values=VOID)
    return replace(sample, image=image, mask=mask)


def mirror(sample: Sample) -> Sample:
    """The sample as in a mirror: left and right exchanged."""
    mask = None if sample.mask is None else np.ascontiguousarray(sample.mask[:, ::-1])
    return replace(sample, image=np.ascontiguousarray(sample.image[:, ::-1]), mask=mask)


def recolour(
    image: ImageArray, brightness: float = 1.0, contrast: float = 1.0, saturation: float = 1.0
) -> ImageArray:
    """Multiplies an image's brightness, then contrast (about its mean), then saturation; 1 is no change."""
    if (brightness, contrast) != (1.0, 1.0):
        mean = brightness * float(image.mean())
        values = contrast * (brightness * np.arange(256) - mean) + mean
        image = np.clip(values + 0.5, 0, 255).astype(np.uint8)[image]
    if saturation != 1.0:
        picture = Image.fromarray(image)
        image = np.asarray(Image.blend(picture.convert("L").convert("RGB"), picture, saturation))
    return image


@dataclass(frozen=True)
class Augment:
    """What to vary while training; with no arguments, nothing.

    Attributes:
        scales: Factors of size, one of which is chosen.
        scale_range: Smallest and largest factor of size, instead of `scales`.
        crop: Height and width of a random crop, or one number for both; smaller samples are padded to it.
        mirror: Whether half of the samples are mirrored.
        brightness: Largest relative change of brightness, such as 0.3.
        contrast: Largest relative change of contrast.
        saturation: Largest relative change of saturation.
        longest_side: Size to which larger samples are brought before anything else.
        paste: Share of the crops onto which the objects of another are pasted: what is not "background", or half of
            its classes where none is called so.

    >>> Augment.paper(crop=321)
    Augment(scales=(0.8, 0.9, 1.0, 1.1, 1.2), scale_range=None, crop=(321, 321), mirror=True, ...)
    """

    scales: tuple[float, ...] = (1.0,)
    scale_range: tuple[float, float] | None = None
    crop: tuple[int, int] | int | None = None
    mirror: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    longest_side: int | None = None
    paste: float = 0.0

    def __post_init__(self) -> None:
        self._set("scales", tuple(self.scales))
        if isinstance(self.crop, int):
            self._set("crop", (self.crop, self.crop))
        elif self.crop is not None:
            self._set("crop", tuple(self.crop))
        if self.scale_range is not None:
            self._set("scale_range", tuple(self.scale_range))
            if self.scales != (1.0,):
                raise InputError("give either scales or scale_range, not both")
            if len(self.scale_range) != 2 or not 0 < self.scale_range[0] <= self.scale_range[1]:
                raise InputError(
                    f"scale_range is {self.scale_range}; give two positive numbers, smallest first"
                )
        if not self.scales or min(self.scales) <= 0:
            raise InputError(f"scales is {self.scales}; give positive factors such as 0.8, 1.0, 1.2")
        if isinstance(self.crop, tuple) and (len(self.crop) != 2 or min(self.crop) < 1):
            raise InputError(f"crop is {self.crop}; give a height and a width in pixels")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give a largest change from 0 to below 1")
        if self.longest_side is not None and self.longest_side < 1:
            raise InputError(f"longest_side is {self.longest_side}; give a number of pixels")
        if not 0 <= self.paste <= 1:
            raise InputError(f"paste is {self.paste}; give a share of the crops, from 0 to 1")
        if self.paste and self.crop is None:
            raise InputError("objects are pasted between crops of one size; set crop, or leave out paste")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def paper(cls, crop: tuple[int, int] | int | None = None) -> Augment:
        """The augmentation of the paper's "ours+": five scales and their mirror images."""
        return cls(scales=(0.8, 0.9, 1.0, 1.1, 1.2), crop=crop, mirror=True)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Draws one variation of a sample; `augmented` draws one with pasted objects too."""
        height, width = self._size(sample, rng)
        rows, columns = self.crop if isinstance(self.crop, tuple) else (height, width)
        top, left = (int(rng.integers(max(0, spare) + 1)) for spare in (height - rows, width - columns))
        extent = (min(rows, height), min(columns, width))
        sample = resized_window(sample, (height, width), (top, left), extent)
        if self.mirror and rng.random() < 0.5:
            sample = mirror(sample)
        changes = [1 + rng.uniform(-most, most) if most else 1.0 for most in self._changes]
        return pad(replace(sample, image=recolour(sample.image, *changes)), rows, columns)

    @property
    def _changes(self) -> tuple[float, float, float]:
        return self.brightness, self.contrast, self.saturation

    def _size(self, sample: Sample, rng: np.random.Generator) -> tuple[int, int]:
        height, width = sample.image.shape[:2]
        scale = float(rng.uniform(*self.scale_range) if self.scale_range else rng.choice(self.scales))
        if self.longest_side is not None:
            scale *= min(1.0, self.longest_side / max(height, width))
        return max(1, round(scale * height)), max(1, round(scale * width))


def augmented(data: SegmentationData, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
    """Draws one variation of a sample, now and then with the objects of another sample of the data."""
    sample = augment(data[index], rng)
    if not augment.paste or rng.random() >= augment.paste:
        return sample
    donor = augment(data[int(rng.integers(len(data)))], rng)
    return sample if donor.mask is None else paste(sample, donor, objects(donor.mask, data.classes, rng))


def objects(mask: LabelArray, classes: Classes, rng: np.random.Generator) -> LabelArray:
    """The ids to paste: all but the class called background; without such a class, half of those there are.

    >>> classes = Classes(("background", "cat", "dog"))
    >>> objects(np.array([[0, 2, 255]], np.uint8), classes, np.random.default_rng(0))
    array([2], dtype=uint8)
    """
    there = np.setdiff1d(mask, [VOID])
    if BACKGROUND in classes.names:
        return np.setdiff1d(there, [classes.names.index(BACKGROUND)])
    return rng.choice(there, len(there) // 2, replace=False)


def paste(sample: Sample, donor: Sample, ids: LabelArray) -> Sample:
    """The sample, with the donor's pixels and labels wherever the donor's label is one of `ids`; of equal sizes."""
    if sample.mask is None or donor.mask is None:
        return sample
    taken = np.isin(donor.mask, ids)
    image = np.where(taken[..., None], donor.image, sample.image)
    return replace(sample, image=image, mask=np.where(taken, donor.mask, sample.mask))
