"""The demonstration: the model in the box on photographs, and what messages add where appearance says nothing.

First a cat and an astronaut are segmented by the model that comes with the package. Then two networks with the same
backbone, which sees one 4×4 cell and a pixel around it, learn the synthetic scenes: one classifies every node alone,
the other also sends messages over the paper's three relations. Both are scored on scenes that neither has seen.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from messagenet.api import predict
from messagenet.bundled import PACKAGE, photographs
from messagenet.data import SyntheticScenes
from messagenet.evaluation import Scores, scores_table
from messagenet.models import MessageNet
from messagenet.prediction import Predictor, score
from messagenet.prediction.files import found_in
from messagenet.report import picture_sheet, save_png
from messagenet.training import Bar, train
from messagenet.training.config import choose_config

METHODS = {"unary": "unary", "messages": "message"}
EPOCHS, TEST_SCENES, SHOWN = 2, 100, 4
SAVED = ("mask", "overlay", "entropy")


def run_demo(out: str | Path, *, seed: int = 0, console: Console | None = None) -> dict[str, Scores]:
    """Segments the photographs, trains and scores the two networks, draws both; returns the networks' scores.

    Args:
        out: Folder for the pictures, the page and the two runs.
        seed: Seed of the scenes and of the training.
        console: Where to print.
    """
    console, out = console or Console(), Path(out)
    page = segment_photographs(out, console)
    scores = compare_on_scenes(out, seed, console)
    console.rule(align="left")
    if page is not None:
        _say(console, f"Photographs, their labels and where the model is unsure: {page}")
    _say(console, f"Scenes, their truth and both predictions side by side: {out / 'scenes.png'}")
    return scores


def segment_photographs(out: Path, console: Console) -> Path | None:
    """Says what the model in the box sees in the photographs; the page that shows it, if there are any here."""
    console.rule("[bold]photographs[/bold]", align="left")
    files = photographs()
    if not files:
        console.print(f"None here; `pip install {PACKAGE}` brings some, `messagenet predict` takes your own.")
        return None
    page = out / "photographs.html"
    predicted = predict(files, out=out / "photographs", save=SAVED, report=page)
    for image in predicted.written:
        _say(console, f"{image.name}: {found_in(predicted, image)}")
    return page


def compare_on_scenes(out: Path, seed: int, console: Console) -> dict[str, Scores]:
    """Trains both networks, prints their scores and draws the picture sheet."""
    scenes = SyntheticScenes(TEST_SCENES, seed=seed, split="test")
    predictors, scores = {}, {}
    for name, kind in METHODS.items():
        console.rule(f"[bold]{name}[/bold]", align="left")
        folder = _free_folder(out / name)
        seeds = [f"run.seed={seed}", f"data.seed={seed}"]
        config = choose_config(data="synthetic", kind=kind, epochs=EPOCHS, overrides=seeds)
        train(config, folder, progress=Bar(console))
        predictors[name] = Predictor(MessageNet.from_pretrained(folder / "best"))
        scores[name] = score(predictors[name], scenes)
    console.rule(align="left")
    console.print(scores_table(scores, f"{TEST_SCENES} scenes that no network has seen"))
    unary, messages = (100 * (scores[name].mean_iou or 0.0) for name in METHODS)
    draw_sheet(predictors, scenes, out / "scenes.png")
    console.print(f"Messages add {messages - unary:.1f} points of mean IoU to the same backbone.")
    return scores


def draw_sheet(predictors: dict[str, Predictor], scenes: SyntheticScenes, path: Path) -> None:
    """Some scenes with their truth and what each network makes of them."""
    rows = []
    for index in range(SHOWN):
        sample = scenes[index]
        assert sample.mask is not None
        rows.append([sample.image, sample.mask, *(each.labels(sample.image) for each in predictors.values())])
    save_png(picture_sheet(rows, ["image", "truth", *predictors], scenes.classes), path)


def _say(console: Console, text: str) -> None:
    """Prints a line with paths in it as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _free_folder(folder: Path) -> Path:
    """The folder, or one with a number behind it if a run is already in there."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free
