"""Adam for a stack of models, each with its own learning rate and weight decay, and rate schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from h3gnn.encoder.triton import kernels_for

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
Moved = tuple[Tensor, Tensor, dict[str, Tensor]]
"""A parameter, its gradient, and Adam's state of it."""


@dataclass(frozen=True)
class ParameterStack:
    """Parameters whose first axis is some of the models; `rate` multiplies the models' learning rates."""

    parameters: Sequence[nn.Parameter]
    models: range
    rate: float = 1.0


@dataclass
class Group:
    """Parameters that share one learning rate and one weight decay.

    `parameters` are whole stacks, or one model's slices of them; `slices` has the stack and position of each
    slice. `base` is the learning rate before its schedule; `rate`, the current one, is a tensor on CUDA,
    which a captured step reads. A tensor as `weight_decay` broadcasts over the parameters, as then does the
    rate: models with different rates share one update.
    """

    parameters: list[Tensor]
    slices: list[tuple[nn.Parameter, int]]
    base: float
    rate: float | Tensor
    weight_decay: float | Tensor


class StackedAdam:
    """Adam over parameters whose first axis is `models`.

    If all models share their settings, a whole stack is one fused update; otherwise each model's slices form
    a group. Adam acts element by element, so both give the same result. `state` has Adam's moments and count
    by position of a parameter in the groups, without parameters that had no gradient.

    The update is the function that `torch.optim.Adam` calls. The class around it imports torch's compiler,
    which takes longer than a small graph's first epochs.
    """

    def __init__(
        self,
        stacks: Sequence[ParameterStack],
        learning_rates: Sequence[float],
        weight_decays: Sequence[float],
    ) -> None:
        self.parameters: list[Tensor] = [parameter for part in stacks for parameter in part.parameters]
        self.shared = len(set(zip(learning_rates, weight_decays, strict=True))) == 1
        self.state: dict[int, dict[str, Tensor]] = {}
        self.steps = 0
        self.groups: list[Group] = []
        for rate in dict.fromkeys(part.rate for part in stacks):
            parts = [part for part in stacks if part.rate == rate]
            for model in range(1 if self.shared else len(learning_rates)):
                slices: list[tuple[nn.Parameter, int]] = []
                parameters: list[Tensor] = [p for part in parts for p in part.parameters]
                if not self.shared:
                    own = [part for part in parts if model in part.models]
                    slices = [(p, model - part.models.start) for part in own for p in part.parameters]
                    parameters = [p.detach()[place] for p, place in slices]
                base = rate * learning_rates[model]
                current = torch.tensor(base).cuda() if self.parameters[0].is_cuda else base
                self.groups.append(Group(parameters, slices, base, current, weight_decays[model]))

    @classmethod
    def of_groups(cls, groups: list[Group]) -> StackedAdam:
        """Return Adam over given groups, such as groups with rates that broadcast over models."""
        optimizer = cls([], [0.0], [0.0])
        optimizer.groups = groups
        optimizer.parameters = optimizer.all_parameters
        return optimizer

    @property
    def all_parameters(self) -> list[Tensor]:
        """The parameters of all groups, in the order of `state`."""
        return [parameter for group in self.groups for parameter in group.parameters]

    def set_learning_rate(self, factor: float) -> None:
        """Set every model's learning rate to this multiple of its base rate."""
        for group in self.groups:
            if isinstance(group.rate, Tensor):
                group.rate.fill_(group.base * factor)  # in place: a recorded step reads it from there
            else:
                group.rate = group.base * factor

    def all_states(self) -> list[dict[str, Tensor]]:
        """Return Adam's state of every parameter, initialized where there has been no step."""
        return [self._state_of(position, parameter) for position, parameter in enumerate(self.all_parameters)]

    def _state_of(self, position: int, parameter: Tensor) -> dict[str, Tensor]:
        if position not in self.state:
            self.state[position] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self.state[position]

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters and clear their gradients."""
        self.steps += 1
        first = 0
        for group in self.groups:
            gradients = [p.grad for p in group.parameters]
            if not self.shared:
                gradients = [None if p.grad is None else p.grad[place] for p, place in group.slices]
            self._update(group, gradients, first)
            first += len(group.parameters)
        for parameter in self.parameters:
            parameter.grad = None

    def _update(self, group: Group, gradients: Sequence[Tensor | None], first: int) -> None:
        """Update a group; `first` is the position of its first parameter."""
        moved = [
            (parameter, gradient, self._state_of(first + place, parameter))
            for place, (parameter, gradient) in enumerate(zip(group.parameters, gradients, strict=True))
            if gradient is not None
        ]
        if isinstance(group.weight_decay, Tensor):
            for parameter, gradient, state in moved:
                _update_broadcast(parameter, gradient, state, group.rate, group.weight_decay, self.steps)
            return
        moved = self._update_large(group, moved)
        adam(
            [parameter for parameter, _, _ in moved],
            [gradient for _, gradient, _ in moved],
            [state["exp_avg"] for _, _, state in moved],
            [state["exp_avg_sq"] for _, _, state in moved],
            [],
            [state["step"] for _, _, state in moved],
            fused=self.shared,
            capturable=isinstance(group.rate, Tensor),
            amsgrad=False,
            beta1=FIRST_DECAY,
            beta2=SECOND_DECAY,
            lr=group.rate,
            weight_decay=group.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def _update_large(self, group: Group, moved: list[Moved]) -> list[Moved]:
        """Update large parameters with a kernel for the device, and return the others."""
        kernels = kernels_for(self.parameters[0]) if self.shared else None
        if kernels is None:
            return moved
        large = [one for one in moved if kernels.is_large(one[0]) and one[1].stride() == one[0].stride()]
        if not large:
            return moved
        for parameter, gradient, state in large:
            state["step"] += 1
            kernels.adam(
                parameter.detach(),
                gradient,
                state["exp_avg"],
                state["exp_avg_sq"],
                group.rate,
                state["step"],
                decay=group.weight_decay,
                first=FIRST_DECAY,
                second=SECOND_DECAY,
                epsilon=EPSILON,
            )
        done = {id(parameter) for parameter, _, _ in large}
        return [one for one in moved if id(one[0]) not in done]


def _update_broadcast(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    rate: float | Tensor,
    weight_decay: Tensor,
    steps: int,
) -> None:
    """Update with a rate and weight decay that broadcast; an int `steps` avoids a GPU sync."""
    average, squares = state["exp_avg"], state["exp_avg_sq"]
    gradient.addcmul_(parameter, weight_decay)
    average.lerp_(gradient, 1 - FIRST_DECAY)
    squares.mul_(SECOND_DECAY).addcmul_(gradient, gradient, value=1 - SECOND_DECAY)
    if "scratch" not in state:  # reused: allocating it in every step is slow
        state["scratch"] = torch.empty_like(squares)
    divisor = torch.sqrt(squares, out=state["scratch"])
    divisor.div_(math.sqrt(1 - SECOND_DECAY**steps)).add_(EPSILON)
    step = torch.div(average, divisor, out=divisor)
    parameter.addcmul_(step, torch.as_tensor(rate), value=-1 / (1 - FIRST_DECAY**steps))


def warmup_cosine(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: linear up to 1 over `warmup` steps, then a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def constant(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: linear up to 1 over `warmup` steps, then 1."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
