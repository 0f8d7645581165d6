"""DSSL (Xiao et al., 2022): predict a neighbour from a node and from why the two are linked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder, linear_layers
from h3gnn.baselines.layers import Features, adjacency, gcn_adjacency, scaled_features, to_device
from h3gnn.baselines.moving import follow
from h3gnn.baselines.neighbours import Neighbours
from h3gnn.baselines.systems import Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class DSSLSettings(EmbedderSettings):
    """Settings of DSSL.

    Attributes:
        width: of both layers of the encoder, and of all others.
        learning_rate, weight_decay: of AdamW.
        prototypes: how many latent clusters, K, explain a link.
        samples: how many neighbours are predicted; the node itself counts as one.
        shift: how much a cluster moves the prediction.
        prior_weight: of the term that keeps a link's clusters near those of its node.
        temperature: of the node's clusters; a small one makes them sharp.
        momentum: of the slow copy of the encoder.
        dropout: between the encoder's layers.
    """

    width: int = 256
    epochs: int = 200
    learning_rate: float = 0.001
    weight_decay: float = 1e-5
    prototypes: int = 6
    samples: int = 5
    shift: float = 1.0
    prior_weight: float = 0.1
    temperature: float = 1.0
    momentum: float = 0.99
    dropout: float = 0.5


class DSSL(Embedder):
    r"""Links come from latent clusters k, so that neighbours may be linked for different reasons.

    With z of the encoder and t of the target (its moving average), rows of length 1, :math:`\mu_k` the
    prototypes, and small networks q, g and s,

    .. math:: q(k \mid v, u) = \mathrm{softmax}\, q(z_v \odot t_u), \quad
        q(k \mid v) = \tfrac1{|N(v)|} \textstyle\sum_u q(k \mid v, u), \quad
        p(k \mid v) = \mathrm{softmax}(z_v^\top \mu_k / \tau)

    .. math:: \mathcal L = \tfrac1n \sum_v \tfrac1{|N(v)|} \sum_{u \in N(v)}
        \big(2 - 2\cos(g(z_v) + \beta\, s(k_{vu}), t_u)\big)
        + \gamma\, \mathrm{KL}\big(q(k \mid v) \,\|\, p(k \mid v)\big)

    :math:`k_{vu}` is drawn from :math:`q(k \mid v, u)` by the Gumbel softmax. After each epoch a prototype is
    the direction of the mean of the nodes whose likeliest cluster it is, by :math:`q(k \mid v)`.
    """

    adam = torch.optim.AdamW
    prototypes: Tensor

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count what is predicted for every drawn neighbour."""
        pairs: int = sizes.nodes * settings.samples * settings.width
        return super().bytes_for(sizes, settings) + 4 * 16 * pairs

    def build(self, graph: Graph) -> None:
        """Make both encoders and the three networks; draw the neighbours and where prototypes begin."""
        width, clusters = self.settings.width, self.settings.prototypes
        features = scaled_features(graph, self.device, self.settings.scale_features)
        self.matrix = gcn_adjacency(graph, self.device)
        self.online = self.encoder(features)
        self.target = self.encoder(features).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.inference = linear_layers(width, width, clusters)
        self.predictor = linear_layers(width, width, width)
        self.shift = linear_layers(clusters, width, width)
        loops = to_device(adjacency(graph, self_loops=True), self.device)
        self.near = Neighbours(loops).draw(self.settings.samples)
        self.register_buffer("prototypes", functional.normalize(torch.randn(clusters, width), dim=1))

    def encoder(self, features: Features) -> GraphEncoder:
        """Return two graph convolutions, with batch norm, ReLU and dropout between them."""
        width = self.settings.width
        between = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(self.settings.dropout))
        return GraphEncoder(features, [width, width], [between, nn.Identity()])

    def loss(self, epoch: int) -> Tensor:
        """Predict neighbours by clusters, and keep the clusters near the prior."""
        here = functional.normalize(self.online(self.matrix), dim=1)
        with torch.no_grad():
            there = functional.normalize(self.target(self.matrix), dim=1)[self.near]
        scores = self.inference(here[:, None] * there)  # [nodes, samples, clusters]
        self.seen = here.detach(), scores.detach()
        drawn = functional.gumbel_softmax(scores, dim=2)
        predicted = self.predictor(here)[:, None] + self.settings.shift * self.shift(drawn)
        apart = 2 - 2 * functional.cosine_similarity(predicted, there, dim=2).mean()
        loss: Tensor = apart + self.settings.prior_weight * self.divergence(here, scores)
        return loss

    def divergence(self, embedding: Tensor, scores: Tensor) -> Tensor:
        """Return the mean over nodes of KL(q(k | v) || p(k | v)), of rows of length 1 and links' scores."""
        posterior = scores.softmax(dim=2).mean(dim=1)
        prior = (embedding @ self.prototypes.t() / self.settings.temperature).log_softmax(dim=1)
        return functional.kl_div(prior, posterior, reduction="batchmean")

    @torch.no_grad()
    def after(self, epoch: int) -> None:
        """Move the target towards the encoder, and the prototypes to their nodes."""
        follow(self.target, self.online, self.settings.momentum)
        embedding, scores = self.seen
        self.gather(embedding, scores.softmax(dim=2).mean(dim=1).argmax(dim=1))

    def gather(self, embedding: Tensor, chosen: Tensor) -> None:
        """Make each prototype the direction of the mean of its nodes; without nodes it stays."""
        sums = torch.zeros_like(self.prototypes).index_add_(0, chosen, embedding)
        held = torch.bincount(chosen, minlength=len(sums)) > 0
        self.prototypes.copy_(torch.where(held[:, None], functional.normalize(sums, dim=1), self.prototypes))

    def embedding(self) -> Tensor:
        """Encode the graph."""
        rows: Tensor = self.online(self.matrix)
        return rows


SYSTEM = System(
    name="dssl",
    title="DSSL",
    estimator="DSSL",
    group="self-supervised",
    paper="Xiao et al.: Decoupled Self-supervised Learning for Graphs. NeurIPS",
    year=2022,
    sees=("features", "edges"),
    kind=DSSL,
    settings=DSSLSettings(),
    cost="two encodings and the prediction of a few neighbours of every node, per epoch",
    ranges={
        "prototypes": (6, 3, 12),
        "prior_weight": (0.1, 0.01, 1.0),
        "temperature": (1.0, 0.5, 0.1),
        "momentum": (0.99, 0.9, 0.999),
        "dropout": (0.5, 0.2),
        "learning_rate": (0.001, 0.0001),
    },
    source="none: no code of the authors was found, and the defaults follow a port of it in OpenHGNN",
)
