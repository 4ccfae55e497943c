"""Prediction on a cluster with Ray Data (`pip install "messagenet[ray]"`).

    names of images ──┬─ worker 1: the model, loaded once; reads, predicts, writes ──┬── manifest.jsonl
                      └─ worker n ────────────────────────────────────────────────────┘

Only names are sent. Every worker reads images and writes results by the code of `predict_files`, so the files are the
same, and all machines must see the images and the output folder under one path. Without a cluster, Ray starts on this
machine.
"""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from messagenet.data import find_images
from messagenet.errors import InputError, nearest, write_atomically
from messagenet.prediction.files import DEFAULT_OUTPUTS, ImageJob, ImageResult, PredictedFiles, plan_jobs, predict_file
from messagenet.prediction.predictor import Predictor

MANIFEST = "manifest.jsonl"
IMAGES_PER_BLOCK, BLOCKS_PER_WORKER = 32, 4
Rows = dict[str, list[Any]]


def predict_dataset(
    predictor: Predictor,
    source: Any,
    out: str | Path,
    outputs: Sequence[str] = DEFAULT_OUTPUTS,
    *,
    column: str = "path",
    show: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PredictedFiles:
    """Segments image files on a Ray cluster and writes the results, and a manifest of them beside them.

    `manifest.jsonl` has a line for every image: `{"image": …, "files": […]}`, or `{"image": …, "error": …}`.

    Args:
        predictor, out, outputs, show: As for `predict_files`; the predictor is sent to the workers.
        source: A file, folder or glob, a list of such, or a Ray data set with a column of paths.
        column: Where a Ray data set has the paths.
        workers: How many processes predict; one per GPU of the cluster, or per core where there is none.
        progress: Called with (images done, images in all).
    """
    ray = started_ray()
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; give at least 1")
    folder = Path(out)
    jobs = plan_jobs(_images(ray, source, column), folder, outputs, show)
    predicted = PredictedFiles(predictor.model.classes, tuple(outputs))
    for done, result in enumerate(_results(ray, predictor, jobs, folder, outputs, workers), start=1):
        predicted.add(result)
        if progress:
            progress(done, len(jobs))
    write_atomically(folder / MANIFEST, manifest(jobs, predicted).encode())
    return predicted


def manifest(jobs: Sequence[ImageJob], predicted: PredictedFiles) -> str:
    """What became of each image, one JSON object a line, in the order of the jobs."""
    lines = []
    for image in (job.image for job in jobs):
        files = [str(file) for file in predicted.written.get(image, ())]
        lines.append({"image": str(image)} | ({"files": files} if files else {"error": predicted.failed[image]}))
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def started_ray() -> Any:
    """The `ray` module, joined to its cluster, or to one started on this machine that logs errors only."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError('Ray Data is not installed; pip install "messagenet[ray]"') from None
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        for logger in ("ray", "ray.data"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    return ray


class Worker:
    """What runs on the cluster: a model, and batches of names in and of results out."""

    def __init__(self, reference: Any, out: Path, outputs: Sequence[str]) -> None:
        import ray

        torch.set_num_threads(1)
        self.predictor: Predictor = ray.get(reference)
        self.predictor.model.to("cuda" if torch.cuda.is_available() else "cpu")
        self.out, self.outputs = out, outputs

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> Rows:
        """Predicts the images of a batch; an output that cannot be written ends the batch."""
        rows: Rows = {"index": [], "files": [], "shares": [], "figure": [], "error": [], "unwritable": []}
        columns = (batch["index"], batch["image"], batch["name"], batch["show"])
        for index, image, name, show in zip(*columns, strict=True):
            result, unwritable = ImageResult(Path(image)), ""
            job = ImageJob(Path(image), Path(name), bool(show))
            try:
                result = predict_file(self.predictor, job, self.out, self.outputs)
            except InputError as error:
                unwritable = str(error)
            files = json.dumps([str(file.relative_to(self.out)) for file in result.files])
            values = (index, files, result.shares, result.figure, result.error or "", unwritable)
            for key, value in zip(rows, values, strict=True):
                rows[key].append(value)
            if unwritable:
                break
        return rows


def _images(ray: Any, source: Any, column: str) -> list[Path]:
    if not isinstance(source, ray.data.Dataset):
        return find_images(source)
    columns = source.columns() or []
    if column not in columns:
        raise InputError(f'the Ray data set has no column "{column}"; {nearest(column, columns)}')
    paths = [row[column] for row in source.select_columns([column]).iter_rows()]
    return find_images(paths)


def _results(
    ray: Any, predictor: Predictor, jobs: Sequence[ImageJob], out: Path, outputs: Sequence[str], workers: int | None
) -> Iterator[ImageResult]:  # in any order
    have = ray.cluster_resources()
    gpus = int(have.get("GPU", 0))
    size = min(workers or gpus or max(1, int(have.get("CPU", 1))), len(jobs))
    blocks = max(-(-len(jobs) // IMAGES_PER_BLOCK), min(len(jobs), BLOCKS_PER_WORKER * size))
    items = [
        {"index": index, "image": str(job.image.absolute()), "name": str(job.name), "show": job.show}
        for index, job in enumerate(jobs)
    ]
    names = ray.data.from_items(items, override_num_blocks=blocks)
    names.context.enable_progress_bars = False
    names.context.print_on_execution_start = False
    done = names.map_batches(
        Worker,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=size),
        fn_constructor_args=(ray.put(_on_cpu(predictor)), out.absolute(), tuple(outputs)),
        num_cpus=1,
        num_gpus=1 if gpus else None,
    )
    for row in done.iter_rows():
        if row["unwritable"]:
            raise InputError(row["unwritable"])
        files = tuple(out / name for name in json.loads(row["files"]))
        image = jobs[row["index"]].image
        error = row["error"].replace(str(image.absolute()), str(image)) or None
        yield ImageResult(image, files, row["shares"], row["figure"], error)


def _on_cpu(predictor: Predictor) -> Predictor:
    if predictor.model.device.type == "cpu":
        return predictor
    return Predictor(copy.deepcopy(predictor.model).cpu(), predictor.options)
