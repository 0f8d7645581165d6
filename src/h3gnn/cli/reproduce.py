"""`h3gnn reproduce`: the paper's tables and figures, made again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import settings
from h3gnn.cli.ending import ENDED, Stopped, code_of_signal
from h3gnn.cli.output import AddBar, progress, say
from h3gnn.errors import InputError

if TYPE_CHECKING:
    from h3gnn.experiments.tables.reproduce import Outcome, Told
    from h3gnn.experiments.workers import Finished

RESULTS, QUICK_RESULTS = Path("results"), Path("results-quick")
DOCUMENT = Path("docs/reproduction.md")


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="`all`, or one of classification, efficiency, ablation, mask-ratio, masks, datasets, "
            "clustering, filtered, recent, tsne, radar, convergence.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, two splits, tiny settings: does everything run?")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of results: `results`, or `results-quick` with `--quick`.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="At most so many seeds per row.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 1,
    kept: Annotated[
        bool, typer.Option("--kept", help="Run nothing: write the tables from the cells that are kept.")
    ] = False,
    document: Annotated[
        bool,
        typer.Option(
            "--document", help=f"Write {DOCUMENT} and the tables' texts from the results that are there."
        ),
    ] = False,
    device: settings.DeviceOption = "auto",
    as_json: settings.JsonOption = False,
) -> None:
    """Make the paper's tables and figures again.

    `h3gnn reproduce classification --quick` takes minutes; `h3gnn reproduce all --jobs 8` on a GPU is the
    whole paper. Every piece that is finished is kept: the same command goes on where it was stopped, and runs
    again only what a changed setting or graph concerns. Tables of accuracies set side by side what the paper
    prints, what each split chooses by its own training and validation nodes alone (`nested`), what all splits
    choose together (`pooled`), and what test nodes choose, as in the paper (`published`).
    """
    if name is None and not document:
        raise InputError("name an experiment, or `all`; `h3gnn reproduce --help` lists them")
    folder = out or (QUICK_RESULTS if quick else RESULTS)
    outcome = None if name is None else _run(name, quick, folder, seeds, jobs, device, kept)
    if document:
        _write_document(folder)
    if outcome is not None:
        _tell(outcome, folder, as_json)


def _run(
    name: str, quick: bool, folder: Path, seeds: int | None, jobs: int, device: str, kept: bool
) -> Outcome:
    from h3gnn.experiments.tables.cells import Scope
    from h3gnn.experiments.tables.reproduce import find_tables
    from h3gnn.experiments.tables.reproduce import reproduce as run
    from h3gnn.storage.atomic import read_json
    from h3gnn.training.resources import pick_device

    tables = find_tables(name)
    scope = Scope(quick, seeds, pick_device(device).type)
    folder.mkdir(parents=True, exist_ok=True)
    with _goes_on(folder), progress(counted=True) as add_bar:
        outcome = run(tables, scope, folder, jobs=jobs, told=_watching(add_bar), run=not kept)
    for table in tables:
        stored = folder / f"{table.name}.json"
        if table.picture and stored in outcome.written and (rows := read_json(stored)["rows"]):
            from h3gnn.report.figures import write_figure

            outcome.written += write_figure(table.name, rows, folder)
    return outcome


def _write_document(folder: Path) -> None:
    from h3gnn.experiments.tables.document import document
    from h3gnn.experiments.tables.reproduce import write_texts
    from h3gnn.storage.atomic import write_atomically

    if not DOCUMENT.parent.is_dir():
        raise InputError(
            f"{DOCUMENT} is written in the project's folder: there is no {DOCUMENT.parent}/ here"
        )
    write_atomically(DOCUMENT, document(folder).encode())
    write_texts(folder)
    say(f"wrote {DOCUMENT}")


def _tell(outcome: Outcome, folder: Path, as_json: bool) -> None:
    failures = [{"cell": one.task.name, "why": one.failure} for one in outcome.failed]
    if as_json:
        told = {"kept": outcome.kept, "run": outcome.run, "failed": failures}
        typer.echo(json.dumps({**told, "written": [str(path) for path in outcome.written]}, indent=2))
    else:
        for path in (path for path in outcome.written if path.suffix == ".md"):
            typer.echo(path.read_text(encoding="utf-8"))
        typer.echo(f"{outcome.run} cells run, {outcome.kept} were there; results in {folder}/")
    for one in failures:
        say(f"failed: {one['cell']}: {one['why']}")
    if failures:
        raise typer.Exit(1)


@contextmanager
def _goes_on(folder: Path) -> Iterator[None]:
    """Say that what is done is kept, when a signal ends the run."""
    try:
        yield
    except KeyboardInterrupt as stop:
        code = code_of_signal(stop)
    except SystemExit as end:
        if not isinstance(end.code, int) or end.code not in ENDED:
            raise
        code = end.code
    else:
        return
    say(f"stopped; what is done is kept in {folder}/cells, and the same command goes on from there")
    raise Stopped(code)


def _watching(add_bar: AddBar) -> Told:
    """Return what shows the cells that are done: a bar on a terminal, else a line for each cell."""
    if not sys.stderr.isatty():

        def tell(done: int, total: int, finished: Finished) -> None:
            seconds = f"{finished.record['seconds']:.1f} s" if finished.record else finished.failure
            print(f"[{done}/{total}] {finished.task.name}: {seconds}", file=sys.stderr, flush=True)

        return tell
    bar = add_bar("reading graphs", None)

    def show(done: int, total: int, finished: Finished) -> None:
        bar(completed=done, total=total, description=finished.task.name)

    return show
