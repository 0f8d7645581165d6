"""Contrastive systems: DGI, GMI, GRACE and MVGRL, and BGRL and CCA-SSG, which need no negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, edge_cross_entropy, two_view_loss
from h3gnn.baselines.embedder import Embedder, EmbedderSettings, set_learning_rate, update_average
from h3gnn.baselines.layers import (
    Features,
    GraphEncoder,
    SparseMatrix,
    View,
    Views,
    adjacency,
    gcn_adjacency,
    linear_layers,
    neighbour_mean,
    standard_columns,
)
from h3gnn.baselines.registry import Sizes
from h3gnn.graphs.graph import Graph
from h3gnn.training.optimizer import warmup_cosine


@dataclass(frozen=True)
class DGISettings(EmbedderSettings):
    """Settings of DGI; those of the paper, but for an upper bound on the epochs."""

    patience: int = 20


class DGI(Embedder, settings=DGISettings):
    r"""Deep Graph Infomax (Veličković et al., 2019).

    .. math:: H = \mathrm{PReLU}(\tilde A X W), \quad s = \sigma\big(\tfrac1n \textstyle\sum_v h_v\big), \quad
        \mathcal L = -\tfrac1n \sum_v \log \sigma(h_v^\top M s) + \log(1 - \sigma(\tilde h_v^\top M s))

    :math:`\tilde H` encodes the shuffled features :math:`P X`; :math:`(P X) W = P (X W)` saves a product.
    """

    def build(self, graph: Graph) -> None:
        from torch_geometric.nn import DeepGraphInfomax

        width, matrix = self.settings.width, gcn_adjacency(graph, self.device)
        encoder = self.encoder = GraphEncoder(self.features, [width], [nn.PReLU()])
        self.order = torch.arange(graph.num_nodes, device=self.device)
        self.infomax = DeepGraphInfomax(
            width,
            lambda order: encoder.along(matrix, encoder.product().index_select(0, order)),
            summary=lambda z, *_: torch.sigmoid(z.mean(dim=0)),
            corruption=lambda order: order[torch.randperm(order.numel(), device=order.device)],
        )
        nn.init.xavier_uniform_(self.infomax.get_parameter("weight"))

    def loss(self, epoch: int) -> Tensor:
        return self.infomax.loss(*self.infomax(self.order))

    def embedding(self) -> Tensor:
        return self.infomax.encoder(self.order)


@dataclass(frozen=True)
class GMISettings(EmbedderSettings):
    """Settings of GMI.

    Attributes:
        layers: graph convolutions, all of the embedding's width.
        negatives: number of negative nodes per node.
        own_weight, neighbour_weight, edge_weight: of the three parts of the loss.
    """

    epochs: int = 150
    patience: int = 20
    layers: int = 2
    negatives: int = 5
    own_weight: float = 0.8
    neighbour_weight: float = 1.0
    edge_weight: float = 1.0


class GMI(Embedder, settings=GMISettings):
    r"""Graphical mutual information maximization, GMI-mean (Peng et al., 2020).

    .. math:: \mathcal L = \alpha J(h_v, x_v) + \beta J(m_v, h_v) + \gamma R, \quad
        J(a_v, b_v) = \tfrac1n \sum_v \mathrm{sp}\big(-D(a_v, b_v)\big)
        + \tfrac1k \sum_{u \sim V^k} \mathrm{sp}\big(D(a_v, b_u)\big), \quad
        D(a, b) = \sigma(b^\top \Theta a + c)

    :math:`m_v = \mathrm{PReLU}\big(\tfrac1{|N(v)|} \sum_{u \in N(v)} W_1^\top x_u\big)`, sp is the softplus,
    R the cross-entropy of :math:`\sigma(h_u^\top h_v)` with A + I over all pairs, see
    `edge_cross_entropy`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        rows = 4 * settings.negatives * sizes.nodes + 4 * (sizes.edges + sizes.nodes)
        pairs = bytes_for_pairs(sizes.nodes, 0)
        return super().bytes_for(sizes, settings) + int(4 * rows * settings.width) + pairs

    def build(self, graph: Graph) -> None:
        width, layers = self.settings.width, self.settings.layers
        self.matrix = gcn_adjacency(graph, self.device)
        self.edges = torch.stack([self.matrix.rows, self.matrix.cols])  # with loops
        self.neighbours = neighbour_mean(adjacency(graph, self_loops=False)).to(self.device)
        after = [nn.PReLU() for _ in range(layers)]
        self.encoder = GraphEncoder(self.features, [width] * layers, after)
        self.activation = nn.PReLU()
        self.own, self.near = Discriminator(graph.num_features, width), Discriminator(width, width)

    def loss(self, epoch: int) -> Tensor:
        product = self.encoder.product()
        rows = self.encoder.along(self.matrix, product)
        near = self.activation(self.neighbours @ product)
        settings = self.settings
        own_keys = self.features @ self.own.weight
        own = self.own.divergence(rows, own_keys, self._others())
        neighbour = self.near.divergence(near, rows @ self.near.weight, self._others())
        edges = edge_cross_entropy(rows, self.edges, self.edges.shape[1] / 2)
        loss: Tensor = settings.own_weight * own + settings.neighbour_weight * neighbour
        return loss + settings.edge_weight * edges

    def _others(self) -> Tensor:
        """Sample negatives, `[negatives, nodes]`."""
        nodes = self.matrix.shape[0]
        itself = torch.arange(nodes, device=self.device)
        drawn = torch.randint(max(1, nodes - 1), (self.settings.negatives, nodes), device=self.device)
        return (drawn + (drawn >= itself)) % nodes

    def embedding(self) -> Tensor:
        return self.encoder(self.matrix)


