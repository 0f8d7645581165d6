"""GPR-GNN (Chien et al., 2021): learned weights for each number of steps that predictions travel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines.classifiers import ClassifierSettings, Ground
from h3gnn.baselines.layers import SparseMatrix, adjacency, symmetric
from h3gnn.baselines.mlp import MLP
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import ANY, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

STARTS = ("ppr", "nppr", "sgc", "random")
"""What the weights of the steps may start from, see `start_weights`."""


@dataclass(frozen=True)
class GPRGNNSettings(ClassifierSettings):
    """Settings of GPR-GNN; those of its authors' code.

    Attributes:
        steps: how far predictions travel.
        start: of the steps' weights, one of `STARTS`.
        restart: α of the start.
        propagation_dropout: of the predictions before they travel; None for that of the other layers.
        steps_decay: what the weight decay is multiplied by for the steps' weights.
    """

    steps: int = 10
    start: str = "ppr"
    restart: float = 0.1
    propagation_dropout: float | None = 0.5
    steps_decay: float = 0.0


class GPRGNN(MLP):
    r"""An MLP's predictions travel K steps, and what arrives is summed with learned weights.

    .. math:: H_0 = \mathrm{ReLU}(X W_1 + b_1) W_2 + b_2, \quad H_k = P H_{k-1}, \quad
        \hat y = \mathrm{softmax}\big(\textstyle\sum_{k=0}^{K} \gamma_k H_k\big)

    :math:`P = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`. The :math:`\gamma_k` may become negative, so that
    unlike neighbours count against each other; they are trained without weight decay.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return P."""
        return {"gcn": symmetric(adjacency(graph, self_loops=True))}

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Add what every step keeps."""
        steps: int = ground.settings.steps
        return super().values_each(ground, width) + ground.features.shape[0] * 3 * steps * ground.classes

    def build(self) -> None:
        """Add the MLP and the steps' weights."""
        super().build()
        settings = self.settings
        if settings.start == "random":
            bound = math.sqrt(3 / (settings.steps + 1))
            self.weights.uniform("steps", settings.steps + 1, 1, bound, decay=settings.steps_decay)
            with torch.no_grad():
                self.weights["steps"].div_(self.weights["steps"].abs().sum(dim=0))
        else:
            start = start_weights(settings.start, settings.steps, settings.restart)
            self.weights.constant("steps", start[:, None], decay=settings.steps_decay)

    def logits(self, noise: Noise | None) -> Tensor:
        """Predict from a node's own features, and let the predictions travel."""
        travelling = super().logits(noise)
        if noise is not None:
            travelling = noise.at(self.settings.propagation_dropout).drop(travelling)
        weights = self.weights["steps"].unbind(0)
        arrived = weights[0] * travelling
        for weight in weights[1:]:
            travelling = self.ground.matrices["gcn"] @ travelling
            arrived = arrived + weight * travelling
        return arrived


def start_weights(start: str, steps: int, restart: float) -> Tensor:
    r"""Return the weights of 0 to K steps that training starts from, `[steps + 1]`.

    "ppr": :math:`\alpha (1 - \alpha)^k`, and the rest of 1 on the last, a personalised PageRank; "nppr":
    :math:`\alpha^k`, divided by the sum of their sizes; "sgc": all on the last step.
    """
    if start not in STARTS:
        raise InputError(f"GPR-GNN's start is {start!r}; it must be one of {', '.join(STARTS)}")
    powers = torch.arange(steps + 1)
    if start == "sgc":
        return (powers == steps).float()
    if start == "nppr":
        weights = torch.tensor(restart) ** powers
        return weights / weights.abs().sum()
    weights = restart * torch.tensor(1 - restart) ** powers
    weights[-1] = (1 - restart) ** steps
    return weights


FROM_AERO = {"propagation_dropout": 0.0, "learning_rate": 0.005, "epochs": 5000, "patience": 500}

SYSTEM = System(
    name="gprgnn",
    title="GPR-GNN",
    estimator="GPRGNN",
    group="supervised",
    paper="Chien et al.: Adaptive Universal Generalized PageRank Graph Neural Network. ICLR",
    year=2021,
    sees=("features", "edges", "labels"),
    kind=GPRGNN,
    settings=GPRGNNSettings(),
    cost="one product with the features and ten with the edges per epoch",
    ranges={
        "steps": (4, 10),
        "start": ("ppr", "nppr", "random"),
        "restart": (0.1, 0.2, 0.5, 0.9),
        "propagation_dropout": (0.0, 0.5, 0.7),
    },
    published={
        ANY: {
            "scale_features": "sums",
            "epochs": 1000,
            "patience": 200,
            "width": 64,
            "dropout": 0.5,
            "learning_rate": 0.01,
            "weight_decay": 5e-4,
        },
        "pubmed": {"learning_rate": 0.05, "restart": 0.2},
        "texas": {"learning_rate": 0.05, "restart": 1.0},
        "cornell": {"learning_rate": 0.05, "restart": 0.9},
        "wisconsin": {**FROM_AERO, "steps": 8, "dropout": 0.8, "weight_decay": 0.01},
        "actor": {"restart": 0.9, "weight_decay": 0.0},
        "chameleon-filtered": {
            **FROM_AERO,
            "scale_features": "none",
            "restart": 0.9,
            "dropout": 0.7,
            "weight_decay": 0.006,
            "steps_decay": 1 / 6,
        },
        "squirrel-filtered": {
            **FROM_AERO,
            "scale_features": "none",
            "restart": 0.3,
            "dropout": 0.7,
            "weight_decay": 0.011,
            "steps_decay": 1 / 11,
        },
    },
    source="its authors' code; Wisconsin and the filtered graphs as AERO-GNN's authors (2023) tuned it",
)
