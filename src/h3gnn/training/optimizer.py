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
        self.shared = len(set(zip(learning_rates, weight_decays, strict=True))) == 1
        self.base = list(learning_rates)[: 1 if self.shared else None]
        on_cuda = self.parameters[0].is_cuda
        groups = [
            {
                "params": self.parameters if self.shared else [p.detach()[model] for p in self.parameters],
                "lr": torch.tensor(rate).cuda() if on_cuda else rate,
                "weight_decay": decay,
            }
            for model, (rate, decay) in enumerate(zip(self.base, weight_decays, strict=False))
        ]
        self.adam = torch.optim.Adam(groups, fused=self.shared, capturable=on_cuda)

    def set_learning_rate(self, factor: float) -> None:
        """Set every model's learning rate to this share of its own."""
        for group, base in zip(self.adam.param_groups, self.base, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(base * factor)  # in place: a recorded step reads it from there
            else:
                group["lr"] = base * factor

    def step(self) -> None:
        """Make one step, and forget the gradients."""
        if not self.shared:
            for model, group in enumerate(self.adam.param_groups):
                for leaf, parameter in zip(group["params"], self.parameters, strict=True):
                    leaf.grad = None if parameter.grad is None else parameter.grad[model]
        self.adam.step()
        for parameter in self.parameters:
            parameter.grad = None