class Discriminator(nn.Module):
    """A bilinear form and a sigmoid: do two rows belong to the same node?"""

    def __init__(self, keys: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(keys, rows)))
        self.bias = nn.Parameter(torch.zeros(()))

    def divergence(self, rows: Tensor, keys: Tensor, others: Tensor) -> Tensor:
        """Return the Jensen–Shannon loss of rows against keys `[nodes, D]`; `others` are the negatives."""
        true = torch.sigmoid((rows * keys).sum(dim=1) + self.bias)
        false = torch.stack([torch.sigmoid((rows * keys[one]).sum(dim=1) + self.bias) for one in others])
        return functional.softplus(-true).mean() + functional.softplus(false).mean()


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "prelu": nn.PReLU}


@dataclass(frozen=True)
class GRACESettings(EmbedderSettings):
    """Settings of GRACE; those of its authors on Cora.

    Attributes:
        width: of the embedding and the projection; the hidden layer is twice as wide.
        feature_drop, edge_drop: drop probabilities of the first and of the second view.
        temperature: τ of the cosines.
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


class GRACE(Embedder, settings=GRACESettings):
    r"""Contrastive learning of two augmented views with InfoNCE (Zhu et al., 2020).

    .. math:: H = \sigma(\tilde A\, \sigma(\tilde A X W_1) W_2), \quad z = W_4\, \mathrm{ELU}(W_3 h), \quad
        \mathcal L = \mathrm{InfoNCE}_\tau(Z^1, Z^2)

    A node's negatives are all other nodes, of its own view and of the other, see `two_view_loss`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        return super().bytes_for(sizes, settings) + bytes_for_pairs(sizes.nodes, 3)

    def build(self, graph: Graph) -> None:
        width = self.settings.width
        self.views = Views(graph, self.device)
        activation = ACTIVATIONS[self.settings.activation]
        self.encoder = GraphEncoder(self.features, (2 * width, width), [activation(), activation()])
        self.projection = linear_layers(width, width, width, activation=nn.ELU)

    def loss(self, epoch: int) -> Tensor:
        shares = zip(self.settings.feature_drop, self.settings.edge_drop, strict=True)
        first, second = (self.projection(self.encoder(*self.views.draw(*one))) for one in shares)
        return two_view_loss(first, second, self.settings.temperature)

    def embedding(self) -> Tensor:
        return self.encoder(self.views.full())


THRESHOLDS = (1e-5, 1e-4, 1e-3, 1e-2)
"""Candidate thresholds below which entries of the diffusion are dropped."""


@dataclass(frozen=True)
class MVGRLSettings(EmbedderSettings):
    """Settings of MVGRL.

    Attributes:
        teleport: restart probability α of the diffusion.
        sample, samples: consecutive nodes in a subgraph, and subgraphs per step.
        thin: keep about as many of the largest entries of the diffusion as there are edges, and scale its
            columns to [0, 1].
    """

    patience: int = 20
    teleport: float = 0.2
    sample: int = 2000
    samples: int = 1
    thin: bool = False


