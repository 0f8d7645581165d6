"""GCN (Kipf and Welling, 2017): two graph convolutions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from h3gnn.baselines.classifiers import ClassifierSettings
from h3gnn.baselines.layers import SparseMatrix, adjacency, symmetric
from h3gnn.baselines.mlp import MLP
from h3gnn.baselines.systems import ANY, System
from h3gnn.graphs.graph import Graph


class GCN(MLP):
    r"""Two graph convolutions (Kipf and Welling, 2017).

    The same, with :math:`P = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return P."""
        return {"gcn": symmetric(adjacency(graph, self_loops=True))}

    def spread(self, x: Tensor) -> Tensor:
        """Propagate along the normalised adjacency."""
        return self.ground.matrices["gcn"] @ x


SYSTEM = System(
    name="gcn",
    title="GCN",
    estimator="GCN",
    group="supervised",
    paper="Kipf and Welling: Semi-Supervised Classification with Graph Convolutional Networks. ICLR",
    year=2017,
    sees=("features", "edges", "labels"),
    kind=GCN,
    settings=ClassifierSettings(),
    cost="one product with the features and two with the edges per epoch",
    published={
        ANY: {
            "scale_features": "sums",
            "epochs": 200,
            "patience": 200,
            "width": 16,
            "dropout": 0.5,
            "learning_rate": 0.01,
            "weight_decay": 5e-4,
        }
    },
    source="the paper's section 5",
)
