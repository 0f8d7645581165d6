"""The commands of the command line."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from h3gnn import __version__
from h3gnn.cli import exit as ending
from h3gnn.cli.ask import anomalies, embed, export, links, similar
from h3gnn.cli.compare import compare, tune
from h3gnn.cli.evaluate import cluster, evaluate
from h3gnn.cli.fit import fit, prepare
from h3gnn.cli.inspect import datasets, download, inspect, methods
from h3gnn.cli.output import alone, say
from h3gnn.cli.predict import predict
from h3gnn.cli.report import demo, plot, report
from h3gnn.errors import InputError

app = typer.Typer(
    name="h3gnn",
    help="Node embeddings without labels, for graphs that mix homophily and heterophily.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Start with `h3gnn demo`, then `h3gnn fit --help`.",
)
COMMANDS = (
    *(demo, fit, embed, evaluate, cluster, compare, methods, tune, report, plot, inspect),
    *(datasets, download, prepare, predict, similar, anomalies, links, export),
)
DIVIDED = (fit, embed, evaluate, predict)
"""Commands that several processes share; of the others, the first process does all."""
for command in COMMANDS:
    app.command()(ending.as_command(command if command in DIVIDED else alone(command)))


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reproduce() -> None:
    """Moved out of the package: `make reproduce TABLE=classification` in a checkout of the repository."""
    raise InputError(
        "`h3gnn reproduce` moved out of the package: clone the repository and run "
        "`make reproduce TABLE=classification` (or TABLE=all; QUICK=1 for a trial run)",
        code="reproduce-moved",
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"h3gnn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def say_warnings() -> None:
    """Print user warnings as one line without source code; hide other warnings."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UserWarning):
            say(f"note: {message}")

    warnings.showwarning = show
