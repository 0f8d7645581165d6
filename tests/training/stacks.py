"""Graphs, generators and trainings that several tests share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from h3gnn.training.models import Training

HOUSE = torch.tensor([[0, 1, 2, 3, 0, 3], [1, 2, 3, 0, 4, 4]])
"""A square 0 – 1 – 2 – 3, a roof 4 above 0 and 3, and node 5 by itself."""


def generators_of(seeds: Iterable[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def plain_training(objectives: list[str], **changed: Any) -> Training:
    """Return a training with constant rates and neither dropped features nor dropped edges."""
    zeros = dict.fromkeys(("feature_drop", "edge_drop", "replace_rate", "weight_decay"), 0.0)
    options: dict[str, Any] = {
        **{"targets": "plain", "loss": "squared", "teacher_mode": "eval", "momentum": 0.9, **zeros},
        **{"mask": "random", "mask_ratio": 0.5, "hard_fraction": 0.5, "mask_size": "bounded"},
        **{"mask_warmup": 1, "epochs": 10, "learning_rate": 0.01, "schedule": "constant"},
        **{"warmup_epochs": 0, "edge_rate": 1.0},
    }
    return Training(objective=objectives, **{**options, **changed})
