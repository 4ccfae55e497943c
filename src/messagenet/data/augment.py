"""Random scaling, cropping, mirroring and recolouring of image and mask together.

With a sample (x, y) of size (H, W), `Augment` draws

    s   scale: (H, W) becomes (round(s·H), round(s·W)), the image bilinear (anti-aliased), the mask nearest-neighbour
    c   the corner of a crop, uniform over all that fit; smaller samples are padded with the mean colour and void
    m   whether to flip left and right
    b, k, a   factors of brightness, contrast (about the mean) and saturation, each 1 + u with |u| at most its setting

and resizes only the crop. With `paste`, the objects of a second sample are pasted onto the crop (copy-paste, Ghiasi et
al., arXiv 2012.07177), or half of its classes without a background class (ClassMix, Olsson et al., arXiv 2007.07936).
Draws come from `generator(seed, epoch, index)`: augmentation depends neither on the workers nor on the order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from messagenet.data.classes import BACKGROUND, VOID, Classes
from messagenet.data.dataset import Sample, SegmentationData
from messagenet.data.images import IMAGENET_MEAN, ImageArray, LabelArray
from messagenet.data.sampling import random_stream
from messagenet.errors import InputError

MEAN_BYTES = tuple(round(255 * value) for value in IMAGENET_MEAN)


def generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random stream that augments one sample in one epoch."""
    return random_stream("augment", seed, epoch, index)


def resized_window(sample: Sample, size: tuple[int, int], corner: tuple[int, int], extent: tuple[int, int]) -> Sample:
    """The window of `extent` (height, width) at `corner` (top, left) of the sample resized to `size`."""
    (top, left), (height, width) = corner, extent
    if sample.image.shape[:2] == size:
        window = np.s_[top : top + height, left : left + width]
        return replace(sample, image=sample.image[window], mask=None if sample.mask is None else sample.mask[window])
    down, across = sample.image.shape[0] / size[0], sample.image.shape[1] / size[1]
    box = (left * across, top * down, (left + width) * across, (top + height) * down)

    def resize(array: NDArray[np.uint8], filter: Image.Resampling) -> NDArray[np.uint8]:
        return np.asarray(Image.fromarray(array).resize((width, height), filter, box))

    mask = None if sample.mask is None else resize(sample.mask, Image.Resampling.NEAREST)
    return replace(sample, image=resize(sample.image, Image.Resampling.BILINEAR), mask=mask)


def pad(sample: Sample, height: int, width: int) -> Sample:
    """The sample padded to at least this size, at the bottom and on the right."""
    rows, columns = sample.image.shape[:2]
    down, across = max(0, height - rows), max(0, width - columns)
    if down == across == 0:
        return sample
    image = np.empty((rows + down, columns + across, 3), np.uint8)
    image[:] = MEAN_BYTES
    image[:rows, :columns] = sample.image
    mask = None if sample.mask is None else np.pad(sample.mask, ((0, down), (0, across)), constant_values=VOID)
    return replace(sample, image=image, mask=mask)


def mirror(sample: Sample) -> Sample:
    """The sample flipped left to right."""
    mask = None if sample.mask is None else np.ascontiguousarray(sample.mask[:, ::-1])
    return replace(sample, image=np.ascontiguousarray(sample.image[:, ::-1]), mask=mask)


def recolour(image: ImageArray, brightness: float = 1.0, contrast: float = 1.0, saturation: float = 1.0) -> ImageArray:
    """Scales an image's brightness, then contrast (about its mean), then saturation; 1 means no change."""
    if (brightness, contrast) != (1.0, 1.0):
        mean = brightness * float(image.mean())
        values = contrast * (brightness * np.arange(256) - mean) + mean
        image = np.clip(values + 0.5, 0, 255).astype(np.uint8)[image]
    if saturation != 1.0:
        colour = Image.fromarray(image)
        image = np.asarray(Image.blend(colour.convert("L").convert("RGB"), colour, saturation))
    return image


