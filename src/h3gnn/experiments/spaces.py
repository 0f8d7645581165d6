"""What a search may choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from h3gnn.errors import InputError
from h3gnn.experiments.stacks import OWN

FREE = ("smoothing",)
"""Arguments that need no training of their own: each value is tried on every model that was trained."""


@dataclass(frozen=True)
class Space:
    """The values that each argument of `H3GNN` may take; a single value is fixed.

    Attributes:
        choices: of each argument, in the order in which a sampler is asked.
    """

    choices: Mapping[str, Sequence[Any]]

    @property
    def shared(self) -> dict[str, Sequence[Any]]:
        """Arguments that all models of a stack share."""
        return {name: values for name, values in self.proposed.items() if name not in OWN}

    @property
    def own(self) -> dict[str, Sequence[Any]]:
        """Arguments that each model of a stack has for itself."""
        return {name: values for name, values in self.choices.items() if name in OWN}

    @property
    def proposed(self) -> dict[str, Sequence[Any]]:
        """Arguments that a sampler proposes; the others are tried all."""
        return {name: values for name, values in self.choices.items() if name not in FREE}

    def restricted(self, choices: Mapping[str, Sequence[Any]]) -> Space:
        """Return the space with other values for some arguments."""
        for name, values in choices.items():
            if not values:
                raise InputError(f"the search space has no value for {name}")
        return Space({**self.choices, **choices})


# Appendix "Hyperparameters" of the paper, for the arguments of the encoder and its training. The classifier's
# own settings are the probe's business; widths above 512 are left to `--choices channels=…`.
PAPER: dict[str, Sequence[Any]] = {
    "learning_rate": (0.01, 0.005, 0.001),
    "weight_decay": (0.0, 1e-4, 5e-4, 8e-4, 1e-3, 5e-3, 8e-3),
    "channels": (128, 256, 512),
    "hidden_channels": (16, 32, 64, 128),
    "token_dropout": (0.1, 0.3, 0.5, 0.7, 0.8),
    "attention_dropout": (0.1, 0.3, 0.5, 0.7, 0.8),
    "mask_ratio": (0.9, 0.8, 0.5, 0.3, 0.2, 0.1),
    "exploit_ratio": (0.9, 0.8, 0.5, 0.3, 0.2, 0.1),
    "momentum": (0.9, 0.99, 0.999),
}

# What the paper leaves open or fixes without saying, and this implementation offers.
STRUCTURE: dict[str, Sequence[Any]] = {
    "hops": (1, 2, 3, 4),
    "norm": ("post", "residual-post", "pre"),
    "self_loops": (False, True),
    "normalize": (False, True),
    "edge_start": ("normalized", 0.5, 0.73),
    "batch_norm": (False, True),
    "scale_features": ("none", "rows"),
    "mask": ("probability", "difficulty", "random"),
    "mask_token": ("zero", "normal"),
    "smoothing": (0.0, 0.5, 0.8, 0.9, 0.95, -0.3, -0.6),
}

SPACES: dict[str, Space] = {
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
