"""Self-supervised systems for heterophilous graphs: DSSL, HGRL, GraphACL and MUSE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, log_sums, mean_log_sums, nearest_others, two_view_loss
from h3gnn.baselines.embedder import Embedder, EmbedderSettings, frozen_copy, minimize, update_average
from h3gnn.baselines.layers import (
    Convolution,
    EdgePairs,
    Features,
    GraphEncoder,
    Neighbours,
    SparseMatrix,
    adjacency,
    gcn_adjacency,
    linear_layers,
    only,
    row_sums,
    standard_columns,
    symmetric,
)
from h3gnn.baselines.registry import Sizes, check_choice
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class DSSLSettings(EmbedderSettings):
    """Settings of DSSL.

    Attributes:
        learning_rate, weight_decay: of AdamW.
        prototypes: K, the number of latent link types.
        samples: number of sampled neighbours, the node itself included.
        shift: β, the effect of a cluster on the prediction.
        prior_weight: γ, of the divergence from the prior.
        temperature: of the node's clusters; a small one makes them sharp.
        momentum: of the target encoder.
        dropout: between the encoder's layers.
    """

    width: int = 256
    epochs: int = 200
    weight_decay: float = 1e-5
    prototypes: int = 6
    samples: int = 5
    shift: float = 1.0
    prior_weight: float = 0.1
    temperature: float = 1.0
    momentum: float = 0.99
    dropout: float = 0.5


class DSSL(Embedder, settings=DSSLSettings):
    r"""Decoupled self-supervised learning with latent link types (Xiao et al., 2022).

    With unit rows z of the encoder and t of the target (its moving average), prototypes :math:`\mu_k`, and
    small networks q, g and s,

    .. math:: q(k \mid v, u) = \mathrm{softmax}\, q(z_v \odot t_u), \quad
        q(k \mid v) = \tfrac1{|N(v)|} \textstyle\sum_u q(k \mid v, u), \quad
        p(k \mid v) = \mathrm{softmax}(z_v^\top \mu_k / \tau)

    .. math:: \mathcal L = \tfrac1n \sum_v \tfrac1{|N(v)|} \sum_{u \in N(v)}
        \big(2 - 2\cos(g(z_v) + \beta\, s(k_{vu}), t_u)\big)
        + \gamma\, \mathrm{KL}\big(q(k \mid v) \,\|\, p(k \mid v)\big)

    :math:`k_{vu}` is drawn from :math:`q(k \mid v, u)` by the Gumbel softmax. After each epoch a prototype
    becomes the direction of the mean of the nodes whose likeliest cluster it is, by :math:`q(k \mid v)`.
    """

    adam = torch.optim.AdamW
    prototypes: Tensor

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        pairs: int = sizes.nodes * settings.samples * settings.width
        return super().bytes_for(sizes, settings) + 4 * 16 * pairs

    def build(self, graph: Graph) -> None:
        width, clusters = self.settings.width, self.settings.prototypes
        self.matrix = gcn_adjacency(graph, self.device)
        self.online = self.encoder(self.features)
        self.target = self.encoder(self.features).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.inference = linear_layers(width, width, clusters)
        self.predictor = linear_layers(width, width, width)
        self.shift = linear_layers(clusters, width, width)
        loops = adjacency(graph, self_loops=True).to(self.device)
        self.near = Neighbours(loops).draw(self.settings.samples)
        self.register_buffer("prototypes", functional.normalize(torch.randn(clusters, width), dim=1))

    def encoder(self, features: Features) -> GraphEncoder:
        """Return two graph convolutions, with batch norm, ReLU and dropout between them."""
        width = self.settings.width
        between = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(self.settings.dropout))
        return GraphEncoder(features, [width, width], [between, nn.Identity()])

    def loss(self, epoch: int) -> Tensor:
        here = functional.normalize(self.online(self.matrix), dim=1)
        with torch.no_grad():
            there = functional.normalize(self.target(self.matrix), dim=1)[self.near]
        scores = self.inference(here[:, None] * there)  # [nodes, samples, clusters]
        self.seen = here.detach(), scores.detach()
        drawn = functional.gumbel_softmax(scores, dim=2)
        predicted = self.predictor(here)[:, None] + self.settings.shift * self.shift(drawn)
        apart = 2 - 2 * functional.cosine_similarity(predicted, there, dim=2).mean()
        return apart + self.settings.prior_weight * self.divergence(here, scores)

    def divergence(self, embedding: Tensor, scores: Tensor) -> Tensor:
        """Return the mean over nodes of KL(q(k | v) || p(k | v)), of rows of length 1 and links' scores."""
        posterior = scores.softmax(dim=2).mean(dim=1)
        prior = (embedding @ self.prototypes.t() / self.settings.temperature).log_softmax(dim=1)
        return functional.kl_div(prior, posterior, reduction="batchmean")

    @torch.no_grad()
    def after(self, epoch: int) -> None:
        update_average(self.target, self.online, self.settings.momentum)
        embedding, scores = self.seen
        self.gather(embedding, scores.softmax(dim=2).mean(dim=1).argmax(dim=1))

    def gather(self, embedding: Tensor, chosen: Tensor) -> None:
        """Make each prototype the direction of the mean of its nodes; without nodes it stays."""
        sums = torch.zeros_like(self.prototypes).index_add_(0, chosen, embedding)
        held = torch.bincount(chosen, minlength=len(sums)) > 0
        self.prototypes.copy_(torch.where(held[:, None], functional.normalize(sums, dim=1), self.prototypes))

    def embedding(self) -> Tensor:
        return self.online(self.matrix)


