"""Everything that the next epoch depends on, as named tensors: taken from a step, and put back into one."""

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
from h3gnn.storage.atomic import StopRequest, remove_parts, signals_wait, versions
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
"""By the part of a step that it belongs to, and by name."""

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What Adam remembers of each parameter, beside the number of its steps."""
BY_MODEL = ("student", "teacher", "committee", "products", "step", "moments")
"""The parts whose tensors have a first axis of models."""


def take(step: Step, recorder: Recorder) -> State:
    """Return the state between two epochs; the tensors are the step's own, not copies.

    Student and teacher with their buffers, the teacher's averaged products, the objectives' parameters,
    Adam's moments and counts, each generator, the difficulty, and the history so far. The schedule needs
    nothing of its own: it is a function of the epoch.
    """
    state = _in_place(step)
    state["products"], state["strides"] = {}, {}
    if step.teacher is not None and step.teacher.products is not None:
        state["products"] = step.teacher.products._asdict()
        state["strides"] = {
            name: torch.tensor(product.stride()) for name, product in state["products"].items()
        }
    adam = step.optimizer.state
    state["adam"] = {
        "stepped": torch.tensor(sorted(adam), dtype=torch.int64),  # a parameter may have no gradient
        **{f"{index}.step": adam[index]["step"] for index in adam},
    }
    state["moments"] = {f"{index}.{name}": adam[index][name] for index in adam for name in MOMENTS}
    state["generators"] = {str(place): one.get_state() for place, one in enumerate(_generators(step))}
    state["history"] = recorder.state()
    return state


def put_back(step: Step, state: State, columns: Sequence[str], epochs: int | None = None) -> Recorder:
    """Put a state into a step that was built with the same settings, and return the history so far.

    Everything is compared before the first tensor is changed, so a state that does not fit leaves the step
    as it was. Each tensor is copied into memory of torch's own, with the strides that it had: kernels round
    otherwise where the layout or the alignment is another.

    Args:
        step: as it was before its first epoch.
        state: from `take`.
        columns: the names of the history, in their order.
        epochs: how many there were; None takes the history's word.
    """
    places = _in_place(step)
    try:
        _check_fit(step, places, state)
        _check_products(step, state)
        check_history(state["history"], columns, len(step.generators), epochs)
    except FieldError as error:
        raise CheckpointError(f"{error.field} {error}") from None
    products = _put_back_products(state, step.source.device)
    rows = {name: values.to(step.source.device) for name, values in state["history"].items()}
    recorder = Recorder.from_state(rows, columns)
    _put_back_adam(step, state)
    for part, tensors in places.items():
        for name, place in tensors.items():
            place.copy_(state[part][name])
    for number, generator in enumerate(_generators(step)):
        generator.set_state(state["generators"][str(number)].cpu().clone())
    if step.teacher is not None:
        step.teacher.products = products
    return recorder


def agree(step: Step, recorder: Recorder) -> Recorder:
    """Bring all processes to where the first one is, which alone may have read a checkpoint."""
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
    for moments in step.optimizer.begun():
        ranks.broadcast([moments["step"], *(moments[name] for name in MOMENTS)])
    while len(recorder) < done:
        recorder.add()
    return recorder


def _generators(step: Step) -> list[torch.Generator]:
    return [*step.generators, step.order]


def _in_place(step: Step) -> State:
    """Return the tensors that exist before the first epoch and keep their place in memory."""
    return {
        "student": step.student.state_dict(),
        "teacher": {} if step.teacher is None else step.teacher.encoder.state_dict(),
        "committee": step.objectives.state_dict(),
        "step": {"difficulty": step.difficulty},
    }


def _check_fit(step: Step, places: State, state: State) -> None:
    """Compare every tensor's type, shape and content with what it will be put into."""
    parameters = step.optimizer.stepped
    wanted = {(part, name): _like(place) for part in places for name, place in places[part].items()}
    for place, one in enumerate(_generators(step)):
        wanted["generators", str(place)] = _like(one.get_state())
    for index in _stepped(state, len(parameters)):
        wanted |= {("moments", f"{index}.{name}"): _like(parameters[index]) for name in MOMENTS}
        wanted["adam", f"{index}.step"] = Spec(torch.float32, ())
    for (part, name), spec in wanted.items():
        check_tensor(f"{part}/{name}", state.get(part, {}).get(name), spec, {})
    for part in ("adam", "moments"):
        for name, value in state.get(part, {}).items():
            if (part, name) in wanted and not name.endswith("exp_avg") and bool((value < 0).any()):
                raise FieldError(f"{part}/{name}", "holds a number below 0")
    for place, one in enumerate(_generators(step)):
        try:
            torch.Generator(one.device).set_state(state["generators"][str(place)].cpu())
        except RuntimeError:
            raise FieldError(f"generators/{place}", "is no state of a generator") from None


