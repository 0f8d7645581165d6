"""The folder of a run's checkpoints: one file each, named by epoch and hash; the last few are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from h3gnn.errors import CheckpointError, InputError
from h3gnn.storage import versions
from h3gnn.tensorfiles import read_tensor_file, remove_parts, write_tensor_file

FORMAT = "h3gnn-checkpoint"
FORMAT_VERSION = 2
NAME = re.compile(r"epoch-(?P<epoch>\d{8,})-[0-9a-f]{16}\.safetensors")
GROUP = re.compile(r"models-(?P<first>\d+)-(?P<last>\d+)")
LOCK = ".lock"


class CheckpointFolder:
    """Writes, finds, reads and removes checkpoints of one run.

    Args:
        folder: where they lie.
        fingerprint: what the result depends on; a checkpoint with another one belongs to another run.
        keep: how many of the newest to keep.
    """

    def __init__(self, folder: Path, fingerprint: dict[str, Any], keep: int) -> None:
        self.folder, self.keep = folder, keep
        self.fingerprint = json.loads(json.dumps(fingerprint, default=_plain))
        self.trusted: list[Path] = []

    def found(self) -> list[Path]:
        """Return the files that are named as checkpoints, newest first."""
        return sorted(checkpoints_in(self.folder), key=epoch_of, reverse=True)

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a checkpoint's tensors and description.

        Raises:
            CheckpointError: it is damaged, foreign or from another version; another one may do.
            InputError: it is sound, but of another run.
        """
        tensors, description = read_tensor_file(path)
        check_format(path, description, FORMAT, FORMAT_VERSION)
        if not {"epoch", "columns", "fingerprint"} <= description.keys():
            raise CheckpointError(f"{path} is damaged: its description is not complete")
        self._refuse_another_run(description["fingerprint"])
        return tensors, description

    def trust(self, path: Path) -> None:
        """Note that a checkpoint was read and is good: it and those before it may be pruned from now on."""
        self.trusted = sorted((p for p in self.found() if epoch_of(p) < epoch_of(path)), key=epoch_of)
        self.trusted.append(path)

    def write(self, epoch: int, tensors: dict[str, Tensor], columns: list[str]) -> Path:
        """Write a checkpoint, whole or not at all, and only then remove the oldest.

        A damaged file never counts as one of those that are kept, so it cannot push out a good one.
        """
        description = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "versions": versions(),
            "fingerprint": self.fingerprint,
            "epoch": epoch,
            "columns": columns,
        }
        path = write_tensor_file(self.folder, f"epoch-{epoch:08d}", tensors, description)
        self.trusted = [*(known for known in self.trusted if known != path), path]
        while len(self.trusted) > self.keep:
            self.trusted.pop(0).unlink(missing_ok=True)
        return path

    def _refuse_another_run(self, theirs: dict[str, Any]) -> None:
        different = [name for name, value in self.fingerprint.items() if theirs.get(name) != value]
        different += [name for name in theirs if name not in self.fingerprint]
        if not different:
            return
        name = different[0]
        what = f"{name} is {theirs.get(name)!r} there and {self.fingerprint.get(name)!r} here"
        if "graph" in different:
            what = "it was trained on another graph"
        raise InputError(
            f"{self.folder} holds checkpoints of another run ({what}): go on with the same settings and "
            "graph, or choose another folder"
        )


def check_format(path: Path, description: dict[str, Any], wanted: str, version: int) -> None:
    """Refuse a description of another kind, of another format version, or of another version of h3gnn."""
    if description.get("format") != wanted:
        raise CheckpointError(f"{path} was not written as {wanted}")
    if description.get("format_version") != version:
        raise CheckpointError(
            f"{path} has format version {description.get('format_version')}, "
            f"but this h3gnn reads version {version}"
        )
    writer, here = (description.get("versions") or {}).get("h3gnn"), versions()["h3gnn"]
    if writer != here:
        raise CheckpointError(f"{path} was written by h3gnn {writer}, but this is h3gnn {here}")


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the files in a folder that are named as checkpoints."""
    return [path for path in folder.glob("epoch-*") if NAME.fullmatch(path.name)]


def epoch_of(path: Path) -> int:
    """Return after how many epochs a checkpoint was written, by its name."""
    named = NAME.fullmatch(path.name)
    return int(named["epoch"]) if named else -1


def group_folder(folder: Path, first: int, models: int) -> Path:
    """Return where the checkpoints of some of a run's models lie, if not all of them train at once."""
    return folder / f"models-{first}-{first + models - 1}"


def group_folders(folder: Path) -> list[Path]:
    """Return the folders of groups of models, in the order in which they are trained."""
    found = [(int(named["first"]), path) for path in folder.glob("models-*") if (named := _group(path))]
    return [path for _, path in sorted(found)]


def known_group_size(folder: Path, models: int) -> int | None:
    """Return how many models an unfinished run trains at once; None where there is no such run.

    It is read back because it was chosen by the memory that was free, which may be another today.
    """
    if checkpoints_in(folder):
        return models
    first = next(iter(group_folders(folder)), None)
    named = None if first is None else _group(first)
    if named is None:
        return None
    size = int(named["last"]) - int(named["first"]) + 1
    if size >= models:
        raise InputError(
            f"{folder} holds checkpoints of another run (of more than {size} models): go on with the same "
            "settings and graph, or choose another folder"
        )
    return size


def _group(path: Path) -> re.Match[str] | None:
    return GROUP.fullmatch(path.name) if path.is_dir() else None


def newest_in(folder: Path) -> tuple[int, Path]:
    """Return after how many epochs a run's newest checkpoint was written (0: none yet), and where it lies."""
    begun = [place for place in (folder, *group_folders(folder)) if checkpoints_in(place)]
    place = begun[-1] if begun else folder
    return max(map(epoch_of, checkpoints_in(place)), default=0), place


def clear(folder: Path) -> None:
    """Remove a finished run's checkpoints, and the folder if nothing else is in it."""
    for group in group_folders(folder):
        clear(group)
    for path in checkpoints_in(folder):
        path.unlink(missing_ok=True)
    remove_parts(folder, "epoch-")
    (folder / LOCK).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


@contextmanager
def one_process_only(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process trains in; a process that dies, however, frees it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is in use: another process is training this run") from None
        except OSError:  # a file system without locks: better to train than to refuse
            pass
        yield


def _plain(value: Any) -> Any:
    """Return a numpy number as Python's own, for JSON."""
    return value.item()
