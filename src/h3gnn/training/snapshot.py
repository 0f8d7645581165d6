"""Everything that the next epoch depends on, as named tensors: taken from a step, and put back into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder import Projected
from h3gnn.errors import CheckpointError
from h3gnn.training.history import Recorder
from h3gnn.training.objective import FeatureReconstruction, LatentPrediction
from h3gnn.training.step import Step

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What Adam remembers of each parameter."""


def take(step: Step, recorder: Recorder) -> dict[str, Tensor]:
    """Return the state between two epochs; the tensors are the step's own, not copies.

    Student and teacher with their buffers, the teacher's averaged products, the decoder if there is one,
    Adam's moments and counts, each generator, the difficulty, and the history so far. The schedule needs
    nothing of its own: it is a function of the epoch.
    """
    state = _in_place(step)
    if isinstance(step.objective, LatentPrediction) and step.objective.teacher.projected is not None:
        for part, product in step.objective.teacher.projected._asdict().items():
            state[f"projected.{part}"] = product
            state[f"strides.{part}"] = torch.tensor(product.stride())
    adam = step.optimizer.adam.state_dict()["state"]
    state["adam.stepped"] = torch.tensor(sorted(adam), dtype=torch.int64)  # a parameter may have no gradient
    for index, moments in adam.items():
        state |= {f"adam.{index}.{name}": moments[name] for name in MOMENTS}
    for model, generator in enumerate(step.generators):
        state[f"generator.{model}"] = generator.get_state()
    return state | {f"history.{name}": values for name, values in recorder.state().items()}


def put_back(step: Step, state: dict[str, Tensor], columns: Sequence[str]) -> Recorder:
    """Put a state into a step that was built with the same settings, and return the history so far.

    Everything is compared before the first tensor is changed, so a state that does not fit leaves the step
    as it was. Each tensor is copied into memory of torch's own, with the strides that it had: kernels round
    otherwise where the layout or the alignment is another.

    Args:
        step: as it was before its first epoch.
        state: from `take`.
        columns: the names of the history, in their order.
    """
    places = _in_place(step)
    _check_fit(step, places, state)
    projected = _put_back_projected(state, step.features.device)
    recorder = _put_back_history(state, columns, step.features.device)
    _put_back_adam(step, state)
    for name, place in places.items():
        place.copy_(state[name])
    for model, generator in enumerate(step.generators):
        generator.set_state(state[f"generator.{model}"].cpu().clone())
    if isinstance(step.objective, LatentPrediction):
        step.objective.teacher.projected = projected
    return recorder


def _in_place(step: Step) -> dict[str, Tensor]:
    """Return the tensors that exist before the first epoch and keep their place in memory."""
    places = {f"student.{name}": value for name, value in step.student.state_dict().items()}
    if isinstance(step.objective, LatentPrediction):
        teacher = step.objective.teacher.encoder.state_dict()
        places |= {f"teacher.{name}": value for name, value in teacher.items()}
    elif isinstance(step.objective, FeatureReconstruction):
        places |= step.objective.state_dict()
    more: dict[str, Tensor] = getattr(step, "more_state", dict)()  # mini-batches step edges on their own
    return places | {"difficulty": step.difficulty} | more


def _check_fit(step: Step, places: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    parameters = _adam_parameters(step)
    wanted = {name: place.shape for name, place in places.items()}
    wanted |= {f"generator.{model}": g.get_state().shape for model, g in enumerate(step.generators)}
    for index in _stepped(state, len(parameters)):
        wanted |= {f"adam.{index}.{name}": parameters[index].shape for name in MOMENTS[:2]}
        wanted[f"adam.{index}.step"] = torch.Size()
    for part in Projected._fields:
        if f"projected.{part}" in state:
            wanted[f"strides.{part}"] = torch.Size([state[f"projected.{part}"].dim()])
    for name, shape in wanted.items():
        if name not in state:
            raise CheckpointError(f"{name} is missing")
        if state[name].shape != shape:
            raise CheckpointError(f"{name} has shape {list(state[name].shape)} instead of {list(shape)}")


def _stepped(state: dict[str, Tensor], parameters: int) -> list[int]:
    """Return which of Adam's parameters have been stepped."""
    stepped: list[int] = state["adam.stepped"].tolist() if "adam.stepped" in state else [-1]
    if not all(0 <= index < parameters for index in stepped):
        raise CheckpointError("adam.stepped is missing or names parameters that are not there")
    return stepped


def _adam_parameters(step: Step) -> list[Tensor]:
    return [parameter for group in step.optimizer.adam.param_groups for parameter in group["params"]]


def _put_back_adam(step: Step, state: dict[str, Tensor]) -> None:
    adam, parameters = step.optimizer.adam, _adam_parameters(step)
    moments: dict[int, dict[str, Any]] = {
        index: {
            "step": state[f"adam.{index}.step"].clone(),
            **{n: torch.empty_like(parameters[index]).copy_(state[f"adam.{index}.{n}"]) for n in MOMENTS[:2]},
        }
        for index in _stepped(state, len(parameters))
    }
    adam.load_state_dict({"state": moments, "param_groups": adam.state_dict()["param_groups"]})


def _put_back_history(state: dict[str, Tensor], columns: Sequence[str], device: torch.device) -> Recorder:
    rows = {
        name.removeprefix("history."): values.to(device)
        for name, values in state.items()
        if name.startswith("history.")
    }
    try:
        return Recorder.from_state(rows, columns)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"its history is not complete: {error}") from None


def _put_back_projected(state: dict[str, Tensor], device: torch.device) -> Projected | None:
    """Return the teacher's products as they lay in memory, not only with the same values."""
    if not all(f"projected.{part}" in state for part in Projected._fields):
        return None
    products = []
    for part in Projected._fields:
        kept, strides = state[f"projected.{part}"], state[f"strides.{part}"].tolist()
        place = torch.empty_strided(kept.shape, strides, dtype=kept.dtype, device=device)
        products.append(place.copy_(kept))
    return Projected(*products)
