"""Cached features: the same training as without, entries made once, damage repaired, changes noticed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from safetensors.torch import load_file

from messagenet.data import VOID, Augment, FolderData, SegmentationData, SyntheticScenes
from messagenet.geometry import node_targets
from messagenet.models import InputSpec, MessageNet
from messagenet.training import TrainResult
from messagenet.training.build import DataSets
from messagenet.training.feature_cache import CacheSettings, FeatureCache, _Versions, collate_features
from messagenet.training.progress import read_log

Run = Callable[..., TrainResult]
FROZEN = ("run.freeze_backbone=true", "run.evaluate_every=3")
CACHED = (*FROZEN, "run.cache_features=true", "run.cache_precision=fp32")


def figures(result: TrainResult) -> list[float]:
    records = read_log(result.folder / "log.jsonl")
    return [record.get("loss", record.get("mean_iou")) for record in records]


def mixed_folder(root: Path) -> FolderData:
    """Images of three sizes."""
    for number, size in enumerate([48, 64, 48, 56, 64, 48]):
        sample = SyntheticScenes(6, size=size)[number]
        for kind, array in (("images", sample.image), ("masks", sample.mask)):
            path = root / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(array)).save(path)
    (root / "classes.txt").write_text("\n".join(SyntheticScenes(1).classes.names))
    return FolderData(root)


@pytest.mark.parametrize("resolution", ["nodes", "pixels"])
@pytest.mark.parametrize("separate", ["false", "true"])
def test_training_on_cached_features_is_the_same_training(
    run: Run, tmp_path: Path, resolution: str, separate: str
) -> None:
    data = mixed_folder(tmp_path / "data")
    settings = (f"loss.resolution={resolution}", f"model.separate_features={separate}")
    plain = run(*FROZEN, *settings, name="plain", data=DataSets(data, data))
    cached = run(*CACHED, *settings, name="cached", data=DataSets(data, data))
    # Not exactly the same: a smaller image of a batch is padded before the backbone, or its features after it.
    np.testing.assert_allclose(figures(cached), figures(plain), rtol=1e-2)


def test_images_of_one_size_give_the_same_weights(run: Run) -> None:
    plain = run(*FROZEN, name="plain")
    cached = run(*CACHED, name="cached")
    np.testing.assert_allclose(figures(cached), figures(plain), rtol=1e-5)
    first, second = (load_file(each.folder / "last" / "model.safetensors") for each in (plain, cached))
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=1e-3, atol=1e-5)


@pytest.fixture
def net() -> MessageNet:
    torch.manual_seed(0)
    return MessageNet({"kind": "tiny", "width": 4}, SyntheticScenes(1).classes, hidden=8)


def cache_of(net: MessageNet, data: SegmentationData, folder: Path, **settings: object) -> FeatureCache:
    chosen = {"augment": Augment(mirror=True, crop=48), **settings}
    return FeatureCache(net, data, folder, CacheSettings(**chosen))  # type: ignore[arg-type]


def test_entries_hold_features_and_the_labels_of_the_pixels(net: MessageNet, tmp_path: Path) -> None:
    data = SyntheticScenes(3, size=48)
    cache = cache_of(net, data, tmp_path, precision="fp32")
    assert cache.build(Accelerator(), workers=0) == 3
    sample, entry = data[1], cache.read(0, 1)
    image = torch.from_numpy(sample.image.transpose(2, 0, 1).copy()).float()[None] / 255
    with torch.no_grad():
        torch.testing.assert_close(entry.features["shared"], net.forward_features(image)[0])
    assert sample.mask is not None
    np.testing.assert_array_equal(entry.target.numpy(), sample.mask)
    batch = collate_features([entry])
    assert batch.target is not None
    nodes = node_targets(batch.target, (12, 12), 4)
    np.testing.assert_array_equal(nodes[0].numpy(), sample.mask[2::4, 2::4])
    assert entry.id == sample.name


def test_entries_to_score_from_are_of_the_size_that_the_model_is_for(tmp_path: Path) -> None:
    data = SyntheticScenes(2, size=48)
    model = MessageNet({"kind": "tiny", "width": 4}, InputSpec(data.classes, longest_side=24), hidden=8)
    whole, reduced = (cache_of(model, data, tmp_path, working_size=reduces) for reduces in (False, True))
    assert whole.folder != reduced.folder
    for cache, nodes in ((whole, 12), (reduced, 6)):
        cache.build(Accelerator(), workers=0)
        assert cache.read(0, 0).features["shared"].shape == (4, nodes, nodes)
        assert cache.read(0, 0).target.shape == (48, 48)  # scores are taken at the image's own pixels
    model.input = InputSpec(data.classes, longest_side=32)
    assert cache_of(model, data, tmp_path, working_size=True).folder != reduced.folder
    assert cache_of(model, data, tmp_path).folder == whole.folder


def test_only_missing_and_damaged_entries_are_made(net: MessageNet, tmp_path: Path) -> None:
    data = SyntheticScenes(4, size=48)
    first = cache_of(net, data, tmp_path)
    assert first.build(Accelerator(), workers=0) == 4
    assert cache_of(net, data, tmp_path).build(Accelerator(), workers=0) == 0
    whole = first.path(0, 2).read_bytes()
    first.path(0, 1).unlink()
    first.path(0, 2).write_bytes(whole[:-10])
    first.path(0, 3).write_bytes(b"")
    again = cache_of(net, data, tmp_path)
    assert again.missing() == [(0, 1), (0, 2), (0, 3)]
    assert again.build(Accelerator(), workers=0) == 3
    assert first.path(0, 2).read_bytes() == whole


def test_versions_take_turns(net: MessageNet, tmp_path: Path) -> None:
    data = SyntheticScenes(2, size=64)
    cache = cache_of(net, data, tmp_path, versions=3)
    assert cache.build(Accelerator(), workers=0) == 6
    shapes = [tuple(cache[epoch, 1].target.shape) for epoch in range(4)]
    assert shapes == [(48, 48), (48, 48), (64, 64), (48, 48)]  # version 0 is the whole image


def test_whatever_entries_depend_on_gives_another_folder(net: MessageNet, tmp_path: Path) -> None:
    data = mixed_folder(tmp_path / "data")
    folders = [cache_of(net, data, tmp_path).folder]

    def differs(cache: FeatureCache) -> bool:
        folders.append(cache.folder)
        return len(set(folders)) == len(folders)

    assert differs(cache_of(net, data, tmp_path, precision="fp32"))
    assert differs(cache_of(net, data, tmp_path, versions=2))
    assert differs(cache_of(net, data, tmp_path, versions=2, seed=1))
    assert differs(cache_of(net, data, tmp_path, versions=2, augment=Augment()))
    assert differs(cache_of(net, data, tmp_path, versions=2, augment=Augment(crop=16)))
    assert differs(cache_of(net, data, tmp_path, versions=2, augment=Augment(crop=16, paste=0.5)))
    mask = tmp_path / "data" / "masks" / "1.png"
    os.utime(mask, ns=(1, 1))
    assert differs(cache_of(net, data, tmp_path))
    with torch.no_grad():
        next(net.backbones.parameters()).mul_(1.001)
    assert differs(cache_of(net, data, tmp_path))
    head = cache_of(net, data, tmp_path).folder
    with torch.no_grad():
        next(net.head.parameters()).mul_(2)
    assert cache_of(net, data, tmp_path).folder == head


def test_smaller_entries_are_padded(net: MessageNet, tmp_path: Path) -> None:
    data = mixed_folder(tmp_path / "data")
    cache = cache_of(net, data, tmp_path)
    cache.build(Accelerator(), workers=0)
    batch = collate_features([cache.read(0, 0), cache.read(0, 1)])
    assert isinstance(batch.features, torch.Tensor)
    assert batch.features.shape == (2, 4, 16, 16)
    assert batch.features.dtype == torch.float32
    assert batch.sizes.tolist() == [[48, 48], [64, 64]]
    mask = net.node_mask(batch.features, batch.sizes)
    assert mask is not None
    assert mask.sum((1, 2)).tolist() == [144, 256]
    assert batch.target is not None
    assert (batch.target[0, 48:] == VOID).all()
    assert (batch.features[0, :, :, 12:] == 0).all()


def test_an_image_is_cached_at_the_size_that_training_sees() -> None:
    data = SyntheticScenes(2, size=48)
    settings = CacheSettings(Augment(longest_side=24))
    assert _Versions(data, settings)[0, 1].image.shape == (24, 24, 3)
    assert _Versions(data, CacheSettings(Augment()))[0, 1].image.tobytes() == data[1].image.tobytes()
