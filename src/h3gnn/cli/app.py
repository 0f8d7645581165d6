"""The commands, and what happens when one cannot go on."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from h3gnn import __version__
from h3gnn.cli.anomalies import anomalies
from h3gnn.cli.cluster import cluster
from h3gnn.cli.compare import compare
from h3gnn.cli.datasets import datasets
from h3gnn.cli.demo import demo
from h3gnn.cli.embed import embed
from h3gnn.cli.evaluate import evaluate
from h3gnn.cli.export import export
from h3gnn.cli.fit import fit
from h3gnn.cli.inspect import inspect
from h3gnn.cli.links import links
from h3gnn.cli.plot import plot
from h3gnn.cli.predict import predict
from h3gnn.cli.prepare import prepare
from h3gnn.cli.report import report
from h3gnn.cli.reproduce import reproduce
from h3gnn.cli.similar import similar
from h3gnn.cli.stopping import INTERRUPTED, TERMINATED, Stopped, end_on_signals
from h3gnn.cli.tune import tune
from h3gnn.errors import InputError, RankLostError

app = typer.Typer(
    name="h3gnn",
    help="Node embeddings without labels, for graphs that mix homophily and heterophily.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Start with `h3gnn demo`, then `h3gnn fit --help`.",
)
COMMANDS = (demo, fit, embed, evaluate, cluster, compare, tune, reproduce, report, plot, inspect, datasets)
ANSWERS = (predict, similar, anomalies, links, export)
for command in (*COMMANDS, prepare, *ANSWERS):
    app.command()(command)


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


def main() -> None:
    """Run a command; what the person can mend ends with exit code 2 and one sentence, a signal with its own.

    Ctrl-C is 130 and SIGTERM 143, as for any program that a signal ends.
    """
    warnings.showwarning = _say_warning
    end_on_signals()
    try:
        app()
    except InputError as error:
        _end(str(error), 2)
    except RankLostError as error:
        _end(str(error), 1)
    except Stopped:
        raise
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            _end("stopped; nothing is half-written", int(end.code))
        raise
    except KeyboardInterrupt:
        _end("stopped; nothing is half-written", INTERRUPTED)
    except OSError as error:
        _end(f"a file could not be read or written: {error}", 2)


def _end(sentence: str, code: int) -> NoReturn:
    """Say why, and end at once.

    Everything of ours is closed by now. Python's own way out waits for no reader thread of a library that an
    error left behind, and such a thread can turn the exit code into an abort.
    """
    if sentence:  # of several processes, one has said it
        print(f"h3gnn: {sentence}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Show our own warnings as a sentence, without the line of code that raised them."""
    if issubclass(category, UserWarning):
        print(f"h3gnn: note: {message}", file=sys.stderr)
