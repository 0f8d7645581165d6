"""How a command ends before its time: by Ctrl-C, by SIGTERM, by a full disk."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from h3gnn.cli.output import say
from h3gnn.errors import InputError
from h3gnn.training.interruption import TrainingStopped

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Stopped(SystemExit):
    """The end of a command that has already said why it ends and how to go on."""


def end_on_sigterm() -> None:
    """Let SIGTERM end a command as Ctrl-C does, so that no file stays half-written."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def resumable(run: Path | None) -> Iterator[None]:
    """Say how to go on with a run that has checkpoints, whatever ends the block; None has none."""
    if run is None:
        yield
        return
    advice = f"go on with `h3gnn fit --resume {run}`"
    try:
        yield
    except TrainingStopped as stop:
        say(f"{stop}; {advice}")
        raise Stopped(128 + stop.signal_number) from None
    except KeyboardInterrupt:
        say(f"stopped; {advice}")
        raise Stopped(INTERRUPTED) from None
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        say(f"stopped; {advice}")
        raise Stopped(TERMINATED) from None
    except OSError as error:
        raise InputError(
            f"the result could not be written ({error}); when that is mended, {advice}"
        ) from None
