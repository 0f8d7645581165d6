"""Checkpoints: a run that is killed goes on where it was, bit for bit on CPU. See docs/checkpoints.md.

On Ctrl-C, SIGTERM and SIGHUP the epoch ends first, so that the state is whole.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from h3gnn.errors import CheckpointError, TrainingStopped
from h3gnn.signals import StopRequest, signals_wait
from h3gnn.storage.checkpoints import (
    CheckpointFolder,
    Checkpoints,
    epoch_of,
    make_folder,
    one_process_only,
)
from h3gnn.storage.files import remove_parts, versions
from h3gnn.training.history import Recorder
from h3gnn.training.loop import AfterEpoch
from h3gnn.training.state import State, put_back, take
from h3gnn.training.step import Step


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written or read; the training goes on without it."""


@contextmanager
def checkpointing(
    policy: Checkpoints | None, step: Step, fingerprint: dict[str, Any], epochs: int
) -> Iterator[tuple[Recorder, AfterEpoch | None]]:
    """Bring a step to where its checkpoints end, and write new ones while the block runs.

    Of several processes the first one has the policy, reads and writes; the others hand over what they hold.

    Args:
        policy: where and how often; None writes nothing, but a signal waits for the end of the epoch, unless
            other processes share the training: then one alone must not stop.
        step: as it is before its first epoch.
        fingerprint: what the result depends on, by name.
        epochs: how many there will be in all.

    Yields:
        The history so far, and what the loop has to call after each epoch.
    """
    written = bool(step.ranks.first_says(policy is not None))
    if policy is None and step.ranks.size > 1:
        yield Recorder(), (lambda _, recorder: _help(step, recorder)) if written else None
        return
    if policy is None:
        with signals_wait() as request:
            yield Recorder(), lambda _, recorder: _stop_if_asked(recorder, request, epochs)
        return
    folder = Path(policy.folder)
    if folder.is_dir() or not policy.only_when_stopped:
        make_folder(folder)
    with one_process_only(folder) if folder.is_dir() else nullcontext(), signals_wait() as request:
        remove_parts(folder, "epoch-")
        writer = CheckpointWriter(policy, step, CheckpointFolder(folder, fingerprint, policy.keep), epochs)
        yield writer.resume(), lambda _, recorder: writer.after_epoch(recorder, request)


class CheckpointWriter:
    """Decides when to write, and does not let a full disk end the training."""

    def __init__(self, policy: Checkpoints, step: Step, files: CheckpointFolder, epochs: int) -> None:
        self.policy, self.step, self.files, self.epochs = policy, step, files, epochs
        self.last_try = time.monotonic()
        self.written = 0

    def resume(self) -> Recorder:
        """Put the newest good checkpoint into the step and return its history; empty where there is none."""
        faults: list[CheckpointError] = []
        for path in self.files.found():
            try:
                tensors, description = self.files.read(path)
                try:
                    recorder = put_back(self.step, _by_part(tensors), description["columns"], epoch_of(path))
                except CheckpointError as error:
                    raise CheckpointError(f"{path} does not fit its own settings: {error}") from None
            except CheckpointError as fault:
                faults.append(fault)
                continue
            self.files.trust(path)
            self.written = len(recorder)
            self._tell(description, faults)
            return recorder
        if faults:
            raise CheckpointError(
                f"{faults[0]}, and {self.files.folder} holds no other checkpoint that can be used; "
                "move the folder away to start anew"
            )
        return Recorder()

    def _tell(self, description: dict[str, Any], faults: list[CheckpointError]) -> None:
        if faults:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            message = f"{faults[0]}{more}; going on from the one before it, of epoch {self.written}"
            warnings.warn(message, CheckpointWarning, stacklevel=6)
        there, here = description["versions"], versions()
        other = [
            f"{name} {there.get(name)}, here {here[name]}" for name in here if there.get(name) != here[name]
        ]
        if other:
            message = (
                f"the checkpoint was written with {'; '.join(other)}: the last digits may come out otherwise"
            )
            warnings.warn(message, CheckpointWarning, stacklevel=6)

    def after_epoch(self, recorder: Recorder, request: StopRequest) -> None:
        """Write a checkpoint if it is time for one; end the training if a signal asked for it."""
        number = request.take()
        due = self._due(len(recorder))
        self.step.ranks.first_says(int(due) if number is None else -number)
        if number is not None:
            fault = self._write(recorder)
            raise TrainingStopped(self._last_words(recorder, fault), number)
        if due:
            fault = self._write(recorder)
            if fault is not None:
                message = f"no checkpoint after epoch {len(recorder)}: {fault}; the training goes on, and "
                kept = (
                    f"the last checkpoint is of epoch {self.written}" if self.written else "there is none yet"
                )
                warnings.warn(message + kept, CheckpointWarning, stacklevel=5)

    def _due(self, epoch: int) -> bool:
        every, minutes = self.policy.every, self.policy.minutes
        by_count = every is not None and epoch % every == 0
        by_clock = minutes is not None and time.monotonic() - self.last_try >= 60 * minutes
        return not self.policy.only_when_stopped and (by_count or by_clock or epoch == self.epochs)

    def _write(self, recorder: Recorder) -> str | None:
        """Write a checkpoint, or return why that was not possible."""
        self.last_try = time.monotonic()
        state = _flat(take(self.step, recorder))
        try:
            self.files.folder.mkdir(parents=True, exist_ok=True)
            self.files.write(len(recorder), state, recorder.names)
        except OSError as error:
            return f"{self.files.folder} cannot be written ({error.strerror or error})"
        self.written = len(recorder)
        return None

    def _last_words(self, recorder: Recorder, fault: str | None) -> str:
        done = f"stopped after epoch {len(recorder)} of {self.epochs}"
        if fault is None:
            return f"{done}, with a checkpoint in {self.files.folder}"
        if self.written:
            return f"{done}, but {fault}: the last checkpoint is of epoch {self.written}"
        return f"{done}, but {fault}, and there is no checkpoint"


def _help(step: Step, recorder: Recorder) -> None:
    """Hand over what this process holds if the first one writes a checkpoint, and stop if it stops."""
    said = step.ranks.first_says(0)
    if said:
        take(step, recorder)
    if said < 0:
        raise TrainingStopped("stopped with the first process", -said)


def _stop_if_asked(recorder: Recorder, request: StopRequest, epochs: int) -> None:
    """End a training without checkpoints between two epochs, if a signal asked for it."""
    number = request.take()
    if number is not None:
        done = f"stopped after epoch {len(recorder)} of {epochs}"
        raise TrainingStopped(f"{done}; the model is kept as it is", number)


def _flat(state: State) -> dict[str, Tensor]:
    """Name each tensor by its part and itself, as a file needs it."""
    return {f"{part}/{name}": value for part, tensors in state.items() for name, value in tensors.items()}


def _by_part(tensors: dict[str, Tensor]) -> State:
    """Read what `_flat` returned; parts that are empty are there as well."""
    state: State = {"products": {}, "strides": {}, "history": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        state.setdefault(part, {})[rest] = value
    return state
