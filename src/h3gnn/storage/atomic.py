"""Write files and folders atomically, remove temporary ones that killed processes left; copy remote ones.

A file is written under a temporary name beside its destination. Its writer holds a lock, which the system
releases when the process ends, so a temporary file without a lock is an orphan. Without locks (Windows, some
network disks) nothing is removed.
"""

from __future__ import annotations

import atexit
import os
import platform
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import torch

from h3gnn.errors import COPIES, STOPPING, InputError
from h3gnn.resources import format_bytes, progress

ENDING = ".part"
REMOTE = re.compile(r"(s3|gs|hdfs)://")
REMOTE_BLOCK = 16 << 20
"""Bytes of a remote file that are copied at a time."""
REMEDIES = (
    (
        "libjvm|libhdfs",
        "missing-library",
        "HDFS needs Java and Hadoop: set JAVA_HOME, HADOOP_HOME, and CLASSPATH to the output of "
        "`hadoop classpath --glob`",
    ),
    (
        "no_such_bucket|bucket .*(not found|not exist)",
        "bucket-missing",
        "there is no such bucket; create it, or correct its name or the endpoint",
    ),
    (
        r"access_denied|invalid_access_key|signature|unauthorized|unauthenticated|permission|credential|\b40[13]\b",
        "remote-denied",
        "access is denied; set credentials that may read and write there (S3: AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; Google: GOOGLE_APPLICATION_CREDENTIALS; HDFS: kinit)",
    ),
    (
        "",
        "remote-failed",
        "it cannot be read or written; check the address, the network, and on S3 the region (AWS_REGION) "
        "and the endpoint (AWS_ENDPOINT_URL)",
    ),
)
"""Patterns in messages of file systems, and the code and text of the error that each becomes."""


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


def local(path: str | Path) -> Path:
    """Return a local path, for an address of S3, Google Cloud Storage or HDFS that of a copy."""
    return Remote(path).fetch() if isinstance(path, str) and REMOTE.match(path) else Path(path)


@cache
def copies_folder() -> Path:
    """Return the temporary folder of the copies of this process; its lock keeps other processes off it."""
    folder, _ = make_temporary(Path(tempfile.gettempdir()).resolve(), "h3gnn-remote", is_folder=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    COPIES.update({f"{folder / scheme}{os.sep}": f"{scheme}://" for scheme in ("s3", "gs", "hdfs")})
    return folder


class Remote:
    """A remote file or folder, and `path`, its local copy; pyarrow's file systems do the transfers.

    Messages and paths have neither the credentials nor the query of the address.
    """

    def __init__(self, address: str) -> None:
        from pyarrow.fs import FileSystem

        parts = urlsplit(address)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            message = (
                f"{self.name}: several processes need files that all of them see; copy it to a shared disk"
            )
            raise InputError(message, code="remote-shared")
        with self._errors():
            self._system, self._place = FileSystem.from_uri(address)
        self.path = copies_folder() / self._inside(self.name.replace("://", "/"))
        self._fetched: dict[Path, tuple[int, int]] = {}

    def fetch(self) -> Path:
        """Download the file, or all files of the folder, and return the path of the copy."""
        from pyarrow.fs import FileSelector, FileType

        with self._errors():
            found = self._system.get_file_info(self._place)
            if found.type == FileType.NotFound:
                self._check_bucket()
                raise InputError(f"{self.name} does not exist", code="file-missing")
            files = [found]
            if found.type == FileType.Directory:
                files = self._system.get_file_info(FileSelector(self._place, recursive=True))
        files = [one for one in files if one.is_file]
        total, free = sum(one.size for one in files), shutil.disk_usage(copies_folder()).free
        if total > free:
            message = f"{self.name} has {format_bytes(total)}, and the folder of temporary files "
            message += f"{format_bytes(free)} left: name another folder (TMPDIR)"
            raise InputError(message, code="disk-full")
        with progress() as add_bar:
            bar, done = add_bar(f"downloading {self.name}", total), 0
            for one in files:
                path = self.path / self._inside(one.path.removeprefix(self._place))
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    for block in self._blocks(one.path):
                        file.write(block)
                        bar(completed=(done := done + len(block)))
        self._fetched = self._files()
        return self.path

    def reserve(self) -> Path:
        """Return the path of a copy to be written; the remote folder must not exist, JSON is updated."""
        from pyarrow.fs import FileType

        with self._errors():
            found = self._system.get_file_info(self._place).type
            self._check_bucket()
        if found == FileType.Directory:
            message = f"{self.name} exists; choose another name, or remove it"
            raise InputError(message, code="folder-in-use")
        if found == FileType.File and self.path.suffix == ".json":
            return self.fetch()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path

    def send(self) -> None:
        """Upload what is new or changed in the copy, descriptions last, and remove what is gone from it."""
        files = self._files()
        changed = [path for path, state in files.items() if state != self._fetched.get(path)]
        with progress() as add_bar:
            bar, done = add_bar(f"uploading {self.name}", sum(files[path][0] for path in changed)), 0
            for path in sorted(changed, key=lambda path: path.suffix == ".json"):
                with path.open("rb") as file, self._writing(path) as target:
                    while block := file.read(REMOTE_BLOCK):
                        target.write(block)
                        bar(completed=(done := done + len(block)))
        for path in self._fetched.keys() - files.keys() if self.path.exists() else ():
            with self._errors():
                self._system.delete_file(self._remote(path))
        self._fetched = files

    def _blocks(self, place: str) -> Iterator[bytes]:
        with self._errors(), self._system.open_input_stream(place, compression=None) as file:
            while block := file.read(REMOTE_BLOCK):
                yield block

    @contextmanager
    def _writing(self, path: Path) -> Iterator[Any]:
        """Open the remote file of a copy; what is written only in part is removed."""
        with self._errors():
            try:
                with self._system.open_output_stream(self._remote(path), compression=None) as file:
                    yield file
            except BaseException:
                with suppress(Exception):
                    self._system.delete_file(self._remote(path))
                raise

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Return size and time of the files of the copy, without hidden ones."""
        inside = [self.path] if self.path.is_file() else self.path.rglob("*")
        found = (one for one in inside if one.is_file() and not one.name.startswith("."))
        return {one: (one.stat().st_size, one.stat().st_mtime_ns) for one in found}

    def _remote(self, path: Path) -> str:
        return "/".join([self._place, *path.relative_to(self.path).parts])

    def _inside(self, name: str) -> PurePosixPath:
        """Return a path that stays in the folder of the copies, whatever remote files are called."""
        parts = [part for part in name.split("/") if part]
        if {".", ".."} & {*parts}:
            message = f"{self.name}: the name {name!r} has a part that is no name of a file"
            raise InputError(message, code="remote-name")
        return PurePosixPath(*parts)

    def _check_bucket(self) -> None:
        from pyarrow.fs import FileType

        bucket = self._place.partition("/")[0]
        if bucket and self._system.get_file_info(bucket).type == FileType.NotFound:
            raise OSError(f"bucket {bucket} not found")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of a remote file system into errors with a remedy."""
        try:
            yield
        except InputError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:
            text = " ".join(str(error).split())[:200]
            for pattern, code, remedy in REMEDIES:
                if re.search(pattern, text, re.IGNORECASE):
                    raise InputError(f"{self.name}: {remedy} ({text})", code=code) from None
