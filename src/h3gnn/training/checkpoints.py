"""Collect the state of a training step as named tensors, restore it, and write it while training runs."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder.tokens import Projected
from h3gnn.errors import CheckpointError, TrainingStopped
from h3gnn.storage.atomic import StopRequest, delayed_signals, remove_parts, versions
from h3gnn.storage.checkpoint_file import (
    CheckpointFolder,
    Checkpoints,
    epoch_of,
    make_folder,
    one_process_only,
)
from h3gnn.storage.schema import FieldError
from h3gnn.storage.tensors import Spec, check_tensor
from h3gnn.training.history import Recorder, check_history
from h3gnn.training.loop import AfterEpoch
from h3gnn.training.step import Step

State = dict[str, dict[str, Tensor]]
"""Tensors by part of the step and by name."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state of each parameter, besides its number of steps."""


def collect_state(step: Step, recorder: Recorder) -> State:
    """Return the state between two epochs; the tensors are the step's own, not copies.

    The learning rate schedule has no state: it is a function of the epoch.
    """
    state = _in_place(step)
    state["products"], state["strides"] = {}, {}
    if step.teacher is not None and step.teacher.products is not None:
        state["products"] = step.teacher.products._asdict()
        state["strides"] = {name: torch.tensor(one.stride()) for name, one in state["products"].items()}
    adam = step.optimizer.state
    state["adam"] = {
        "stepped": torch.tensor(sorted(adam), dtype=torch.int64),  # a parameter may have no gradient
        **{f"{index}.step": adam[index]["step"] for index in adam},
    }
    state["moments"] = {f"{index}.{name}": adam[index][name] for index in adam for name in MOMENTS}
    state["generators"] = {str(place): one.get_state() for place, one in enumerate(_generators(step))}
    state["history"] = recorder.state()
    return state


def restore_state(step: Step, state: State, columns: Sequence[str], epochs: int | None = None) -> Recorder:
    """Restore a state into a step with the same settings, and return the history so far.

    Everything is validated before the first tensor changes, so an invalid state leaves the step as it was.
    Each tensor is copied into memory allocated by torch, with its original strides: kernels round differently
    in another layout or alignment. `columns` are the names of the history, in order; `epochs` is their
    number.
    """
    places = _in_place(step)
    try:
        _check_state(step, places, state)
        _check_products(step, state)
        check_history(state["history"], columns, len(step.generators), epochs)
    except FieldError as error:
        raise CheckpointError(f"{error.field} {error}", code="checkpoint-mismatch") from None
    products = _restore_products(state, step.source.device)
    rows = {name: values.to(step.source.device) for name, values in state["history"].items()}
    recorder = Recorder.from_state(rows, columns)
    _restore_adam(step, state)
    for part, tensors in places.items():
        for name, place in tensors.items():
            place.copy_(state[part][name])
    for number, generator in enumerate(_generators(step)):
        generator.set_state(state["generators"][str(number)].cpu().clone())
    if step.teacher is not None:
        step.teacher.products = products
    return recorder


def synchronize(step: Step, recorder: Recorder) -> Recorder:
    """Copy the state of process 0, which alone may have read a checkpoint, to all processes."""
    ranks = step.ranks
    done = ranks.broadcast_int(len(recorder))
    if ranks.size == 1 or done == 0:
        return recorder
    for tensors in _in_place(step).values():
        ranks.broadcast(list(tensors.values()))
    drawn = [generator.get_state() for generator in _generators(step)]
    ranks.broadcast(drawn)
    for generator, state in zip(_generators(step), drawn, strict=True):
        generator.set_state(state)
    for moments in step.optimizer.all_states():
        ranks.broadcast([moments["step"], *(moments[name] for name in MOMENTS)])
    while len(recorder) < done:
        recorder.add()
    return recorder


def _generators(step: Step) -> list[torch.Generator]:
    return [*step.generators, step.order]


def _in_place(step: Step) -> State:
    """Return the tensors that exist before the first epoch and keep their location in memory."""
    return {
        "student": step.student.state_dict(),
        "teacher": {} if step.teacher is None else step.teacher.encoder.state_dict(),
        "committee": step.objectives.state_dict(),
        "step": {"difficulty": step.difficulty},
    }


