"""G² (Rusch et al., 2023): gradient gating stops a node's features where its neighbours agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classifiers import USUAL_WIDTH, Classifier, ClassifierSettings, Ground
from h3gnn.baselines.layers import SparseMatrix, adjacency, edge_ends, neighbour_mean, symmetric
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import Sizes, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

INNER = ("sage", "gcn")
"""The layers that may be gated."""


@dataclass(frozen=True)
class G2Settings(ClassifierSettings):
    """Settings of G²; as its authors' code has them, but for fewer layers and a quicker exponent.

    Attributes:
        layers: how many; all share their weights.
        inner: the layer that is gated, one of `INNER`.
        exponent: p of the differences, at least 1.
        own_gate: whether the gate has a layer of its own, and not the gated one.
        last_dropout: before the classifier; None for that of the input.
    """

    layers: int = 4
    inner: str = "sage"
    exponent: float = 2.0
    own_gate: bool = False
    last_dropout: float | None = 0.1


class G2(Classifier):
    r"""Each channel of each node moves as fast as it differs from its neighbours'.

    .. math:: X^0 = \mathrm{ReLU}(X W + b), \quad
        X^{l} = (1 - \tau^l) \odot X^{l-1} + \tau^l \odot \sigma(F(X^{l-1})), \quad
        \tau^l_{vk} = \tanh\Big(\tfrac{1}{|N(v)|} \sum_{u \in N(v)}
        \big|\sigma(\hat F(X^{l-1}))_{uk} - \sigma(\hat F(X^{l-1}))_{vk}\big|^p\Big)

    F is a layer of GraphSAGE, :math:`V \bar x_{N(v)} + U x_v + c`, or of a GCN, and :math:`\hat F` is F or a
    layer of its own; :math:`\sigma` is a ReLU. The mean is that of the authors' code, where the paper has a
    sum. A node that does not differ from its neighbours, or has none, keeps its values.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return what the layers take from neighbours, the ends of each edge, and the mean over edges."""
        if settings.inner not in INNER:
            raise InputError(f"G²'s inner is {settings.inner!r}; it must be one of {', '.join(INNER)}")
        if settings.exponent < 1:
            raise InputError(f"G²'s exponent is {settings.exponent:g}; it must be at least 1")
        near = adjacency(graph, self_loops=False)
        mean = neighbour_mean(near)
        each = neighbour_mean(near.with_values(torch.ones_like(near.values)))
        inner = mean if settings.inner == "sage" else symmetric(adjacency(graph, self_loops=True))
        return {**edge_ends(near, each.values), "inner": inner}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add what every layer keeps on nodes and edges."""
        layer = (3 * sizes.edges + 10 * sizes.nodes) * USUAL_WIDTH
        return super().bytes_for(sizes, settings) + 4 * int(settings.layers) * layer

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Add what every layer keeps on nodes and edges."""
        edges, nodes = ground.matrices["source"].shape
        layers = int(ground.settings.layers)
        return super().values_each(ground, width) + layers * (3 * edges + 10 * nodes) * width

    def build(self) -> None:
        """Add the encoder, the layer, perhaps the gate's, and the classifier."""
        self.weights.glorot("first", self.in_channels, self.width)
        self.weights.zeros("first bias", self.width)
        for layer in ("inner", "gate") if self.settings.own_gate else ("inner",):
            self.weights.glorot(f"{layer} near", self.width, self.width)
            if self.settings.inner == "sage":
                self.weights.glorot(f"{layer} own", self.width, self.width)
            self.weights.zeros(f"{layer} bias", self.width)
        self.weights.glorot("second", self.width, self.ground.classes)
        self.weights.zeros("second bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        """Encode, move through the gates, classify."""
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = functional.relu(first + self.weights["first bias"])
        for _ in range(self.settings.layers):
            proposed = self.layer(hidden, "inner")
            gate = self.rate(self.layer(hidden, "gate") if self.settings.own_gate else proposed)
            hidden = torch.lerp(hidden, proposed, gate)
        hidden = hidden if noise is None else noise.at(self.settings.last_dropout).drop(hidden)
        return self.dense(hidden, "second") + self.weights["second bias"]

    def layer(self, hidden: Tensor, name: str) -> Tensor:
        """Return what a layer makes of the nodes and their neighbours."""
        total = self.ground.matrices["inner"] @ self.dense(hidden, f"{name} near")
        if self.settings.inner == "sage":
            total = total + self.dense(hidden, f"{name} own")
        return functional.relu(total + self.weights[f"{name} bias"])

    def rate(self, x: Tensor) -> Tensor:
        """Return τ, how fast each channel of each node moves, from its differences to neighbours."""
        ends = self.ground.matrices
        apart = (ends["source"] @ x - ends["target"] @ x).abs() ** self.settings.exponent
        return torch.tanh(ends["sum"] @ apart)


SYSTEM = System(
    name="g2",
    title="G²",
    estimator="G2",
    group="supervised",
    paper="Rusch et al.: Gradient Gating for Deep Multi-Rate Learning on Graphs. ICLR",
    year=2023,
    sees=("features", "edges", "labels"),
    kind=G2,
    settings=G2Settings(),
    cost="differences of the hidden layer's width on every edge, in each of four layers",
    ranges={
        "layers": (2, 4, 6),
        "inner": ("sage", "gcn"),
        "exponent": (1.0, 2.0, 2.5, 4.0),
        "own_gate": (False, True),
        "last_dropout": (0.1, 0.5),
    },
    published={
        "wisconsin": {
            "scale_features": "none",
            "epochs": 200,
            "patience": 200,
            "layers": 6,
            "exponent": 2.5,
            "width": 256,
            "dropout": 0.5,
            "learning_rate": 0.003,
            "weight_decay": 0.01,
        }
    },
    source="its authors' code, whose defaults are for Wisconsin",
)
