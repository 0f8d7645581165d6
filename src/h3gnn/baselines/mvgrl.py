"""MVGRL (Hassani and Khasahmadi, 2020): the summary of one view of a graph knows the nodes of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder
from h3gnn.baselines.layers import SparseMatrix, gcn_adjacency, scaled_features
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph

THRESHOLDS = (1e-5, 1e-4, 1e-3, 1e-2)
"""The smallest diffusion that is kept is one of these, where small ones are dropped."""


@dataclass(frozen=True)
class MVGRLSettings(EmbedderSettings):
    """Settings of MVGRL.

    Attributes:
        teleport: how often a walk of the diffusion starts anew.
        sample: a step sees a part of the graph, so many nodes that follow one another.
        samples: how many parts a step sees; one where a part is the whole graph.
        thin: whether to keep about as many entries of the diffusion as there are edges, the largest, and to
            stretch its columns to between 0 and 1.
    """

    patience: int = 20
    teleport: float = 0.2
    sample: int = 2000
    samples: int = 1
    thin: bool = False


class MVGRL(Embedder):
    r"""Two encoders see two matrices; each one's summary tells the other's nodes from shuffled ones.

    .. math:: S = \alpha (I - (1 - \alpha) \tilde A)^{-1}, \quad
        H_1 = \mathrm{PReLU}(\tilde A X W_1), \quad H_2 = \mathrm{PReLU}(S X W_2), \quad
        s_i = \sigma\big(\tfrac1n \textstyle\sum_v h_{i,v}\big)

    .. math:: \mathcal L = -\tfrac1{4n} \sum_v \sum_{i \ne j}
        \log \sigma(h_{i,v}^\top M s_j + b) + \log(1 - \sigma(\tilde h_{i,v}^\top M s_j + b))

    :math:`\tilde H` is the encoding of shuffled features; the embedding is :math:`H_1 + H_2`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count the diffusion, which is dense: three such matrices while it is made."""
        parts = settings.samples * min(settings.sample, sizes.nodes) * settings.width * 16
        return super().bytes_for(sizes, settings) + int(4 * (3 * sizes.nodes**2 + parts))

    def build(self, graph: Graph) -> None:
        """Diffuse, and make both encoders and what tells nodes apart."""
        settings, width = self.settings, self.settings.width
        features = scaled_features(graph, self.device, settings.scale_features)
        self.matrix = gcn_adjacency(graph, self.device)
        self.diffusion = personal_pagerank(self.matrix, settings.teleport)
        if settings.thin:
            edges = int((self.matrix.rows != self.matrix.cols).sum())
            self.diffusion = thinned(self.diffusion, edges / max(1, graph.num_nodes))
        self.near, self.far = (GraphEncoder(features, [width], [nn.PReLU()]) for _ in range(2))
        self.bilinear, self.bias = nn.Parameter(torch.empty(width, width)), nn.Parameter(torch.zeros(()))
        nn.init.xavier_uniform_(self.bilinear)

    def loss(self, epoch: int) -> Tensor:
        """Tell nodes from shuffled ones, in parts of the graph."""
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
        summaries = [torch.sigmoid(rows.mean(dim=0)) for rows in true]
        return told_apart(true, false, [self.bilinear @ one for one in summaries], self.bias)

    def embedding(self) -> Tensor:
        """Add up the encodings along the edges and along the diffusion."""
        rows: Tensor = self.near(self.matrix) + self.far(self.diffusion)
        return rows


def personal_pagerank(matrix: SparseMatrix, teleport: float) -> Tensor:
    """Return where walks from each node are found when they start anew at a rate of `teleport`."""
    dense = matrix.csr().to_dense().mul_(teleport - 1)
    dense.diagonal().add_(1)
    return torch.cholesky_inverse(torch.linalg.cholesky(dense)).mul_(teleport)


def thinned(diffusion: Tensor, degree: float) -> Tensor:
    """Return the diffusion without small entries, so that rows have about `degree`, stretched by column."""
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


def told_apart(true: list[Tensor], false: list[Tensor], keys: list[Tensor], bias: Tensor) -> Tensor:
    """Return the cross-entropy of two views' nodes against the other view's key, `[D]` each."""
    positive = torch.cat([rows @ key for rows, key in zip(true, reversed(keys), strict=True)]) + bias
    negative = torch.cat([rows @ key for rows, key in zip(false, reversed(keys), strict=True)]) + bias
    return (functional.softplus(-positive).mean() + functional.softplus(negative).mean()) / 2


SYSTEM = System(
    name="mvgrl",
    title="MVGRL",
    estimator="MVGRL",
    group="self-supervised",
    paper="Hassani and Khasahmadi: Contrastive Multi-View Representation Learning on Graphs. ICML",
    year=2020,
    sees=("features", "edges"),
    kind=MVGRL,
    settings=MVGRLSettings(),
    cost="a dense matrix of all pairs of nodes, inverted once; products with parts of it in each epoch",
    ranges={
        "width": (512, 256),
        "teleport": (0.2, 0.1, 0.4),
        "learning_rate": (0.001, 0.0005, 0.005),
        "epochs": (300, 100),
    },
    published={
        ANY: {"scale_features": "sums", "samples": 4, "epochs": 3000},
        "citeseer": {"thin": True},
    },
    source="the authors' public code, node/train.py and node/dataset.py",
)
