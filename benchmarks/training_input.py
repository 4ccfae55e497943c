"""Whether training waits for its images, and what keeping the features of a frozen backbone saves.

Photographs of 500×375 pixels, generated, as JPEG with PNG masks of 21 classes; the `fast` preset with random
weights. First its own pipeline (decode, scale, crop, recolour in worker processes): the share of a step that is
spent waiting for a batch. Then three ways to train on the photographs as they are, each seeing the same pixels: all
of the network, the head on a frozen backbone, and the head on cached features; the last two also with a loss at
the nodes, and behind the paper's VGG-16. An epoch's time is that of its steps, without making the cache.

What a cache can save is the backbone's share: at most (backbone + head) / head. EfficientNet-Lite0 was made to cost
next to nothing, so beside its head there is little to save; VGG-16 costs thirty times as much.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from common import finish, machine
from messagenet.data import VOC_CLASSES, Augment
from messagenet.training import TrainConfig, apply_overrides, load_config, read_log, train

WIDTH, HEIGHT, PHOTOS = 500, 375, 24
PIPELINE_STEPS, ROUNDS = 8, 2
FROZEN = ["run.freeze_backbone=true"]
CACHED = [*FROZEN, "run.cache_features=true"]
NODES = ["loss.resolution=nodes"]
VGG = [
    "model.backbone=vgg16",
    "model.backbone_options={scales: [1.0], fc6_channels: 512, fc6_kernel: 3}",
]
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
    """Photographs and masks of soft shapes, in the layout of one's own data."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    (folder / "classes.txt").write_text("\n".join(VOC_CLASSES.names) + "\n")
    (folder / "train.txt").write_text("".join(f"{number:03d}\n" for number in range(PHOTOS)))
    for number in range(PHOTOS):
        rng = np.random.default_rng(number)
        soft = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
        pixels = np.asarray(soft.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
        noise = rng.integers(-12, 13, pixels.shape, dtype=np.int16)
        photo = Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
        photo.save(folder / "images" / f"{number:03d}.jpg", quality=90)
        labels = Image.fromarray(rng.integers(0, VOC_CLASSES.num_classes, (6, 8), dtype=np.uint8))
        labels.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).save(folder / "masks" / f"{number:03d}.png")


def config(data: Path, *overrides: str) -> TrainConfig:
    common = [f"data.spec=folder:{data}", "data.val_split=null", "model.pretrained=null", "run.log_every=1"]
    return apply_overrides(load_config("fast"), [*common, *overrides])


def steps(settings: TrainConfig, out: Path) -> list[dict[str, float]]:
    """The log of a run's steps, the first left out: it waits for the workers to start and for kernels."""
    train(settings, out)
    return read_log(out / "log.jsonl")[1:]


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_photos(folder / "data")
        log = steps(config(folder / "data", f"run.steps={PIPELINE_STEPS + 1}"), folder / "pipeline")
        waiting = statistics.mean(step["waiting"] for step in log)
        speed = statistics.median(step["images_per_second"] for step in log)
        print(f"pipeline of the preset: {speed:.1f} images/s, {waiting:.2%} of the time waiting")
        whole = replace(config(folder / "data", "run.batch_size=8"), augment=Augment())
        fastest = dict.fromkeys(WAYS, 0.0)
        for number in range(ROUNDS):
            for name, overrides in WAYS.items():
                changed = apply_overrides(whole, [*overrides, f"run.cache_folder={folder / 'cache'}"])
                log = steps(changed, folder / f"{name}-{number}")
                speed = statistics.median(step["images_per_second"] for step in log)
                fastest[name] = max(fastest[name], speed)
    print("epochs on whole photographs, images/s: " + "; ".join(f"{n} {s:.1f}" for n, s in fastest.items()))
    finish(
        waiting_share=waiting,
        cached_epoch_vs_uncached=fastest["cached"] / fastest["frozen"],
        cached_epoch_vs_end_to_end=fastest["cached"] / fastest["end to end"],
        cached_epoch_vs_uncached_node_loss=fastest["cached, loss at nodes"]
        / fastest["frozen, loss at nodes"],
        cached_epoch_vs_uncached_vgg16=fastest["VGG-16, cached"] / fastest["VGG-16, frozen"],
    )


if __name__ == "__main__":
    main()
