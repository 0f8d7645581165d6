"""Bandana (Zhao et al., 2024): edges carry more or less instead of being there or not; say how much."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix, symmetric
from h3gnn.baselines.links import LinkEmbedder, LinkSettings, mean
from h3gnn.baselines.systems import ANY, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class BandanaSettings(LinkSettings):
    """Settings of Bandana.

    Attributes:
        width: of every layer of the encoder.
        temperature: of the bandwidths: with a small one, one edge of a node carries nearly everything.
        own_weights: whether an edge counts in the loss as much as it carries, as the paper says; else as much
            as some other edge does, always the same one, as in its authors' code, where two orders of the
            edges meet. Edges that carry little then count as well.
    """

    width: int = 256
    decoder_drop: float = 0.0
    temperature: float = 0.2
    own_weights: bool = False


class Bandana(LinkEmbedder):
    r"""Random bandwidths on all edges, new ones in every layer, which the layer's embedding is to say.

    .. math:: b_{vu} = \mathrm{softmax}_{u \in N(v)}(\epsilon_{vu} / T), \quad \epsilon \sim \mathcal N(0, 1),
        \quad H_l = \mathrm{ELU}(\mathrm{BN}(\hat B_l H_{l-1} W_l)), \quad
        \mathcal L = -\tfrac1L \textstyle\sum_l \tfrac1{|E|} \sum_{E} b_{vu} \log d_1(h_v \odot h_u)
        + \tfrac1{|E^-|} \sum_{E^-} \log d_0(h_v \odot h_u)

    :math:`\hat B` has a loop of 1 at each node and is scaled by its row sums as a GCN's adjacency is, the
    two outputs of d add up to 1, and one decoder serves all layers. Embeddings see plain edges. Unless
    `own_weights`, the b of the loss are those of :math:`\hat B` in another order, drawn once.
    """

    outputs = 2

    def build(self, graph: Graph) -> None:
        """Add whose bandwidth each edge counts with."""
        super().build(graph)
        count = self.links.shape[1]
        order = torch.arange(count) if self.settings.own_weights else torch.randperm(count)
        self.weighed_by = order.to(self.device)

    def loss(self, epoch: int) -> Tensor:
        """Draw bandwidths for each layer, and say them."""
        bandwidths = [self.bandwidth() for _ in range(self.settings.layers)]
        return self.errors(bandwidths, self.unlinked(self.links.shape[1]))

    def bandwidth(self) -> Tensor:
        """Draw what each edge carries `[links]`: over the edges of a node it adds up to 1."""
        from torch_geometric.utils import softmax

        noise = torch.randn(self.links.shape[1], device=self.device) / self.settings.temperature
        share: Tensor = softmax(noise, self.links[0], num_nodes=self.looped.shape[0])
        return share

    def carrying(self, bandwidth: Tensor) -> SparseMatrix:
        """Return the matrix of edges with these bandwidths and of loops."""
        values = torch.ones_like(self.looped.values).index_copy(0, self.places, bandwidth)
        return symmetric(self.looped.with_values(values))

    def errors(self, bandwidths: list[Tensor], others: Tensor) -> Tensor:
        """Return the loss of these bandwidths, and of pairs without an edge."""
        layers = self.encoder([self.carrying(bandwidth) for bandwidth in bandwidths])
        errors = []
        for hidden, bandwidth in zip(layers, bandwidths, strict=True):
            linked = functional.log_softmax(self.decoder(hidden, self.links), dim=1)[:, 0]
            unlinked = functional.log_softmax(self.decoder(hidden, others), dim=1)[:, 1]
            weight = bandwidth.index_select(0, self.weighed_by)
            errors.append(-mean(weight * linked) - mean(unlinked))
        return torch.stack(errors).mean()


SYSTEM = System(
    name="bandana",
    title="Bandana",
    estimator="Bandana",
    group="self-supervised",
    paper="Zhao et al.: Masked Graph Autoencoder with Non-discrete Bandwidths. WWW",
    year=2024,
    sees=("features", "edges"),
    kind=Bandana,
    settings=BandanaSettings(),
    cost="in every layer a small network on every edge and as many other pairs, per epoch",
    ranges={
        "temperature": (0.2, 0.9, 0.5),
        "layers": (2, 3, 5),
        "width": (256, 64, 128),
        "drop": (0.8, 0.6),
        "own_weights": (False, True),
        "learning_rate": (0.01, 0.001, 0.02),
    },
    published={
        ANY: {"scale_features": "none", "epochs": 1000, "look_patience": 30},
        "cora": {"layers": 3, "temperature": 0.9, "decoder_width": 256},
        "citeseer": {"layers": 5, "decoder_width": 256, "learning_rate": 0.02},
        "pubmed": {"width": 64, "drop": 0.6, "decoder_drop": 0.7, "learning_rate": 0.001},
    },
    source="the public code's config folder: Cora, Citeseer and PubMed",
)
