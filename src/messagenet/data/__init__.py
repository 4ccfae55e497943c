"""Images and masks up to tensors: data sets, their classes, joint transforms, batches, and a check.

Everything yields `Sample`s of uint8 arrays; `open_data` opens any data set from one line of text.
"""

from messagenet.data.augment import Augment, augmented, generator
from messagenet.data.check import CheckReport, check_data
from messagenet.data.classes import VOC_CLASSES, VOC_NAMES, VOID, Classes, read_classes, voc_palette
from messagenet.data.dataset import (
    Batch,
    FilePair,
    Joined,
    PairedFiles,
    Restricted,
    Sample,
    SegmentationData,
    Subset,
    as_labels,
    collate,
    distinct,
    hold_out,
    split_data,
    to_tensor,
)
from messagenet.data.folder import FolderData
from messagenet.data.images import MEAN_COLOUR, decode_image, decode_mask, find_images, read_image, read_mask
from messagenet.data.open import is_generated, open_data
from messagenet.data.sampling import balanced_indices, epoch_order
from messagenet.data.scenes import SCENE_CLASSES, SyntheticScenes
from messagenet.data.voc import SbdData, VocData, train_aug

__all__ = [
    "MEAN_COLOUR",
    "SCENE_CLASSES",
    "VOC_CLASSES",
    "VOC_NAMES",
    "VOID",
    "Augment",
    "Batch",
    "CheckReport",
    "Classes",
    "FilePair",
    "FolderData",
    "Joined",
    "PairedFiles",
    "Restricted",
    "Sample",
    "SbdData",
    "SegmentationData",
    "Subset",
    "SyntheticScenes",
    "VocData",
    "as_labels",
    "augmented",
    "balanced_indices",
    "check_data",
    "collate",
    "decode_image",
    "decode_mask",
    "distinct",
    "epoch_order",
    "find_images",
    "generator",
    "hold_out",
    "is_generated",
    "open_data",
    "read_classes",
    "read_image",
    "read_mask",
    "split_data",
    "to_tensor",
    "train_aug",
    "voc_palette",
]
