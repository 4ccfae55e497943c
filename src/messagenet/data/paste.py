"""Objects of one image pasted onto another, so that they are seen in places where no photograph shows them.

Copy-paste (Ghiasi et al., arXiv 2012.07177) takes the objects; without a background to tell them from, half of the
classes are taken (ClassMix, Olsson et al., arXiv 2007.07936).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from messagenet.data.classes import BACKGROUND, VOID, Classes
from messagenet.data.dataset import Sample, SegmentationData
from messagenet.data.images import LabelArray
from messagenet.data.transforms import Augment


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
