"""Runs that Ctrl-C, SIGTERM or a full disk may stop: their options, their ends, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3gnn.cli.ending import ENDED, Stopped, code_of_signal
from h3gnn.cli.output import is_alone, is_first, say
from h3gnn.errors import InputError, RankLostError, TrainingStopped

if TYPE_CHECKING:  # torch takes seconds to import, and --help must not
    from h3gnn.storage.checkpoint_file import Checkpoints
    from h3gnn.storage.runs import Run

BESIDE_RESUME = ("resume", "as_json", "tensorboard")


def _option(flag: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, help=text, rich_help_panel="Runs that may be killed", **more)


EveryOption = Annotated[int | None, _option("--checkpoint-every", "A checkpoint after every so many epochs.")]
MinutesOption = Annotated[
    float | None, _option("--checkpoint-minutes", "A checkpoint every so many minutes.")
]
KeepOption = Annotated[int | None, _option("--keep", "How many checkpoints to keep; 2 if not given.")]
ResumeOption = Annotated[
    Path | None,
    _option(
        "--resume",
        "Go on with the unfinished run in this folder; needs no other option.",
        metavar="RUN",
        show_default=False,
    ),
]


def policy(
    out: Path | None, every: int | None, minutes: float | None, keep: int | None
) -> Checkpoints | None:
    """Return what the options ask for; without any, a checkpoint for the case that the run is stopped."""
    from h3gnn.storage.checkpoint_file import CHECKPOINTS, Checkpoints

    if every is None and minutes is None:
        if keep is not None:
            raise InputError("--keep counts checkpoints: give --checkpoint-every or --checkpoint-minutes too")
        if out is None or not is_alone():
            return None
        return Checkpoints(out / CHECKPOINTS, None, None, 1, keep_finished=True, only_when_stopped=True)
    if out is None:
        raise InputError("checkpoints lie in the folder of the run: give --out FOLDER too")
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
    from h3gnn.storage.checkpoint_file import newest_in
    from h3gnn.storage.runs import read_run

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


def resumable(run: Path | None) -> AbstractContextManager[None]:
    """Say how to go on with a run that has begun, whatever ends the block; None has no folder."""

    def begun() -> bool:
        return run is not None and any(run.glob("checkpoints/start-*"))

    return saying_how(begun, f"go on with `h3gnn fit --resume {run}`")


@contextmanager
def saying_how(begun: Callable[[], bool], advice: str) -> Iterator[None]:
    """Say how to go on with what has begun, whatever ends the block."""
    try:
        yield
    except Stopped:
        raise
    except TrainingStopped as stop:
        say(f"{stop}; {advice}" if begun() else f"{stop}; to be able to go on, give --out FOLDER")
        raise Stopped(code_of_signal(stop)) from None
    except KeyboardInterrupt as stop:
        if not begun():
            raise
        say(f"stopped; {advice}")
        raise Stopped(code_of_signal(stop)) from None
    except SystemExit as end:
        if end.code not in ENDED or not begun():
            raise
        say(f"stopped; {advice}")
        raise Stopped(end.code) from None
    except RankLostError as lost:
        raise RankLostError(f"{lost}; {advice}" if begun() and str(lost) else str(lost)) from None
    except OSError as error:
        if not begun():
            raise
        raise InputError(f"a file could not be read or written ({error}); when mended, {advice}") from None
