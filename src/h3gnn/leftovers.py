"""What a kill left behind: files and folders in the making, removed unless a living process still makes them.

Whatever is written whole or not at all is made under another name first, beside its place. SIGKILL or a
loss of power leaves it there. Its maker holds a lock on it, which the system lets go when the process ends,
however it ends: what is not locked is nobody's. Where there are no locks (Windows, some network disks),
nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

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