class MVGRL(Embedder, settings=MVGRLSettings):
    r"""Contrastive learning between the adjacency and a graph diffusion (Hassani and Khasahmadi, 2020).

    .. math:: S = \alpha (I - (1 - \alpha) \tilde A)^{-1}, \quad
        H_1 = \mathrm{PReLU}(\tilde A X W_1), \quad H_2 = \mathrm{PReLU}(S X W_2), \quad
        s_i = \sigma\big(\tfrac1n \textstyle\sum_v h_{i,v}\big)

    .. math:: \mathcal L = -\tfrac1{4n} \sum_v \sum_{i \ne j}
        \log \sigma(h_{i,v}^\top M s_j + b) + \log(1 - \sigma(\tilde h_{i,v}^\top M s_j + b))

    :math:`\tilde H` is the encoding of shuffled features; the embedding is :math:`H_1 + H_2`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        parts = settings.samples * min(settings.sample, sizes.nodes) * settings.width * 16
        return super().bytes_for(sizes, settings) + int(4 * (3 * sizes.nodes**2 + parts))

    def build(self, graph: Graph) -> None:
        settings, width = self.settings, self.settings.width
        self.matrix = gcn_adjacency(graph, self.device)
        self.diffusion = personal_pagerank(self.matrix, settings.teleport)
        if settings.thin:
            edges = int((self.matrix.rows != self.matrix.cols).sum())
            self.diffusion = thinned(self.diffusion, edges / max(1, graph.num_nodes))
        self.near, self.far = (GraphEncoder(self.features, [width], [nn.PReLU()]) for _ in range(2))
        self.bilinear = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width)))
        self.bias = nn.Parameter(torch.zeros(()))

    def loss(self, epoch: int) -> Tensor:
        nodes = self.matrix.shape[0]
        size = min(self.settings.sample, nodes)
        shuffled = torch.randperm(size, device=self.device)
        products = [encoder.product() for encoder in (self.near, self.far)]
        starts = torch.randint(nodes - size + 1, (self.settings.samples if size < nodes else 1,)).tolist()
        losses = [self._part_loss(products, start, start + size, shuffled) for start in starts]
        return torch.stack(losses).mean()

    def _part_loss(self, products: list[Tensor], start: int, stop: int, shuffled: Tensor) -> Tensor:
        edges, diffusion = between(self.matrix, start, stop), self.diffusion[start:stop, start:stop]

        def encode(rows: list[Tensor]) -> list[Tensor]:
            return [self.near.along(edges, rows[0]), self.far.along(diffusion, rows[1])]

        seen = [product[start:stop] for product in products]
        true, false = encode(seen), encode([rows.index_select(0, shuffled) for rows in seen])
        keys = [self.bilinear @ torch.sigmoid(rows.mean(dim=0)) for rows in reversed(true)]
        positive, negative = (
            torch.cat([one @ key for one, key in zip(rows, keys, strict=True)]) + self.bias
            for rows in (true, false)
        )
        return (functional.softplus(-positive).mean() + functional.softplus(negative).mean()) / 2

    def embedding(self) -> Tensor:
        return self.near(self.matrix) + self.far(self.diffusion)


def personal_pagerank(matrix: SparseMatrix, teleport: float) -> Tensor:
    """Return the personalized PageRank matrix, `[nodes, nodes]`."""
    dense = matrix.csr().to_dense().mul_(teleport - 1)
    dense.diagonal().add_(1)
    return torch.cholesky_inverse(torch.linalg.cholesky(dense)).mul_(teleport)


def thinned(diffusion: Tensor, degree: float) -> Tensor:
    """Return the diffusion with about `degree` entries per row, scaled by column."""
    kept = [float((diffusion >= least).sum()) / diffusion.shape[0] for least in THRESHOLDS]
    least = min(zip(THRESHOLDS, kept, strict=True), key=lambda pair: abs(pair[1] - degree))[0]
    large = torch.where(diffusion >= least, diffusion, 0.0)
    low, high = large.amin(dim=0), large.amax(dim=0)
    return (large - low) / torch.where(high > low, high - low, 1.0)


def between(matrix: SparseMatrix, start: int, stop: int) -> SparseMatrix:
    """Return the rows and columns from start to stop."""
    if stop - start == matrix.shape[0]:
        return matrix
    inside = (matrix.rows >= start) & (matrix.rows < stop) & (matrix.cols >= start) & (matrix.cols < stop)
    rows, cols = matrix.rows[inside] - start, matrix.cols[inside] - start
    return SparseMatrix(rows, cols, matrix.values[inside], (stop - start, stop - start))


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


class BGRL(Embedder, settings=BGRLSettings):
    r"""Bootstrapped graph latents: a predictor and a target encoder (Thakoor et al., 2022).

    .. math:: \mathcal L = 2 - \tfrac1n \textstyle\sum_v
        \cos(p(z^1_v), \bar z^2_v) + \cos(p(z^2_v), \bar z^1_v)
    """

    adam = torch.optim.AdamW

    def build(self, graph: Graph) -> None:
        width = self.settings.width
        self.views = Views(graph, self.device)
        self.online = _encoder(self.features, width)
        self.target = _encoder(self.features, width).requires_grad_(False)
        self.predictor = linear_layers(width, 2 * width, width, activation=nn.PReLU)
        for layer in self.predictor:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def loss(self, epoch: int) -> Tensor:
        epochs = self.settings.epochs
        factor = warmup_cosine(epoch, epochs, max(1, epochs // 10))
        set_learning_rate(self.optimizer, self.settings.learning_rate * factor)
        shares = zip(self.settings.feature_drop, self.settings.edge_drop, strict=True)
        return self.disagreement(*(self.views.draw(*one) for one in shares))

    def disagreement(self, first: View, second: View) -> Tensor:
        with torch.no_grad():
            targets = [self.target(*view) for view in (second, first)]
        encoded = [self.online(*view) for view in (first, second)]
        predicted = [self.predictor(rows) for rows in encoded]
        alike = [functional.cosine_similarity(p, t, dim=1) for p, t in zip(predicted, targets, strict=True)]
        return 2 - (alike[0] + alike[1]).mean()

    def after(self, epoch: int) -> None:
        moved = (1 - self.settings.momentum) * warmup_cosine(epoch, self.settings.epochs, 0)
        update_average(self.target, self.online, 1 - moved)

    def embedding(self) -> Tensor:
        return self.online(self.views.full())


def _encoder(features: Features, width: int) -> GraphEncoder:
    """Return two graph convolutions, each with batch norm and a PReLU."""
    widths = 2 * width, width
    after = [nn.Sequential(nn.BatchNorm1d(one, momentum=0.01), nn.PReLU()) for one in widths]
    return GraphEncoder(features, widths, after)


@dataclass(frozen=True)
class CCASSGSettings(EmbedderSettings):
    """Settings of CCA-SSG.

    Attributes:
        decorrelation: λ, weight of the decorrelation.
        feature_drop, edge_drop: drop probabilities of both views.
    """

    epochs: int = 100
    layers: int = 2
    decorrelation: float = 1e-3
    feature_drop: float = 0.2
    edge_drop: float = 0.4


class CCASSG(Embedder, settings=CCASSGSettings):
    r"""Canonical correlation between two augmented views (Zhang et al., 2021).

    .. math:: \mathcal L = -\operatorname{tr} \tilde Z_1^\top \tilde Z_2 + \lambda \big(
        \lVert \tilde Z_1^\top \tilde Z_1 - I \rVert^2 + \lVert \tilde Z_2^\top \tilde Z_2 - I \rVert^2 \big),
        \quad \tilde z = \frac{z - \bar z}{\sigma_z \sqrt n}

    Up to a constant, the first term is half the paper's :math:`\lVert \tilde Z_1 - \tilde Z_2 \rVert^2`, as
    in the authors' code.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        squares = settings.width**2 * (12 + 4 * settings.layers)
        return super().bytes_for(sizes, settings) + int(4 * squares)

    def build(self, graph: Graph) -> None:
        self.views = Views(graph, self.device)
        widths = [self.settings.width] * self.settings.layers
        self.encoder = GraphEncoder(self.features, widths, [*(nn.ReLU() for _ in widths[1:]), nn.Identity()])

    def loss(self, epoch: int) -> Tensor:
        drop = self.settings.feature_drop, self.settings.edge_drop
        first, second = (self.encoder(*self.views.draw(*drop)) for _ in range(2))
        return correlation_loss(first, second, self.settings.decorrelation)

    def embedding(self) -> Tensor:
        return self.encoder(self.views.full())


def correlation_loss(first: Tensor, second: Tensor, decorrelation: float) -> Tensor:
    """Return the loss of two views' rows `[nodes, D]`."""
    first, second = standard_columns(first), standard_columns(second)
    one = torch.eye(first.shape[1], device=first.device)
    spread = sum((view.t() @ view - one).square().sum() for view in (first, second))
    return decorrelation * spread - (first * second).sum()
