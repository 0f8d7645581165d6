"""DGI (Veličković et al., 2019): node embeddings that can be told from those of a shuffled graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.encoders import GraphEncoder
from h3gnn.baselines.layers import SparseMatrix, gcn_adjacency, scaled_features
from h3gnn.baselines.systems import ANY, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class DGISettings(EmbedderSettings):
    """Settings of DGI; those of the paper, but for an upper bound on the epochs."""

    patience: int = 20


class DGI(Embedder):
    r"""A summary of the graph tells its nodes from those of a graph with shuffled features.

    .. math:: H = \mathrm{PReLU}(\tilde A X W), \quad s = \sigma\big(\tfrac1n \textstyle\sum_v h_v\big), \quad
        \mathcal L = -\tfrac1n \sum_v \log \sigma(h_v^\top M s) + \log(1 - \sigma(\tilde h_v^\top M s))

    :math:`\tilde H` is the encoding of the shuffled features :math:`P X`, and :math:`(P X) W = P (X W)`: one
    product with the features serves both. The loss is that of PyG's `DeepGraphInfomax`.
    """

    def build(self, graph: Graph) -> None:
        """Make one convolution, and PyG's class around it."""
        from torch_geometric.nn import DeepGraphInfomax

        width = self.settings.width
        features = scaled_features(graph, self.device, self.settings.scale_features)
        encoder = GraphEncoder(features, [width], [nn.PReLU()])
        self.order = torch.arange(graph.num_nodes, device=self.device)
        self.infomax = DeepGraphInfomax(
            width,
            _InOrder(encoder, gcn_adjacency(graph, self.device)),
            summary=lambda z, *_: torch.sigmoid(z.mean(dim=0)),
            corruption=lambda order: order[torch.randperm(order.numel(), device=order.device)],
        )
        nn.init.xavier_uniform_(self.infomax.get_parameter("weight"))

    def loss(self, epoch: int) -> Tensor:
        """Tell nodes from shuffled ones."""
        loss: Tensor = self.infomax.loss(*self.infomax(self.order))
        return loss

    def embedding(self) -> Tensor:
        """Encode the graph as it is."""
        rows: Tensor = self.infomax.encoder(self.order)
        return rows


class _InOrder(nn.Module):
    """An encoder over the nodes' features in a given order."""

    def __init__(self, encoder: GraphEncoder, matrix: SparseMatrix) -> None:
        super().__init__()
        self.encoder, self.matrix = encoder, matrix

    def forward(self, order: Tensor) -> Tensor:
        return self.encoder.along(self.matrix, self.encoder.product().index_select(0, order))


SYSTEM = System(
    name="dgi",
    title="DGI",
    estimator="DGI",
    group="self-supervised",
    paper="Veličković et al.: Deep Graph Infomax. ICLR",
    year=2019,
    sees=("features", "edges"),
    kind=DGI,
    settings=DGISettings(),
    cost="one product with the features, two with the edges, per epoch",
    ranges={"width": (256, 512), "learning_rate": (0.001, 0.0005, 0.005), "epochs": (100, 300)},
    published={ANY: {"scale_features": "sums", "epochs": 10_000}, "pubmed": {"width": 256}},
    source="the paper's section 4 and its public code",
)
