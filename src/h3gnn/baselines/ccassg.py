"""CCA-SSG (Zhang et al., 2021): two views agree in every column, and no two columns tell the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder
from h3gnn.baselines.layers import scaled_features, standard_columns
from h3gnn.baselines.systems import Sizes, System
from h3gnn.baselines.views import Views
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class CCASSGSettings(EmbedderSettings):
    r"""Settings of CCA-SSG.

    Attributes:
        layers: graph convolutions, all of the embedding's width.
        decorrelation: :math:`\lambda`, how much correlated columns cost.
        feature_drop, edge_drop: shares dropped in each of the two views.
    """

    epochs: int = 100
    layers: int = 2
    decorrelation: float = 1e-3
    feature_drop: float = 0.2
    edge_drop: float = 0.4


class CCASSG(Embedder):
    r"""Views are standardised by column; agreement is rewarded, and correlated columns are punished.

    .. math:: \mathcal L = -\operatorname{tr} \tilde Z_1^\top \tilde Z_2 + \lambda \big(
        \lVert \tilde Z_1^\top \tilde Z_1 - I \rVert^2 + \lVert \tilde Z_2^\top \tilde Z_2 - I \rVert^2 \big),
        \quad \tilde z = \frac{z - \bar z}{\sigma_z \sqrt n}

    The first term is, but for a constant, half of the paper's :math:`\lVert \tilde Z_1 - \tilde Z_2 \rVert^2`
    and what the authors' settings of :math:`\lambda` belong to. A column that is constant is left at 0.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count the correlations of all columns, and a matrix of weights for each further layer."""
        squares = settings.width**2 * (12 + 4 * settings.layers)
        return super().bytes_for(sizes, settings) + int(4 * squares)

    def build(self, graph: Graph) -> None:
        """Make the encoder."""
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.views = Views(graph, self.device)
        widths = [self.settings.width] * self.settings.layers
        self.encoder = GraphEncoder(features, widths, [*(nn.ReLU() for _ in widths[1:]), nn.Identity()])

    def loss(self, epoch: int) -> Tensor:
        """Compare two views that are drawn alike."""
        drawn = (self.views.draw(self.settings.feature_drop, self.settings.edge_drop) for _ in range(2))
        first, second = (self.encoder(view.matrix, view.kept_columns) for view in drawn)
        return correlation_loss(first, second, self.settings.decorrelation)

    def embedding(self) -> Tensor:
        """Encode the whole graph."""
        rows: Tensor = self.encoder(self.views.full().matrix)
        return rows


def correlation_loss(first: Tensor, second: Tensor, decorrelation: float) -> Tensor:
    """Return the loss of two views' rows `[nodes, D]`."""
    first, second = standard_columns(first), standard_columns(second)
    one = torch.eye(first.shape[1], device=first.device)
    spread = sum((view.t() @ view - one).square().sum() for view in (first, second))
    return decorrelation * spread - (first * second).sum()


SYSTEM = System(
    name="ccassg",
    title="CCA-SSG",
    estimator="CCASSG",
    group="self-supervised",
    paper=(
        "Zhang et al.: From Canonical Correlation Analysis to Self-supervised Graph Neural Networks. NeurIPS"
    ),
    year=2021,
    sees=("features", "edges"),
    kind=CCASSG,
    settings=CCASSGSettings(),
    cost="two encodings and the correlations of all columns per epoch; no pairs of nodes",
    ranges={
        "layers": (2, 1),
        "decorrelation": (1e-3, 5e-4),
        "feature_drop": (0.2, 0.1, 0.3, 0.0),
        "edge_drop": (0.4, 0.2, 0.5),
        "epochs": (100, 50, 20),
    },
    published={
        "cora": {"scale_features": "sums", "feature_drop": 0.1, "epochs": 50},
        "citeseer": {
            "scale_features": "sums",
            "layers": 1,
            "decorrelation": 5e-4,
            "feature_drop": 0.0,
            "epochs": 20,
        },
        "pubmed": {"scale_features": "sums", "feature_drop": 0.3, "edge_drop": 0.5},
    },
    source="the commands in the authors' README, which has the three citation graphs",
)
