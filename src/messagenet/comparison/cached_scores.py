"""Scores from features that are kept on disk: a frozen backbone has seen the scored images once, for all rows."""

from __future__ import annotations

import torch

from messagenet.evaluation import Evaluator, Scores
from messagenet.models import SegmentationNet
from messagenet.prediction.enlarge import pixel_strips
from messagenet.training.cache import FeatureCache
from messagenet.training.entries import collate_entries


@torch.inference_mode()
def cached_scores(net: SegmentationNet, cache: FeatureCache) -> Scores:
    """What `messagenet.prediction.score` finds, up to the precision of the cache; large images are not tiled.

    Args:
        net: Whose head is scored.
        cache: Features and masks of the images at their own size.
    """
    net.eval()
    evaluator = Evaluator(net.classes)
    for index in range(len(cache)):
        entry = cache.read(0, index)
        assert entry.mask is not None, "a cache for scoring keeps the masks"
        logits = net.decided(collate_entries([entry]).to(net.device).features)[0].float()
        size = (entry.mask.shape[0], entry.mask.shape[1])
        strips = pixel_strips(logits, size, net.stride)
        evaluator.add(entry.name, torch.cat([torch.softmax(strip, 0) for strip in strips], 1), entry.mask)
    return evaluator.scores()
