"""The supervised classifiers, each a whole stack of models over one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.layers import (
    Features,
    SparseMatrix,
    adjacency,
    scaled_features,
    symmetric,
    to_device,
    two_hop_adjacency,
)
from h3gnn.baselines.stacks import Member, Noise, Weights
from h3gnn.graphs.graph import Graph

HEADS = 8
"""Attention heads of GAT's hidden layer, which share its width."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What all models of a method share.

    Attributes:
        features: of the nodes.
        classes: how many.
        matrices: adjacencies by name, as the method needs them.
    """

    features: Features
    classes: int
    matrices: dict[str, SparseMatrix] = field(default_factory=dict)


class Classifier:
    """A stack of models over one graph; a subclass adds its weights and says how they give logits.

    Args:
        ground: what the models share, from `on`.
        members: the models.
        device: where they train.
    """

    def __init__(self, ground: Ground, members: Sequence[Member], device: torch.device) -> None:
        self.ground = ground
        self.width = members[0].point.width
        self.weights = Weights(members, device)
        self.build()

    @classmethod
    def on(cls, graph: Graph, device: torch.device) -> Ground:
        """Return what all models share on a graph, its features scaled."""
        matrices = {name: to_device(matrix, device) for name, matrix in cls.matrices(graph).items()}
        return Ground(scaled_features(graph, device), graph.num_classes, matrices)

    @staticmethod
    def matrices(graph: Graph) -> dict[str, SparseMatrix]:
        """Return the adjacencies that the models need, by name; none by default."""
        return {}

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Return about how many values the backward pass of one model keeps."""
        return ground.features.shape[0] * (10 * width + 12 * ground.classes)

    @classmethod
    def bytes_each(cls, ground: Ground, width: int) -> int:
        """Return about how much memory one model takes: weights, Adam, and what backward needs."""
        return 4 * (6 * ground.features.shape[1] * width + cls.values_each(ground, width))

    def build(self) -> None:
        """Add the weights."""
        raise NotImplementedError

    def logits(self, noise: Noise | None) -> Tensor:
        """Return the scores before the softmax, `[nodes, models, classes]`; with noise, in training."""
        raise NotImplementedError

    def dense(self, x: Tensor, name: str) -> Tensor:
        """Return `x W` for each model's own rows `[nodes, models, in]`."""
        return torch.einsum("nmc,cmk->nmk", x, self.weights[name])

    @property
    def in_channels(self) -> int:
        """Number of features."""
        return self.ground.features.shape[1]


class MLP(Classifier):
    """Two layers that see a node's own features alone."""

    def build(self) -> None:
        """Add two layers."""
        self.weights.glorot("first", self.in_channels, self.width)
        self.weights.zeros("first bias", self.width)
        self.weights.glorot("second", self.width, self.ground.classes)
        self.weights.zeros("second bias", self.ground.classes)

    def spread(self, x: Tensor) -> Tensor:
        """Mix neighbours after each linear map; here, not at all."""
        return x

    def logits(self, noise: Noise | None) -> Tensor:
        """Return `P relu(P X W₁ + b₁) W₂ + b₂` with P = 1."""
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = functional.relu(self.spread(first) + self.weights["first bias"])
        hidden = hidden if noise is None else noise.drop(hidden)
        return self.spread(self.dense(hidden, "second")) + self.weights["second bias"]


class GCN(MLP):
    r"""Two graph convolutions (Kipf and Welling, 2017).

    The same, with :math:`P = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`.
    """

    @staticmethod
    def matrices(graph: Graph) -> dict[str, SparseMatrix]:
        """Return P."""
        return {"gcn": symmetric(adjacency(graph, self_loops=True))}

    def spread(self, x: Tensor) -> Tensor:
        """Propagate along the normalised adjacency."""
        return self.ground.matrices["gcn"] @ x


class GAT(Classifier):
    r"""Two graph attention layers (Veličković et al., 2018).

    .. math:: \alpha_{vu} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a^\top_{to} W x_v + a^\top_{from} W x_u)

    The hidden layer has eight heads side by side and an ELU, the last has one. Per-edge values lie as
    `[edges, models, heads]`; reading them from nodes and summing them into nodes are sparse products.
    """

    @staticmethod
    def matrices(graph: Graph) -> dict[str, SparseMatrix]:
        """Return what reads the two ends of each edge, and what sums edges into their targets."""
        edges = adjacency(graph, self_loops=True)
        count, nodes = edges.cols.numel(), graph.num_nodes
        place, ones = torch.arange(count), torch.ones(count)
        return {
            "source": SparseMatrix(place, edges.cols, ones, (count, nodes)),
            "target": SparseMatrix(place, edges.rows, ones, (count, nodes)),
            "sum": SparseMatrix(edges.rows, place, ones, (nodes, count)),
        }

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
        hidden = hidden if noise is None else noise.drop(hidden)
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
        share = share if noise is None else noise.drop(share)
        messages = (source @ x).view(-1, models, heads, width // heads) * share[..., None]
        return self.ground.matrices["sum"] @ messages.flatten(2) + self.weights[f"{layer} bias"]


class H2GCN(Classifier):
    r"""Ego, one-hop and two-hop neighbourhoods apart, all rounds side by side (Zhu et al., 2020).

    .. math:: r_0 = \mathrm{ReLU}(X W_e), \quad r_k = [\bar A_1 r_{k-1} \,|\, \bar A_2 r_{k-1}], \quad
        \hat y = \mathrm{softmax}([r_0 | r_1 | r_2] W_c)

    :math:`\bar A_i` joins nodes that are exactly i steps apart, without self-loops, symmetrically normalised.
    """

    @staticmethod
    def matrices(graph: Graph) -> dict[str, SparseMatrix]:
        """Return both adjacencies."""
        near = adjacency(graph, self_loops=False)
        return {"near": symmetric(near), "far": symmetric(two_hop_adjacency(near))}

    @classmethod
    def values_each(cls, ground: Ground, width: int) -> int:
        """Add the rounds."""
        return super().values_each(ground, width) + ground.features.shape[0] * 30 * width

    def build(self) -> None:
        """Add the embedding and the classifier."""
        self.weights.glorot("embed", self.in_channels, self.width)
        self.weights.glorot("classify", 7 * self.width, self.ground.classes)
        self.weights.zeros("bias", self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        """Embed, look around twice, classify all that was seen."""
        near, far = self.ground.matrices["near"], self.ground.matrices["far"]
        rounds = [functional.relu(self.ground.features.product(self.weights["embed"], noise))]
        for _ in range(2):
            rounds.append(torch.cat([near @ rounds[-1], far @ rounds[-1]], dim=2))
        joined = torch.cat(rounds, dim=2)
        joined = joined if noise is None else noise.drop(joined)
        return self.dense(joined, "classify") + self.weights["bias"]
