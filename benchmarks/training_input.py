"""Whether training waits for its images, and how much time cached features of a frozen backbone save.

Generated photos of 500×375 pixels, as JPEG with PNG masks of 21 classes; the preset `fast` with random weights. First
the preset's own pipeline (decode, scale, crop, recolour in worker processes): the share of a step spent waiting for a
batch. Then three ways to train on the whole photos, all on the same pixels: end to end, the head on a frozen backbone,
and the head on cached features; the last two also with a loss at the nodes, and with the paper's VGG-16. The time of
an epoch is that of its steps, without filling the cache.

A cache saves at most the backbone's share: (backbone + head) / head. EfficientNet-Lite0 is designed to be cheap, so
there is little to save; VGG-16 costs thirty times as much.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from common import QUICK, finish, soft_photo, start
from messagenet.data import VOC_CLASSES, Augment
from messagenet.training import TrainConfig, load_config, override, read_log, run_training

WIDTH, HEIGHT, PHOTOS, BATCH = (96, 80, 4, 2) if QUICK else (500, 375, 24, 8)
PIPELINE_STEPS, ROUNDS = (1, 1) if QUICK else (8, 2)
QUICK_SETTINGS = ["run.epochs=1", "augment.crop=64", "run.batch_size=2", "run.workers=0"] if QUICK else []
FROZEN = ["run.freeze_backbone=true"]
CACHED = [*FROZEN, "run.cache_features=true"]
NODES = ["loss.resolution=nodes"]
VGG = ["model.backbone={kind: vgg16, scales: [1.0], fc6_channels: 512, fc6_kernel: 3}"]
WAYS = {
    "end to end": ["run.epochs=1"],
    "frozen": [*FROZEN, "run.epochs=2"],
    "cached": [*CACHED, "run.epochs=4"],
    "frozen, loss at nodes": [*FROZEN, *NODES, "run.epochs=2"],
    "cached, loss at nodes": [*CACHED, *NODES, "run.epochs=8"],
    "VGG-16, frozen": [*VGG, *FROZEN, "run.epochs=1"],
    "VGG-16, cached": [*VGG, *CACHED, "run.epochs=8"],
}


def save_photos(folder: Path) -> None:
    """Writes generated photos and masks as a `folder:` data set."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    (folder / "classes.txt").write_text("\n".join(VOC_CLASSES.names) + "\n")
    (folder / "train.txt").write_text("".join(f"{index:03d}\n" for index in range(PHOTOS)))
    for index in range(PHOTOS):
        photo = Image.fromarray(soft_photo(WIDTH, HEIGHT, seed=index, blobs=(8, 10)))
        photo.save(folder / "images" / f"{index:03d}.jpg", quality=90)
        rng = np.random.default_rng(1000 + index)
        labels = Image.fromarray(rng.integers(0, VOC_CLASSES.num_classes, (6, 8), dtype=np.uint8))
        labels.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).save(folder / "masks" / f"{index:03d}.png")


def config(data: Path, *settings: str) -> TrainConfig:
    common = [f"data.spec=folder:{data}", "data.val_split=null", "model.pretrained=null", "run.log_every=1"]
    return override(load_config("fast"), [*common, *settings, *QUICK_SETTINGS])


def train_and_read(settings: TrainConfig, out: Path) -> list[dict[str, float]]:
    """Trains; returns the log without the first step, which waits for workers to start and kernels to compile."""
    run_training(settings, out)
    return read_log(out / "log.jsonl")[1:]


def median_speed(log: list[dict[str, float]]) -> float:
    """Images per second."""
    return statistics.median(step["images_per_second"] for step in log)


def main() -> None:
    start(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_photos(folder / "data")
        log = train_and_read(config(folder / "data", f"run.steps={PIPELINE_STEPS + 1}"), folder / "pipeline")
        waiting = statistics.mean(step["waiting"] for step in log)
        print(f"pipeline of the preset: {median_speed(log):.1f} images/s, {waiting:.2%} of the time waiting")
        cache = f"run.cache_folder={folder / 'cache'}"
        speeds = dict.fromkeys(WAYS, 0.0)
        for turn in range(ROUNDS):
            for way, settings in WAYS.items():
                shared = [f"run.batch_size={BATCH}", *([cache] if CACHED[-1] in settings else [])]
                chosen = replace(config(folder / "data", *shared, *settings), augment=Augment())
                log = train_and_read(chosen, folder / f"{way}-{turn}")
                speeds[way] = max(speeds[way], median_speed(log))
    print("epochs on whole photos, images/s: " + "; ".join(f"{way} {s:.1f}" for way, s in speeds.items()))
    finish(
        waiting_share=waiting,
        cached_epoch_vs_uncached=speeds["cached"] / speeds["frozen"],
        cached_epoch_vs_end_to_end=speeds["cached"] / speeds["end to end"],
        cached_epoch_vs_uncached_node_loss=speeds["cached, loss at nodes"] / speeds["frozen, loss at nodes"],
        cached_epoch_vs_uncached_vgg16=speeds["VGG-16, cached"] / speeds["VGG-16, frozen"],
    )


if __name__ == "__main__":
    main()
