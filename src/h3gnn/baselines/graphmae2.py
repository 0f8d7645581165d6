"""GraphMAE2 (Hou et al., 2023): GraphMAE that also predicts embeddings, and decodes several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.encoders import linear_layers
from h3gnn.baselines.graphmae import GraphMAE, GraphMAESettings, share_of
from h3gnn.baselines.moving import follow, slow_copy
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph

NARROW = 256
"""Width of the projector's hidden layer."""


@dataclass(frozen=True)
class GraphMAE2Settings(GraphMAESettings):
    """Settings of GraphMAE2.

    Attributes:
        decodings: how many times is decoded, each time with other nodes hidden from the decoder; 0 for once,
            with the masked nodes hidden, as GraphMAE does.
        hidden_ratio: the share of nodes hidden from the decoder.
        latent_weight: of predicting the slow encoder's embedding of the whole graph.
        momentum: of the slow encoder: 0 is the encoder itself, 1 never moves.
    """

    replace_ratio: float = 0.0
    decodings: int = 3
    hidden_ratio: float = 0.5
    latent_weight: float = 0.5
    momentum: float = 0.996


class GraphMAE2(GraphMAE):
    r"""GraphMAE's encoder f, decoded K times with random nodes hidden, and a slow copy's view predicted.

    .. math:: \mathcal L = \textstyle\sum_{k=1}^K \tfrac1{|V_m|} \sum_{v \in V_m}
        (1 - \cos(x_v, \hat x^k_v))^\gamma + \lambda \tfrac1n \sum_v (1 - \cos(q(p(h_v)), \bar p(\bar h_v)))

    :math:`\bar H = \bar f(X, A)` and :math:`\bar p` are moving averages of the encoder and its projector;
    they see the features of all nodes. Hidden nodes enter the decoder as a second token. Both tokens start
    at zero.
    """

    def build(self, graph: Graph) -> None:
        """Add the second token, the projector, the predictor, and the slow copies."""
        super().build(graph)
        width = self.settings.width
        self.second_token = nn.Parameter(torch.zeros(width))
        self.projector = linear_layers(width, NARROW, width, activation=nn.PReLU)
        self.predictor = nn.Sequential(nn.PReLU(), nn.Linear(width, width))
        self.slow_encoder, self.slow_projector = slow_copy(self.encoder), slow_copy(self.projector)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add further decodings."""
        more = max(0, settings.decodings - 1) * sizes.nodes * (3 * sizes.features + 6 * settings.width)
        return super().bytes_for(sizes, settings) + int(4 * more)

    def loss(self, epoch: int) -> Tensor:
        """Hide some nodes' features, say them, and predict what the slow encoder makes of all nodes."""
        settings = self.settings
        order = torch.randperm(self.features.shape[0], device=self.device)
        masked = order[: share_of(order.numel(), settings.mask_ratio)]
        encoded = self.encode_masked(masked)
        code = self.bridge(encoded)
        if settings.decodings:
            said = torch.stack([self.error(self.hide(code), masked) for _ in range(settings.decodings)]).sum()
        else:
            said = self.error(code.index_fill(0, masked, 0.0), masked)
        weight: float = settings.latent_weight
        return said + weight * self.disagreement(encoded)

    def hide(self, code: Tensor) -> Tensor:
        """Put the second token in the place of random nodes."""
        order = torch.randperm(len(code), device=self.device)
        hidden = order[: share_of(len(code), self.settings.hidden_ratio)]
        return code.index_copy(0, hidden, self.second_token.expand(len(hidden), -1))

    def disagreement(self, encoded: Tensor) -> Tensor:
        """Return how far the prediction is from the slow encoder's embedding, a mean over nodes."""
        with torch.no_grad():
            shown = self.features.dropped(self.settings.feature_drop) @ self.slow_encoder.first.weight
            target = self.slow_projector(self.slow_encoder(shown, self.edges))
        predicted = self.predictor(self.projector(encoded))
        return (1 - functional.cosine_similarity(predicted, target, dim=1)).mean()

    def after(self, epoch: int) -> None:
        """Lower the rate, and move the slow copies."""
        super().after(epoch)
        follow(self.slow_encoder, self.encoder, self.settings.momentum)
        follow(self.slow_projector, self.projector, self.settings.momentum)


SYSTEM = System(
    name="graphmae2",
    title="GraphMAE2",
    estimator="GraphMAE2",
    group="self-supervised",
    paper="Hou et al.: GraphMAE2: A Decoding-Enhanced Masked Self-Supervised Graph Learner. WWW",
    year=2023,
    sees=("features", "edges"),
    kind=GraphMAE2,
    settings=GraphMAE2Settings(epochs=150),
    cost="attention over every edge, twice to encode and once for each decoding, in every epoch",
    ranges={
        "latent_weight": (0.5, 0.1, 1.0),
        "decodings": (3, 0, 1),
        "mask_ratio": (0.5, 0.75, 0.25),
        "gamma": (3.0, 1.0, 2.0),
        "momentum": (0.996, 0.0, 1.0),
        "learning_rate": (0.001, 0.0005, 0.005),
    },
    published={
        ANY: {"scale_features": "sums", "decodings": 0},
        "cora": {"width": 1024, "heads": 8, "latent_weight": 0.15, "momentum": 0.0, "epochs": 2000},
        "citeseer": {
            "width": 1024,
            "learning_rate": 5e-4,
            "weight_decay": 1e-4,
            "gamma": 1.0,
            "latent_weight": 0.1,
            "momentum": 1.0,
            "epochs": 500,
        },
        "pubmed": {
            "heads": 2,
            "learning_rate": 0.005,
            "weight_decay": 1e-5,
            "mask_ratio": 0.9,
            "gamma": 4.0,
            "latent_weight": 1.0,
            "momentum": 0.995,
            "epochs": 2000,
        },
    },
    source="the public code's settings for Cora, Citeseer and PubMed, where it decodes once",
)
