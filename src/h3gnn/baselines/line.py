"""LINE (Tang et al., 2015): neighbours are alike, and so are nodes with the same neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.embedder import BatchEmbedder, EmbedderSettings
from h3gnn.baselines.layers import row_sums
from h3gnn.baselines.skipgram import SHARED, SkipGram, Walker, edges_to_walk
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class LINESettings(EmbedderSettings):
    """Settings of LINE; an epoch draws as many edges as there are, counted both ways.

    Attributes:
        width: of each of the two parts.
        negatives: how much the nodes that are no neighbours count, as a multiple of one that is.
        batch: edges per step of the optimiser.
    """

    width: int = 128
    epochs: int = 100
    learning_rate: float = 0.01
    negatives: int = 5
    batch: int = 1024


class LINE(BatchEmbedder):
    r"""Two parts, learned apart and joined: the first order has one vector per node, the second has two.

    .. math:: \mathcal L_1 = -\textstyle\sum_{ij} w_{ij} \big(\log \sigma(u_i^\top u_j)
        + k\, \mathbb E_n \log \sigma(-u_i^\top u_n)\big), \quad
        \mathcal L_2 = -\textstyle\sum_{ij} w_{ij} \big(\log \sigma(u'^\top_i v_j)
        + k\, \mathbb E_n \log \sigma(-u'^\top_i v_n)\big)

    with edges drawn by weight and n by degree to the power of 3/4: `SkipGram` on walks of two nodes. Each
    part has rows of length 1. Features are not looked at.
    """

    falling = True

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return three vectors per node with Adam's moments, a batch, and the edges."""
        vectors = sizes.nodes * settings.width * 12
        return 4 * int(vectors + settings.batch * 2 * (16 * settings.width + 6 * SHARED) + 20 * sizes.edges)

    def build(self, graph: Graph) -> None:
        """Make the vectors, and the edges to draw from."""
        matrix = edges_to_walk(graph, self.device, "LINE")
        self.walker = Walker(matrix)
        sizes = {"nodes": graph.num_nodes, "width": self.settings.width}
        self.first = SkipGram(**sizes, window=1, negatives=self.settings.negatives, tied=True)
        self.second = SkipGram(**sizes, window=1, negatives=self.settings.negatives)
        self.first.frequency = self.second.frequency = row_sums(matrix)

    def batches(self) -> Iterator[Tensor]:
        """Give the edges of an epoch, `[batch, 2]` at a time."""
        yield from torch.split(self.walker.edges(self.walker.keys.numel()), self.settings.batch)

    def batch_loss(self, batch: Tensor) -> Tensor:
        """Return the loss of both orders; they share the edges and no vector."""
        return self.first.loss(batch) + self.second.loss(batch)

    def embedding(self) -> Tensor:
        """Join both parts, each with rows of length 1."""
        parts = (self.first.centres, self.second.centres)
        return torch.cat([functional.normalize(part, dim=1) for part in parts], dim=1)


SYSTEM = System(
    name="line",
    title="LINE",
    estimator="LINE",
    group="clustering",
    paper="Tang et al.: LINE: Large-scale Information Network Embedding. WWW",
    year=2015,
    sees=("edges",),
    kind=LINE,
    settings=LINESettings(),
    cost="every edge once, in small batches, per epoch",
    ranges={
        "width": (128, 64),
        "learning_rate": (0.01, 0.025, 0.0025),
        "negatives": (5, 1),
        "epochs": (100, 30, 300),
    },
    published={ANY: {"width": 128, "negatives": 5}},
    source="the paper's section 5.1: width 128, five negatives; plain gradient descent from 0.025 there",
)