@dataclass(frozen=True)
class Augment:
    """Random augmentation; none by default.

    Attributes:
        scales: Scale factors, one of which is drawn.
        scale_range: Smallest and largest scale factor, instead of `scales`.
        crop: Height and width of a random crop, or one number for both; smaller samples are padded to it.
        mirror: Whether to flip half of the samples left to right.
        brightness: Largest relative change of brightness, such as 0.3.
        contrast: Largest relative change of contrast.
        saturation: Largest relative change of saturation.
        longest_side: Larger samples are reduced to this longest side first.
        paste: Share of the crops onto which the objects of another sample are pasted: all but "background", or half of
            its classes if there is no such class.

    >>> Augment(scales=[0.8, 1.0, 1.2], crop=321, mirror=True)
    Augment(scales=(0.8, 1.0, 1.2), scale_range=None, crop=(321, 321), mirror=True, ...)
    """

    scales: tuple[float, ...] = (1.0,)
    scale_range: tuple[float, float] | None = None
    crop: int | tuple[int, int] | None = None
    mirror: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    longest_side: int | None = None
    paste: float = 0.0

    def __post_init__(self) -> None:
        crop = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        for name, value in (("scales", self.scales), ("crop", crop), ("scale_range", self.scale_range)):
            object.__setattr__(self, name, None if value is None else tuple(value))
        if self.scale_range is not None:
            if self.scales != (1.0,):
                raise InputError("give either scales or scale_range, not both")
            if len(self.scale_range) != 2 or not 0 < self.scale_range[0] <= self.scale_range[1]:
                raise InputError(f"scale_range is {self.scale_range}; give two positive numbers, smallest first")
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

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """One random variation of a sample, without pasting (see `augment_sample`)."""
        height, width = sample.image.shape[:2]
        scale = float(rng.uniform(*self.scale_range) if self.scale_range else rng.choice(self.scales))
        if self.longest_side is not None:
            scale *= min(1.0, self.longest_side / max(height, width))
        height, width = max(1, round(scale * height)), max(1, round(scale * width))
        rows, columns = self.crop if isinstance(self.crop, tuple) else (height, width)
        top, left = (int(rng.integers(max(0, spare) + 1)) for spare in (height - rows, width - columns))
        extent = (min(rows, height), min(columns, width))
        sample = resized_window(sample, (height, width), (top, left), extent)
        if self.mirror and rng.random() < 0.5:
            sample = mirror(sample)
        limits = self.brightness, self.contrast, self.saturation
        factors = [1 + rng.uniform(-limit, limit) if limit else 1.0 for limit in limits]
        return pad(replace(sample, image=recolour(sample.image, *factors)), rows, columns)


def augment_sample(data: SegmentationData, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
    """One random variation of a sample; with probability `paste`, with the objects of another sample of the data."""
    sample = augment(data[index], rng)
    if not augment.paste or rng.random() >= augment.paste:
        return sample
    donor = augment(data[int(rng.integers(len(data)))], rng)
    return sample if donor.mask is None else paste(sample, donor, ids_to_paste(donor.mask, data.classes, rng))


def ids_to_paste(mask: LabelArray, classes: Classes, rng: np.random.Generator) -> LabelArray:
    """The ids in a mask to paste: all but "background", or a random half of them if there is no such class.

    >>> classes = Classes(("background", "cat", "dog"))
    >>> ids_to_paste(np.array([[0, 2, 255]], np.uint8), classes, np.random.default_rng(0))
    array([2], dtype=uint8)
    """
    present = np.setdiff1d(mask, [VOID])
    if BACKGROUND in classes.names:
        return np.setdiff1d(present, [classes.names.index(BACKGROUND)])
    return rng.choice(present, len(present) // 2, replace=False)


def paste(sample: Sample, donor: Sample, ids: LabelArray) -> Sample:
    """The sample with the donor's pixels and labels wherever the donor's label is in `ids`; both of one size."""
    if sample.mask is None or donor.mask is None:
        return sample
    pasted = np.isin(donor.mask, ids)
    image = np.where(pasted[..., None], donor.image, sample.image)
    return replace(sample, image=image, mask=np.where(pasted, donor.mask, sample.mask))
