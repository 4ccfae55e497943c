"""Commands for research: the demo, comparisons of systems, inference in graphical models, checks of data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from messagenet.cli import options
from messagenet.cli.options import advance, console, numbers, print_line, progress, takes_predict_options, words
from messagenet.errors import InputError, refuse_folder, write_atomically


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the models and images.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of scenes and training.")] = 0,
) -> None:
    """Segment three photos with the bundled model; then see what messages add on synthetic scenes.

    In the scenes, sky and water look the same, and so do cloud, foam and snow; only their arrangement differs. Trains
    a unary and a message model and compares them. The photos are scikit-image's (`pip install "messagenet[demo]"`).
    """
    from messagenet.demo import run_demo

    run_demo(out, seed=seed, console=console)


@takes_predict_options
def compare(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, table and plots.")] = Path("comparison"),
    systems: Annotated[
        str | None,
        typer.Option(
            "--systems",
            "-s",
            help=f"Comma-separated systems: `message_t1` to `message_t3`, {options.SYSTEMS_HELP}; or `all`, for those "
            "that fit the backbone. Default: `unary,convolution,context_crf,message`.",
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="YAML file of systems, shared settings and seeds, such as `recipes/study-scenes.yaml`."),
    ] = None,
    data: options.DataOption = None,
    preset: Annotated[str | None, typer.Option(help="Preset that all systems share.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings that all systems share.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of all systems: `a.b=value`; repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated training seeds. Default: `0,1,2`.")] = None,
    classes: options.ClassesOption = None,
    void: options.VoidOption = None,
    keep: options.KeepOption = None,
    rest: options.RestOption = None,
    held_out: Annotated[
        int | None, typer.Option(help="Training images held out to tune settings on. Default: one in ten, at most 20.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.")] = None,
    imports: options.ImportOption = None,
    options: Any = None,
) -> None:
    """Train and score systems side by side, with equal budgets and seeds, and write one table.

    `messagenet compare --systems unary,message,crf_rnn --data synthetic --out comparisons/scenes` writes comparison.md,
    .csv, .json and plots. An interrupted comparison continues: finished systems are not trained again.

    Equal budgets are the same number of steps with the same batches. Systems fitted without gradient steps (forward
    and DAgger inference machines) see as many images as the others. The default preset is `tiny` on synthetic scenes
    and `fast` on photos.
    """
    from messagenet.studies import Study, read_study, results_table
    from messagenet.studies import compare as compare_systems
    from messagenet.studies.run import DEFAULT_SYSTEMS, find_systems, fitting_systems
    from messagenet.studies.tables import StudyConsole
    from messagenet.training.build import open_sets
    from messagenet.training.config import choose_config

    plan = Study() if study is None else read_study(study)
    shared = choose_config(
        data=data,
        preset=preset or (None if config else plan.preset),
        file=config,
        settings=[*plan.settings, *(set_ or [])],
        photographs="fast",  # the backbone of the bundled model was trained with messages
        classes=classes,
        void_values=void,
        keep=words(keep),
        rest=rest,
        epochs=epochs,
    )
    if study and systems:
        raise InputError("a study has its own systems; leave --systems out, or edit the study")
    if systems == "all":
        chosen, left_out = fitting_systems(shared, open_sets(shared.data).train.classes)
        for name, reason in left_out.items():
            print_line(f"without {name}: {reason}")
    else:
        names = DEFAULT_SYSTEMS if systems is None else words(systems) or []
        chosen = list(plan.systems) or find_systems(names)
    results = compare_systems(
        chosen,
        shared,
        plan.seeds if seeds is None else numbers(seeds, "--seeds", "0,1,2", int),
        out,
        held_out=plan.held_out if held_out is None else held_out,
        score_on=plan.score,
        contrasts=plan.contrasts,
        options=options,
        callback=StudyConsole(console),
    )
    console.print(results_table(results))
    print_line(f"table and plots: {out}")


def infer(
    model: Annotated[Path, typer.Argument(help="A `.uai` (MARKOV or BAYES) or libDAI `.fg` file.")],
    evidence: Annotated[Path | None, typer.Option("--evidence", "-e", help="UAI evidence file.")] = None,
    engine: Annotated[str, typer.Option(help="`exact`, `bp`, `trw`, `trws` (MAP only) or `mf`.")] = "exact",
    task: Annotated[str, typer.Option(help="`mar`: marginals, `pr`: log10 Z, `map`: the most probable state.")] = "mar",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write. Default: standard output.")] = None,
    imports: options.ImportOption = None,
) -> None:
    """Answer a query on a discrete graphical model, in the output format of the UAI competitions.

    `messagenet infer grid.uai --evidence grid.evid --engine bp --task mar --out grid.MAR`
    """
    from messagenet.api import format_result, solve

    refuse_folder(out, f"{model.stem}.{task.upper()}")
    graph, result = solve(model, evidence, engine, task)  # type: ignore[arg-type]
    if not result.converged:
        print(
            f"{engine} did not converge in {result.iterations} iterations: the answer is approximate", file=sys.stderr
        )
    text = format_result(graph, result, task)  # type: ignore[arg-type]
    if out:
        write_atomically(out, text.encode())
    else:
        sys.stdout.write(text)


def check(
    data: Annotated[str, typer.Argument(help=options.DATA_HELP)],
    split: Annotated[str | None, typer.Option(help="Split to check. Default: all.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG) here.")] = None,
    classes: options.ClassesOption = None,
    void: options.VoidOption = None,
    every: Annotated[bool, typer.Option("--all", help="List every issue, not one of each kind.")] = False,
    imports: options.ImportOption = None,
) -> None:
    """Count images, sizes and labels, and list everything that would stop training.

    Issues of one kind are listed once, with the first files that have them. Exits with 2 if there are issues.
    """
    from messagenet.data import check_data, open_data
    from messagenet.report import contact_sheet, save_png

    refuse_folder(sheet, "sheet.png")
    if sheet and sheet.suffix.lower() != ".png":
        raise InputError(f"the sheet is a PNG image, not {sheet.name}; call it {sheet.with_suffix('.png')}")
    labelled = open_data(data, split, classes, void, strict=False)
    with progress("checking") as bar:
        report = check_data(labelled, progress=advance(bar))
    print_line(report.summary(every))
    if sheet:
        print_line(f"contact sheet: {save_png(contact_sheet(labelled), sheet)}")
    if report.issues:
        raise typer.Exit(2)
