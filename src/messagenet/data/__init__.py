"""From files to tensors: data sets, their classes, augmentation, batches, and a check.

Custom readers are registered with `messagenet.settings.register("data", kind)`; see `messagenet.data.open`.
"""

from messagenet.data.augment import Augment, augment_sample, generator
from messagenet.data.check import check_data
from messagenet.data.classes import VOC_CLASSES, VOID, Classes, read_classes
from messagenet.data.dataset import (
    Batch,
    ClassSubset,
    ConcatData,
    FilePair,
    PairedFiles,
    Sample,
    SegmentationData,
    Subset,
    collate,
    hold_out,
    to_tensor,
    unique_indices,
)
from messagenet.data.folder import FolderData
from messagenet.data.images import decode_image, find_images, read_image, read_mask
from messagenet.data.open import is_generated, open_data
from messagenet.data.pairs import as_data
from messagenet.data.sampling import balanced_indices, epoch_order
from messagenet.data.scenes import SCENE_CLASSES, SyntheticScenes
from messagenet.data.voc import SbdData, VocData

__all__ = [
    "SCENE_CLASSES",
    "VOC_CLASSES",
    "VOID",
    "Augment",
    "Batch",
    "ClassSubset",
    "Classes",
    "ConcatData",
    "FilePair",
    "FolderData",
    "PairedFiles",
    "Sample",
    "SbdData",
    "SegmentationData",
    "Subset",
    "SyntheticScenes",
    "VocData",
    "as_data",
    "augment_sample",
    "balanced_indices",
    "check_data",
    "collate",
    "decode_image",
    "epoch_order",
    "find_images",
    "generator",
    "hold_out",
    "is_generated",
    "open_data",
    "read_classes",
    "read_image",
    "read_mask",
    "to_tensor",
    "unique_indices",
]