def _check_state(step: Step, places: State, state: State) -> None:
    """Validate type, shape and content of every tensor."""
    parameters = step.optimizer.all_parameters
    wanted = {(part, name): _like(place) for part in places for name, place in places[part].items()}
    for place, generator in enumerate(_generators(step)):
        wanted["generators", str(place)] = _like(generator.get_state())
    for index in _updated(state, len(parameters)):
        wanted |= {("moments", f"{index}.{name}"): _like(parameters[index]) for name in MOMENTS}
        wanted["adam", f"{index}.step"] = Spec(torch.float32, ())
    for (part, name), spec in wanted.items():
        check_tensor(f"{part}/{name}", state.get(part, {}).get(name), spec, {})
    for part in ("adam", "moments"):
        for name, value in state.get(part, {}).items():
            if (part, name) in wanted and not name.endswith("exp_avg") and bool((value < 0).any()):
                raise FieldError(f"{part}/{name}", "has a negative value")
    for place, generator in enumerate(_generators(step)):
        try:
            torch.Generator(generator.device).set_state(state["generators"][str(place)].cpu())
        except RuntimeError:
            raise FieldError(f"generators/{place}", "is not the state of a generator") from None


def _like(tensor: Tensor) -> Spec:
    return Spec(tensor.dtype, tuple(tensor.shape))


def _updated(state: State, parameters: int) -> list[int]:
    """Return the indices of the parameters that Adam has updated."""
    kept = state.get("adam", {}).get("stepped")
    check_tensor("adam/stepped", kept, Spec(torch.int64, ("stepped",)), {})
    assert kept is not None
    stepped: list[int] = kept.tolist()
    if not all(0 <= index < parameters for index in stepped) or len(set(stepped)) < len(stepped):
        raise FieldError("adam/stepped", "has indices that are duplicate or out of range")
    return stepped


def _check_products(step: Step, state: State) -> None:
    """Validate the teacher's products against the features and the first weights."""
    kept, strides = state.get("products", {}), state.get("strides", {})
    if not kept and not strides:
        return
    if step.teacher is None or not step.source.whole:
        raise FieldError("products", "are not used by this training")
    encoder = step.teacher.encoder
    width = sum(encoder.input.widths)
    for name, rows in zip(Projected._fields, (step.source.nodes, 1), strict=True):
        dtype = kept[name].dtype if name in kept and kept[name].is_floating_point() else torch.float32
        check_tensor(f"products/{name}", kept.get(name), Spec(dtype, (encoder.models, rows, width)), {})
        check_tensor(f"strides/{name}", strides.get(name), Spec(torch.int64, (kept[name].dim(),)), {})
        if not _is_contiguous(kept[name].shape, strides[name].tolist()):
            raise FieldError(f"strides/{name}", "is not a contiguous layout")


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor with these strides occupies contiguous memory without overlaps."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return all(0 <= stride <= max(1, math.prod(shape)) for stride in strides)


def _restore_adam(step: Step, state: State) -> None:
    parameters = step.optimizer.all_parameters
    step.optimizer.state = {
        index: {
            "step": torch.empty((), device=parameters[index].device).copy_(state["adam"][f"{index}.step"]),
            **{
                name: torch.empty_like(parameters[index]).copy_(state["moments"][f"{index}.{name}"])
                for name in MOMENTS
            },
        }
        for index in _updated(state, len(parameters))
    }


