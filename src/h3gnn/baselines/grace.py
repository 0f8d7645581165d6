"""GRACE (Zhu et al., 2020): a node in one view finds itself among all nodes of both views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from h3gnn.baselines.allpairs import bytes_for_pairs, two_view_loss
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder, linear_layers
from h3gnn.baselines.layers import scaled_features
from h3gnn.baselines.systems import Sizes, System
from h3gnn.baselines.views import View, Views
from h3gnn.graphs.graph import Graph

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "prelu": nn.PReLU}


@dataclass(frozen=True)
class GRACESettings(EmbedderSettings):
    """Settings of GRACE; those of its authors on Cora.

    Attributes:
        width: of the embedding and the projection; the hidden layer is twice as wide.
        temperature: what cosines are divided by.
        feature_drop, edge_drop: shares dropped in the first and in the second view.
        activation: relu or prelu.
    """

    width: int = 128
    epochs: int = 200
    learning_rate: float = 0.0005
    weight_decay: float = 1e-5
    temperature: float = 0.4
    feature_drop: tuple[float, float] = (0.3, 0.4)
    edge_drop: tuple[float, float] = (0.2, 0.4)
    activation: str = "relu"


class GRACE(Embedder):
    r"""Two views are encoded and projected, and InfoNCE pulls a node's two rows together, all others apart.

    .. math:: H = \sigma(\tilde A\, \sigma(\tilde A X W_1) W_2), \quad z = W_4\, \mathrm{ELU}(W_3 h), \quad
        \mathcal L = \mathrm{InfoNCE}_\tau(Z^1, Z^2)

    A node's negatives are all other nodes, of its own view and of the other, see `two_view_loss`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count the pairs of nodes that are in memory at once, beside the rest."""
        return super().bytes_for(sizes, settings) + bytes_for_pairs(sizes.nodes, 3)

    def build(self, graph: Graph) -> None:
        """Make the encoder and the projection."""
        width = self.settings.width
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.views = Views(graph, self.device)
        activation = ACTIVATIONS[self.settings.activation]
        self.encoder = GraphEncoder(features, (2 * width, width), [activation(), activation()])
        self.projection = linear_layers(width, width, width, activation=nn.ELU)

    def loss(self, epoch: int) -> Tensor:
        """Find each node of a view in the other."""
        shares = zip(self.settings.feature_drop, self.settings.edge_drop, strict=True)
        first, second = (self.project(self.views.draw(*one)) for one in shares)
        return two_view_loss(first, second, self.settings.temperature)

    def project(self, view: View) -> Tensor:
        """Return the projected rows of a view."""
        rows: Tensor = self.projection(self.encoder(view.matrix, view.kept_columns))
        return rows

    def embedding(self) -> Tensor:
        """Encode the whole graph, without the projection."""
        rows: Tensor = self.encoder(self.views.full().matrix)
        return rows


SYSTEM = System(
    name="grace",
    title="GRACE",
    estimator="GRACE",
    group="self-supervised",
    paper="Zhu et al.: Deep Graph Contrastive Representation Learning. ICML workshop GRL+",
    year=2020,
    sees=("features", "edges"),
    kind=GRACE,
    settings=GRACESettings(),
    cost="all pairs of nodes are compared three times per epoch, in parts",
    ranges={
        "width": (128, 256),
        "learning_rate": (0.0005, 0.001, 0.005),
        "temperature": (0.4, 0.7, 0.9),
        "feature_drop": ((0.3, 0.4), (0.3, 0.2), (0.0, 0.2)),
        "edge_drop": ((0.2, 0.4), (0.2, 0.0), (0.4, 0.1)),
        "epochs": (200, 50),
    },
    published={
        "cora": {"scale_features": "sums"},
        "citeseer": {
            "scale_features": "sums",
            "width": 256,
            "learning_rate": 0.001,
            "activation": "prelu",
            "temperature": 0.9,
            "edge_drop": (0.2, 0.0),
            "feature_drop": (0.3, 0.2),
        },
        "pubmed": {
            "scale_features": "sums",
            "width": 256,
            "learning_rate": 0.001,
            "temperature": 0.7,
            "edge_drop": (0.4, 0.1),
            "feature_drop": (0.0, 0.2),
            "epochs": 1500,
        },
    },
    source="config.yaml of the authors' public code, which has the three citation graphs",
)
