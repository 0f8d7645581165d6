"""Exit codes and error messages of the command line.

0: success. 2: invalid input (an argument, a file, memory). 1: an internal error or a lost process. 128 + n:
signal n. Errors are one line on standard error, or with `--json` an object with `code` and `message`. The
traceback of an internal error is written to a file; `H3GNN_DEBUG=1` prints the tracebacks of all errors.
"""

from __future__ import annotations

import contextlib
import errno
import json
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
from h3gnn.resources import preload_blas, retain_heap

ENDED = tuple(128 + number for number in STOPPING)
"""Exit codes of commands that were ended by a signal."""
INTERRUPTED = 128 + signal.SIGINT
STOPPED = "stopped; nothing is half-written"
CLEANUP_SECONDS = 5.0
_received: list[tuple[int, float]] = []
"""The signals received, and when."""
NO_MEMORY = re.compile(
    r"allocate memory|out of memory|not enough memory|bad_alloc|failed to map segment|start new thread"
    r"|insufficient memory|memory allocation|ENOMEM|realloc of size|malloc of size",
    re.IGNORECASE,
)
"""Messages of allocators that do not raise `MemoryError`: torch, Arrow, BLAS, the loader."""
LESS_MEMORY = (
    "use a smaller graph or more memory; in training, `--memory 8GB`, fewer `--models`, or a graph of "
    "`h3gnn prepare` with `--batch-size 1024` need less"
)


class Stopped(SystemExit):
    """The end of a command that has already reported the reason."""


def end_on_signals() -> None:
    """Make Ctrl-C, SIGTERM and SIGHUP raise `SystemExit`, so that `finally` blocks run.

    Not `KeyboardInterrupt`: after one passes through an import, Python ends by the signal itself, whatever
    the exit code. A signal that is ignored (`nohup`) stays ignored.
    """
    for number in STOPPING:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise `SystemExit`; ignore a second SIGTERM or SIGHUP during cleanup, but not a second Ctrl-C.

    The signal is recorded, since a library may replace the exception or drop it in a callback.
    """
    now = time.monotonic()
    if _received and number != signal.SIGINT and now - _received[-1][1] < CLEANUP_SECONDS:
        return
    _received.append((number, now))
    raise SystemExit(128 + number)


def run(load: Callable[[], Callable[[], object]]) -> None:
    """Load the command line and run it; turn every exception into a message and an exit code."""
    _configure_streams()
    _received.clear()
    end_on_signals()
    try:
        try:
            load()()
        finally:
            sys.stdout.flush()  # a full disk fails here, where it can be reported
    except Stopped as end:
        _leave("", _code(end))
    except SystemExit as end:
        if end.code in ENDED:
            _leave(STOPPED, _code(end))
        if _received and _code(end):
            _leave(STOPPED, 128 + _received[-1][0])
        raise
    except BaseException as error:
        if is_debugging():
            traceback.print_exc()
        if _received:
            _leave(STOPPED, 128 + _received[-1][0])
        _leave(*ending_of(error))


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that prepares memory and exits with the code of the signal that ended its training.

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


def ending_of(error: BaseException) -> tuple[str, int, str]:
    """Return message, exit code and error code; the traceback of an internal error goes to a file."""
    if isinstance(error, InputError):
        return str(error), 2, error.code
    if isinstance(error, RankLostError):
        return str(error), 1, "process-lost"
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, code_of_signal(error), "interrupted"
    if is_out_of_memory(error):
        return f"not enough memory ({_describe(error)}): {LESS_MEMORY}", 2, "out-of-memory"
    if isinstance(error, OSError):
        return f"cannot read or write a file: {error}", 2, "file"
    log = _write_traceback(error)
    details = f"details are in {log}" if log else "H3GNN_DEBUG=1 shows the details"
    message = f"internal error ({_describe(error)}). Please report this; {details}"
    return message, 1, "internal-error"


def code_of_signal(stop: KeyboardInterrupt) -> int:
    """Return the exit code of the signal that stopped a training; otherwise that of Ctrl-C."""
    return 128 + stop.signal_number if isinstance(stop, TrainingStopped) else INTERRUPTED


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocator failed: Python, numpy, torch (any device), Arrow or the system."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | ImportError | OSError | SystemError):
        return False
    return getattr(error, "errno", None) == errno.ENOMEM or bool(NO_MEMORY.search(str(error)))


def is_debugging() -> bool:
    """Return whether tracebacks are requested."""
    return os.environ.get("H3GNN_DEBUG", "") not in ("", "0")


def _describe(error: BaseException) -> str:
    text = without_secrets(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _write_traceback(error: BaseException) -> str | None:
    """Write a traceback to a temporary file and return its name; None if that fails."""
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="h3gnn-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(without_secrets(f"{' '.join(sys.argv)}\nPython {sys.version}\n\n{text}"))
        return path
    return None


def _configure_streams() -> None:
    """Hide tracebacks of threads, and make every character printable."""
    if not is_debugging():
        threading.excepthook = lambda _: None
        sys.unraisablehook = lambda _: None
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")


def _code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _leave(message: str, exit_code: int, code: str = "interrupted") -> NoReturn:
    """Print the message and exit at once, since a regular exit could abort in a library's thread.

    All files are closed by now. After SIGHUP the terminal may be gone.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        if message:  # empty if another process has reported the error
            as_json = json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False)
            print(as_json if "--json" in sys.argv else f"h3gnn: {message}", file=sys.stderr)
        sys.stderr.flush()
    os._exit(exit_code)
