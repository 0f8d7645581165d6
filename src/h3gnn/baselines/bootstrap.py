"""Two-view systems without negatives: BGRL and CCA-SSG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import Features, GraphEncoder, linear_layers, standard_columns
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.sampling import View, Views, set_learning_rate, update_average
from h3gnn.graphs.graph import Graph
from h3gnn.training.optimizer import warmup_cosine


@dataclass(frozen=True)
class BGRLSettings(EmbedderSettings):
    """Settings of BGRL.

    Attributes:
        width: of the embedding; the hidden layer and the predictor's are twice as wide.
        learning_rate, weight_decay: of AdamW; the rate rises over the first tenth, then falls as a cosine.
        momentum: initial momentum of the target encoder; it rises to 1 as a cosine.
        feature_drop, edge_drop: drop probabilities of the first and of the second view.
    """

    width: int = 256
    learning_rate: float = 0.0005
    weight_decay: float = 1e-5
    momentum: float = 0.99
    feature_drop: tuple[float, float] = (0.3, 0.4)
    edge_drop: tuple[float, float] = (0.3, 0.4)


class BGRL(Embedder):
    r"""Bootstrapped graph latents: a predictor and a target encoder (Thakoor et al., 2022).

    .. math:: \mathcal L = 2 - \tfrac1n \textstyle\sum_v
        \cos(p(z^1_v), \bar z^2_v) + \cos(p(z^2_v), \bar z^1_v)
    """

    settings_class = BGRLSettings
    adam = torch.optim.AdamW

    def build(self, graph: Graph) -> None:
        width = self.settings.width
        self.views = Views(graph, self.device)
        self.online = _encoder(self.features, width)
        self.target = _encoder(self.features, width).requires_grad_(False)
        self.predictor = linear_layers(width, 2 * width, width, activation=nn.PReLU)
        for layer in (self.predictor[0], self.predictor[2]):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def loss(self, epoch: int) -> Tensor:
        set_learning_rate(
            self.optimizer,
            self.settings.learning_rate
            * warmup_cosine(epoch, self.settings.epochs, max(1, self.settings.epochs // 10)),
        )
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
        moved = (1 - self.settings.momentum) * warmup_cosine(epoch, self.settings.epochs, 0)
        update_average(self.target, self.online, 1 - moved)

    def embedding(self) -> Tensor:
        return self.online(self.views.full().matrix)


def _encoder(features: Features, width: int) -> GraphEncoder:
    """Return two graph convolutions, each with batch norm and a PReLU."""
    widths = 2 * width, width
    after = [nn.Sequential(nn.BatchNorm1d(one, momentum=0.01), nn.PReLU()) for one in widths]
    return GraphEncoder(features, widths, after)


@dataclass(frozen=True)
class CCASSGSettings(EmbedderSettings):
    r"""Settings of CCA-SSG.

    Attributes:
        layers: graph convolutions, all of the embedding's width.
        decorrelation: :math:`\lambda`, weight of the decorrelation.
        feature_drop, edge_drop: drop probabilities of both views.
    """

    epochs: int = 100
    layers: int = 2
    decorrelation: float = 1e-3
    feature_drop: float = 0.2
    edge_drop: float = 0.4


class CCASSG(Embedder):
    r"""Canonical correlation between two augmented views (Zhang et al., 2021).

    .. math:: \mathcal L = -\operatorname{tr} \tilde Z_1^\top \tilde Z_2 + \lambda \big(
        \lVert \tilde Z_1^\top \tilde Z_1 - I \rVert^2 + \lVert \tilde Z_2^\top \tilde Z_2 - I \rVert^2 \big),
        \quad \tilde z = \frac{z - \bar z}{\sigma_z \sqrt n}

    The first term is, up to a constant, half of the paper's :math:`\lVert \tilde Z_1 - \tilde Z_2 \rVert^2`,
    as in the authors' code. A constant column becomes 0.
    """

    settings_class = CCASSGSettings

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        squares = settings.width**2 * (12 + 4 * settings.layers)
        return super().bytes_for(sizes, settings) + int(4 * squares)

    def build(self, graph: Graph) -> None:
        self.views = Views(graph, self.device)
        widths = [self.settings.width] * self.settings.layers
        self.encoder = GraphEncoder(self.features, widths, [*(nn.ReLU() for _ in widths[1:]), nn.Identity()])

    def loss(self, epoch: int) -> Tensor:
        drawn = (self.views.draw(self.settings.feature_drop, self.settings.edge_drop) for _ in range(2))
        first, second = (self.encoder(view.matrix, view.kept_columns) for view in drawn)
        return correlation_loss(first, second, self.settings.decorrelation)

    def embedding(self) -> Tensor:
        return self.encoder(self.views.full().matrix)


def correlation_loss(first: Tensor, second: Tensor, decorrelation: float) -> Tensor:
    """Return the loss of two views' rows `[nodes, D]`."""
    first, second = standard_columns(first), standard_columns(second)
    one = torch.eye(first.shape[1], device=first.device)
    spread = sum((view.t() @ view - one).square().sum() for view in (first, second))
    return decorrelation * spread - (first * second).sum()