KEPT_SCALE = 0.01
"""Scale of the feature loss, a sum over channels, relative to the neighbour loss."""


@dataclass(frozen=True)
class HGRLSettings(EmbedderSettings):
    """Settings of HGRL; those of its authors, but for the number of epochs and the width.

    Attributes:
        graph: "given", or "learned": from the features, by weights of their columns.
        neighbours: of a node in the learned graph, the non-local ones.
        hops: K, the largest distance of neighbours.
        balance: α, of neighbours against a node's own features.
        dropout: of features and of the hidden layer.
        feature_drop: share of feature columns that the second copy lacks.
        temperature: τ of the cosines.
    """

    width: int = 256
    epochs: int = 100
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    graph: str = "given"
    neighbours: int = 8
    hops: int = 3
    balance: float = 0.9
    dropout: float = 0.4
    feature_drop: float = 0.2
    temperature: float = 1.0


class HGRL(Embedder, settings=HGRLSettings):
    r"""A feature encoder that preserves features and neighbourhoods (Chen et al., 2022).

    Neighbours k steps away have a learned weight, on a graph with normalized adjacency :math:`\tilde A`:

    .. math:: \mathcal N = \sum_{k=1}^K -\tfrac1n \sum_v \log
        \frac{e^{\gamma_k \cos(h_v, (\tilde A^k H)_v) / \tau}}{\sum_u e^{\cos(h_v, h_u) / \tau}}, \quad
        \gamma = \operatorname{softmax}(g)

    Features are kept, as :math:`H'` of features without some columns should be the same, both with columns of
    mean 0 and variance 1/n:
    :math:`\mathcal L = \alpha \, \mathcal N + 0.01 \, (1 - \alpha) \, \lVert H - H' \rVert_F^2`. The learned
    graph joins a node with those whose :math:`\mathrm{ReLU}(x \circ w_1) \circ w_2` have the largest cosine,
    by that cosine, half for each of the two that chooses the other.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: HGRLSettings) -> int:
        learned = settings.graph == "learned"
        ends = 4 * 4 * sizes.nodes * (settings.neighbours + 1) * sizes.features if learned else 0
        return super().bytes_for(sizes, settings) + ends + bytes_for_pairs(sizes.nodes)

    def build(self, graph: Graph) -> None:
        settings, width = self.settings, self.settings.width
        check_choice("HGRL", "graph", settings.graph, ("given", "learned"))
        self.first, self.second = nn.Linear(graph.num_features, width), nn.Linear(width, width)
        spread = (3 / settings.hops) ** 0.5
        start = (2 * torch.rand(settings.hops) - 1) * spread
        self.distances = nn.Parameter(start / start.abs().sum())
        if settings.graph == "learned":
            self.dense = self.features.dense()
            self.column_weights = nn.Parameter(torch.ones(2, graph.num_features))
        else:
            self.matrix = gcn_adjacency(graph, self.device)

    def begin(self) -> None:
        others = [parameter for parameter in self.parameters() if parameter is not self.distances]
        groups = [
            {"params": others, "weight_decay": self.settings.weight_decay},
            {"params": [self.distances], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.Adam(groups, lr=self.settings.learning_rate)

    def loss(self, epoch: int) -> Tensor:
        settings = self.settings
        kept = torch.rand(self.features.shape[1], device=self.device) >= settings.feature_drop
        rows, copy = self.encode(), self.encode(kept)
        matrix = self.learned_graph() if settings.graph == "learned" else self.matrix
        near = self.neighbour_loss(rows, matrix)
        return settings.balance * near + KEPT_SCALE * (1 - settings.balance) * apart(rows, copy)

    def encode(self, kept: Tensor | None = None) -> Tensor:
        """Return rows of features with dropout; columns that are not kept count as zero."""
        product = self.features.dropped(self.settings.dropout) @ only(self.first.weight.t(), kept)
        hidden = functional.dropout(torch.relu(product + self.first.bias), self.settings.dropout)
        return self.second(hidden)

    def neighbour_loss(self, rows: Tensor, matrix: SparseMatrix) -> Tensor:
        """Return the loss of neighbours at each distance; the sums below are the same for all."""
        shares = torch.softmax(self.distances, dim=0)
        loss: Tensor = self.settings.hops * mean_log_sums(rows, rows, self.settings.temperature)
        reached = rows
        for hop in range(self.settings.hops):
            reached = matrix @ reached
            alike = functional.cosine_similarity(rows, reached, dim=1).mean()
            loss = loss - shares[hop] * alike / self.settings.temperature
        return loss

    def learned_graph(self) -> SparseMatrix:
        weights = self.column_weights
        unit = functional.normalize(torch.relu(self.dense * weights[0]) * weights[1])
        nodes = len(unit)
        near = nearest_others(unit.detach(), self.settings.neighbours)
        one = torch.arange(nodes, device=self.device).repeat_interleave(near.shape[1])
        other = near.flatten()
        alike = torch.relu((unit[one] * unit[other]).sum(dim=1)) / 2
        loop = torch.arange(nodes, device=self.device)
        keys = torch.cat([one * nodes + other, other * nodes + one, loop * nodes + loop])
        entries, position = torch.unique(keys, return_inverse=True)
        parts = torch.cat([alike, alike, torch.ones(nodes, device=self.device)])
        values = torch.zeros(len(entries), device=self.device).index_add(0, position, parts)
        return symmetric(symmetric(SparseMatrix(entries // nodes, entries % nodes, values, (nodes, nodes))))

    def embedding(self) -> Tensor:
        product = self.features @ self.first.weight.t()
        return self.second(torch.relu(product + self.first.bias))


def apart(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared distance of two copies with standardized columns."""
    return (standard_columns(first) - standard_columns(second)).square().sum()


