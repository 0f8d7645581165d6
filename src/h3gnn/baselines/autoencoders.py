"""Autoencoders of features and edges: AE, GAE, VGAE, NWR-GAE and SDCN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, edge_cross_entropy
from h3gnn.baselines.embedder import BatchEmbedder, Embedder, EmbedderSettings, minimize, shuffled_batches
from h3gnn.baselines.layers import (
    Convolution,
    Features,
    Neighbours,
    SparseMatrix,
    adjacency,
    gcn_adjacency,
    linear_layers,
)
from h3gnn.baselines.registry import Sizes
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class AESettings(EmbedderSettings):
    """Settings of AE; those with which SDCN begins.

    Attributes:
        hidden: widths of the encoder's hidden layers; the decoder reverses them.
        batch: nodes per step of the optimizer.
    """

    width: int = 10
    hidden: tuple[int, ...] = (500, 500, 2000)
    epochs: int = 30
    batch: int = 256


class AE(BatchEmbedder, settings=AESettings):
    r"""A deep autoencoder of the features; edges are not used (Hinton and Salakhutdinov, 2006).

    .. math:: \mathcal L = \tfrac1{n d} \lVert X - g(f(X)) \rVert^2, \quad Z = f(X)
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        return autoencoder_bytes(sizes, settings) + 4 * int(sizes.nodes * 3 * max(settings.hidden, default=0))

    def build(self, graph: Graph) -> None:
        self.dense = self.features.dense()
        self.coder = Autoencoder(graph.num_features, self.settings.hidden, self.settings.width)

    def batches(self) -> Iterator[Tensor]:
        yield from shuffled_batches(len(self.dense), self.settings.batch, self.device)

    def batch_loss(self, batch: Tensor) -> Tensor:
        return self.coder.error(self.dense[batch])

    def embedding(self) -> Tensor:
        return self.coder.encode(self.dense)[-1]


class Autoencoder(nn.Module):
    """An encoder and a decoder of linear layers with ReLU between them."""

    def __init__(self, features: int, hidden: tuple[int, ...], width: int) -> None:
        super().__init__()
        widths = (features, *hidden, width)
        self.encoder = nn.ModuleList([nn.Linear(low, high) for low, high in pairwise(widths)])
        self.decode = linear_layers(*reversed(widths))

    def encode(self, rows: Tensor) -> list[Tensor]:
        """Return the output of each layer, with ReLU after all but the last, which is the embedding."""
        outputs = [rows]
        for layer in self.encoder[:-1]:
            outputs.append(torch.relu(layer(outputs[-1])))
        return [*outputs[1:], self.encoder[-1](outputs[-1])]

    def error(self, rows: Tensor) -> Tensor:
        return functional.mse_loss(self.decode(self.encode(rows)[-1]), rows)


def autoencoder_bytes(sizes: Sizes, settings: Any) -> int:
    """Return the memory of the weights, gradients, Adam's moments and dense features."""
    widths = (sizes.features, *settings.hidden, settings.width)
    weights = 2 * sum(low * high for low, high in pairwise(widths))
    return 4 * int(4 * weights + 2 * sizes.nodes * sizes.features)


@dataclass(frozen=True)
class GAESettings(EmbedderSettings):
    """Settings of GAE and VGAE; those of the paper.

    Attributes:
        hidden: width of the first layer.
        all_pairs: reconstruct all pairs of nodes, as the authors do; otherwise the edges and as many sampled
            pairs, for large graphs.
    """

    width: int = 16
    hidden: int = 32
    epochs: int = 200
    learning_rate: float = 0.01
    all_pairs: bool = True