def _restore_products(state: State, device: torch.device) -> Projected | None:
    """Return the teacher's products with the memory layout that they had."""
    kept = state.get("products", {})
    if not all(name in kept for name in Projected._fields):
        return None
    products = []
    for name in Projected._fields:
        strides = state["strides"][name].tolist()
        place = torch.empty_strided(kept[name].shape, strides, dtype=kept[name].dtype, device=device)
        products.append(place.copy_(kept[name]))
    return Projected(*products)


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written or read; training continues without it."""


@contextmanager
def checkpointing(
    policy: Checkpoints | None, step: Step, fingerprint: dict[str, Any], epochs: int
) -> Iterator[tuple[Recorder, AfterEpoch | None]]:
    """Resume a step from its newest checkpoint, and write new ones while the block runs.

    Yields the history so far and the callback for the end of each epoch. Without a policy nothing is written
    and a signal waits for the end of the epoch; with several processes only the first has a policy, and none
    may stop alone.
    """
    written = bool(step.ranks.broadcast_int(policy is not None))
    if policy is None and step.ranks.size > 1:
        yield Recorder(), (lambda _, recorder: _follow(step)) if written else None
        return
    if policy is None:
        with delayed_signals() as request:
            yield Recorder(), lambda _, recorder: _stop_if_requested(recorder, request, epochs)
        return
    folder = Path(policy.folder)
    if folder.is_dir() or not policy.only_when_stopped:
        make_folder(folder)
    with one_process_only(folder) if folder.is_dir() else nullcontext(), delayed_signals() as request:
        remove_parts(folder, "epoch-")
        writer = CheckpointWriter(policy, step, CheckpointFolder(folder, fingerprint, policy.keep), epochs)
        yield writer.resume(), lambda _, recorder: writer.after_epoch(recorder, request)


class CheckpointWriter:
    """Writes checkpoints when they are due; a full disk does not end the training."""

    def __init__(self, policy: Checkpoints, step: Step, files: CheckpointFolder, epochs: int) -> None:
        self.policy, self.step, self.files, self.epochs = policy, step, files, epochs
        self.last_try = time.monotonic()
        self.written = 0

    def resume(self) -> Recorder:
        """Restore the newest valid checkpoint and return its history, which is empty without one."""
        errors: list[CheckpointError] = []
        for path in self.files.found():
            try:
                tensors, description = self.files.read(path)
                try:
                    state = _by_part(tensors)
                    recorder = restore_state(self.step, state, description["columns"], epoch_of(path))
                except CheckpointError as error:
                    message = f"{path} does not match its settings: {error}"
                    raise CheckpointError(message, code=error.code) from None
            except CheckpointError as error:
                errors.append(error)
                continue
            self.files.trust(path)
            self.written = len(recorder)
            self._warn(description["versions"], errors)
            return recorder
        if errors:
            raise CheckpointError(
                f"{errors[0]}, and {self.files.folder} has no other usable checkpoint; move the folder away "
                "to start from the beginning",
                code=errors[0].code,
            )
        return Recorder()

    def _warn(self, written_with: dict[str, str], errors: list[CheckpointError]) -> None:
        if errors:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            message = f"{errors[0]}{more}; resuming from the previous checkpoint, of epoch {self.written}"
            warnings.warn(message, CheckpointWarning, stacklevel=6)
        different = [
            f"{name} {written_with.get(name)}, here {version}"
            for name, version in versions().items()
            if written_with.get(name) != version
        ]
        if different:
            message = f"the checkpoint was written with {'; '.join(different)}: the last digits may differ"
            warnings.warn(message, CheckpointWarning, stacklevel=6)

    def after_epoch(self, recorder: Recorder, request: StopRequest) -> None:
        """Write a checkpoint if one is due; end the training if a signal requested it."""
        number = request.take()
        self.step.ranks.broadcast_int(number or 0)
        if number is None and not self._due(len(recorder)):
            return
        failure = self._write(recorder)
        last = f"the last one is of epoch {self.written}" if self.written else "there is no checkpoint"
        if number is not None:
            result = (
                f"with a checkpoint in {self.files.folder}" if failure is None else f"but {failure}; {last}"
            )
            raise TrainingStopped(f"stopped after epoch {len(recorder)} of {self.epochs}, {result}", number)
        if failure is not None:
            message = f"no checkpoint after epoch {len(recorder)}: {failure}; training continues, and {last}"
            warnings.warn(message, CheckpointWarning, stacklevel=5)

    def _due(self, epoch: int) -> bool:
        every, minutes = self.policy.every, self.policy.minutes
        by_count = every is not None and epoch % every == 0
        by_clock = minutes is not None and time.monotonic() - self.last_try >= 60 * minutes
        return not self.policy.only_when_stopped and (by_count or by_clock or epoch == self.epochs)

    def _write(self, recorder: Recorder) -> str | None:
        """Write a checkpoint, or return the reason why that failed."""
        self.last_try = time.monotonic()
        state = collect_state(self.step, recorder)
        tensors = {f"{part}/{name}": value for part in state for name, value in state[part].items()}
        try:
            self.files.folder.mkdir(parents=True, exist_ok=True)
            self.files.write(len(recorder), tensors, recorder.names)
        except OSError as error:
            return f"{self.files.folder} cannot be written ({error.strerror or error})"
        self.written = len(recorder)
        return None


def _follow(step: Step) -> None:
    """Stop when process 0 stops."""
    number = step.ranks.broadcast_int(0)
    if number:
        raise TrainingStopped("stopped with process 0", number)


def _stop_if_requested(recorder: Recorder, request: StopRequest, epochs: int) -> None:
    """End a training without checkpoints if a signal requested it."""
    number = request.take()
    if number is not None:
        raise TrainingStopped(
            f"stopped after epoch {len(recorder)} of {epochs}", number, kept="the model is kept"
        )


def _by_part(tensors: dict[str, Tensor]) -> State:
    """Group tensors named `part/name` by part."""
    state: State = {"products": {}, "strides": {}, "history": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        state.setdefault(part, {})[rest] = value
    return state
