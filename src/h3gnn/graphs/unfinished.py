"""Long work on files that goes on where it was: a hidden folder beside the target, and a note how far it is.

The files of the folder only grow. The note says what they are made of, how far each stage has come, and how
long the files were then; what was written after it is cut off when the work goes on. The target appears when
all is done, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from h3gnn.errors import GraphError, InputError
from h3gnn.leftovers import is_held, remove_left

NOTE = "begun.json"
KEEP_SECONDS = 30.0
"""So often is it written down how far a stage has come."""
HASHED = 1 << 20
"""So many bytes of the beginning and of the end of a file tell it from others."""


class Unfinished:
    """What there is of a folder in the making.

    Args:
        folder: the hidden one.
        made_of: inputs and options; other ones begin again.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any]) -> None:
        self.folder, self.made_of = folder, dict(made_of)
        self.done: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}
        self._kept = time.monotonic()
        if not self._take_up():
            shutil.rmtree(folder)
            folder.mkdir()

    @property
    def has_begun(self) -> bool:
        """Whether there is something to go on with."""
        return (self.folder / NOTE).is_file()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed to write down how far the work is."""
        return time.monotonic() - self._kept >= KEEP_SECONDS

    def open(self, name: str) -> BinaryIO:
        """Open a file at the end that it had in the note, which is empty for a new one."""
        path, length = self.folder / name, self._lengths.get(name, 0)
        file = path.open("r+b" if path.exists() else "w+b")
        file.truncate(length)
        file.seek(length)
        return file

    def keep(self, stage: str, done: Any, files: Sequence[BinaryIO], gone: Sequence[Path] = ()) -> None:
        """Write down how far a stage has come, and remove the files that this makes unnecessary."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            self._lengths[Path(file.name).name] = file.tell()
        for path in gone:
            self._lengths.pop(path.name, None)
        self.done[stage] = done
        note = {"made_of": self.made_of, "done": self.done, "lengths": self._lengths}
        new = self.folder / f"{NOTE}.new"
        with new.open("w", encoding="utf-8") as written:
            json.dump(note, written)
            written.flush()
            os.fsync(written.fileno())
        new.replace(self.folder / NOTE)
        for path in gone:
            path.unlink(missing_ok=True)
        self._kept = time.monotonic()

    def _take_up(self) -> bool:
        """Read the note, if it is of the same work and all its files are there."""
        try:
            note = json.loads((self.folder / NOTE).read_bytes())
            same = note["made_of"] == json.loads(json.dumps(self.made_of))
            whole = all((self.folder / n).stat().st_size >= size for n, size in note["lengths"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        if same and whole:
            self.done, self._lengths = note["done"], note["lengths"]
        return same and whole


@contextmanager
def unfinished_folder(target: Path, made_of: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Yield what there is of a folder in the making; it takes the target's place when the block ends well.

    A fault of the inputs removes it, since the same command would meet it again. Whatever else ends the block
    leaves it for the next one, if anything in it is worth that.
    """
    remove_left(target.parent, target.name)
    folder = hidden_beside(target)
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else -1
    try:
        if handle >= 0 and is_held(handle):
            raise InputError(f"another process is making {target} at this moment; wait for it, or stop it")
        work = Unfinished(folder, made_of)
        try:
            yield work
        except BaseException as error:
            if isinstance(error, GraphError) or not work.has_begun:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / NOTE).unlink(missing_ok=True)
        folder.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        folder.replace(target)
    finally:
        if handle >= 0:
            os.close(handle)


def hidden_beside(target: Path) -> Path:
    """Return the folder in which a target is made."""
    return target.parent / f".{target.name}.unfinished"


def told_apart(path: Path) -> dict[str, Any]:
    """Return what tells a file from any other: place, size, time, and a hash of its two ends."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            digest = hashlib.sha256(file.read(HASHED))
            file.seek(max(0, about.st_size - HASHED))
            digest.update(file.read(HASHED))
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from None
    place = str(path.resolve())
    return {"path": place, "size": about.st_size, "time": about.st_mtime_ns, "ends": digest.hexdigest()}