class GAE(Embedder, settings=GAESettings):
    r"""A graph autoencoder with an inner-product decoder (Kipf and Welling, 2016).

    .. math:: Z = \tilde A\, \mathrm{ReLU}(\tilde A X W_0) W_1, \quad \mathcal L = \frac{c}{n^2} \sum_{ij}
        -\omega A_{ij} \log \sigma(z_i^\top z_j) - (1 - A_{ij}) \log(1 - \sigma(z_i^\top z_j))

    with self-loops in A, :math:`\omega = (n^2 - m) / m` for m directed edges,
    :math:`c = n^2 / (2 (n^2 - m))`.
    """

    variational = False

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        layers = sizes.features * (settings.hidden * 4 + sizes.nodes)
        rows = sizes.nodes * (settings.hidden * 6 + settings.width * 12)
        pairs = bytes_for_pairs(sizes.nodes, 0) if settings.all_pairs else 0
        return 4 * int(layers + rows + sizes.edges * (12 + 6 * settings.width)) + pairs

    def build(self, graph: Graph) -> None:
        from torch_geometric import nn as pyg

        self.matrix = gcn_adjacency(graph, self.device)
        self.edges = torch.stack([self.matrix.rows, self.matrix.cols])  # with loops
        self.nodes = graph.num_nodes
        outputs = (self.settings.width,) * (2 if self.variational else 1)
        encoder = ConvolutionalEncoder(graph.num_features, self.settings.hidden, outputs)
        self.coder: Any = pyg.VGAE(encoder) if self.variational else pyg.GAE(encoder)

    def loss(self, epoch: int) -> Tensor:
        return self.reconstruction(self.coder.encode(self.features, self.matrix))

    def reconstruction(self, rows: Tensor) -> Tensor:
        """Return the weighted cross-entropy of the edges, given by inner products."""
        if not self.settings.all_pairs:
            drawn = torch.randint(self.nodes, self.edges.shape, device=self.device)
            return self.coder.recon_loss(rows, self.edges, drawn)
        linked = min(max(1, self.edges.shape[1] - self.nodes), self.nodes**2 - 1)
        return edge_cross_entropy(rows, self.edges, linked) / 2

    def embedding(self) -> Tensor:
        return self.coder.encode(self.features, self.matrix)


