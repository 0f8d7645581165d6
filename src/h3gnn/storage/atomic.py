"""Write files and folders atomically, and remove temporary ones that killed processes left.

A file is written under a temporary name beside its destination. Its writer holds a lock, which the system
releases when the process ends, so a temporary file without a lock is an orphan. Without locks (Windows, some
network disks) nothing is removed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import torch

from h3gnn.errors import STOPPING, InputError

ENDING = ".part"


def make_temporary(folder: Path, stem: str, *, is_folder: bool = False) -> tuple[Path, int]:
    """Create a file or folder `.STEM.xxxxxxxx.part` after removing orphaned ones.

    Returns its path and a handle that is locked: the open file, or a handle of the folder.
    """
    remove_orphans(folder, stem)
    while True:
        if is_folder:
            path = Path(tempfile.mkdtemp(dir=folder, prefix=f".{stem}.", suffix=ENDING))
            handle = os.open(path, os.O_RDONLY) if os.name == "posix" else -1
        else:
            handle, name = tempfile.mkstemp(dir=folder, prefix=f".{stem}.", suffix=ENDING)
            path = Path(name)
        if handle >= 0:
            lock(handle)
        if path.exists():  # another process may have removed it as an orphan before it was locked
            return path, handle
        os.close(handle)


def remove_orphans(folder: Path, stem: str) -> list[Path]:
    """Remove temporary files and folders of killed processes; return their paths."""
    pattern = re.compile(re.escape(f".{stem}.") + r"[a-z0-9_]{8}" + re.escape(ENDING))
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    found = [path for path in entries if pattern.fullmatch(path.name) and not path.is_symlink()]
    return [path for path in found if _remove_if_orphaned(path)]


def _remove_if_orphaned(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        if not lock(handle):
            return False
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return not path.exists()
    except OSError:
        return False
    finally:
        os.close(handle)


def lock(handle: int) -> bool | None:
    """Lock an open file or folder; False if another process holds it, None if the system has no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


class StopRequest:
    """Stores a signal until `take` is called."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def take(self) -> int | None:
        """Return the signal, if any, and clear it."""
        number, self.signal_number = self.signal_number, None
        return number

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C interrupts at once."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def delayed_signals() -> Iterator[StopRequest]:
    """Delay signals while the block runs; it has to check the request from time to time.

    A signal that was ignored before (`nohup`, a background job) stays ignored. Outside the main thread, where
    Python does not allow signal handlers, the request stays empty.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    handled = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in handled:
        signal.signal(number, request.note)
    try:
        yield request
    finally:
        for number in handled:
            signal.signal(number, before[number])
    if request.signal_number is not None:  # it came after the last check
        signal.raise_signal(request.signal_number)


@contextmanager
def atomic_file(folder: Path, stem: str, name: Callable[[], str]) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends: readers see all of it or nothing."""
    part, handle = make_temporary(folder, stem)
    held = os.dup(handle) if os.name == "posix" else None  # keeps the lock until it has its name
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o666 & ~umask())
        part.replace(folder / name())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        if held is not None:
            os.close(held)
    _sync_folder(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    with atomic_file(path.parent, path.name, lambda: path.name) as file:
        file.write(content)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` when the block succeeds."""
    part, handle = make_temporary(folder.parent, folder.name, is_folder=True)
    try:
        yield part
        part.chmod(0o777 & ~umask())
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


def umask() -> int:
    """Return the permissions that new files of this process do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def remove_parts(folder: Path, stem: str) -> None:
    """Remove temporary files in a folder that no other process uses."""
    for part in folder.glob(f".{stem}*.part"):
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power failure, if the system supports that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def versions() -> dict[str, str]:
    """Return the versions of this package, torch and Python."""
    from h3gnn import __version__

    return {"h3gnn": __version__, "torch": torch.__version__, "python": platform.python_version()}


def header(kind: str, version: int) -> dict[str, Any]:
    """Return the first fields of every description: format, its version, and the versions of the writer."""
    return {"format": kind, "format_version": version, "versions": versions()}


def check_header(
    path: Path, description: Any, kind: str, version: int, error: type[InputError]
) -> dict[str, Any]:
    """Return a description of this kind and version of the format, or raise an error."""
    if not isinstance(description, dict) or description.get("format") != kind:
        raise error(f"{path} was not written by h3gnn as {kind}", code="file-foreign")
    found = description.get("format_version")
    if found != version:
        message = f"{path} has format version {found}, but this h3gnn reads version {version}"
        raise error(message, code="format-version")
    return description
