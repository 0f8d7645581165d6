"""What a kill left behind: files and folders in the making, removed unless a living process still makes them.

Whatever is written whole or not at all is made under another name first, beside its place. SIGKILL or a
loss of power leaves it there. Its maker holds a lock on it, which the system lets go when the process ends,
however it ends: what is not locked is nobody's. Where there are no locks (Windows, some network disks),
nothing is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import torch

from h3gnn.errors import STOPPING, InputError
from h3gnn.storage.schema import parse_json

ENDING = ".part"


def make_part(folder: Path, stem: str, *, is_folder: bool = False) -> tuple[Path, int]:
    """Make a file or folder `.STEM.xxxxxxxx.part`, after removing those that nobody makes any more.

    Returns:
        Its path, and what holds it open and locked: the file itself, or a handle of the folder.
    """
    remove_left(folder, stem)
    while True:
        if is_folder:
            path = Path(tempfile.mkdtemp(dir=folder, prefix=f".{stem}.", suffix=ENDING))
            handle = os.open(path, os.O_RDONLY) if os.name == "posix" else -1
        else:
            handle, name = tempfile.mkstemp(dir=folder, prefix=f".{stem}.", suffix=ENDING)
            path = Path(name)
        if handle >= 0:
            _lock(handle)
        if path.exists():  # another process may have taken it for a leftover just before the lock
            return path, handle
        os.close(handle)


def remove_left(folder: Path, stem: str) -> list[Path]:
    """Remove what other processes began under this name and did not live to end; return what was removed."""
    ours = re.compile(re.escape(f".{stem}.") + r"[a-z0-9_]{8}" + re.escape(ENDING))
    found = [path for path in _entries(folder) if ours.fullmatch(path.name) and not path.is_symlink()]
    return [path for path in found if _remove_if_left(path)]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _remove_if_left(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        if not _lock(handle):
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


def is_held(handle: int) -> bool:
    """Lock an open folder, and tell whether another process holds it; not so where there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def _lock(handle: int) -> bool:
    """Lock an open file or folder; False where another process holds it, or the system has no locks."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class StopRequest:
    """Remembers that a signal came, until somebody looks."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def take(self) -> int | None:
        """Return the signal that came, if any; from now on it is dealt with."""
        number, self.signal_number = self.signal_number, None
        return number

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; a second Ctrl-C does not wait for the epoch."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def signals_wait() -> Iterator[StopRequest]:
    """Hold the signals back while the block runs; it has to look at the request from time to time.

    A signal that was ignored before (`nohup`, a background job) stays ignored. Outside the main thread
    Python lets nobody take signals: there the request stays empty.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, request.note)
    try:
        yield request
    finally:
        for number in taken:
            signal.signal(number, before[number])
    if request.signal_number is not None:  # it came too late for the block: now it may do what it does
        signal.raise_signal(request.signal_number)


Record = dict[str, Any]
"""What is kept of a piece of work, as plain values."""


@contextlib.contextmanager
def whole_file(folder: Path, stem: str, name: Callable[[], str]) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends: a reader, or a kill, sees all of it or nothing."""
    part, handle = make_part(folder, stem)
    held = os.dup(handle) if os.name == "posix" else None  # ours until it has its name
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(folder / name())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        if held is not None:
            os.close(held)
    _sync_folder(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with whole_file(path.parent, path.name, lambda: path.name) as file:
        file.write(content)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder of another name, which takes the name of `folder` when the block has ended well.

    What a kill left of an earlier one is removed first.
    """
    made, handle = make_part(folder.parent, folder.name, is_folder=True)
    try:
        yield made
        made.chmod(0o755)
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if handle >= 0:
            os.close(handle)


def remove_parts(folder: Path, stem: str) -> None:
    """Remove what a kill in the middle of a write left behind."""
    for part in folder.glob(f".{stem}*.part"):
        part.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return what produced a result: this package, torch, Python."""
    from h3gnn import __version__

    return {"h3gnn": __version__, "torch": torch.__version__, "python": platform.python_version()}


def heading(kind: str, version: int) -> dict[str, Any]:
    """Return how every description begins: what it is, in which version of the format, and who wrote it."""
    return {"format": kind, "format_version": version, "versions": versions()}


def check_heading(
    path: Path, description: dict[str, Any], kind: str, version: int, fault: type[InputError]
) -> None:
    """Refuse a description of another kind, or of another version of the format."""
    if description.get("format") != kind:
        raise fault(f"{path} was not written by h3gnn as {kind}")
    if description.get("format_version") != version:
        raise fault(
            f"{path} has format version {description.get('format_version')}, "
            f"but this h3gnn reads version {version}"
        )


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder outlast a loss of power; where a system knows no such thing, do nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def fingerprint(about: dict[str, Any]) -> str:
    """Return a short key that is the same only if everything named is that an outcome depends on."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    content: dict[str, Any] = parse_json(path.read_bytes(), path, InputError)
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with one line for each entry, or for each item of an entry that is a list of objects."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_plain(item) for item in value)
            parts.append(f" {json.dumps(name)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {_plain(value)}")
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode(errors="backslashreplace"))


def _plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def rounded(value: Any, digits: int = 5) -> Any:
    """Return plain values with all their floats rounded, so that files stay small."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {name: rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one, digits) for one in value]
    return value
