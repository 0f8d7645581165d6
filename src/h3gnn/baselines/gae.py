"""GAE (Kipf and Welling, 2016): an encoding of each node from whose inner products the edges can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, sum_of_softplus
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import Convolution, Features, SparseMatrix, gcn_adjacency, scaled_features
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class GAESettings(EmbedderSettings):
    """Settings of GAE and VGAE; those of the paper.

    Attributes:
        width: of the embedding.
        hidden: width of the first layer.
        all_pairs: compare all pairs of nodes, as the authors do; else the edges and as many drawn pairs,
            which is for graphs whose pairs are too many.
    """

    width: int = 16
    hidden: int = 32
    epochs: int = 200
    learning_rate: float = 0.01
    all_pairs: bool = True


class GAE(Embedder):
    r"""Two graph convolutions, and the edges from inner products.

    .. math:: Z = \tilde A\, \mathrm{ReLU}(\tilde A X W_0) W_1, \quad \mathcal L = \frac{c}{n^2} \sum_{ij}
        -\omega A_{ij} \log \sigma(z_i^\top z_j) - (1 - A_{ij}) \log(1 - \sigma(z_i^\top z_j))

    with A that has every node next to itself, :math:`\omega = (n^2 - m) / m` for m edges counted both ways,
    and :math:`c = n^2 / (2 (n^2 - m))`. Encoder and decoder stand in PyG's `GAE`.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return layers, what is kept for each node and edge, and a block of pairs."""
        layers = sizes.features * (settings.hidden * 4 + sizes.nodes)
        rows = sizes.nodes * (settings.hidden * 6 + settings.width * 12)
        pairs = bytes_for_pairs(sizes.nodes, 0) if settings.all_pairs else 0
        return 4 * int(layers + rows + sizes.edges * (12 + 6 * settings.width)) + pairs

    def build(self, graph: Graph) -> None:
        """Make the convolutions, and PyG's class around them."""
        self.features = scaled_features(graph, self.device, self.settings.scale_features)
        self.matrix = gcn_adjacency(graph, self.device)
        self.edges = torch.stack([self.matrix.rows, self.matrix.cols])  # with loops
        self.nodes = graph.num_nodes
        self.coder = self.make_coder(graph.num_features)

    def make_coder(self, features: int) -> Any:
        """Return encoder and decoder."""
        from torch_geometric import nn as pyg

        return pyg.GAE(ConvolutionalEncoder(features, self.settings.hidden, (self.settings.width,)))

    def loss(self, epoch: int) -> Tensor:
        """Tell the edges from all other pairs."""
        return self.reconstruction(self.coder.encode(self.features, self.matrix))

    def reconstruction(self, rows: Tensor) -> Tensor:
        """Return how badly inner products of these rows tell the edges."""
        if not self.settings.all_pairs:
            drawn = torch.randint(self.nodes, self.edges.shape, device=self.device)
            sampled: Tensor = self.coder.recon_loss(rows, self.edges, drawn)
            return sampled
        products = self.coder.decode(rows, self.edges, sigmoid=False)
        count = self.nodes**2
        linked = min(max(1, self.edges.shape[1] - self.nodes), count - 1)
        weight = (count - linked) / linked
        of_edges = (weight * functional.softplus(-products) - functional.softplus(products)).sum()
        return (sum_of_softplus(rows) + of_edges) / (2 * (count - linked))

    def embedding(self) -> Tensor:
        """Encode the graph; of VGAE, the mean."""
        rows: Tensor = self.coder.encode(self.features, self.matrix)
        return rows


class ConvolutionalEncoder(nn.Module):
    """A graph convolution with ReLU, and one more for each output on top of it; none has a bias."""

    def __init__(self, features: int, hidden: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.first = Convolution(features, hidden)
        self.heads = nn.ModuleList([Convolution(hidden, width) for width in widths])
        for convolution in (self.first, *self.heads):
            convolution.bias.requires_grad_(False)  # a bias alone could give all nodes one place

    def forward(self, features: Features, matrix: SparseMatrix) -> Any:
        """Return the output, or the outputs where there are several."""
        hidden = torch.relu(self.first.of_features(features, matrix))
        outputs = tuple(head(hidden, matrix) for head in self.heads)
        return outputs[0] if len(outputs) == 1 else outputs


SYSTEM = System(
    name="gae",
    title="GAE",
    estimator="GAE",
    group="clustering",
    paper="Kipf and Welling: Variational Graph Auto-Encoders. NeurIPS workshop on Bayesian Deep Learning",
    year=2016,
    sees=("features", "edges"),
    kind=GAE,
    settings=GAESettings(),
    cost="inner products of all pairs of nodes per epoch, in blocks; fewer with all_pairs=False",
    ranges={
        "width": (16, 64, 128),
        "hidden": (32, 128, 256),
        "learning_rate": (0.01, 0.001, 0.003),
        "epochs": (200, 50, 500),
    },
    published={ANY: {"scale_features": "none"}},
    source="the paper's section 2 and its public code: 32 and 16 wide, 200 epochs of Adam, 0.01, no dropout",
)