class ConvolutionalEncoder(nn.Module):
    """A graph convolution with ReLU, followed by one convolution per output; none has a bias."""

    def __init__(self, features: int, hidden: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.first = Convolution(features, hidden)
        self.heads = nn.ModuleList([Convolution(hidden, width) for width in widths])
        for convolution in (self.first, *self.heads):
            convolution.bias.requires_grad_(False)  # with a bias alone, all embeddings could coincide

    def forward(self, features: Features, matrix: SparseMatrix) -> Any:
        """Return the output, or a tuple of several outputs."""
        hidden = torch.relu(self.first(features, matrix))
        outputs = tuple(head(hidden, matrix) for head in self.heads)
        return outputs[0] if len(outputs) == 1 else outputs


class VGAE(GAE):
    r"""The variational graph autoencoder (Kipf and Welling, 2016); the embedding is the mean.

    .. math:: z_v = \mu_v + \sigma_v \epsilon, \quad \mathcal L = \mathcal L_{\text{GAE}}(Z) + \tfrac1{n^2}
        \textstyle\sum_v \mathrm{KL}\big(\mathcal N(\mu_v, \sigma_v^2) \,\|\, \mathcal N(0, 1)\big)
    """

    variational = True

    def loss(self, epoch: int) -> Tensor:
        return super().loss(epoch) + self.coder.kl_loss() / self.nodes


ALL_ORDERS = 6
"""Up to this many points all permutations are tried; more use the Hungarian algorithm."""


@dataclass(frozen=True)
class NWRGAESettings(EmbedderSettings):
    """Settings of NWR-GAE.

    Attributes:
        samples: number of sampled neighbours and of predicted points.
        degree_weight, feature_weight, neighbour_weight: of the three parts of the loss.
        norm_scale: row length between layers, of PairNorm.
    """

    width: int = 256
    epochs: int = 100
    weight_decay: float = 3e-4
    layers: int = 2
    samples: int = 5
    degree_weight: float = 0.01
    feature_weight: float = 1.0
    neighbour_weight: float = 1.0
    norm_scale: float = 20.0


class NWRGAE(Embedder, settings=NWRGAESettings):
    r"""Neighbourhood reconstruction with the Wasserstein distance (Tang et al., 2022).

    With :math:`h^0 = X W_0`, l layers, and :math:`N^k(v) = \{h_u^k: u \in N(v)\}`, whose gradient is stopped,

    .. math:: \mathcal L = \tfrac1n \sum_v \lambda_d \big(d_v - \psi_d(h_v^l)\big)^2
        + \lambda_s \|x_v - \psi_s(h_v^l)\|^2
        + \lambda_n \sum_{k<l} W_2^2\big(N^k(v),
        \psi_n^k(\mathcal N(\mu(h_v^{k+1}), \sigma(h_v^{k+1})^2))\big)

    The distance compares q sampled neighbours with q sampled points: the mean squared error of the best
    matching, :math:`\min_\pi \frac1q \sum_i \|a_i - b_{\pi(i)}\|^2 / D`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        points = sizes.nodes * settings.samples * settings.width * settings.layers
        numbers: int = 10 * points + 6 * sizes.nodes * sizes.features
        return super().bytes_for(sizes, settings) + 4 * numbers

    def build(self, graph: Graph) -> None:
        from torch_geometric.nn import PairNorm

        width, layers = self.settings.width, range(self.settings.layers)
        self.goal = self.features.dense()
        self.matrix = gcn_adjacency(graph, self.device)
        self.neighbours = Neighbours(adjacency(graph, self_loops=False).to(self.device))
        self.linked = (self.neighbours.degree > 0).nonzero().squeeze(1)
        self.start = nn.Linear(graph.num_features, width)
        self.norm = PairNorm(self.settings.norm_scale, scale_individually=True)
        self.convolutions = nn.ModuleList(Convolution(width, width) for _ in layers)
        self.mean, self.spread = nn.Linear(width, width), nn.Linear(width, width)
        self.points = nn.ModuleList(linear_layers(width, width, width) for _ in layers)
        self.degree = linear_layers(width, width, 1)
        self.content = linear_layers(width, width, graph.num_features)

    def encode(self) -> list[Tensor]:
        """Return the output of every layer, the projected features first."""
        found = [self.norm(self.features @ self.start.weight.t() + self.start.bias)]
        for layer in self.convolutions:
            hidden = layer(found[-1] if len(found) == 1 else found[-1].relu(), self.matrix)
            found.append(self.norm(hidden))
        return found

    def loss(self, epoch: int) -> Tensor:
        layers = self.encode()
        settings, last = self.settings, layers[-1]
        degree = functional.mse_loss(self.degree(last).squeeze(1).relu(), self.neighbours.degree.float())
        content = functional.mse_loss(self.content(last), self.goal)
        loss: Tensor = settings.degree_weight * degree + settings.feature_weight * content
        if not self.linked.numel():
            return loss
        for lower, upper, decoder in zip(layers, layers[1:], self.points, strict=False):
            near = self.neighbours.draw(settings.samples)[self.linked]
            rows, shape = upper[self.linked], (len(self.linked), settings.samples, upper.shape[1])
            mean, spread = self.mean(rows)[:, None], self.spread(rows).clamp(-5, 2).exp()[:, None]
            points = decoder(mean + spread * torch.randn(shape, device=rows.device))
            loss = loss + settings.neighbour_weight * wasserstein(points, lower.detach()[near])
        return loss

    def embedding(self) -> Tensor:
        return self.encode()[-1]


def wasserstein(points: Tensor, others: Tensor) -> Tensor:
    """Return the mean squared error of the best matching of points `[sets, count, width]` with others."""
    squares = points.square().sum(dim=2)[:, :, None] + others.square().sum(dim=2)[:, None]
    cost = (squares - 2 * points @ others.transpose(1, 2)) / points.shape[2]
    return cost.gather(2, match(cost.detach())[:, :, None]).mean()


def match(cost: Tensor) -> Tensor:
    """Return the columns `[sets, count]` that minimize the total of costs `[sets, count, count]`."""
    count = cost.shape[1]
    if count > ALL_ORDERS:
        from scipy.optimize import linear_sum_assignment

        found = [torch.from_numpy(linear_sum_assignment(one)[1]) for one in cost.cpu().numpy()]
        return torch.stack(found).to(cost.device)
    orders = torch.tensor(list(permutations(range(count))), device=cost.device)
    totals = cost[:, 0].index_select(1, orders[:, 0])
    for row in range(1, count):
        totals = totals + cost[:, row].index_select(1, orders[:, row])
    return orders[totals.argmin(dim=1)]


CLUSTERS = 8
"""Number of clusters for a graph without classes, unless set."""
N_INIT = 20
"""`n_init` of the k-means that initializes the centres."""


@dataclass(frozen=True)
class SDCNSettings(EmbedderSettings):
    """Settings of SDCN.

    Attributes:
        width, hidden: of the autoencoder's narrowest layer, and of the layers before it.
        clusters: number of clusters; 0 for the number of classes, or eight without classes.
        first_epochs, first_rate: epochs and learning rate of the autoencoder's pretraining.
        batch: nodes per step of pretraining; afterwards a step takes all nodes.
        share: σ, weight of the autoencoder in the input of the next convolution.
        centre_weight, graph_weight: α and β, of the autoencoder's and of the GCN's clusters.
    """

    width: int = 10
    hidden: tuple[int, ...] = (500, 500, 2000)
    epochs: int = 50
    clusters: int = 0
    first_epochs: int = 30
    first_rate: float = 0.001
    batch: int = 256
    share: float = 0.5
    centre_weight: float = 0.1
    graph_weight: float = 0.01


class SDCN(Embedder, settings=SDCNSettings):
    r"""Structural deep clustering: an autoencoder coupled with a GCN (Bo et al., 2020).

    .. math:: Z^{l+1} = \mathrm{ReLU}\big(\tilde A ((1 - \sigma) Z^l + \sigma H^l) W^l\big), \quad
        q_{vk} \propto \frac{1}{1 + \lVert h_v - \mu_k \rVert^2}, \quad
        p_{vk} \propto \frac{q_{vk}^2}{\sum_u q_{uk}}

    .. math:: \mathcal L = \lVert X - \hat X \rVert^2 + \alpha\, \mathrm{KL}(P \,\|\, Q)
        + \beta\, \mathrm{KL}(P \,\|\, Z)

    The last Z are soft cluster assignments. P is recomputed in each epoch and constant within it.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        layers = 12 * sum(settings.hidden) + 20 * settings.width + 3 * sizes.features
        return 2 * autoencoder_bytes(sizes, settings) + 4 * int(sizes.nodes * layers + 12 * sizes.edges)

    def build(self, graph: Graph) -> None:
        settings = self.settings
        self.dense = self.features.dense()
        self.matrix = gcn_adjacency(graph, self.device)
        self.count = min(settings.clusters or graph.num_classes or CLUSTERS, graph.num_nodes)
        self.coder = Autoencoder(graph.num_features, settings.hidden, settings.width)
        widths = (graph.num_features, *settings.hidden, settings.width, self.count)
        self.first, *others = (Convolution(low, high) for low, high in pairwise(widths))
        self.others = nn.ModuleList(others)
        for convolution in (self.first, *others):
            convolution.bias.requires_grad_(False)
        self.centres = nn.Parameter(torch.zeros(self.count, settings.width))

    def begin(self) -> None:
        from sklearn.cluster import KMeans

        first = torch.optim.Adam(self.coder.parameters(), lr=self.settings.first_rate)
        for _ in range(self.settings.first_epochs):
            for nodes in shuffled_batches(len(self.dense), self.settings.batch, self.device):
                minimize(self.coder.error(self.dense[nodes]), first)
        with torch.no_grad():
            rows = self.coder.encode(self.dense)[-1]
            seed = int(torch.randint(2**31, ()))
            means = KMeans(self.count, n_init=N_INIT, random_state=seed).fit(rows.cpu().numpy())
            self.centres.copy_(torch.from_numpy(means.cluster_centers_))
        super().begin()

    def loss(self, epoch: int) -> Tensor:
        layers = self.coder.encode(self.dense)
        near = student(layers[-1], self.centres)
        goal = target(near.detach())
        graph = functional.log_softmax(self.convolve(layers)[1], dim=1)
        reconstruction = functional.mse_loss(self.coder.decode(layers[-1]), self.dense)
        of_centres = functional.kl_div(near.log(), goal, reduction="batchmean")
        of_graph = functional.kl_div(graph, goal, reduction="batchmean")
        loss = reconstruction + self.settings.centre_weight * of_centres
        return loss + self.settings.graph_weight * of_graph

    def convolve(self, layers: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the input and the output of the last convolution."""
        output: Tensor = self.first(self.features, self.matrix)
        for convolution, layer in zip(self.others, layers, strict=True):
            read = (1 - self.settings.share) * torch.relu(output) + self.settings.share * layer
            output = convolution(read, self.matrix)
        return read, output

    def embedding(self) -> Tensor:
        return self.convolve(self.coder.encode(self.dense))[0]

    def clusters(self) -> Tensor:
        return self.convolve(self.coder.encode(self.dense))[1].argmax(dim=1)


def student(rows: Tensor, centres: Tensor) -> Tensor:
    """Return soft assignments `[nodes, clusters]` by Student's t kernel."""
    near = 1 / (1 + (rows[:, None] - centres[None]).square().sum(dim=2))
    return near / near.sum(dim=1, keepdim=True)


def target(near: Tensor) -> Tensor:
    """Return the sharpened target distribution P."""
    clear = near.square() / near.sum(dim=0)
    return clear / clear.sum(dim=1, keepdim=True)
