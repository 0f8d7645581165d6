"""GraphSAGE (Hamilton et al., 2017): a node beside the mean of its neighbours, layer upon layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classifiers import Classifier, ClassifierSettings, Ground
from h3gnn.baselines.layers import SparseMatrix, adjacency, neighbour_mean
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import Sizes, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

NORMS = ("unit", "batch", "none")
"""What may follow a layer's sum: rows of length 1, batch normalisation, nothing."""
MOMENTUM = 0.1
"""The share of this epoch in the means and variances that batch normalisation uses outside of training."""


@dataclass(frozen=True)
class SAGESettings(ClassifierSettings):
    """Settings of GraphSAGE; the paper's two layers and rows of length 1.

    Attributes:
        layers: how many, before the linear classifier.
        norm: one of `NORMS`.
        residual: whether each layer adds a further map of its input.
        self_loops: whether a node is among its neighbours.
        drop_features: whether the input is dropped as the hidden layers are.
    """

    layers: int = 2
    norm: str = "unit"
    residual: bool = False
    self_loops: bool = False
    drop_features: bool = True


class SAGE(Classifier):
    r"""A node's own values and the mean of its neighbours' have each a map of their own.

    .. math:: h_v^l = \mathrm{norm}\Big(\mathrm{ReLU}\big(W_l h_v^{l-1} +
        V_l \tfrac{1}{|N(v)|} \textstyle\sum_{u \in N(v)} h_u^{l-1} + b_l\big)\Big), \quad h^0 = X, \quad
        \hat y = \mathrm{softmax}(h^L W + b)

    The paper's mean aggregator, with all neighbours where it samples 25 and 10 of them for graphs that do
    not fit into memory. Its norm divides rows by their length, after the ReLU; that of batches comes before.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return what takes the mean over neighbours."""
        if settings.norm not in NORMS:
            raise InputError(f"GraphSAGE's norm is {settings.norm!r}; it must be one of {', '.join(NORMS)}")
        return {"mean": neighbour_mean(adjacency(graph, self_loops=settings.self_loops))}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count every layer."""
        return int(settings.layers) * super().bytes_for(sizes, settings)

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Count every layer."""
        return int(ground.settings.layers) * super().values_each(ground, 2 * width)

    @classmethod
    def bytes_each(cls, ground: Ground, width: int) -> int:
        """Count the maps of a layer."""
        return (3 if ground.settings.residual else 2) * super().bytes_each(ground, width)

    def build(self) -> None:
        """Add the layers' maps, side by side in one tensor, and the classifier."""
        self.maps = 3 if self.settings.residual else 2
        self.running: dict[int, tuple[Tensor, Tensor]] = {}
        rows = self.in_channels
        for layer in range(self.settings.layers):
            self.weights.glorot(f"{layer}", rows, self.maps * self.width, fan=rows + self.width)
            self.weights.zeros(f"{layer} bias", self.width)
            if self.settings.norm == "batch":
                self.weights.constant(f"{layer} scale", torch.ones(1, self.width))
                self.weights.zeros(f"{layer} shift", self.width)
            rows = self.width
        self.weights.glorot("classify", rows, self.ground.classes)
        self.weights.zeros("classify bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        """Look at neighbours in each layer, and classify."""
        hidden: Tensor | None = None
        for layer in range(self.settings.layers):
            if hidden is None:
                drop = noise if self.settings.drop_features else None
                mapped = self.ground.features.product(self.weights[f"{layer}"], drop)
            else:
                mapped = self.dense(hidden, f"{layer}")
            hidden = self.joined(mapped, layer, training=noise is not None)
            hidden = self.dropped(hidden, noise)
        assert hidden is not None
        return self.dense(hidden, "classify") + self.weights["classify bias"]

    def joined(self, mapped: Tensor, layer: int, *, training: bool) -> Tensor:
        """Return a layer's values from its maps' `[nodes, models, maps · width]`."""
        near, *rest = mapped.chunk(self.maps, dim=2)
        total = sum(rest, self.ground.matrices["mean"] @ near) + self.weights[f"{layer} bias"]
        if self.settings.norm == "batch":
            total = self.batch_norm(total, layer, training=training)
        hidden = functional.relu(total)
        return functional.normalize(hidden, dim=2) if self.settings.norm == "unit" else hidden

    def batch_norm(self, x: Tensor, layer: int, *, training: bool) -> Tensor:
        """Return values with mean 0 and variance 1 over all nodes, scaled and shifted."""
        if training or layer not in self.running:
            variance, mean = torch.var_mean(x, dim=0, correction=0)
        else:
            mean, variance = self.running[layer]
        if training:
            self._remember(layer, mean.detach(), variance.detach() * len(x) / max(1, len(x) - 1))
        scale = self.weights[f"{layer} scale"] * (variance + 1e-5).rsqrt()
        return (x - mean) * scale + self.weights[f"{layer} shift"]

    def _remember(self, layer: int, mean: Tensor, variance: Tensor) -> None:
        """Move the running mean and variance, which start at 0 and 1, towards this epoch's."""
        old = self.running.get(layer, (torch.zeros_like(mean), torch.ones_like(variance)))
        self.running[layer] = (old[0].lerp(mean, MOMENTUM), old[1].lerp(variance, MOMENTUM))


TUNED = {
    "scale_features": "none",
    "epochs": 500,
    "patience": 500,
    "layers": 3,
    "norm": "none",
    "self_loops": True,
    "drop_features": False,
    "width": 256,
    "dropout": 0.7,
    "learning_rate": 0.001,
    "weight_decay": 5e-4,
}
WIKIPEDIA = {**TUNED, "norm": "batch", "residual": True, "learning_rate": 0.01}

SYSTEM = System(
    name="sage",
    title="GraphSAGE",
    estimator="GraphSAGE",
    group="supervised",
    paper="Hamilton, Ying and Leskovec: Inductive Representation Learning on Large Graphs. NeurIPS",
    year=2017,
    sees=("features", "edges", "labels"),
    kind=SAGE,
    settings=SAGESettings(),
    cost="two products with the features and one with the edges per epoch and layer",
    ranges={"layers": (1, 2, 3), "norm": ("unit", "batch", "none"), "residual": (False, True)},
    published={
        "cora": TUNED,
        "citeseer": {**TUNED, "width": 512, "dropout": 0.2, "weight_decay": 0.01},
        "pubmed": {**TUNED, "layers": 4, "width": 512, "learning_rate": 0.005},
        "chameleon-filtered": {
            **WIKIPEDIA,
            "epochs": 200,
            "patience": 200,
            "layers": 4,
            "weight_decay": 1e-3,
        },
        "squirrel-filtered": WIKIPEDIA,
    },
    source="Luo et al.: Classic GNNs are Strong Baselines (2024), code; its authors ran on other graphs",
)
