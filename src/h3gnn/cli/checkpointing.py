"""The options of `h3gnn fit` for runs that may be killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3gnn.cli.chunks import is_first
from h3gnn.cli.output import say
from h3gnn.errors import InputError

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.runs import Run
    from h3gnn.training.checkpoints import Checkpoints

PANEL = "Runs that may be killed"

EveryOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every", help="A checkpoint after every so many epochs.", rich_help_panel=PANEL
    ),
]
MinutesOption = Annotated[
    float | None,
    typer.Option("--checkpoint-minutes", help="A checkpoint every so many minutes.", rich_help_panel=PANEL),
]
KeepOption = Annotated[
    int | None,
    typer.Option("--keep", help="How many checkpoints to keep; 2 if not given.", rich_help_panel=PANEL),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with the unfinished run in this folder; needs no other option.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
BESIDE_RESUME = ("resume", "as_json", "tensorboard")


def policy(
    out: Path | None, every: int | None, minutes: float | None, keep: int | None
) -> Checkpoints | None:
    """Return what the options ask for, or None where they ask for no checkpoints."""
    if every is None and minutes is None:
        if keep is not None:
            raise InputError("--keep counts checkpoints: give --checkpoint-every or --checkpoint-minutes too")
        return None
    if out is None:
        raise InputError("checkpoints lie in the folder of the run: give --out FOLDER too")
    from h3gnn.storage import CHECKPOINTS
    from h3gnn.training.checkpoints import Checkpoints

    asked = Checkpoints(out / CHECKPOINTS, every, minutes, 2 if keep is None else keep, keep_finished=True)
    asked.check()
    return asked


def read_unfinished(context: typer.Context, folder: Path) -> Run:
    """Return the run to go on with; other options would be ignored, so they are refused."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if given is not None and given.name == "COMMANDLINE" and parameter.name not in BESIDE_RESUME:
            name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.opts[0].upper()
            raise InputError(f"--resume goes on with the settings of the run: leave out {name}")
    from h3gnn.runs import read_run
    from h3gnn.training.checkpointfiles import newest_in

    run = read_run(folder)
    newest, place = newest_in(Path(run.checkpoints.folder))
    if not is_first():
        return run
    if newest:
        whose = "" if place == Path(run.checkpoints.folder) else f" ({place.name})"
        say(f"going on with {folder} after epoch {newest} of {run.params['epochs']}{whose}")
    else:
        say(f"{folder} has no checkpoint yet: starting from the first epoch")
    return run
