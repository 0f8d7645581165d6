"""BGRL (Thakoor et al., 2022): predict a slow copy's view of the graph from another view of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import Convolution, Features, scaled_features
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

    def build(self, graph: Graph) -> None:
        """Make both encoders and the predictor."""
        width = self.settings.width
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.views = Views(graph, self.device)
        self.online, self.target = Encoder(features, width), Encoder(features, width).requires_grad_(False)
        layers = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.predictor = nn.Sequential(layers[0], nn.PReLU(), layers[1])
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW over the online part."""
        trained = [*self.online.parameters(), *self.predictor.parameters()]
        return torch.optim.AdamW(
            trained, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay
        )

    def loss(self, epoch: int) -> Tensor:
        """Predict each view's target from the other."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * warm_cosine(epoch, self.settings.epochs)
        shares = zip(self.settings.feature_drop, self.settings.edge_drop, strict=True)
        return self.disagreement(*(self.views.draw(*one) for one in shares))

    def disagreement(self, first: View, second: View) -> Tensor:
        """Return the loss of two views."""
        with torch.no_grad():
            targets = self.target(second), self.target(first)
        predicted = self.predictor(self.online(first)), self.predictor(self.online(second))
        alike = [functional.cosine_similarity(p, t, dim=1) for p, t in zip(predicted, targets, strict=True)]
        return 2 - (alike[0] + alike[1]).mean()

    def after(self, epoch: int) -> None:
        """Move the target towards the online encoder."""
        self.follow(1 - (1 - self.settings.momentum) * _cosine(epoch / self.settings.epochs))

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move the target by a share of 1 - momentum."""
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, 1 - momentum)

    def embedding(self) -> Tensor:
        """Encode the whole graph with the online encoder."""
        rows: Tensor = self.online(self.views.full())
        return rows


class Encoder(nn.Module):
    """Two graph convolutions, each with batch norm and a PReLU."""

    def __init__(self, features: Features, width: int) -> None:
        super().__init__()
        self.features = features
        self.first = Convolution(features.shape[1], 2 * width)
        self.second = Convolution(2 * width, width)
        self.norms = nn.ModuleList(
            [nn.BatchNorm1d(2 * width, momentum=0.01), nn.BatchNorm1d(width, momentum=0.01)]
        )
        self.activations = nn.ModuleList([nn.PReLU(), nn.PReLU()])

    def forward(self, view: View) -> Tensor:
        """Return the embedding of a view."""
        hidden = self.first.of_features(self.features, view.matrix, view.kept_columns)
        hidden = self.activations[0](self.norms[0](hidden))
        embedding: Tensor = self.activations[1](self.norms[1](self.second(hidden, view.matrix)))
        return embedding


def warm_cosine(epoch: int, epochs: int) -> float:
    """Return the share of the learning rate: a line up over the first tenth, then half a cosine down."""
    warm = max(1, epochs // 10)
    if epoch < warm:
        return (epoch + 1) / warm
    return _cosine((epoch - warm) / max(1, epochs - warm))


def _cosine(share: float) -> float:
    return (1 + math.cos(math.pi * share)) / 2


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
