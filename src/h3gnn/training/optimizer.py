"""Adam for a stack of models, each with its own learning rate and weight decay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedAdam:
    """Adam over parameters whose first axis is `models`.

    Where all models share their settings the whole stack is one fused update; else each model's slices
    form a parameter group of their own. Adam acts element by element, so the two give the same result.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        learning_rates: Sequence[float],
        weight_decays: Sequence[float],
    ) -> None:
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        shared = len(set(zip(learning_rates, weight_decays, strict=True))) == 1
        groups = [
            {"params": slices, "lr": rate, "weight_decay": decay}
            for slices, rate, decay in zip(self._slices(shared), learning_rates, weight_decays, strict=False)
        ]
        self.adam = torch.optim.Adam(groups, fused=True)
        self.base = [group["lr"] for group in self.adam.param_groups]

    def _slices(self, shared: bool) -> list[list[Tensor]]:
        if shared:
            return [list(self.parameters)]
        models = self.parameters[0].shape[0]
        return [[_slice(parameter, model) for parameter in self.parameters] for model in range(models)]

    def set_learning_rate(self, factor: float) -> None:
        """Set every model's learning rate to this share of its own."""
        for group, base in zip(self.adam.param_groups, self.base, strict=True):
            group["lr"] = base * factor

    def step(self) -> None:
        """Make one step, and forget the gradients."""
        self.adam.step()
        torch._foreach_zero_([parameter.grad for parameter in self.parameters if parameter.grad is not None])


def _slice(parameter: Tensor, model: int) -> Tensor:
    """Return one model's slice as a leaf that shares storage, gradient included, with the stack."""
    leaf = parameter.detach()[model]
    assert parameter.grad is not None
    leaf.grad = parameter.grad[model]
    return leaf
