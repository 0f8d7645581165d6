"""S²GC (Zhu and Koniusz, 2021): the mean of features that were smoothed once, twice and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import gcn_adjacency, scaled_features
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class S2GCSettings(EmbedderSettings):
    """Settings of S²GC; nothing is trained, so that width, epochs, rates and patience change nothing.

    Attributes:
        steps: how often the features are smoothed at most.
        own_share: of a node's own features.
    """

    epochs: int = 0
    steps: int = 16
    own_share: float = 0.05


class S2GC(Embedder):
    r"""Features averaged over walks of up to K steps, with a share of a node's own; as wide as the features.

    .. math:: H = \tfrac1K \sum_{k=1}^K (1 - \alpha) \tilde A^k X + \alpha X
    """

    has_chance = False

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Count the features, dense, before and after a step, and their mean."""
        return 4 * (4 * sizes.nodes * sizes.features + 12 * sizes.edges)

    def build(self, graph: Graph) -> None:
        """Smooth the features."""
        own = scaled_features(graph, self.device, self.settings.scale_features).dense()
        matrix, smoothed, total = gcn_adjacency(graph, self.device), own, torch.zeros_like(own)
        for _ in range(self.settings.steps):
            smoothed = matrix @ smoothed
            total += smoothed
        alpha = self.settings.own_share
        self.rows: Tensor = alpha * own + (1 - alpha) / max(1, self.settings.steps) * total

    def begin(self) -> None:
        """Get nothing ready: there is nothing to train."""

    def step(self, epoch: int) -> Tensor:
        """Leave all as it is."""
        return torch.zeros(())

    def embedding(self) -> Tensor:
        """Return the smoothed features."""
        return self.rows


SYSTEM = System(
    name="s2gc",
    title="S²GC",
    estimator="S2GC",
    group="self-supervised",
    paper="Zhu and Koniusz: Simple Spectral Graph Convolution. ICLR",
    year=2021,
    sees=("features", "edges"),
    kind=S2GC,
    settings=S2GCSettings(),
    cost="the features as a dense matrix, and a product with the edges per step; no training",
    ranges={"steps": (16, 2, 4, 8), "own_share": (0.05, 0.1, 0.3), "scale_features": ("auto", "sums")},
    published={ANY: {"scale_features": "sums"}},
    source="the authors' public code, args_cora.py, args_citeseer.py and args_pubmed.py",
)
