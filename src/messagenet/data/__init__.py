"""Images and masks up to tensors: data sets, their classes, joint transforms, batches, and a check.

Everything yields `Sample`s of uint8 arrays; `open_data` opens any data set from one line of text.
"""

from messagenet.data.balance import balanced_indices
from messagenet.data.batch import Batch, collate, to_tensor
from messagenet.data.check import CheckReport, check_data
from messagenet.data.classes import VOC_CLASSES, VOC_NAMES, VOID, Classes, read_classes, voc_palette
from messagenet.data.dataset import FilePair, PairedFiles, Sample, SegmentationData, as_labels
from messagenet.data.folder import FolderData
from messagenet.data.images import decode_image, decode_mask, find_images, read_image, read_mask
from messagenet.data.loader import BatchSampler, EpochData, epoch_order
from messagenet.data.open import is_generated, open_data
from messagenet.data.paste import augmented
from messagenet.data.sbd import SbdData, train_aug
from messagenet.data.synthetic import SCENE_CLASSES, SyntheticScenes
from messagenet.data.transforms import MEAN_COLOUR, Augment, generator
from messagenet.data.views import Joined, Restricted, Subset, distinct, hold_out, split_data
from messagenet.data.voc import VocData

__all__ = [
    "MEAN_COLOUR",
    "SCENE_CLASSES",
    "VOC_CLASSES",
    "VOC_NAMES",
    "VOID",
    "Augment",
    "Batch",
    "BatchSampler",
    "CheckReport",
    "Classes",
    "EpochData",
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
