"""A stack of models trained together: hyper-parameters, dropout, weights and Adam.

Values are `[rows, models, channels]` and weights `[in, models, out]`, so that one product with a shared
matrix (features, adjacency) serves all models without a copy. All models of a seed share initial weights and
dropout masks, so that a model's result does not depend on the other models of its stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from h3gnn.training.optimizer import Group, StackedAdam

COINS = 2**32
"""Offset of the dropout seeds from the seeds of the weights."""


@dataclass(frozen=True, order=True)
class GridPoint:
    """One point of the hyper-parameter grid."""

    width: int
    dropout: float
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True)
class Member:
    """One model of a stack."""

    seed: int
    split: int
    point: GridPoint


class Noise:
    """Dropout for a stack: random numbers per seed, rates per model."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        seeds = list(dict.fromkeys(member.seed for member in members))
        self.generators = [torch.Generator(device).manual_seed(seed + COINS) for seed in seeds]
        self.seed_of = [seeds.index(member.seed) for member in members]
        self.index = torch.tensor(self.seed_of, device=device)
        self.rate_of = [member.point.dropout for member in members]
        self.rates = torch.tensor(self.rate_of, device=device)[:, None]

    def at(self, rate: float) -> Noise:
        """Return the same generators with one rate for all models, for dropout outside the grid."""
        other = object.__new__(Noise)
        rates = torch.full_like(self.rates, rate)
        other.__dict__.update(self.__dict__, rate_of=[rate] * len(self.rate_of), rates=rates)
        return other

    def drop(self, x: Tensor) -> Tensor:
        """Zero values of `[rows, models, channels]`, each model at its own rate, and scale up the rest."""
        shape, device = (x.shape[0], x.shape[2]), self.index.device
        drawn = [torch.rand(shape, generator=generator, device=device) for generator in self.generators]
        coins = torch.stack(drawn, dim=1)
        kept = (coins if len(drawn) == 1 else coins.index_select(1, self.index)) >= self.rates
        return x * (kept / (1 - self.rates))

    def runs(self) -> list[tuple[int, int, float]]:
        """Return the runs of models with one seed and rate: how many, the seed's position, and the rate."""
        keys = zip(self.seed_of, self.rate_of, strict=True)
        return [(len(list(models)), *key) for key, models in groupby(keys)]


class Factors(NamedTuple):
    """Factors of a tensor's learning rate and weight decay."""

    rate: float = 1.0
    decay: float = 1.0


class Weights:
    """The trainable tensors of a stack by name, each `[in, models, out]`; `factors` are those of `Factors`.

    Initial values are sampled on the CPU, once per seed, so that they are the same on every device.
    """

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self.members, self.device = members, device
        self.seeds = list(dict.fromkeys(member.seed for member in members))
        self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        self.tensors: dict[str, Tensor] = {}
        self.factors: dict[str, Factors] = {}

    def glorot(self, name: str, rows: int, columns: int, fan: int | None = None, **factors: float) -> None:
        """Add a tensor, uniform in ±√(6 / (in + out)); `fan` replaces in + out if given."""
        self.uniform(name, rows, columns, math.sqrt(6 / (fan or rows + columns)), **factors)

    def uniform(self, name: str, rows: int, columns: int, bound: float, **factors: float) -> None:
        """Add a tensor, uniform in ±bound."""
        drawn = {
            seed: torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
            for seed, generator in zip(self.seeds, self.generators, strict=True)
        }
        start = torch.stack([drawn[member.seed] for member in self.members], dim=1)
        self._add(name, start, Factors(**factors))

    def linear(self, name: str, rows: int, columns: int, gain: int = 1) -> None:
        """Add a Glorot tensor, its variance multiplied by a gain, and its bias."""
        self.glorot(name, rows, columns, fan=max(1, (rows + columns) // gain))
        self.zeros(f"{name} bias", columns)

    def zeros(self, name: str, columns: int, **factors: float) -> None:
        self.constant(name, torch.zeros(1, columns), **factors)

    def constant(self, name: str, start: Tensor, **factors: float) -> None:
        """Add a tensor with the same initial values `[in, out]` in every model."""
        self._add(name, torch.stack([start] * len(self.members), dim=1), Factors(**factors))

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def _add(self, name: str, start: Tensor, factors: Factors) -> None:
        self.tensors[name] = start.to(self.device).requires_grad_()
        self.factors[name] = factors


def stacked_adam(weights: Weights) -> StackedAdam:
    """Return Adam over a stack's weights; rates and decays broadcast along the models' axis."""

    def column(name: str) -> Tensor:
        values = [getattr(member.point, name) for member in weights.members]
        return torch.tensor(values, device=weights.device)[:, None]

    rates, decays = column("learning_rate"), column("weight_decay")
    groups = [
        Group(
            [tensor for name, tensor in weights.tensors.items() if weights.factors[name] == factors],
            [],
            factors.rate,
            rates * factors.rate,
            decays * factors.decay,
        )
        for factors in dict.fromkeys(weights.factors.values())
    ]
    return StackedAdam.of_groups(groups)
