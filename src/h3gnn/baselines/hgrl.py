"""HGRL (Chen et al., 2022): keep a node's own features, and come near to neighbours at several distances."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, mean_log_sums, nearest_others
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import (
    SparseMatrix,
    gcn_adjacency,
    only,
    scaled_features,
    standard_columns,
    symmetric,
)
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph

KEPT_SCALE = 0.01
"""The loss that keeps features is a sum over channels: this brings it to the size of the other."""


@dataclass(frozen=True)
class HGRLSettings(EmbedderSettings):
    """Settings of HGRL; those of its authors, but for the number of epochs and the width.

    Attributes:
        width: of the embedding and of the hidden layer.
        graph: "given", or "learned": from the features, by weights of their columns.
        neighbours: of a node in the learned graph, the non-local ones.
        hops: up to how many steps away neighbours are looked at.
        balance: α, of neighbours against a node's own features.
        dropout: of features and of the hidden layer.
        feature_drop: share of feature columns that the second copy lacks.
        temperature: of the similarities.
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


class HGRL(Embedder):
    r"""A network of a node's features alone, :math:`H = f(X)`, which learns from two tasks.

    It captures neighbours k steps away, each distance with a weight of its own, on a graph with normalised
    adjacency :math:`\tilde A`:

    .. math:: \mathcal N = \sum_{k=1}^K -\tfrac1n \sum_v \log
        \frac{e^{\gamma_k \cos(h_v, (\tilde A^k H)_v) / \tau}}{\sum_u e^{\cos(h_v, h_u) / \tau}}, \quad
        \gamma = \operatorname{softmax}(g)

    and it keeps features, as :math:`H'` of features without some columns should be the same, both with
    columns of mean 0 and variance 1/n:

    .. math:: \mathcal L = \alpha \, \mathcal N + 0.01 \, (1 - \alpha) \, \lVert H - H' \rVert_F^2

    The learned graph joins a node with those whose :math:`\mathrm{ReLU}(x \circ w_1) \circ w_2` have the
    largest cosine, by that cosine, half for each of the two that chooses the other.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: HGRLSettings) -> int:
        """Return about how much memory a training takes: pairs of nodes, features of both ends of edges."""
        learned = settings.graph == "learned"
        ends = 4 * 4 * sizes.nodes * (settings.neighbours + 1) * sizes.features if learned else 0
        return super().bytes_for(sizes, settings) + ends + bytes_for_pairs(sizes.nodes)

    def build(self, graph: Graph) -> None:
        """Make the network, and the graph or what it is learned from."""
        settings, width = self.settings, self.settings.width
        self.features = scaled_features(graph, self.device, settings.scale_features)
        self.first, self.second = nn.Linear(graph.num_features, width), nn.Linear(width, width)
        spread = (3 / settings.hops) ** 0.5
        start = (2 * torch.rand(settings.hops) - 1) * spread
        self.distances = nn.Parameter(start / start.abs().sum())
        if settings.graph == "learned":
            self.dense = self.features.dense()
            self.column_weights = nn.Parameter(torch.ones(2, graph.num_features))
        elif settings.graph == "given":
            self.matrix = gcn_adjacency(graph, self.device)
        else:
            raise InputError(f"graph={settings.graph!r} of HGRL: take 'given' or 'learned'")

    def optimizer(self) -> torch.optim.Optimizer:
        """Return Adam; the weights of distances do not decay."""
        others = [parameter for parameter in self.parameters() if parameter is not self.distances]
        groups = [
            {"params": others, "weight_decay": self.settings.weight_decay},
            {"params": [self.distances], "weight_decay": 0.0},
        ]
        return torch.optim.Adam(groups, lr=self.settings.learning_rate)

    def loss(self, epoch: int) -> Tensor:
        """Capture neighbours and keep features."""
        settings = self.settings
        kept = torch.rand(self.features.shape[1], device=self.device) >= settings.feature_drop
        rows, copy = self.encode(), self.encode(kept)
        matrix = self.learned_graph() if settings.graph == "learned" else self.matrix
        near = self.neighbour_loss(rows, matrix)
        loss: Tensor = settings.balance * near + KEPT_SCALE * (1 - settings.balance) * apart(rows, copy)
        return loss

    def encode(self, kept: Tensor | None = None) -> Tensor:
        """Return rows of features with dropout; columns that are not kept count as zero."""
        product = self.features.dropped(self.settings.dropout) @ only(self.first.weight.t(), kept)
        hidden = functional.dropout(torch.relu(product + self.first.bias), self.settings.dropout)
        rows: Tensor = self.second(hidden)
        return rows

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
        """Return the graph of non-local neighbours: who is near is found, and how near is learned."""
        weights = self.column_weights
        unit = functional.normalize(torch.relu(self.dense * weights[0]) * weights[1])
        nodes = len(unit)
        near = nearest_others(unit.detach(), self.settings.neighbours)
        one = torch.arange(nodes, device=self.device).repeat_interleave(near.shape[1])
        other = near.flatten()
        alike = torch.relu((unit[one] * unit[other]).sum(dim=1)) / 2
        loop = torch.arange(nodes, device=self.device)
        keys = torch.cat([one * nodes + other, other * nodes + one, loop * nodes + loop])
        places, position = torch.unique(keys, return_inverse=True)
        parts = torch.cat([alike, alike, torch.ones(nodes, device=self.device)])
        values = torch.zeros(len(places), device=self.device).index_add(0, position, parts)
        return symmetric(symmetric(SparseMatrix(places // nodes, places % nodes, values, (nodes, nodes))))

    def embedding(self) -> Tensor:
        """Encode the features."""
        product = self.features @ self.first.weight.t()
        rows: Tensor = self.second(torch.relu(product + self.first.bias))
        return rows


def apart(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared distance of two copies whose columns have mean 0 and squares that add up to 1."""
    return (standard_columns(first) - standard_columns(second)).square().sum()


SYSTEM = System(
    name="hgrl",
    title="HGRL",
    estimator="HGRL",
    group="self-supervised",
    paper="Chen et al.: Towards Self-supervised Learning on Graphs with Heterophily. CIKM",
    year=2022,
    sees=("features", "edges"),
    kind=HGRL,
    settings=HGRLSettings(),
    cost="similarities of all pairs of nodes, twice where the graph is learned",
    ranges={
        "graph": ("given", "learned"),
        "width": (256, 512),
        "hops": (3, 1),
        "neighbours": (8, 20),
        "balance": (0.9, 0.5),
        "dropout": (0.4, 0.2),
    },
    published={
        ANY: {"scale_features": "none", "width": 512, "epochs": 500},
        "cornell": {"graph": "learned"},
        "texas": {"graph": "learned"},
        "wisconsin": {"graph": "learned"},
        "actor": {"graph": "learned"},
        "chameleon-filtered": {"dropout": 0.3},
    },
    source="the README of the public code; those of Chameleon and Squirrel are for the unfiltered graphs",
    on_test="main.py, lines 236 to 252",
)