def _like(tensor: Tensor) -> Spec:
    return Spec(tensor.dtype, tuple(tensor.shape))


def _stepped(state: State, parameters: int) -> list[int]:
    """Return which of Adam's parameters have been stepped."""
    kept = state.get("adam", {}).get("stepped")
    check_tensor("adam/stepped", kept, Spec(torch.int64, ("stepped",)), {})
    assert kept is not None
    stepped: list[int] = kept.tolist()
    if not all(0 <= index < parameters for index in stepped) or len(set(stepped)) < len(stepped):
        raise FieldError("adam/stepped", "names parameters that are not there, or one twice")
    return stepped


def _check_products(step: Step, state: State) -> None:
    """Compare the teacher's products with the features and the first weights that they are of."""
    kept, strides = state.get("products", {}), state.get("strides", {})
    if not kept and not strides:
        return
    if step.teacher is None or not step.source.whole:
        raise FieldError("products", "do not belong to this training")
    encoder = step.teacher.encoder
    width = sum(encoder.input.widths)
    for name, rows in zip(Projected._fields, (step.source.nodes, 1), strict=True):
        dtype = kept[name].dtype if name in kept and kept[name].is_floating_point() else torch.float32
        check_tensor(f"products/{name}", kept.get(name), Spec(dtype, (encoder.models, rows, width)), {})
        check_tensor(f"strides/{name}", strides.get(name), Spec(torch.int64, (kept[name].dim(),)), {})
        if not _without_gaps(kept[name].shape, strides[name].tolist()):
            raise FieldError(f"strides/{name}", "is not the layout of a tensor without gaps")


def _without_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides lay a tensor out over as many values as it has: none shared, none left out."""
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return all(0 <= stride <= max(1, math.prod(shape)) for stride in strides)


def _put_back_adam(step: Step, state: State) -> None:
    parameters = step.optimizer.stepped
    step.optimizer.state = {
        index: {
            "step": torch.empty((), device=parameters[index].device).copy_(state["adam"][f"{index}.step"]),
            **{
                name: torch.empty_like(parameters[index]).copy_(state["moments"][f"{index}.{name}"])
                for name in MOMENTS
            },
        }
        for index in _stepped(state, len(parameters))
    }


def _put_back_products(state: State, device: torch.device) -> Projected | None:
    """Return the teacher's products as they lay in memory, not only with the same values."""
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
    written = bool(step.ranks.broadcast_int(policy is not None))
    if policy is None and step.ranks.size > 1:
        yield Recorder(), (lambda _, recorder: _follow(step)) if written else None
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
        self.step.ranks.broadcast_int(number or 0)
        if number is not None:
            fault = self._write(recorder)
            raise TrainingStopped(self._last_words(recorder, fault), number)
        if self._due(len(recorder)):
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


def _follow(step: Step) -> None:
    """Stop when process 0 stops."""
    number = step.ranks.broadcast_int(0)
    if number:
        raise TrainingStopped("stopped with process 0", number)


def _stop_if_asked(recorder: Recorder, request: StopRequest, epochs: int) -> None:
    """End a training without checkpoints between two epochs, if a signal asked for it."""
    number = request.take()
    if number is not None:
        done = f"stopped after epoch {len(recorder)} of {epochs}"
        raise TrainingStopped(done, number, kept="the model is kept as it is")


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
