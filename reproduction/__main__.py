"""Reproduce the paper's tables and figures: `python -m reproduction classification --quick`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli import exit as ending
from h3gnn.cli import options
from h3gnn.cli.exit import ENDED, Stopped, code_of_signal
from h3gnn.cli.output import say
from h3gnn.errors import InputError
from h3gnn.resources import AddBar, progress

if TYPE_CHECKING:
    from h3gnn.experiments.workers import Finished
    from reproduction.results import Outcome, Told

RESULTS, QUICK_RESULTS = Path("results"), Path("results-quick")
DOCUMENT = Path("docs/reproduction.md")

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


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
    seeds: Annotated[int | None, typer.Option(min=1, help="Maximum number of seeds per row.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    kept: Annotated[
        bool, typer.Option("--kept", help="Run nothing: write the tables from the stored cells.")
    ] = False,
    document: Annotated[
        bool,
        typer.Option("--document", help=f"Write {DOCUMENT} and the tables' texts from the stored results."),
    ] = False,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Reproduce the paper's tables and figures.

    `make reproduce TABLE=classification QUICK=1` takes minutes; `make reproduce TABLE=all ARGS="--jobs 8"` on
    a GPU is the whole paper. Finished cells are stored: the same command continues where it stopped, and runs
    again only what a changed setting or graph concerns. Tables of accuracies compare what the paper prints
    with what each split chooses by its own training and validation nodes (`nested`), what all splits choose
    together (`pooled`), and what test nodes choose, as in the paper (`published`).
    """
    if name is None and not document:
        raise InputError("name a table, or `all`; `--help` lists them", code="no-table")
    folder = out or (QUICK_RESULTS if quick else RESULTS)
    outcome = None if name is None else _run(name, quick, folder, seeds, jobs, device, kept)
    if document:
        _write_document(folder)
    if outcome is not None:
        _print_outcome(outcome, folder, as_json)


def _run(
    name: str, quick: bool, folder: Path, seeds: int | None, jobs: int, device: str, kept: bool
) -> Outcome:
    from h3gnn.training.resources import pick_device
    from reproduction.cells import Scope
    from reproduction.files import read_json
    from reproduction.results import find_tables
    from reproduction.results import reproduce as run

    chosen = find_tables(name)
    scope = Scope(quick, seeds, pick_device(device).type)
    folder.mkdir(parents=True, exist_ok=True)
    with _resumable(folder), progress(counted=True) as add_bar:
        outcome = run(chosen, scope, folder, jobs=jobs, told=_watching(add_bar), run=not kept)
    for table in chosen:
        stored = folder / f"{table.name}.json"
        if table.picture and stored in outcome.written and (rows := read_json(stored)["rows"]):
            from reproduction.figures import write_figure

            outcome.written += write_figure(table.name, rows, folder)
    return outcome


def _write_document(folder: Path) -> None:
    from h3gnn.storage.atomic import write_atomically
    from reproduction.markdown import document
    from reproduction.results import write_texts

    if not DOCUMENT.parent.is_dir():
        message = f"there is no folder {DOCUMENT.parent} here; run this in the repository"
        raise InputError(message, code="no-such-folder")
    write_atomically(DOCUMENT, document(folder).encode())
    write_texts(folder)
    say(f"wrote {DOCUMENT}")


def _print_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    failures = [{"cell": one.task.name, "why": one.failure} for one in outcome.failed]
    if as_json:
        counts = {"kept": outcome.kept, "run": outcome.run, "failed": failures}
        typer.echo(json.dumps({**counts, "written": [str(path) for path in outcome.written]}, indent=2))
    else:
        for path in (path for path in outcome.written if path.suffix == ".md"):
            typer.echo(path.read_text(encoding="utf-8"))
        typer.echo(f"{outcome.run} cells run, {outcome.kept} already stored; results in {folder}/")
    for one in failures:
        say(f"failed: {one['cell']}: {one['why']}")
    if failures:
        raise typer.Exit(1)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Tell how to continue when a signal ends the run."""
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
    say(f"stopped; finished cells are stored in {folder}/cells, and the same command continues from there")
    raise Stopped(code)


def _watching(add_bar: AddBar) -> Told:
    """Return a callback that shows the finished cells: a bar on a terminal, else one line for each cell."""
    if not sys.stderr.isatty():

        def report(done: int, total: int, finished: Finished) -> None:
            seconds = f"{finished.record['seconds']:.1f} s" if finished.record else finished.failure
            print(f"[{done}/{total}] {finished.task.name}: {seconds}", file=sys.stderr, flush=True)

        return report
    bar = add_bar("reading graphs", None)

    def show(done: int, total: int, finished: Finished) -> None:
        bar(completed=done, total=total, description=finished.task.name)

    return show


app.command()(ending.as_command(reproduce))

if __name__ == "__main__":
    ending.run(lambda: app)
