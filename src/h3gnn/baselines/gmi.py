"""GMI (Peng et al., 2020): a node's embedding knows its own features, its neighbours' and its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, sum_of_softplus
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder
from h3gnn.baselines.layers import (
    adjacency,
    gcn_adjacency,
    neighbour_mean,
    scaled_features,
    to_device,
)
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class GMISettings(EmbedderSettings):
    """Settings of GMI.

    Attributes:
        layers: graph convolutions, all of the embedding's width.
        negatives: other nodes that each node is told from.
        own_weight, neighbour_weight, edge_weight: of the three parts of the loss.
    """

    epochs: int = 150
    patience: int = 20
    layers: int = 2
    negatives: int = 5
    own_weight: float = 0.8
    neighbour_weight: float = 1.0
    edge_weight: float = 1.0


class GMI(Embedder):
    r"""Each node is told from others by its features and its neighbours', and edges by inner products.

    .. math:: \mathcal L = \alpha J(h_v, x_v) + \beta J(m_v, h_v) + \gamma R, \quad
        J(a_v, b_v) = \tfrac1n \sum_v \mathrm{sp}\big(-D(a_v, b_v)\big)
        + \tfrac1k \sum_{u \sim V^k} \mathrm{sp}\big(D(a_v, b_u)\big), \quad
        D(a, b) = \sigma(b^\top \Theta a + c)

    :math:`m_v = \mathrm{PReLU}\big(\tfrac1{|N(v)|} \sum_{u \in N(v)} W_1^\top x_u\big)` is the neighbours'
    mean of the first layer's product, which is the paper's GMI-mean, and sp is the softplus. R is the
    cross-entropy of :math:`\sigma(h_u^\top h_v)` with A + I over all pairs, see `edge_loss`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count negatives, both ends of edges, and the pairs that are in memory at once."""
        rows = 4 * settings.negatives * sizes.nodes + 4 * (sizes.edges + sizes.nodes)
        pairs = bytes_for_pairs(sizes.nodes, 0)
        return super().bytes_for(sizes, settings) + int(4 * rows * settings.width) + pairs

    def build(self, graph: Graph) -> None:
        """Make the encoder and what tells nodes apart."""
        width, layers = self.settings.width, self.settings.layers
        self.features = scaled_features(graph, self.device, self.settings.scale_features)
        self.matrix = gcn_adjacency(graph, self.device)
        self.neighbours = to_device(neighbour_mean(adjacency(graph, self_loops=False)), self.device)
        after = [nn.PReLU() for _ in range(layers)]
        self.encoder = GraphEncoder(self.features, [width] * layers, after)
        self.activation = nn.PReLU()
        self.own, self.near = Discriminator(graph.num_features, width), Discriminator(width, width)

    def loss(self, epoch: int) -> Tensor:
        """Add up what features, neighbours and edges ask for."""
        product = self.encoder.product()
        rows = self.encoder.along(self.matrix, product)
        near = self.activation(self.neighbours @ product)
        settings = self.settings
        own_keys = self.features @ self.own.weight
        own = self.own.divergence(rows, own_keys, self._others())
        neighbour = self.near.divergence(near, rows @ self.near.weight, self._others())
        edges = edge_loss(rows, self.matrix.rows, self.matrix.cols)
        total: Tensor = (
            settings.own_weight * own + settings.neighbour_weight * neighbour + settings.edge_weight * edges
        )
        return total

    def _others(self) -> Tensor:
        """Draw for each node some others, `[negatives, nodes]`."""
        nodes = self.matrix.shape[0]
        itself = torch.arange(nodes, device=self.device)
        drawn = torch.randint(max(1, nodes - 1), (self.settings.negatives, nodes), device=self.device)
        return (drawn + (drawn >= itself)) % nodes

    def embedding(self) -> Tensor:
        """Encode the graph."""
        rows: Tensor = self.encoder(self.matrix)
        return rows


class Discriminator(nn.Module):
    """Tells whether two rows belong to one node, by a bilinear form and a sigmoid."""

    def __init__(self, keys: int, rows: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(keys, rows)), nn.Parameter(torch.zeros(()))
        nn.init.xavier_uniform_(self.weight)

    def divergence(self, rows: Tensor, keys: Tensor, others: Tensor) -> Tensor:
        """Return what is lost when nodes are told from others.

        Args:
            rows: `[nodes, D]`.
            keys: what rows are compared with, times the weight, `[nodes, D]`.
            others: whose keys are not a node's own, `[negatives, nodes]`.
        """
        true = torch.sigmoid((rows * keys).sum(dim=1) + self.bias)
        false = torch.stack([torch.sigmoid((rows * keys[one]).sum(dim=1) + self.bias) for one in others])
        return functional.softplus(-true).mean() + functional.softplus(false).mean()


def edge_loss(rows: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    r"""Return how badly inner products tell linked pairs, the nodes themselves included, from all others.

    With e half the number of linked pairs, as the authors count, linked pairs weigh :math:`(n^2 - e) / e`,
    and the mean over all pairs is multiplied with :math:`n^2 / (n^2 - e)`.
    """
    half = sources.numel() / 2
    linked = (rows[sources] * rows[targets]).sum(dim=1)
    rest = rows.shape[0] ** 2 - half
    of_links = rest / half * functional.softplus(-linked) - functional.softplus(linked)
    return (sum_of_softplus(rows) + of_links.sum()) / rest


SYSTEM = System(
    name="gmi",
    title="GMI",
    estimator="GMI",
    group="self-supervised",
    paper="Peng et al.: Graph Representation Learning via Graphical Mutual Information Maximization. WWW",
    year=2020,
    sees=("features", "edges"),
    kind=GMI,
    settings=GMISettings(),
    cost="the inner products of all pairs of nodes in each epoch, in parts",
    ranges={
        "layers": (2, 1),
        "width": (512, 256),
        "learning_rate": (0.001, 0.0005, 0.005),
        "edge_weight": (1.0, 0.1),
        "epochs": (150, 550),
    },
    published={
        ANY: {"scale_features": "sums", "epochs": 550},
        "citeseer": {"layers": 1},
        "pubmed": {"layers": 1},
    },
    source="the authors' public code, execute.py and models/gmi.py",
    on_test="execute.py, line 129: `find_epoch` on test nodes",
)
