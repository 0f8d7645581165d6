"""How a command ends before its time: by Ctrl-C, by SIGTERM, by a full disk."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from h3gnn.cli.output import say
from h3gnn.errors import InputError, RankLostError
from h3gnn.training.checkpoints import TrainingStopped

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Stopped(SystemExit):
    """The end of a command that has already said why it ends and how to go on."""


def end_on_signals() -> None:
    """Let Ctrl-C and SIGTERM end a command through its `finally` blocks, so that no file stays half-written.

    `SystemExit` instead of `KeyboardInterrupt`: after one of the latter has passed through an import, Python
    ends by the signal itself, whatever exit code was asked for. A signal that is ignored stays ignored.
    """
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def resumable(run: Path | None) -> Iterator[None]:
    """Say how to go on with a run that has begun, whatever ends the block; None has no checkpoints."""
    if run is None:
        yield
        return
    advice = f"go on with `h3gnn fit --resume {run}`"
    try:
        yield
    except Stopped:
        raise
    except TrainingStopped as stop:
        say(f"{stop}; {advice}")
        raise Stopped(128 + stop.signal_number) from None
    except KeyboardInterrupt:
        say(f"stopped; {advice}")
        raise Stopped(INTERRUPTED) from None
    except SystemExit as end:
        if end.code not in (INTERRUPTED, TERMINATED) or not any(run.glob("checkpoints/start-*")):
            raise
        say(f"stopped; {advice}")
        raise Stopped(end.code) from None
    except RankLostError as lost:
        raise RankLostError(f"{lost}; {advice}" if str(lost) else "") from None
    except OSError as error:
        raise InputError(f"a file could not be read or written ({error}); when mended, {advice}") from None