@dataclass(frozen=True)
class GraphACLSettings(EmbedderSettings):
    """Settings of GraphACL; by default about the authors' for heterophilous graphs, six of the nine here.

    Attributes:
        linear: whether the encoder has no activation between its layers.
        self_loops: whether a node is its own neighbour, in the encoder and in the loss.
        samples: neighbours to predict and others to contrast with, sampled per node and epoch; 0 for all.
        temperature: of the cosines.
        momentum: of the target encoder.
    """

    width: int = 1024
    epochs: int = 50
    learning_rate: float = 0.0005
    weight_decay: float = 3e-4
    layers: int = 2
    linear: bool = True
    self_loops: bool = False
    samples: int = 5
    predictor_layers: int = 1
    temperature: float = 0.5
    momentum: float = 0.97


class GraphACL(Embedder, settings=GraphACLSettings):
    r"""Asymmetric contrastive learning without augmentations (Xiao et al., 2023).

    With z of the encoder, t of the target (its moving average) and cosines divided by the temperature,

    .. math:: \mathcal L = \frac1n \sum_v \frac1{|N(v)|} \sum_{u \in N(v)} -\log
        \frac{e^{\cos(g(z_v), t_u)}}{e^{\cos(g(z_v), t_u)} + \sum_w e^{\cos(z_v, z_w)}}

    The predictor g keeps neighbours from becoming similar themselves. On homophilous graphs the authors use
    all neighbours, self-loops and all nodes w; on heterophilous ones a linear encoder, and a few drawn u and
    w.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        pairs = 2 * sizes.nodes * settings.samples or sizes.edges + sizes.nodes
        crowd = 0 if settings.samples else bytes_for_pairs(sizes.nodes, 0)
        weights = settings.width**2 * (2 * settings.layers + settings.predictor_layers)
        numbers: int = 6 * pairs * settings.width + 4 * weights
        return super().bytes_for(sizes, settings) + 4 * numbers + crowd

    def build(self, graph: Graph) -> None:
        width, settings = self.settings.width, self.settings
        links = adjacency(graph, self_loops=self.settings.self_loops).to(self.device)
        if not links.cols.numel():
            raise InputError("GraphACL needs edges, or self_loops=True", code="no-edges")
        self.neighbours = Neighbours(links)
        self.matrix = symmetric(links)
        between = nn.Identity() if settings.linear else nn.ReLU()
        after = [*[between] * (settings.layers - 1), nn.Identity()]
        self.online = GraphEncoder(self.features, [width] * settings.layers, after)
        self.target = frozen_copy(self.online)
        self.predictor = linear_layers(*[width] * (settings.predictor_layers + 1))

    def loss(self, epoch: int) -> Tensor:
        embedding = self.online(self.matrix)
        with torch.no_grad():
            target = functional.normalize(self.target(self.matrix), dim=1)
        predicted = functional.normalize(self.predictor(embedding), dim=1)
        return self.asymmetric(predicted, target, functional.normalize(embedding, dim=1))

    def asymmetric(self, predicted: Tensor, target: Tensor, embedding: Tensor) -> Tensor:
        """Return the loss of rows of length 1: a node's prediction, a neighbour's target, embeddings."""
        samples, temperature = self.settings.samples, self.settings.temperature
        here, there = self.neighbours.rows, self.neighbours.cols
        if samples:
            linked = (self.neighbours.degree > 0).nonzero().squeeze(1)
            here = linked.repeat_interleave(samples)
            there = self.neighbours.draw(samples)[linked].flatten()
        alike = (predicted[here] * target[there]).sum(dim=1) / temperature
        if samples:
            others = torch.randint(len(embedding), (len(embedding), samples), device=embedding.device)
            crowd = torch.einsum("nd,nsd->ns", embedding, embedding[others]).div(temperature).logsumexp(dim=1)
        else:
            crowd = log_sums(embedding, temperature)
        each = torch.logaddexp(alike, crowd[here]) - alike
        count = torch.bincount(here, minlength=len(embedding))
        return (each / count[here]).sum() / (count > 0).sum()

    def after(self, epoch: int) -> None:
        update_average(self.target, self.online, self.settings.momentum)

    def embedding(self) -> Tensor:
        return self.online(self.matrix)


@dataclass(frozen=True)
class MUSESettings(EmbedderSettings):
    """Settings of MUSE; the authors', but with equal weights of the losses and a target of one half.

    Attributes:
        width: of the embedding and of the projection; the hidden layer is twice as wide.
        dropout: of the features' values.
        feature_drop, edge_drop: drop probabilities of feature columns and of edges.
        temperature: of the cosines in GRACE's loss.
        neighbour_weight, fused_weight: λ₁ and λ₂, of the losses of neighbours and of the mixture.
        target, target_weight: t and λ₃, of the mean weight of the neighbours.
        size_weight: λ₄, of the norm of all weights.
        gate_width, gate_dropout: of the controller.
    """

    width: int = 128
    epochs: int = 100
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    dropout: float = 0.2
    feature_drop: float = 0.2
    edge_drop: float = 0.2
    temperature: float = 0.5
    neighbour_weight: float = 1.0
    fused_weight: float = 1.0
    target: float = 0.5
    target_weight: float = 1.0
    size_weight: float = 1.0
    gate_width: int = 30
    gate_dropout: float = 0.4


class MUSE(Embedder, settings=MUSESettings):
    r"""Contrastive learning of a semantic and a contextual view, fused per node (Yuan et al., 2023).

    .. math:: f(X, A) = \mathrm{PReLU}(A \, \mathrm{ReLU}(A X W_1 + b_1) W_2 + b_2), \quad
        S = f(X, I), \; N = f(X, A), \; Z = S + \beta N

    The augmented :math:`S'` and :math:`N'` drop feature columns and edges. With GRACE's loss G of
    projections, the encoder minimizes

    .. math:: G(S, S') + \lambda_1 G(N, N') + \lambda_2 G(S + \beta N, S' + \beta N')

    and the controller, for the weight β of each node's neighbours, where d is the degree,

    .. math:: \textstyle\sum_v \beta_v \cos(s_v, n_v) + \lambda_3 n \, |\tfrac1n \sum_v \beta_v - t|
        + \lambda_4 \lVert \beta \rVert_2, \quad \beta = \sigma(w^\top [W_3 S, W_4 N, d] + b)
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: MUSESettings) -> int:
        hidden = 4 * sizes.nodes * settings.width * 40
        return super().bytes_for(sizes, settings) + hidden + bytes_for_pairs(sizes.nodes, 3)

    def build(self, graph: Graph) -> None:
        width = self.settings.width
        self.matrix = adjacency(graph, self_loops=False).to(self.device)
        self.degrees = row_sums(self.matrix)[:, None]
        self.pairs = EdgePairs(self.matrix)
        self.first, self.second = Convolution(graph.num_features, 2 * width), Convolution(2 * width, width)
        self.activation = nn.PReLU()
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ELU(), nn.Linear(width, width)
        )
        self.controller = Controller(width, self.settings.gate_width, self.settings.gate_dropout)

    def begin(self) -> None:
        encoder = (self.first, self.second, self.activation, self.head)
        self.optimizer = self.adam_of(one for part in encoder for one in part.parameters())
        self.mixing = self.adam_of(self.controller.parameters())

    def step(self, epoch: int) -> Tensor:
        loss = minimize(self.contrast(), self.optimizer)
        with torch.no_grad():
            product = self.product()
            own, near = self.encode(product), self.encode(product, self.matrix)
        minimize(self.mixture_loss(own, near), self.mixing)
        return loss

    def product(self, kept: Tensor | None = None) -> Tensor:
        """Return `X W`, with values of X dropped; columns that are not kept count as zero."""
        return self.features.dropped(self.settings.dropout) @ only(self.first.weight, kept)

    def encode(self, product: Tensor, matrix: SparseMatrix | None = None) -> Tensor:
        """Encode `X W` over a matrix, or each node by itself."""
        hidden = torch.relu((product if matrix is None else matrix @ product) + self.first.bias)
        hidden = hidden @ self.second.weight
        return self.activation((hidden if matrix is None else matrix @ hidden) + self.second.bias)

    def contrast(self) -> Tensor:
        """Return the encoder's loss, with the controller as it is."""
        settings = self.settings
        kept = torch.rand(self.features.shape[1], device=self.device) >= settings.feature_drop
        fewer = self.matrix.with_values(self.matrix.values * self.pairs.kept(settings.edge_drop))
        whole, part = self.product(), self.product(kept)
        own, own_copy = self.encode(whole), self.encode(part)
        near, near_copy = self.encode(whole, self.matrix), self.encode(whole, fewer)
        with torch.no_grad():
            shares = self.controller(own, near, self.degrees)
        fused = self.agreement(own + shares * near, own_copy + shares * near_copy)
        loss = self.agreement(own, own_copy) + settings.fused_weight * fused
        return loss + settings.neighbour_weight * self.agreement(near, near_copy)

    def agreement(self, first: Tensor, second: Tensor) -> Tensor:
        return two_view_loss(self.head(first), self.head(second), self.settings.temperature)

    def mixture_loss(self, own: Tensor, near: Tensor) -> Tensor:
        """Return the controller's loss: similar neighbours weigh less, and the mean is near its target."""
        settings = self.settings
        shares: Tensor = self.controller(own, near, self.degrees).squeeze(1)
        alike = shares @ functional.cosine_similarity(own, near, dim=1)
        off = (shares.mean() - settings.target).abs()
        off = settings.target_weight * len(shares) * off
        return alike + off + settings.size_weight * shares.norm()

    def embedding(self) -> Tensor:
        product = self.features @ self.first.weight
        own, near = self.encode(product), self.encode(product, self.matrix)
        return own + self.controller(own, near, self.degrees) * near


class Controller(nn.Module):
    """Computes the weight of each node's neighbours from both views and the degree."""

    def __init__(self, width: int, gate_width: int, dropout: float) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(width, gate_width), nn.Linear(width, gate_width)
        self.share = nn.Linear(2 * gate_width + 1, 1)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.own, self.near, self.share):
            nn.init.xavier_normal_(layer.weight, gain=2**0.5)

    def forward(self, own: Tensor, near: Tensor, degrees: Tensor) -> Tensor:
        """Return shares `[nodes, 1]` for views `[nodes, width]` and degrees `[nodes, 1]`."""
        seen = [self.dropout(self.own(own)), self.dropout(self.near(near)), degrees]
        return torch.sigmoid(self.dropout(self.share(torch.cat(seen, dim=1))))
