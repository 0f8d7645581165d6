"""Search spaces, budgets, and the list of settings that is drawn from a space."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h3gnn.errors import InputError

FREE = ("smoothing",)
"""Arguments that need no separate training: each value is tried on every trained model."""


def with_objectives(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the objectives that a space joins by "+" as a list."""
    objective = params.get("objective")
    if isinstance(objective, str) and "+" in objective:
        return {**params, "objective": objective.split("+")}
    return dict(params)


@dataclass(frozen=True)
class Space:
    """The values that each argument of `H3GNN` may take; a single value is fixed.

    A sampler draws the arguments in this order. Objectives that are trained together are joined by "+", since
    a study stores strings. The other arguments come from the preset `start`; None is the default.
    """

    choices: Mapping[str, Sequence[Any]]
    start: str | None = "single"

    @property
    def proposed(self) -> dict[str, Sequence[Any]]:
        """Arguments that a sampler proposes; of the others every value is tried."""
        return {name: values for name, values in self.choices.items() if name not in FREE}

    def restricted(self, choices: Mapping[str, Sequence[Any]]) -> Space:
        """Return the space with other values for some arguments."""
        for name, values in choices.items():
            if not values:
                raise InputError(f"the search space has no value for {name}", code="empty-choice")
        return Space({**self.choices, **choices}, self.start)


@dataclass(frozen=True)
class SearchBudget:
    """The budget of a search from a list, the same for all methods of a table.

    Attributes:
        trials: number of settings that are drawn and tried.
        seconds: no further setting is tried after this time; None is no limit. The first is always tried.
        eval_epochs: the epochs at which a training of H3GNN is evaluated, each as a separate setting;
            () for its end only. This needs a constant learning rate.
        seed: of the drawn settings and of the resplits.
    """

    trials: int
    seconds: float | None = None
    eval_epochs: tuple[int, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> SearchBudget:
        """Return one from plain values; by default one trial, the method's own settings."""
        plain = {name: value for name, value in stored.items() if name != "looks"}
        return cls(**{"trials": 1, **plain, "eval_epochs": tuple(stored.get("looks", ()))})

    def is_over(self, start: float) -> bool:
        """Whether no further setting may be tried, in a search that began at `start`."""
        return self.seconds is not None and time.perf_counter() - start > self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        looks = list(self.eval_epochs)
        return {"trials": self.trials, "seconds": self.seconds, "looks": looks, "seed": self.seed}


def check_varied(ranges: Mapping[str, Sequence[Any]], trials: int, title: str) -> None:
    """Reject several trials where no range has a second value."""
    if trials > 1 and ranges and all(len(values) < 2 for values in ranges.values()):
        raise InputError(
            f"{title}: every setting that a search varies is fixed ({', '.join(ranges)}); leave one of them "
            "free, or give --trials 1",
            code="nothing-to-search",
        )


def draw_settings(ranges: Mapping[str, Sequence[Any]], trials: int, seed: int) -> list[dict[str, Any]]:
    """Return distinct settings: no change, each other value of the first setting alone, then random ones.

    The most important setting is therefore the first of a method's ranges; its first value is the default.
    """
    generator = np.random.default_rng(seed)
    drawn: list[dict[str, Any]] = [{}]
    first = next(iter(ranges), "")
    drawn += [{first: value} for value in ranges.get(first, ())[1:]] if len(ranges) > 1 else []
    del drawn[trials:]
    most = int(np.prod([float(len(values)) for values in ranges.values()])) if ranges else 0
    while len(drawn) < min(trials, most + 1):
        one = {name: values[int(generator.integers(len(values)))] for name, values in ranges.items()}
        if one not in drawn:
            drawn.append(one)
    return drawn


# Appendix "Hyperparameters" of the paper, for the arguments of the encoder and its training. The classifier's
# own settings belong to the probe; widths above 512 are available by `--choices channels=…`.
PAPER: dict[str, Sequence[Any]] = {
    "learning_rate": (0.01, 0.005, 0.001),
    "weight_decay": (0.0, 1e-4, 5e-4, 8e-4, 1e-3, 5e-3, 8e-3),
    "channels": (128, 256, 512),
    "hidden_channels": (16, 32, 64, 128),
    "token_dropout": (0.1, 0.3, 0.5, 0.7, 0.8),
    "attention_dropout": (0.1, 0.3, 0.5, 0.7, 0.8),
    "mask_ratio": (0.9, 0.8, 0.5, 0.3, 0.2, 0.1),
    "hard_fraction": (0.9, 0.8, 0.5, 0.3, 0.2, 0.1),
    "momentum": (0.9, 0.99, 0.999),
}

# Options of this implementation that the paper leaves open.
STRUCTURE: dict[str, Sequence[Any]] = {
    "hops": (1, 2, 3, 4),
    "norm": ("post", "residual-post", "pre"),
    "self_loops": (False, True),
    "normalize": (False, True),
    "edge_init": ("normalized", 0.5, 0.73),
    "batch_norm": (False, True),
    "scale_features": ("none", "rows"),
    "mask": ("probability", "difficulty", "random"),
    "mask_token": ("zero", "normal"),
    "smoothing": (0.0, 0.5, 0.8, 0.9, 0.95, -0.3, -0.6),
}

# Around the default ensemble of objectives.
ENSEMBLE: dict[str, Sequence[Any]] = {
    "objective": (
        "teacher+decorrelation+neighbours+edges",
        "decorrelation",
        "edges",
        "teacher+decorrelation",
        "neighbours+edges",
        "teacher",
    ),
    "hops": (2, 1, 3),
    "self_loops": (False, True),
    "channels": (128, 64, 256),
    "learning_rate": (0.004, 0.002, 0.001),
    "smoothing": (0.0, 0.3, 0.6, 0.8, 0.95, -0.2),
}

SPACES: dict[str, Space] = {
    "committee": Space(ENSEMBLE, start=None),
    "paper": Space(PAPER),
    "structure": Space(STRUCTURE),
    "full": Space(
        {
            **PAPER,
            **STRUCTURE,
            "learning_rate": (0.01, 0.005, 0.002, 0.001, 0.0005),
            "weight_decay": (0.0, 1e-4, 5e-4, 1e-3),
            "hidden_channels": (None, 64, 128),
            "token_dropout": (0.0, 0.1, 0.3, 0.5),
            "attention_dropout": (0.0, 0.1, 0.3, 0.5),
        }
    ),
}
