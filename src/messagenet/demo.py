"""The demonstration: the bundled model on photos, and what messages add where appearance says nothing.

Two models with the same backbone, which sees one 4×4 cell and a pixel around it, learn the synthetic scenes: one
classifies every node alone, the other also sends messages over the paper's three relations.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from messagenet.api import predict
from messagenet.bundled import photographs
from messagenet.data import SyntheticScenes
from messagenet.evaluation import Scores, scores_table
from messagenet.prediction import Predictor, score
from messagenet.report import image_sheet, save_png
from messagenet.training import Bar, run_training
from messagenet.training.config import choose_config

DEMO_SYSTEMS = {"unary": "unary", "messages": "message"}
EPOCHS, TEST_SCENES, SHOWN_SCENES = 2, 100, 4
SAVED = ("mask", "overlay", "entropy")


def run_demo(out: str | Path = "demo", *, seed: int = 0, console: Console | None = None) -> dict[str, Scores]:
    """Segments the photographs, trains and scores the two models, draws both; returns the models' scores.

    Args:
        out: Folder for the images, the page and the two runs.
        seed: Seed of the scenes and of the training.
        console: Where to print.
    """
    console, out = console or Console(), Path(out)
    page = segment_photographs(out, console)
    scores = compare_on_scenes(out, seed, console)
    console.rule(align="left")
    if page is not None:
        console.out(f"Photographs, their labels and where the model is unsure: {page}", highlight=False)
    console.out(f"Scenes, their target and both predictions side by side: {out / 'scenes.png'}", highlight=False)
    return scores


def segment_photographs(out: Path, console: Console) -> Path | None:
    """Segments the photographs with the bundled model; returns the page that shows them, if there are any here."""
    console.rule("[bold]photographs[/bold]", align="left")
    files = photographs()
    if not files:
        console.print("None here; `pip install scikit-image` brings some, `messagenet predict` takes your own.")
        return None
    page = out / "photographs.html"
    predicted = predict(files, out=out / "photographs", save=SAVED, report=page)
    for image, shares in predicted.shares.items():
        console.out(f"{image.name}: {shares}", highlight=False)
    return page


def compare_on_scenes(
    out: Path, seed: int, console: Console, *, test_scenes: int = TEST_SCENES, settings: Mapping[str, Any] | None = None
) -> dict[str, Scores]:
    """Trains both models with `settings` such as {"run.steps": 100}, prints their scores and draws the scenes."""
    scenes = SyntheticScenes(test_scenes, seed=seed, split="test")
    predictors, scores = {}, {}
    for name, system in DEMO_SYSTEMS.items():
        console.rule(f"[bold]{name}[/bold]", align="left")
        folder = _free_folder(out / name)
        chosen = {"run.seed": seed, "data.seed": seed, **(settings or {})}
        config = choose_config(data="synthetic", system=system, epochs=EPOCHS, settings=chosen)
        run_training(config, folder, progress=Bar(console))
        predictors[name] = Predictor(folder / "best")
        scores[name] = score(predictors[name], scenes)
    console.rule(align="left")
    console.print(scores_table(scores, f"{test_scenes} scenes that neither model has seen"))
    unary, messages = (100 * (scores[name].mean_iou or 0.0) for name in DEMO_SYSTEMS)
    draw_sheet(predictors, scenes, out / "scenes.png")
    console.print(f"Messages add {messages - unary:.1f} points of mean IoU to the same backbone.")
    return scores


def draw_sheet(predictors: dict[str, Predictor], scenes: SyntheticScenes, path: Path) -> None:
    """Some scenes with their target and the prediction of each model."""
    rows = []
    for index in range(SHOWN_SCENES):
        sample = scenes[index]
        assert sample.mask is not None
        rows.append([sample.image, sample.mask, *(each.labels(sample.image) for each in predictors.values())])
    save_png(image_sheet(rows, ["image", "target", *predictors], scenes.classes), path)


def _free_folder(folder: Path) -> Path:
    others = (folder.with_name(f"{folder.name}-{count}") for count in itertools.count(2))
    return next(free for free in itertools.chain([folder], others) if not free.exists())
