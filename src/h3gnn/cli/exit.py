"""How a command ends: with its result, or with one sentence and an exit code; never in Python's own words.

0 is a result, 2 what the person can mend (an argument, a file, memory), 1 a fault of ours or of another
process, and 128 plus its number a signal. A fault of ours leaves its traceback in a file that the sentence
names; `H3GNN_DEBUG=1` shows tracebacks of all errors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, NoReturn

from h3gnn.errors import STOPPING, InputError, RankLostError, TrainingStopped, without_secrets
from h3gnn.resources import available_memory, preload_blas, retain_heap

ENDED = tuple(128 + number for number in STOPPING)
"""The exit codes of commands that a signal ended."""
INTERRUPTED = 128 + signal.SIGINT
STOPPED = "stopped; nothing is half-written"
PUT_IN_ORDER_SECONDS = 5.0
_came: list[tuple[int, float]] = []
"""The signals that ended the command, and when."""
NO_MEMORY = re.compile(
    r"allocate memory|out of memory|not enough memory|bad_alloc|failed to map segment|start new thread"
    r"|insufficient memory|memory allocation|ENOMEM|realloc of size|malloc of size",
    re.IGNORECASE,
)
"""How allocators say it that raise something else than `MemoryError`: torch, Arrow, BLAS, the loader."""
UNSAID = re.compile(
    r"could not create a (primitive|memory)|error return without exception|without setting an exception"
)
"""How oneDNN, or code that forgets to say anything, puts this and other faults: memory if little is free."""
LITTLE = 2**29
LESS_MEMORY = (
    "free some, give the process more, or take a smaller graph; in training, `--memory 8GB`, fewer "
    "`--models`, and a graph of `h3gnn prepare` with `--batch-size 1024` take less"
)


class Stopped(SystemExit):
    """The end of a command that has already said why it ends and how to go on."""


def end_on_signals() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP end a command through its `finally` blocks: no file stays half-written.

    `SystemExit` instead of `KeyboardInterrupt`: after one of the latter has passed through an import, Python
    ends by the signal itself, whatever exit code was asked for. A signal that is ignored (`nohup`) stays
    ignored.
    """
    for number in STOPPING:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    """End, and let no second SIGTERM or SIGHUP soon disturb what is put in order; a second Ctrl-C may.

    What is raised here may meet code of a library that makes another error of it, or of a callback that drops
    it: so it is written down, and a signal that comes later ends the command all the same.
    """
    now = time.monotonic()
    if _came and number != signal.SIGINT and now - _came[-1][1] < PUT_IN_ORDER_SECONDS:
        return
    _came.append((number, now))
    raise SystemExit(128 + number)


def run(load: Callable[[], Callable[[], object]]) -> None:
    """Load the command line and run it; whatever is raised on the way ends as this module says."""
    _speak_plainly()
    _came.clear()
    end_on_signals()
    try:
        try:
            load()()
        finally:
            sys.stdout.flush()  # what was printed into a full disk fails here, where it can be said
    except Stopped as end:
        _leave("", _code(end))
    except SystemExit as end:
        if end.code in ENDED:
            _leave(STOPPED, _code(end))
        if _came and _code(end):
            _leave(STOPPED, 128 + _came[-1][0])
        raise
    except BaseException as error:  # there is no other place after this one
        if is_debugging():
            traceback.print_exc()
        if _came:
            _leave(STOPPED, 128 + _came[-1][0])
        _leave(*ending_of(error))


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that prepares memory for its libraries and reports to typer which signal ended it.

    For typer, every `KeyboardInterrupt` is Ctrl-C. A command owns the process, so it may retain its heap.
    """

    @wraps(function)
    def command(*given: Any, **named: Any) -> None:
        preload_blas()
        retain_heap()
        try:
            function(*given, **named)
        except TrainingStopped as stop:
            raise SystemExit(code_of_signal(stop)) from stop

    return command


def ending_of(error: BaseException) -> tuple[str, int]:
    """Return the sentence and the exit code for an error; a fault of ours leaves its traceback in a file."""
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, RankLostError):
        return str(error), 1
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, code_of_signal(error)
    if is_out_of_memory(error):
        return f"there is not enough memory ({_words(error)}): {LESS_MEMORY}", 2
    if isinstance(error, OSError):
        return f"a file could not be read or written: {error}", 2
    kept = _keep_traceback(error)
    where = f"the details are in {kept}" if kept else "`H3GNN_DEBUG=1` before the command shows the details"
    return f"a fault of h3gnn's own ({_words(error)}): please report it; {where}", 1


def code_of_signal(stop: KeyboardInterrupt) -> int:
    """Return the exit code for the signal that asked for an end: training tells which, else it is Ctrl-C."""
    return 128 + stop.signal_number if isinstance(stop, TrainingStopped) else INTERRUPTED


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether some allocator gave up, in Python, numpy, torch (on any device), Arrow or the system."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if not isinstance(error, RuntimeError | ImportError | OSError | SystemError):
        return False
    unsaid = UNSAID.search(str(error)) and available_memory() < LITTLE
    return bool(NO_MEMORY.search(str(error)) or unsaid)


def is_debugging() -> bool:
    """Whether the person asked for tracebacks."""
    return os.environ.get("H3GNN_DEBUG", "") not in ("", "0")


def _words(error: BaseException) -> str:
    """Return what an error says on one short line, under the name of its kind."""
    said = without_secrets(" ".join(str(error).split()))
    return f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__


def _keep_traceback(error: BaseException) -> str | None:
    """Write a traceback to a file of the person's own and return its name; None where that fails."""
    told = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="h3gnn-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(without_secrets(f"{' '.join(sys.argv)}\nPython {sys.version}\n\n{told}"))
        return path
    return None


def _speak_plainly() -> None:
    """Keep tracebacks that no `except` sees from the screen, and let no character fail to be printed."""
    if not is_debugging():
        threading.excepthook = lambda _: None
        sys.unraisablehook = lambda _: None
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(OSError):  # a stream that is something else than it was: then as it is
                stream.reconfigure(errors="backslashreplace")


def _code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _leave(sentence: str, code: int) -> NoReturn:
    """Say why, and end at once.

    Everything of ours is closed by now. Python's own way out waits for no reader thread of a library that an
    error left behind, and such a thread can turn the exit code into an abort. A terminal that is gone, after
    SIGHUP, hears nothing.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        if sentence:  # of several processes, one has said it
            print(f"h3gnn: {sentence}", file=sys.stderr)
        sys.stderr.flush()
    os._exit(code)
