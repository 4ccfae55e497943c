"""Trains the bundled model, from ImageNet weights to the folder of the package; run again, it goes on where it stopped.

    make model VOC=DIR          or          python recipes/model.py DIR [runs/voc]

DIR holds PASCAL VOC 2012 with the masks of SBD (VOC2012/SegmentationClassAug, the list trainaug.txt).

    1. lists       one image in sixteen of trainaug is held out; the others are to fit, VOC's own among them twice
    2. training    voc-1.yaml, then voc-2.yaml, in two processes with one thread each; checkpoints in RUNS/1 and RUNS/2
    3. blend       θ = share · θ_fine-tuned + (1 − share) · θ_ImageNet in the backbone (Wortsman et al., arXiv
                   2109.01903), with the share that has the best mean IoU on the held-out images: RUNS/blended.jsonl
    4. ship        half precision and the working size, into src/messagenet/bundled/voc
    5. scores      on the held-out images at several sizes (RUNS/sizes.jsonl), and on val (RUNS/evaluation.json)

`val` decides nothing. With --quick alone, blends and ships the bundled model into a temporary folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from messagenet import api
from messagenet.bundled import BUNDLED
from messagenet.errors import InputError, write_atomically
from messagenet.models import SegmentationModel
from messagenet.models.backbones import load_pretrained
from messagenet.prediction import PredictOptions
from messagenet.settings import build

RECIPES = Path(__file__).parent
HELD_OUT_EVERY, FIRST_HELD_OUT = 16, 7
SHARES = (1.0, 0.9, 0.8)
LONGEST_SIDE = 448
"""Working size in pixels."""
SIZES = (384, 448, 512)


def main(data: str, runs: str = "runs/voc", shipped: str = str(BUNDLED / "voc")) -> None:
    """Takes every step that has not been taken."""
    out = Path(runs)
    write_lists(Path(data) / "VOC2012" / "ImageSets" / "Segmentation")
    train(RECIPES / "voc-1.yaml", data, out / "1")
    train(RECIPES / "voc-2.yaml", data, out / "2", f"model.pretrained={out / '1' / 'last'}")
    share = best_share(data, out)
    ship(blend(out / "2" / "last", share), shipped)
    score_sizes(data, shipped, out)
    scores = api.evaluate(shipped, f"voc:{data}", split="val")
    write_atomically(out / "evaluation.json", (json.dumps(scores.to_dict()) + "\n").encode())
    print(json.dumps({"share": share, **scores.to_dict()["summary"]}))


def write_lists(folder: Path) -> None:
    """Writes held.txt, fit.txt and fit-own.txt beside VOC's lists."""
    names = {split: (folder / f"{split}.txt").read_text().split() for split in ("train", "trainaug")}
    held = names["trainaug"][FIRST_HELD_OUT::HELD_OUT_EVERY]
    write_list(folder / "held.txt", held)
    write_list(folder / "fit.txt", (name for name in names["trainaug"] if name not in set(held)))
    write_list(folder / "fit-own.txt", (name for name in names["train"] if name not in set(held)))


def write_list(path: Path, names: Iterable[str]) -> None:
    """Writes names, one per line."""
    write_atomically(path, "".join(f"{name}\n" for name in names).encode())


def train(recipe: Path, data: str, out: Path, *settings: str) -> None:
    """Trains a stage, or goes on with it; returns at once if it is complete."""
    chosen = [argument for setting in settings for argument in ("--set", setting)]
    begun = (out / "config.yaml").is_file()
    options = ["--resume"] if begun else ["--config", recipe, "--data", f"voc:{data}", *chosen]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "messagenet", "train"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run([*map(str, [*run, "--out", out, *options])], env=environment, check=True)
    if not (out / "last" / "config.json").is_file():
        raise InputError(f"{out} was stopped before it had a model; run this again")


@torch.no_grad()
def blend(folder: str | Path, share: float) -> SegmentationModel:
    """A model whose backbone is interpolated with its ImageNet weights."""
    model = SegmentationModel.from_pretrained(folder)
    backbone = build("backbone", model.config["backbone"])
    random = load_pretrained(backbone, "package")
    published = dict(backbone.named_parameters())
    for name, weights in model.backbones["shared"].named_parameters():
        if name not in random:
            weights.lerp_(published[name], 1 - share)
    return model


def best_share(data: str, out: Path) -> float:
    """The share that has the best mean IoU on the held-out images."""
    tuned = out / "2" / "last"
    scores = scored(SHARES, lambda share: held_out_iou(blend(tuned, share), data), out / "blended.jsonl", "share")
    return max(scores, key=lambda share: scores[share])


def score_sizes(data: str, model: str, out: Path) -> None:
    """Scores the held-out images at several working sizes."""
    scored(SIZES, lambda size: held_out_iou(model, data, int(size)), out / "sizes.jsonl", "longest_side")


def held_out_iou(model: str | SegmentationModel, data: str, longest_side: int = LONGEST_SIDE) -> float:
    """Mean IoU on the held-out images, reduced to a size."""
    options = PredictOptions(longest_side=longest_side)
    return api.evaluate(model, f"voc:{data}", split="held", options=options).mean_iou or 0.0


def scored(values: Sequence[float], score: Callable[[float], float], path: Path, name: str) -> dict[float, float]:
    """Mean IoU for each value; those in the file are not computed again."""
    lines = path.read_text().splitlines() if path.is_file() else []
    known = {entry[name]: entry["mean_iou"] for entry in map(json.loads, lines)}
    for value in values:
        if value not in known:
            known[value] = score(value)
            entries = [{name: each, "mean_iou": iou} for each, iou in known.items()]
            write_atomically(path, "".join(f"{json.dumps(entry)}\n" for entry in entries).encode())
            print(f"{name} {value:g}: mean IoU {known[value]:.1%}", flush=True)
    return known


def ship(model: SegmentationModel, folder: str | Path) -> Path:
    """Writes a model as a bundled one, to be used in bf16 where the processor has instructions for it."""
    model.input = replace(model.input, longest_side=LONGEST_SIDE, precision="bf16")
    return model.save(folder, half=True)


def quick() -> None:
    """Blends and ships the bundled model."""
    with tempfile.TemporaryDirectory() as folder:
        saved = ship(blend("voc", 0.8), Path(folder) / "bundled")
        megabytes = sum(file.stat().st_size for file in saved.iterdir()) / 1e6
        lists = Path(folder) / "lists"
        lists.mkdir()
        for split, count in (("train", 20), ("trainaug", 40)):
            write_list(lists / f"{split}.txt", map(str, range(count)))
        write_lists(lists)
        held = (lists / "held.txt").read_text().split()
        print(json.dumps({"megabytes": round(megabytes, 3), "held_out": len(held)}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--quick"]:
        quick()
    else:
        try:
            main(*sys.argv[1:])
        except (InputError, FileNotFoundError, subprocess.CalledProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
