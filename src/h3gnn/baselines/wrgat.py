"""WRGAT: attention over neighbours and over structurally similar nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix, adjacency, edge_ends
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.structure import structural_distances
from h3gnn.baselines.supervised import USUAL_WIDTH, Classifier, ClassifierSettings, Ground
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class WRGATSettings(ClassifierSettings):
    """Settings of WRGAT.

    Attributes:
        layers: rings around a node that are compared; each is a relation, next to that of the edges.
        nearest: number of the most similar nodes per relation; 0 for all candidates.
        near_weight: of the edges, where the weights of a node in each other relation add up to 1.
    """

    layers: int = 3
    nearest: int = 5
    near_weight: float = 1.0


class WRGAT(Classifier):
    r"""Relational attention over edges and structural similarity (Suresh et al., 2021).

    .. math:: h'_v = W_0 h_v + b + \sum_r \frac{1}{|N_r(v)|} \sum_{u \in N_r(v)}
        w^r_{uv}\, \alpha^r_{vu}\, W_r h_u, \quad
        \alpha^r_{vu} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a_r^\top [W_r h_v \,|\, W_r h_u])

    :math:`w^r_{uv} = e^{-f_r(u, v)} / \sum_x e^{-f_r(u, x)}` with the structural distance f of `structure`;
    the edges of the graph have one weight. ReLU and dropout are between the layers.
    """

    settings_class = WRGATSettings

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        edges = adjacency(graph, self_loops=False)
        relations = [edges.with_values(torch.full_like(edges.values, settings.near_weight))]
        found = structural_distances(graph, settings.layers, torch.device("cpu"))
        relations += [found.layer(index, settings.nearest) for index in range(settings.layers)]
        made: dict[str, SparseMatrix] = {}
        for number, relation in enumerate(one for one in relations if one.values.numel()):
            # A row lists the nodes similar to its node; messages go from the row to its columns.
            received = relation.transposed()
            ends = edge_ends(received, received.values / received.crow.diff()[received.rows])
            made |= {f"{end} {number}": matrix for end, matrix in ends.items()}
        return made

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        layers: int = settings.layers
        alike = 2 * math.ceil(math.log2(max(2, sizes.nodes))) if not settings.nearest else settings.nearest
        edges = sizes.edges + layers * alike * sizes.nodes
        rows = sizes.nodes * (layers + 2) * 6 * USUAL_WIDTH + sizes.features * (layers + 2) * 6 * USUAL_WIDTH
        return super().bytes_for(sizes, settings) + 4 * (edges * (4 * USUAL_WIDTH + 30) + rows)

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        counts = [one.shape[1] for name, one in ground.matrices.items() if name.startswith("sum")]
        maps = (len(counts) + 1) * width * (6 * ground.features.shape[1] + 4 * ground.features.shape[0])
        on_edges = sum(counts) * (4 * width + 4 * ground.classes + 16)
        return super().values_each(ground, width) + maps + on_edges

    def build(self) -> None:
        self.relations = len(self.ground.matrices) // 3
        sizes = {"first": (self.in_channels, self.width), "second": (self.width, self.ground.classes)}
        for layer, (rows, columns) in sizes.items():
            self.weights.glorot(layer, rows, (1 + self.relations) * columns, rows + columns)
            self.weights.zeros(f"{layer} bias", columns)
            for end in ("from", "to") if self.relations else ():
                self.weights.glorot(f"{layer} {end}", self.relations, columns, self.relations + 2 * columns)

    def logits(self, noise: Noise | None) -> Tensor:
        hidden = functional.relu(self.attend(self.ground.features.product(self.weights["first"]), "first"))
        hidden = self.dropped(hidden, noise)
        return self.attend(self.dense(hidden, "second"), "second")

    def attend(self, mapped: Tensor, layer: str) -> Tensor:
        """Return a layer's values from all maps side by side, `[nodes, models, (1 + relations) width]`."""
        own, *projected = mapped.chunk(1 + self.relations, dim=2)
        total: Tensor = own + self.weights[f"{layer} bias"]
        for relation, x in enumerate(projected):
            total = total + self.receive(x, relation, layer)
        return total

    def receive(self, x: Tensor, relation: int, layer: str) -> Tensor:
        """Return what reaches each node through one relation."""
        from torch_geometric.utils import softmax

        source, target, total = (
            self.ground.matrices[f"{name} {relation}"] for name in ("source", "target", "sum")
        )
        sent, received = (
            (x * self.weights[f"{layer} {end}"][relation]).sum(dim=-1, keepdim=True) for end in ("from", "to")
        )
        score = functional.leaky_relu(source @ sent + target @ received, 0.2)
        share = softmax(score.flatten(1), target.cols, num_nodes=x.shape[0]).view_as(score)
        return total @ (share * (source @ x))
