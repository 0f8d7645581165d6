"""MaskGAE (Li et al., 2023): hide paths or edges, and tell them from pairs without an edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix, symmetric
from h3gnn.baselines.links import LinkEmbedder, LinkSettings, mean
from h3gnn.baselines.neighbours import Neighbours
from h3gnn.baselines.systems import ANY, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class MaskGAESettings(LinkSettings):
    """Settings of MaskGAE.

    Attributes:
        width: of the last layer.
        hidden: width of the layers before it.
        mask: "path" hides random walks of one step more than there are layers, "edge" single edges.
        mask_ratio: the share of nodes that walks start from, or of edges.
        whole: whether an edge is hidden when one of its directions is drawn, as the paper says; else only
            when both are, as its authors' code does, and the decoder is asked about all that are drawn.
        degree_weight: of saying how many hidden edges a node has.
    """

    width: int = 64
    epochs: int = 500
    hidden: int = 128
    mask: str = "path"
    mask_ratio: float = 0.7
    whole: bool = False
    degree_weight: float = 0.001


class MaskGAE(LinkEmbedder):
    r"""Hidden edges :math:`E_m` are told from as many pairs :math:`E^-`, from an encoding of what is left.

    .. math:: \mathcal L = -\tfrac1{|E_m|} \textstyle\sum_{E_m} \log d(z_u \odot z_v)
        - \tfrac1{|E^-|} \sum_{E^-} \log(1 - d(z_u \odot z_v))
        + \alpha \tfrac1n \sum_v (g(z_v) - \deg_m(v))^2
    """

    def widths(self) -> list[int]:
        """Return the hidden widths and the last."""
        return [self.settings.hidden] * (self.settings.layers - 1) + [self.settings.width]

    def build(self, graph: Graph) -> None:
        """Add what says degrees, and where the edges of a node begin."""
        super().build(graph)
        if self.settings.mask not in ("path", "edge"):
            raise InputError(f"mask: {self.settings.mask!r} is not known; take path or edge")
        width, hidden, drop = self.settings.width, self.settings.decoder_width, self.settings.decoder_drop
        self.degree_decoder = nn.Sequential(
            nn.Linear(width, hidden), nn.Dropout(drop), nn.ReLU(), nn.Linear(hidden, 1), nn.ReLU()
        )
        there = torch.ones(self.links.shape[1], device=self.device)
        matrix = SparseMatrix(self.links[0], self.links[1], there, self.looped.shape)
        self.neighbours, self.reverse = Neighbours(matrix), matrix.order  # edges are there both ways

    def loss(self, epoch: int) -> Tensor:
        """Hide edges, and tell them from other pairs."""
        drawn = self.along_paths() if self.settings.mask == "path" else self.by_edges()
        return self.errors(drawn)

    def by_edges(self) -> Tensor:
        """Draw directions of edges, each by itself; bool `[links]`."""
        ratio: float = self.settings.mask_ratio
        return torch.rand(self.links.shape[1], device=self.device) < ratio

    def along_paths(self) -> Tensor:
        """Draw the directions that random walks take; bool `[links]`."""
        degree, nodes = self.neighbours.degree, self.neighbours.degree.numel()
        order = torch.randperm(nodes, device=self.device)[: max(1, round(self.settings.mask_ratio * nodes))]
        at = order[degree[order] > 0]
        drawn = torch.zeros(self.links.shape[1], dtype=torch.bool, device=self.device)
        for _ in range(self.settings.layers + 1):
            taken = self.neighbours.edge(at)
            drawn[taken] = True
            at = self.links[1][taken]
        return drawn

    def errors(self, drawn: Tensor) -> Tensor:
        """Return the loss when these directions of edges are drawn."""
        either, both = drawn | drawn[self.reverse], drawn & drawn[self.reverse]
        gone, asked = (either, either) if self.settings.whole else (both, drawn)
        kept = torch.ones_like(self.looped.values).index_copy(0, self.places, (~gone).float())
        matrix = symmetric(self.looped.with_values(self.looped.values * kept))
        embedding = self.encoder([matrix] * self.settings.layers)[-1]
        linked = self.links[:, asked]
        linked_score = self.decoder(embedding, linked)
        other_score = self.decoder(embedding, self.unlinked(linked.shape[1]))
        degrees = torch.bincount(linked[1], minlength=len(embedding)).float()
        wrong = functional.mse_loss(self.degree_decoder(embedding).squeeze(1), degrees)
        told = mean(functional.softplus(-linked_score)) + mean(functional.softplus(other_score))
        weight: float = self.settings.degree_weight
        return told + weight * wrong


SYSTEM = System(
    name="maskgae",
    title="MaskGAE",
    estimator="MaskGAE",
    group="self-supervised",
    paper=(
        "Li et al.: What’s Behind the Mask: Understanding Masked Graph Modeling for Graph Autoencoders. KDD"
    ),
    year=2023,
    sees=("features", "edges"),
    kind=MaskGAE,
    settings=MaskGAESettings(),
    cost="one encoding, and a small network on every hidden edge and as many other pairs, per epoch",
    ranges={
        "mask": ("path", "edge"),
        "mask_ratio": (0.7, 0.5, 0.3),
        "degree_weight": (0.001, 0.004, 0.0),
        "drop": (0.8, 0.5),
        "whole": (False, True),
        "learning_rate": (0.01, 0.02, 0.001),
    },
    published={
        ANY: {"scale_features": "none", "look_every": 30},
        "cora": {"degree_weight": 0.004},
        "citeseer": {"learning_rate": 0.02},
        "pubmed": {"drop": 0.5, "decoder_drop": 0.5},
    },
    source="the commands in the public code's README, for path masks; Cora, Citeseer and PubMed alone",
)
