"""The files of checkpoints: how often one is written, and the folder of them; the last few are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from h3gnn.errors import CheckpointError, InputError, check_number, check_whole
from h3gnn.storage.atomic import check_heading, heading, remove_parts, versions
from h3gnn.storage.schema import Listed, Named, Plain, Record, Text, Whole, check_values, heading_of
from h3gnn.storage.tensors import read_tensor_file, write_tensor_file

FORMAT, FORMAT_VERSION = "h3gnn-checkpoint", 2
CHECKPOINTS = "checkpoints"
"""The folder inside a model's folder in which an unfinished run has its checkpoints."""
NAME = re.compile(r"epoch-(?P<epoch>\d{8,})-[0-9a-f]{16}\.safetensors")
GROUP = re.compile(r"models-(?P<first>\d+)-(?P<last>\d+)")
LOCK = ".lock"
CHECKPOINT = Record(
    {**heading_of(FORMAT), "fingerprint": Named(Plain()), "epoch": Whole(0), "columns": Listed(Text())}
)
"""What the description of a checkpoint holds."""


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a training writes down its state.

    Besides these times, one is written when the last epoch is done, and one when Ctrl-C or SIGTERM ends the
    training.

    Attributes:
        folder: where they lie; a fit with the same settings, graph and folder goes on from the newest.
        every: write one after every so many epochs; None does not count epochs.
        minutes: write one when so many minutes have passed; None does not look at the clock.
        keep: how many of the newest to keep.
        keep_finished: leave them when the fit ends, for a caller who has yet to save the model.
        only_when_stopped: write none but the one when a signal ends the training, and no folder before.
    """

    folder: str | Path
    every: int | None = None
    minutes: float | None = 10.0
    keep: int = 2
    keep_finished: bool = False
    only_when_stopped: bool = False

    def check(self) -> None:
        """Refuse values that mean nothing."""
        if self.every is not None:
            check_whole("every", self.every, 1)
        if self.minutes is not None:
            check_number("minutes", self.minutes, 0, 1e6)
        check_whole("keep", self.keep, 1)
        if Path(self.folder).exists() and not Path(self.folder).is_dir():
            raise InputError(f"{self.folder} is a file; checkpoints lie in a folder")


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
        check_values(CHECKPOINT, description, path, CheckpointError)
        if description["epoch"] != epoch_of(path):
            raise CheckpointError(f"{path} is damaged: epoch is {description['epoch']}, unlike in its name")
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
            **heading(FORMAT, FORMAT_VERSION),
            "fingerprint": self.fingerprint,
            "epoch": epoch,
            "columns": columns,
        }
        check_values(CHECKPOINT, description, self.folder, words="cannot be written")
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
    check_heading(path, description, wanted, version, CheckpointError)
    told = description.get("versions")
    writer, here = told.get("h3gnn") if isinstance(told, dict) else None, versions()["h3gnn"]
    if writer != here:
        raise CheckpointError(f"{path} was written by h3gnn {writer}, but this is h3gnn {here}")


def make_folder(folder: Path) -> Path:
    """Return a folder that can be written to, or say before the work that there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror or error})") from None
    return folder


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
