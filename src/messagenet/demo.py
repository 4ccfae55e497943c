"""The demonstration: what do messages add where local appearance says nothing?

Two networks with the same backbone, which sees one 4×4 cell and a pixel around it, learn the synthetic scenes:
one classifies every node alone, the other also sends messages over the paper's three relations. Both are then
scored on scenes that neither has seen.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from messagenet.data import SyntheticScenes
from messagenet.evaluation import Scores, scores_table
from messagenet.models import MessageNet
from messagenet.prediction import Predictor, score
from messagenet.report import picture_sheet, save_png
from messagenet.training import Bar, train
from messagenet.training.choose import choose_config

METHODS = {"unary": "unary", "messages": "message"}
EPOCHS, TEST_SCENES, SHOWN = 2, 100, 4


def run_demo(out: str | Path, *, seed: int = 0, console: Console | None = None) -> dict[str, Scores]:
    """Trains both networks, prints their scores, draws the picture sheet, and returns the scores.

    Args:
        out: Folder for the two runs and the picture sheet.
        seed: Seed of the scenes and of the training.
        console: Where to print.
    """
    console = console or Console()
    out = Path(out)
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
    sheet = out / "scenes.png"
    draw_sheet(predictors, scenes, sheet)
    console.print(f"Messages add {messages - unary:.1f} points of mean IoU to the same backbone.")
    console.print(f"Image, truth and both predictions side by side: {sheet}", markup=False, soft_wrap=True)
    return scores


def draw_sheet(predictors: dict[str, Predictor], scenes: SyntheticScenes, path: Path) -> None:
    """Some scenes with their truth and what each network makes of them."""
    rows = []
    for index in range(SHOWN):
        sample = scenes[index]
        assert sample.mask is not None
        rows.append([sample.image, sample.mask, *(each.labels(sample.image) for each in predictors.values())])
    save_png(picture_sheet(rows, ["image", "truth", *predictors], scenes.classes), path)


def _free_folder(folder: Path) -> Path:
    """The folder, or one with a number behind it if a run is already in there."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free
