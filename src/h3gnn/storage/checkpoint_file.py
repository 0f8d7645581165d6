"""Checkpoint files: how often they are written, their layout, and the folder that holds the newest ones.

`training.checkpoints` collects the tensors that they contain.
"""

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
from h3gnn.storage.atomic import check_header, header, lock, remove_parts, versions
from h3gnn.storage.schema import DictOf, Integer, ListOf, Record, Text, check_values, header_of
from h3gnn.storage.tensors import read_tensor_file, write_tensor_file

FORMAT, FORMAT_VERSION = "h3gnn-checkpoint", 2
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints of an unfinished run, inside a model's folder."""
NAME = re.compile(r"epoch-(?P<epoch>\d{8,})-[0-9a-f]{16}\.safetensors")
GROUP = re.compile(r"models-\d+-\d+")
LOCK = ".lock"
CHECKPOINT = Record(
    {**header_of(FORMAT), "fingerprint": DictOf(Any), "epoch": Integer(0), "columns": ListOf(Text())}
)
"""Schema of the description of a checkpoint."""


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a training stores its state.

    One more is written after the last epoch, and when Ctrl-C or SIGTERM ends the training.

    Attributes:
        folder: location; a fit with the same settings, graph and folder resumes from the newest checkpoint.
        every: number of epochs between checkpoints; None ignores epochs.
        minutes: time between checkpoints; None ignores time.
        keep: number of checkpoints to keep.
        keep_finished: keep them after the fit, for a caller that has yet to save the model.
        only_when_stopped: write a checkpoint only if a signal ends the training, and create no folder before.
    """

    folder: str | Path
    every: int | None = None
    minutes: float | None = 10.0
    keep: int = 2
    keep_finished: bool = False
    only_when_stopped: bool = False

    def check(self) -> None:
        """Validate the values."""
        if self.every is not None:
            check_whole("every", self.every, 1)
        if self.minutes is not None:
            check_number("minutes", self.minutes, 0, 1e6)
        check_whole("keep", self.keep, 1)
        if Path(self.folder).exists() and not Path(self.folder).is_dir():
            raise InputError(f"{self.folder} is a file, not a folder for checkpoints", code="not-a-folder")


class CheckpointFolder:
    """Writes, finds, reads and removes checkpoints of one run.

    `fingerprint` is everything that the result depends on; a checkpoint with another one belongs to another
    run.
    """

    def __init__(self, folder: Path, fingerprint: dict[str, Any], keep: int) -> None:
        self.folder, self.keep = folder, keep
        # NumPy scalars become Python's
        self.fingerprint = json.loads(json.dumps(fingerprint, default=lambda value: value.item()))
        self.trusted: list[Path] = []

    def found(self) -> list[Path]:
        """Return the checkpoint files, newest first."""
        return sorted(checkpoints_in(self.folder), key=epoch_of, reverse=True)

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a checkpoint's tensors and description.

        A `CheckpointError` means that this file cannot be used; another `InputError`, that it is of another
        run.
        """
        tensors, description = read_tensor_file(path)
        check_format(path, description, FORMAT, FORMAT_VERSION)
        check_values(CHECKPOINT, description, path, CheckpointError)
        if description["epoch"] != epoch_of(path):
            message = f"{path} is damaged: epoch is {description['epoch']}, unlike in its name"
            raise CheckpointError(message, code="file-damaged")
        self._check_run(description["fingerprint"])
        return tensors, description

    def trust(self, path: Path) -> None:
        """Mark a checkpoint as valid: it and older ones may be removed from now on."""
        self.trusted = sorted((p for p in self.found() if epoch_of(p) < epoch_of(path)), key=epoch_of)
        self.trusted.append(path)

    def write(self, epoch: int, tensors: dict[str, Tensor], columns: list[str]) -> Path:
        """Write a checkpoint atomically, then remove the oldest.

        A damaged file does not count as one of those to keep, so it cannot displace a valid one.
        """
        description = {
            **header(FORMAT, FORMAT_VERSION),
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

    def _check_run(self, stored: dict[str, Any]) -> None:
        names = [name for name, value in self.fingerprint.items() if stored.get(name) != value]
        names += [name for name in stored if name not in self.fingerprint]
        if not names:
            return
        name = names[0]
        reason = f"{name} is {stored.get(name)!r} there and {self.fingerprint.get(name)!r} here"
        raise _other_run(self.folder, "it was trained on another graph" if "graph" in names else reason)


def _other_run(folder: Path, reason: str) -> InputError:
    return InputError(
        f"{folder} holds checkpoints of another run ({reason}): use the same settings and graph, or choose "
        "another folder",
        code="other-run",
    )


def check_format(path: Path, description: Any, kind: str, version: int) -> None:
    """Validate kind and version of a description, which must be of this version of h3gnn."""
    stored = check_header(path, description, kind, version, CheckpointError).get("versions")
    writer, here = stored.get("h3gnn") if isinstance(stored, dict) else None, versions()["h3gnn"]
    if writer != here:
        message = f"{path} was written by h3gnn {writer}, but this is h3gnn {here}"
        raise CheckpointError(message, code="other-version")


def make_folder(folder: Path) -> Path:
    """Create a folder and test that it is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        message = f"{folder} cannot be written ({error.strerror or error})"
        raise InputError(message, code="not-writable") from None
    return folder


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint files in a folder."""
    return [path for path in folder.glob("epoch-*") if NAME.fullmatch(path.name)]


def epoch_of(path: Path) -> int:
    """Return the number of epochs before a checkpoint, from its name."""
    named = NAME.fullmatch(path.name)
    return int(named["epoch"]) if named else -1


def group_folder(folder: Path, first: int, models: int) -> Path:
    """Return the folder for checkpoints of some of a run's models."""
    return folder / f"models-{first}-{first + models - 1}"


def group_folders(folder: Path) -> list[Path]:
    """Return the folders of groups of models, in the order of training."""
    found = [path for path in folder.glob("models-*") if path.is_dir() and GROUP.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]))


def known_group_size(folder: Path, models: int) -> int | None:
    """Return how many models an unfinished run trains at once; None without such a run.

    It was chosen by the free memory, which may differ today.
    """
    if checkpoints_in(folder):
        return models
    groups = group_folders(folder)
    if not groups:
        return None
    _, first, last = groups[0].name.split("-")
    size = int(last) - int(first) + 1
    if size >= models:
        raise _other_run(folder, f"of more than {size} models")
    return size


def newest_in(folder: Path) -> tuple[int, Path]:
    """Return the epoch of a run's newest checkpoint (0: none yet) and its folder."""
    begun = [place for place in (folder, *group_folders(folder)) if checkpoints_in(place)]
    place = begun[-1] if begun else folder
    return max(map(epoch_of, checkpoints_in(place)), default=0), place


def clear(folder: Path) -> None:
    """Remove a finished run's checkpoints, and the folder if it is then empty."""
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
    """Lock a folder while the block runs; the lock ends with the process."""
    with (folder / LOCK).open("w") as file:
        if lock(file.fileno()) is False:
            message = f"{folder} is in use: another process is training this run"
            raise InputError(message, code="folder-in-use")
        yield
