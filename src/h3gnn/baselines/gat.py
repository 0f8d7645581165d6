"""GAT (Veličković et al., 2018): two graph attention layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.classifiers import USUAL_WIDTH, Classifier, ClassifierSettings, Ground
from h3gnn.baselines.layers import SparseMatrix, adjacency, edge_ends
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph

HEADS = 8
"""Attention heads of GAT's hidden layer, which share its width."""


class GAT(Classifier):
    r"""Two graph attention layers (Veličković et al., 2018).

    .. math:: \alpha_{vu} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a^\top_{to} W x_v + a^\top_{from} W x_u)

    The hidden layer has eight heads side by side and an ELU, the last has one. Per-edge values lie as
    `[edges, models, heads]`; reading them from nodes and summing them into nodes are sparse products.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        """Return what reads the two ends of each edge, and what sums edges into their targets."""
        return edge_ends(adjacency(graph, self_loops=True))

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add what lies on the edges."""
        return super().bytes_for(sizes, settings) + 4 * sizes.edges * (6 * USUAL_WIDTH + 10 * HEADS)

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Add what lies on the edges."""
        edges = ground.matrices["source"].shape[0]
        return super().values_each(ground, width) + edges * (6 * width + 10 * HEADS + 6 * ground.classes)

    def build(self) -> None:
        """Add two layers, each with a map and two attention vectors."""
        self.heads = {"first": HEADS, "second": 1}
        sizes = {"first": (self.in_channels, self.width), "second": (self.width, self.ground.classes)}
        for layer, (rows, columns) in sizes.items():
            self.weights.glorot(layer, rows, columns)
            fan = self.heads[layer] + columns // self.heads[layer]
            self.weights.glorot(f"{layer} from", 1, columns, fan)
            self.weights.glorot(f"{layer} to", 1, columns, fan)
            self.weights.zeros(f"{layer} bias", columns)

    def logits(self, noise: Noise | None) -> Tensor:
        """Attend twice."""
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = functional.elu(self.attend(first, "first", noise))
        hidden = self.dropped(hidden, noise)
        return self.attend(self.dense(hidden, "second"), "second", noise)

    def attend(self, x: Tensor, layer: str, noise: Noise | None) -> Tensor:
        """Return what reaches each node through attention over its neighbours and itself."""
        from torch_geometric.utils import softmax

        source, target = self.ground.matrices["source"], self.ground.matrices["target"]
        nodes, models, width = x.shape
        heads = self.heads[layer]

        def seen(end: str) -> Tensor:
            weighed = (x * self.weights[f"{layer} {end}"]).view(nodes, models, heads, -1)
            return weighed.sum(dim=-1)

        score = functional.leaky_relu(source @ seen("from") + target @ seen("to"), 0.2)
        share = softmax(score.flatten(1), target.cols, num_nodes=nodes).view_as(score)
        share = self.dropped(share, noise)
        messages = (source @ x).view(-1, models, heads, width // heads) * share[..., None]
        return self.ground.matrices["sum"] @ messages.flatten(2) + self.weights[f"{layer} bias"]


SYSTEM = System(
    name="gat",
    title="GAT",
    estimator="GAT",
    group="supervised",
    paper="Veličković et al.: Graph Attention Networks. ICLR",
    year=2018,
    sees=("features", "edges", "labels"),
    kind=GAT,
    settings=ClassifierSettings(),
    cost="messages of the hidden layer's width on every edge",
    published={
        ANY: {
            "scale_features": "sums",
            "epochs": 1000,
            "width": 64,
            "dropout": 0.6,
            "learning_rate": 0.005,
            "weight_decay": 5e-4,
        }
    },
    source="the paper's section 3.3, of Cora and CiteSeer",
)
