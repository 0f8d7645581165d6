"""AERO-GNN: attention over edges and hops that stays informative in deep networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix, adjacency, edge_ends, pairs_of
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.stacks import Noise
from h3gnn.baselines.supervised import USUAL_WIDTH, Classifier, ClassifierSettings, Ground
from h3gnn.graphs.graph import Graph

SMALL = 1e-6
"""ε, the lower bound of attention and fading."""


@dataclass(frozen=True)
class AEROGNNSettings(ClassifierSettings):
    """Settings of AERO-GNN.

    Attributes:
        iterations: number of propagation steps.
        layers: of the MLP.
        fading: λ; a larger one gives the accumulated sum more weight in the attention of early hops.
        last_dropout: whether dropout precedes the classifier.
        attention_decay: factor of the weight decay for the attention.
    """

    iterations: int = 4
    layers: int = 2
    fading: float = 0.5
    last_dropout: bool = True
    attention_decay: float = 1.0


class AEROGNN(Classifier):
    r"""Attentive deep propagation (Lee et al., 2023).

    .. math:: H^{(k)} = \mathcal A^{(k)} H^{(k-1)}, \quad
        Z^{(k)} = \textstyle\sum_{l \le k} \Gamma^{(l)} H^{(l)}, \quad
        \tilde Z^{(k)} = \ln\big(\tfrac{\lambda}{k + 1} + 1 + \varepsilon\big) Z^{(k)}

    .. math:: \alpha^{(k)}_{ij} = \mathrm{softplus}\big(a_k^\top\, \mathrm{ELU}(\tilde z_i + \tilde z_j)\big),
        \quad \gamma^{(k)}_i = b_k + w_k^\top\, \mathrm{ELU}[h^{(k)}_i \,|\, \tilde z_i],
        \quad \tilde z = \tilde z^{(k-1)}

    H⁽⁰⁾ is the output of an MLP, 𝒜 is α over the edges and self-loops, symmetrically normalized by its sums,
    Γ is diagonal with γ, and the logits are a linear map of the last ELU(Z). α is symmetric and computed
    once per pair of nodes.
    """

    settings_class = AEROGNNSettings

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        edges = adjacency(graph, self_loops=True)
        count, nodes = edges.cols.numel(), graph.num_nodes
        pairs, pair = pairs_of(edges)
        ends = edge_ends(edges)
        order = torch.argsort(pair * nodes + edges.rows)
        twice = torch.where(edges.rows == edges.cols, 2.0, 1.0)  # both ends of a self-loop are one node
        return {
            "ends": SparseMatrix(pair[order], edges.rows[order], twice[order], (pairs, nodes)),
            "pair": SparseMatrix(torch.arange(count), pair, torch.ones(count), (count, pairs)),
            "source": ends["source"],
            "sum": ends["sum"],
        }

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        steps: int = settings.iterations
        each = USUAL_WIDTH * (9 * sizes.nodes + 3 * (sizes.edges + sizes.nodes))
        return super().bytes_for(sizes, settings) + 4 * steps * each

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        edges, nodes = ground.matrices["source"].shape
        steps: int = ground.settings.iterations
        return super().values_each(ground, width) + steps * width * (9 * nodes + 3 * edges)

    def build(self) -> None:
        width, steps, share = self.width, self.settings.iterations, self.settings.attention_decay
        for layer in range(self.settings.layers):
            self.weights.glorot(f"map {layer}", width if layer else self.in_channels, width)
            self.weights.zeros(f"map {layer} bias", width)
        self.weights.glorot("edge", steps, width, 1 + width, decay=share)
        self.weights.glorot("first hop", 1, width, decay=share)
        self.weights.glorot("hop", steps, 2 * width, 1 + 2 * width, decay=share)
        self.weights.constant("hop start", torch.ones(steps + 1, 1), decay=share)
        self.weights.glorot("classify", width, self.ground.classes)
        self.weights.zeros("bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        hidden = self.ground.features.product(self.weights["map 0"], noise) + self.weights["map 0 bias"]
        for layer in range(1, self.settings.layers):
            hidden = functional.elu(hidden)
            hidden = self.dropped(hidden, noise)
            hidden = self.dense(hidden, f"map {layer}") + self.weights[f"map {layer} bias"]
        total = functional.elu(self.gather(hidden))
        total = total if noise is None or not self.settings.last_dropout else noise.drop(total)
        return self.dense(total, "classify") + self.weights["bias"]

    def gather(self, hidden: Tensor) -> Tensor:
        """Return Z after the last step, for H⁽⁰⁾ `[nodes, models, width]`."""
        starts = self.weights["hop start"]
        total = hidden * (_weigh(hidden, self.weights["first hop"][0]) + starts[0])
        for step in range(1, self.settings.iterations + 1):
            decayed = total * math.log(self.settings.fading / step + 1 + SMALL)
            hidden = self.spread(hidden, self.attention(decayed, step))
            seen = torch.cat([hidden, decayed], dim=2)
            total = total + hidden * (_weigh(seen, self.weights["hop"][step - 1]) + starts[step])
        return total

    def attention(self, decayed: Tensor, step: int) -> Tensor:
        """Return α of both directions of each edge, `[edges, models, 1]`."""
        matrices = self.ground.matrices
        score = _weigh(matrices["ends"] @ decayed, self.weights["edge"][step - 1])
        return matrices["pair"] @ (functional.softplus(score) + SMALL)

    def spread(self, hidden: Tensor, attention: Tensor) -> Tensor:
        """Return 𝒜 H."""
        source, total = self.ground.matrices["source"], self.ground.matrices["sum"]
        scale = (total @ attention).rsqrt()
        return scale * (total @ (attention * (source @ (scale * hidden))))


def _weigh(x: Tensor, weights: Tensor) -> Tensor:
    """Return the product of ELU(x) `[rows, models, width]` with `[models, width]`, `[rows, models, 1]`."""
    return (functional.elu(x) * weights).sum(dim=-1, keepdim=True)
