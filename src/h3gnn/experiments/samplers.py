"""Proposals that share some of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial


class WithinShape(BaseSampler):
    """Asks another sampler, but for the arguments of a shape, which are given.

    Args:
        shape: the given arguments.
        sampler: who is asked for all others.
    """

    def __init__(self, shape: Mapping[str, Any], sampler: BaseSampler) -> None:
        self.shape, self.sampler = dict(shape), sampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return what the other sampler proposes together, without the shape."""
        space = self.sampler.infer_relative_search_space(study, trial)
        return {name: values for name, values in space.items() if name not in self.shape}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Let the other sampler propose."""
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the given value, or let the other sampler propose one."""
        if param_name in self.shape:
            return self.shape[param_name]
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)
