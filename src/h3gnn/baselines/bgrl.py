"""BGRL (Thakoor et al., 2022): predict a slow copy's view of the graph from another view of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder, linear_layers
from h3gnn.baselines.layers import Features, scaled_features
from h3gnn.baselines.moving import follow, half_cosine, set_rate, warm_cosine
from h3gnn.baselines.systems import ANY, System
from h3gnn.baselines.views import View, Views
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class BGRLSettings(EmbedderSettings):
    """Settings of BGRL.

    Attributes:
        width: of the embedding; the hidden layer and the predictor's are twice as wide.
        learning_rate, weight_decay: of AdamW; the rate rises over the first tenth, then falls as a cosine.
        momentum: of the slow copy at the start; it rises to 1 as a cosine.
        feature_drop, edge_drop: shares dropped in the first and in the second view.
    """

    width: int = 256
    learning_rate: float = 0.0005
    weight_decay: float = 1e-5
    momentum: float = 0.99
    feature_drop: tuple[float, float] = (0.3, 0.4)
    edge_drop: tuple[float, float] = (0.3, 0.4)


class BGRL(Embedder):
    r"""The online encoder, its predictor p, and the target, a moving average of the encoder.

    .. math:: \mathcal L = 2 - \tfrac1n \textstyle\sum_v
        \cos(p(z^1_v), \bar z^2_v) + \cos(p(z^2_v), \bar z^1_v)
    """

    adam = torch.optim.AdamW

    def build(self, graph: Graph) -> None:
        """Make both encoders and the predictor."""
        width = self.settings.width
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.views = Views(graph, self.device)
        self.online, self.target = _encoder(features, width), _encoder(features, width).requires_grad_(False)
        self.predictor = linear_layers(width, 2 * width, width, activation=nn.PReLU)
        for layer in (self.predictor[0], self.predictor[2]):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def loss(self, epoch: int) -> Tensor:
        """Predict each view's target from the other."""
        set_rate(self.optimiser, self.settings.learning_rate * warm_cosine(epoch, self.settings.epochs))
        shares = zip(self.settings.feature_drop, self.settings.edge_drop, strict=True)
        return self.disagreement(*(self.views.draw(*one) for one in shares))

    def disagreement(self, first: View, second: View) -> Tensor:
        """Return the loss of two views."""
        with torch.no_grad():
            targets = [self.target(view.matrix, view.kept_columns) for view in (second, first)]
        encoded = [self.online(view.matrix, view.kept_columns) for view in (first, second)]
        predicted = [self.predictor(rows) for rows in encoded]
        alike = [functional.cosine_similarity(p, t, dim=1) for p, t in zip(predicted, targets, strict=True)]
        return 2 - (alike[0] + alike[1]).mean()

    def after(self, epoch: int) -> None:
        """Move the target towards the online encoder."""
        moved = (1 - self.settings.momentum) * half_cosine(epoch / self.settings.epochs)
        follow(self.target, self.online, 1 - moved)

    def embedding(self) -> Tensor:
        """Encode the whole graph with the online encoder."""
        rows: Tensor = self.online(self.views.full().matrix)
        return rows


def _encoder(features: Features, width: int) -> GraphEncoder:
    """Return two graph convolutions, each with batch norm and a PReLU."""
    widths = 2 * width, width
    after = [nn.Sequential(nn.BatchNorm1d(one, momentum=0.01), nn.PReLU()) for one in widths]
    return GraphEncoder(features, widths, after)


SYSTEM = System(
    name="bgrl",
    title="BGRL",
    estimator="BGRL",
    group="self-supervised",
    paper="Thakoor et al.: Large-Scale Representation Learning on Graphs via Bootstrapping. ICLR",
    year=2022,
    sees=("features", "edges"),
    kind=BGRL,
    settings=BGRLSettings(),
    cost="four encodings of two layers per epoch",
    ranges={
        "learning_rate": (0.0005, 0.0001, 0.005),
        "feature_drop": ((0.3, 0.4), (0.1, 0.2)),
        "edge_drop": ((0.3, 0.4), (0.2, 0.3)),
        "epochs": (300, 1000),
    },
    published={ANY: {"edge_drop": (0.2, 0.3), "feature_drop": (0.2, 0.1), "epochs": 10_000}},
    source="the public code's settings for WikiCS; none are known for the graphs here",
)
