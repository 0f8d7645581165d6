"""FAGCN (Bo et al., 2021): every edge has a learned sign, so that neighbours may also be told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classifiers import USUAL_WIDTH, Classifier, ClassifierSettings, Ground
from h3gnn.baselines.layers import SparseMatrix, adjacency, edge_ends, symmetric
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class FAGCNSettings(ClassifierSettings):
    """Settings of FAGCN.

    Attributes:
        layers: how often neighbours are looked at.
        keep: ε, how much of its start a node adds after each layer.
    """

    layers: int = 4
    keep: float = 0.3


class FAGCN(Classifier):
    r"""Neighbours are added or taken away, as a gate between -1 and 1 says of each edge.

    .. math:: h^0 = \mathrm{ReLU}(X W_1 + b_1), \quad
        h_v^l = \varepsilon h_v^0 + \sum_{u \in N(v)} \frac{\alpha^l_{vu}}{\sqrt{d_v d_u}} h_u^{l-1}, \quad
        \alpha^l_{vu} = \tanh(g_l^\top [h_v^{l-1} | h_u^{l-1}] + c_l)

    Logits are :math:`h^L W_2 + b_2`. There are no self-loops. Features, :math:`h^0` and the
    :math:`\alpha_{vu}` are dropped in training.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return the ends of each edge, and what sums edges into their targets by both ends' degrees."""
        scaled = symmetric(adjacency(graph, self_loops=False))
        return edge_ends(scaled, scaled.values)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add what every layer keeps on nodes and edges."""
        layer = (3 * sizes.edges + 5 * sizes.nodes) * USUAL_WIDTH
        return super().bytes_for(sizes, settings) + 4 * int(settings.layers) * layer

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Add what every layer keeps on nodes and edges."""
        edges, nodes = ground.matrices["source"].shape
        layer = (3 * edges + 5 * nodes) * width + 8 * edges
        return super().values_each(ground, width) + int(ground.settings.layers) * layer

    def build(self) -> None:
        """Add the two maps and a gate for each layer."""
        self._map("first", self.in_channels, self.width)
        for layer in range(self.settings.layers):
            fan = (2 * self.width + 1) // 2
            self.weights.glorot(f"gate {layer} to", 1, self.width, fan)
            self.weights.glorot(f"gate {layer} from", 1, self.width, fan)
            self.weights.zeros(f"gate {layer} bias", 1)
        self._map("second", self.width, self.ground.classes)

    def _map(self, name: str, rows: int, columns: int) -> None:
        """Add a map that starts √2 as large as Glorot's, as the authors' do, and its bias."""
        self.weights.glorot(name, rows, columns, fan=max(1, (rows + columns) // 2))
        self.weights.zeros(f"{name} bias", columns)

    def logits(self, noise: Noise | None) -> Tensor:
        """Map, look at neighbours through the gates, map."""
        first = self.ground.features.product(self.weights["first"], noise)
        start = functional.relu(first + self.weights["first bias"])
        start = self.dropped(start, noise)
        hidden = start
        for layer in range(self.settings.layers):
            hidden = self.settings.keep * start + self.gathered(hidden, layer, noise)
        return self.dense(hidden, "second") + self.weights["second bias"]

    def gathered(self, hidden: Tensor, layer: int, noise: Noise | None) -> Tensor:
        """Return what comes to each node from its neighbours."""
        ends = self.ground.matrices
        seen = {
            end: (hidden * self.weights[f"gate {layer} {end}"]).sum(dim=2, keepdim=True)
            for end in ("to", "from")
        }
        score = ends["target"] @ seen["to"] + ends["source"] @ seen["from"]
        gate = torch.tanh(score + self.weights[f"gate {layer} bias"])
        gate = self.dropped(gate, noise)
        return ends["sum"] @ (gate * (ends["source"] @ hidden))


CITATIONS = {"width": 16, "dropout": 0.6, "weight_decay": 1e-3}
FROM_AERO = {"learning_rate": 0.005, "epochs": 5000, "patience": 500, "weight_decay": 1e-4}

SYSTEM = System(
    name="fagcn",
    title="FAGCN",
    estimator="FAGCN",
    group="supervised",
    paper="Bo et al.: Beyond Low-Frequency Information in Graph Convolutional Networks. AAAI",
    year=2021,
    sees=("features", "edges", "labels"),
    kind=FAGCN,
    settings=FAGCNSettings(),
    cost="messages of the hidden layer's width on every edge, in each of four layers",
    ranges={
        "layers": (2, 4, 7),
        "keep": (0.1, 0.3, 0.6, 1.0),
        "scale_features": ("auto", "sums", "none"),
    },
    published={
        ANY: {
            "scale_features": "sums",
            "epochs": 500,
            "patience": 200,
            "layers": 2,
            "width": 32,
            "dropout": 0.5,
            "learning_rate": 0.01,
            "weight_decay": 5e-5,
        },
        "cora": {**CITATIONS, "layers": 4, "keep": 0.2},
        "citeseer": {**CITATIONS, "layers": 4},
        "pubmed": {**CITATIONS, "layers": 8},
        "cornell": {**FROM_AERO, "keep": 1.0, "dropout": 0.6},
        "texas": {**FROM_AERO, "layers": 7, "keep": 0.2},
        "wisconsin": {**FROM_AERO, "layers": 7, "keep": 0.2, "dropout": 0.6},
        "actor": {**FROM_AERO, "scale_features": "none", "layers": 6, "keep": 0.9, "weight_decay": 0.006},
        "chameleon-filtered": {
            **FROM_AERO,
            "scale_features": "none",
            "layers": 5,
            "keep": 0.1,
            "dropout": 0.4,
            "weight_decay": 0.01,
        },
        "squirrel-filtered": {
            **FROM_AERO,
            "scale_features": "none",
            "layers": 3,
            "keep": 0.2,
            "dropout": 0.6,
            "weight_decay": 0.01,
        },
    },
    source="run/fagcn.sh of AERO-GNN's authors (2023); what that does not say, from its own code",
)
