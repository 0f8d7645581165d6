"""Adam for a stack of models, each with its own learning rate and weight decay, and the rate's schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Stepped:
    """Parameters whose first axis is some of a stack's models.

    Attributes:
        parameters: to step.
        models: which models they belong to.
        rate: what the models' learning rates are multiplied with for these.
    """

    parameters: Sequence[nn.Parameter]
    models: range
    rate: float = 1.0


class StackedAdam:
    """Adam over parameters whose first axis is `models`.

    Where all models share their settings a whole stack is one fused update; else each model's slices
    form a parameter group of their own. Adam acts element by element, so the two give the same result.
    """

    def __init__(
        self, stepped: Sequence[Stepped], learning_rates: Sequence[float], weight_decays: Sequence[float]
    ) -> None:
        self.parameters = [parameter for part in stepped for parameter in part.parameters]
        self.shared = len(set(zip(learning_rates, weight_decays, strict=True))) == 1
        on_cuda = self.parameters[0].is_cuda
        groups: list[dict[str, object]] = []
        self._slices: list[list[tuple[nn.Parameter, int]]] = []
        self.base: list[float] = []
        for rate in dict.fromkeys(part.rate for part in stepped):
            parts = [part for part in stepped if part.rate == rate]
            for model in range(1 if self.shared else len(learning_rates)):
                slices = [
                    (p, model - part.models.start)
                    for part in parts
                    if model in part.models
                    for p in part.parameters
                ]
                every = [p for part in parts for p in part.parameters]
                self._slices.append(slices)
                self.base.append(rate * learning_rates[model])
                groups.append(
                    {
                        "params": every if self.shared else [p.detach()[place] for p, place in slices],
                        "lr": torch.tensor(self.base[-1]).cuda() if on_cuda else self.base[-1],
                        "weight_decay": weight_decays[model],
                    }
                )
        self.adam = torch.optim.Adam(groups, fused=self.shared, capturable=on_cuda)

    def set_learning_rate(self, factor: float) -> None:
        """Set every model's learning rate to this share of its own."""
        for group, base in zip(self.adam.param_groups, self.base, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(base * factor)  # in place: a recorded step reads it from there
            else:
                group["lr"] = base * factor

    def begun(self) -> list[dict[str, Tensor]]:
        """Return Adam's state of every parameter, at its start where there has been no step."""
        states = []
        for group in self.adam.param_groups:
            for parameter in group["params"]:
                state = self.adam.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    state["exp_avg"], state["exp_avg_sq"] = (
                        torch.zeros_like(parameter),
                        torch.zeros_like(parameter),
                    )
                states.append(state)
        return states

    def step(self) -> None:
        """Make one step, and forget the gradients."""
        if not self.shared:
            for group, slices in zip(self.adam.param_groups, self._slices, strict=True):
                for leaf, (parameter, place) in zip(group["params"], slices, strict=True):
                    leaf.grad = None if parameter.grad is None else parameter.grad[place]
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None


def warmup_cosine(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: a line up to 1 over `warmup` steps, then a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def constant(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: a line up to 1 over `warmup` steps, then 1."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
