"""struc2vec (Ribeiro et al., 2017): walks between nodes that stand alike, wherever in the graph they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix
from h3gnn.baselines.skipgram import WalkEmbedder, Walker, WalkSettings
from h3gnn.baselines.structure import StructuralDistances, structural_distances
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class Struc2VecSettings(WalkSettings):
    """Settings of struc2vec.

    Attributes:
        layers: rings around a node that are compared, the node itself being the first.
        stay: the chance that a walk steps to another node and not to another layer.
    """

    layers: int = 4
    stay: float = 0.3


class Struc2Vec(WalkEmbedder):
    r"""A graph with a layer for each ring; walks in it make the company that skip-gram learns from.

    .. math:: p_k(u, v) \propto e^{-f_k(u, v)}, \quad
        p(u_k \to u_{k+1}) = \frac{w}{w + 1}, \quad w = \log\big(\Gamma_k(u) + e\big)

    f is the structural distance, see `structure`; :math:`\Gamma_k(u)` counts the nodes whose weight to u is
    above the mean of the layer: one that is like too many others is looked at more closely. A walk steps
    within its layer with probability `stay`, and else goes a layer up, or down. Only nodes are written down,
    so the layer of the next step is drawn at once: all changes before it add up to the matrix
    :math:`q\,(I - (1 - q)\, T_u)^{-1}`, with :math:`T_u` one change of layer at node u.
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add the pairs that are compared, in every layer."""
        pairs = sizes.nodes * math.ceil(math.log2(max(2, sizes.nodes)))
        layers: int = settings.layers
        return super().bytes_for(sizes, settings) + (200 * pairs + 16 * sizes.nodes * layers) * layers

    def prepare(self, graph: Graph) -> None:
        """Measure the distances, and make the layers."""
        found = structural_distances(graph, self.settings.layers, self.device)
        parts = [found.layer(index) for index in range(self.settings.layers)]
        nodes, states = graph.num_nodes, graph.num_nodes * len(parts)
        shifts = [nodes * index for index in range(len(parts))]
        rows, cols = (
            torch.cat([getattr(part, name) + shift for part, shift in zip(parts, shifts, strict=True)])
            for name in ("rows", "cols")
        )
        values = torch.cat([part.values for part in parts])
        self.walker = Walker(SparseMatrix(rows, cols, values, (states, states)))
        self.changes = layer_changes(found, self.settings.stay).cumsum(dim=2)

    def walks(self, starts: Tensor) -> Tensor:
        """Return a walk from each of these nodes; it begins in the lowest layer."""
        nodes, path = self.changes.shape[0], [starts]
        layer = torch.zeros_like(starts)
        for _ in range(1, self.settings.walk_length):
            coins = torch.rand(starts.shape, dtype=torch.float64, device=self.device)[:, None]
            here = path[-1].clamp_min(0)
            layer = (coins >= self.changes[here, layer]).sum(dim=1).clamp_max(self.changes.shape[1] - 1)
            reached = self.walker.step(layer * nodes + here)
            path.append(torch.where((reached < 0) | (path[-1] < 0), -1, reached % nodes))
        return torch.stack(path, dim=1)


def layer_changes(found: StructuralDistances, stay: float) -> Tensor:
    """Return for each node and layer the chances of the layer of the next step, `[nodes, layers, layers]`."""
    layers, device = found.distances.shape[0], found.distances.device
    weights = (-found.distances).exp()
    there = torch.isfinite(found.distances)
    mean = weights.sum(dim=1) / there.sum(dim=1).clamp_min(1)
    above = _per_node((weights > mean[:, None]) & there, found)
    exists = _per_node(there, found) > 0
    up = (above + math.e).log()
    up = up / (up + 1)
    change = torch.zeros(found.nodes, layers, layers, dtype=torch.float64, device=device)
    for layer in range(layers):
        higher = up[layer] * exists[layer + 1] if layer + 1 < layers else torch.zeros_like(up[layer])
        lower = 1 - up[layer] if layer else torch.zeros_like(up[layer])
        change[:, layer, layer] = 1 - higher - lower
        if layer + 1 < layers:
            change[:, layer, layer + 1] = higher
        if layer:
            change[:, layer, layer - 1] = lower
    same = torch.eye(layers, dtype=torch.float64, device=device)
    chances: Tensor = stay * torch.linalg.inv(same - (1 - stay) * change)
    return chances


def _per_node(flags: Tensor, found: StructuralDistances) -> Tensor:
    """Return how many pairs of each node have a flag, float64 `[layers, nodes]`."""
    counts = torch.zeros(flags.shape[0], found.nodes, dtype=torch.float64, device=flags.device)
    for end in found.pairs.unbind(1):
        counts.index_add_(1, end, flags.double())
    return counts


SYSTEM = System(
    name="struc2vec",
    title="struc2vec",
    estimator="Struc2Vec",
    group="clustering",
    paper="Ribeiro et al.: struc2vec: Learning Node Representations from Structural Identity. KDD",
    year=2017,
    sees=("edges",),
    kind=Struc2Vec,
    settings=Struc2VecSettings(),
    cost="rings around every node, and the structural distances of each node to some twenty others",
    ranges={
        "width": (64, 128),
        "layers": (2, 4, 6),
        "epochs": (10, 20),
        "walk_length": (40, 80),
        "window": (5, 10),
        "learning_rate": (0.005, 0.01, 0.003),
    },
    published={ANY: {"epochs": 50, "layers": 10}},
    source="the public code's defaults, leoribeiro/struc2vec: 10 walks of 80 nodes from each, 5 times over",
    most_nodes=50_000,
)
