"""MLP, GCN, GAT, GraphSAGE and S²GC, and representations that need no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import (
    SparseMatrix,
    adjacency,
    edge_ends,
    gcn_adjacency,
    neighbour_mean,
    symmetric,
)
from h3gnn.baselines.registry import Sizes, check_choice
from h3gnn.baselines.supervised import Classifier, ClassifierSettings, Ground, Noise
from h3gnn.encoder.readout import Smoother, StepMatrix, step_support
from h3gnn.graphs.graph import Graph


class MLP(Classifier):
    """A two-layer perceptron on a node's own features (Rumelhart et al., 1986)."""

    def build(self) -> None:
        self.weights.linear("first", self.in_channels, self.width)
        self.weights.linear("second", self.width, self.ground.classes)

    def spread(self, x: Tensor) -> Tensor:
        """Propagate the values after each linear map; an MLP does not."""
        return x

    def logits(self, noise: Noise | None) -> Tensor:
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = self.dropped(functional.relu(self.spread(first) + self.weights["first bias"]), noise)
        return self.spread(self.dense(hidden, "second")) + self.weights["second bias"]


class GCN(MLP):
    r"""Two convolutions with :math:`\tilde D^{-1/2} (A + I) \tilde D^{-1/2}` (Kipf and Welling, 2017)."""

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        return {"gcn": symmetric(adjacency(graph, self_loops=True))}

    def spread(self, x: Tensor) -> Tensor:
        return self.ground.matrices["gcn"] @ x


HEADS = 8
"""Attention heads of GAT's hidden layer, which share its width."""


class GAT(Classifier):
    r"""Two graph attention layers (Veličković et al., 2018).

    .. math:: \alpha_{vu} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a^\top_{to} W x_v + a^\top_{from} W x_u)

    The hidden layer has eight concatenated heads and an ELU, the last has one.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        return edge_ends(adjacency(graph, self_loops=True))

    @classmethod
    def extra_values(cls, sizes: Sizes, settings: Any, width: int, classes: int) -> int:
        return sizes.edges * (6 * width + 10 * HEADS + 6 * classes)

    def build(self) -> None:
        self.heads = {"first": HEADS, "second": 1}
        sizes = {"first": (self.in_channels, self.width), "second": (self.width, self.ground.classes)}
        for layer, (rows, columns) in sizes.items():
            self.weights.glorot(layer, rows, columns)
            fan = self.heads[layer] + columns // self.heads[layer]
            self.weights.glorot(f"{layer} from", 1, columns, fan)
            self.weights.glorot(f"{layer} to", 1, columns, fan)
            self.weights.zeros(f"{layer} bias", columns)

    def logits(self, noise: Noise | None) -> Tensor:
        first = self.ground.features.product(self.weights["first"], noise)
        hidden = self.dropped(functional.elu(self.attend(first, "first", noise)), noise)
        return self.attend(self.dense(hidden, "second"), "second", noise)

    def attend(self, x: Tensor, layer: str, noise: Noise | None) -> Tensor:
        """Attend over a node's neighbours and itself; values on edges are `[edges, models, heads]`."""
        from torch_geometric.utils import softmax

        source, target = self.ground.matrices["source"], self.ground.matrices["target"]
        nodes, models, width = x.shape
        heads = self.heads[layer]

        sent, received = (
            (x * self.weights[f"{layer} {end}"]).view(nodes, models, heads, -1).sum(dim=-1)
            for end in ("from", "to")
        )
        score = functional.leaky_relu(source @ sent + target @ received, 0.2)
        share = softmax(score.flatten(1), target.cols, num_nodes=nodes).view_as(score)
        share = self.dropped(share, noise)
        messages = (source @ x).view(-1, models, heads, width // heads) * share[..., None]
        return self.ground.matrices["sum"] @ messages.flatten(2) + self.weights[f"{layer} bias"]


NORMS = ("unit", "batch", "none")
"""Normalization after a layer: unit rows, batch normalization, none."""
MOMENTUM = 0.1
"""Momentum of the running statistics of batch normalization."""


@dataclass(frozen=True)
class SAGESettings(ClassifierSettings):
    """Settings of GraphSAGE; the defaults are the paper's.

    Attributes:
        layers: number of layers before the linear classifier.
        norm: one of `NORMS`.
        residual: whether each layer adds a linear map of its input.
        self_loops: whether a node is its own neighbour.
        drop_features: whether dropout applies to the input.
    """

    layers: int = 2
    norm: str = "unit"
    residual: bool = False
    self_loops: bool = False
    drop_features: bool = True


class SAGE(Classifier, settings=SAGESettings):
    r"""GraphSAGE with the mean aggregator (Hamilton et al., 2017).

    .. math:: h_v^l = \mathrm{norm}\Big(\mathrm{ReLU}\big(W_l h_v^{l-1} +
        V_l \tfrac{1}{|N(v)|} \textstyle\sum_{u \in N(v)} h_u^{l-1} + b_l\big)\Big), \quad h^0 = X, \quad
        \hat y = \mathrm{softmax}(h^L W + b)

    It aggregates all neighbours, where the paper samples 25 and 10. Unit rows follow the ReLU; batch
    normalization precedes it.
    """

    @staticmethod
    def matrices(graph: Graph, settings: Any) -> dict[str, SparseMatrix]:
        check_choice("GraphSAGE", "norm", settings.norm, NORMS)
        return {"mean": neighbour_mean(adjacency(graph, self_loops=settings.self_loops))}

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        return int(settings.layers) * super().bytes_for(sizes, settings)

    @classmethod
    def bytes_each(cls, ground: Ground, width: int) -> int:
        nodes, features = ground.features.shape
        rows: int = ground.settings.layers * nodes * (20 * width + 12 * ground.classes)
        return 4 * (3 if ground.settings.residual else 2) * (6 * features * width + rows)

    def build(self) -> None:
        self.maps = 3 if self.settings.residual else 2
        self.running: dict[int, tuple[Tensor, Tensor]] = {}
        rows = self.in_channels
        for layer in range(self.settings.layers):
            self.weights.glorot(f"{layer}", rows, self.maps * self.width, fan=rows + self.width)
            self.weights.zeros(f"{layer} bias", self.width)
            if self.settings.norm == "batch":
                self.weights.constant(f"{layer} scale", torch.ones(1, self.width))
                self.weights.zeros(f"{layer} shift", self.width)
            rows = self.width
        self.weights.linear("classify", rows, self.ground.classes)

    def logits(self, noise: Noise | None) -> Tensor:
        drop = noise if self.settings.drop_features else None
        mapped = self.ground.features.product(self.weights["0"], drop)
        for layer in range(self.settings.layers):
            hidden = self.dropped(self.joined(mapped, layer, training=noise is not None), noise)
            last = layer + 1 == self.settings.layers
            mapped = self.dense(hidden, "classify" if last else f"{layer + 1}")
        return mapped + self.weights["classify bias"]

    def joined(self, mapped: Tensor, layer: int, *, training: bool) -> Tensor:
        """Return the output of a layer from its linear maps `[nodes, models, maps · width]`."""
        near, *rest = mapped.chunk(self.maps, dim=2)
        total = sum(rest, self.ground.matrices["mean"] @ near) + self.weights[f"{layer} bias"]
        if self.settings.norm == "batch":
            total = self.batch_norm(total, layer, training=training)
        hidden = functional.relu(total)
        return functional.normalize(hidden, dim=2) if self.settings.norm == "unit" else hidden

    def batch_norm(self, x: Tensor, layer: int, *, training: bool) -> Tensor:
        """Normalize over all nodes, with running statistics outside of training."""
        if training or layer not in self.running:
            variance, mean = torch.var_mean(x, dim=0, correction=0)
        else:
            mean, variance = self.running[layer]
        if training:
            old = self.running.get(layer, (torch.zeros_like(mean), torch.ones_like(variance)))
            unbiased = variance.detach() * len(x) / max(1, len(x) - 1)
            self.running[layer] = old[0].lerp(mean.detach(), MOMENTUM), old[1].lerp(unbiased, MOMENTUM)
        scale = self.weights[f"{layer} scale"] * (variance + 1e-5).rsqrt()
        return (x - mean) * scale + self.weights[f"{layer} shift"]


@dataclass(frozen=True)
class S2GCSettings(EmbedderSettings):
    """Settings of S²GC; without training, width, epochs, rates and patience have no effect.

    Attributes:
        steps: K, the number of propagation steps.
        own_share: α, weight of a node's own features.
    """

    epochs: int = 0
    steps: int = 16
    own_share: float = 0.05


class S2GC(Embedder, settings=S2GCSettings):
    r"""Simple spectral graph convolution, without training (Zhu and Koniusz, 2021).

    .. math:: H = \tfrac1K \sum_{k=1}^K (1 - \alpha) \tilde A^k X + \alpha X
    """

    has_chance = False

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        return 4 * (4 * sizes.nodes * sizes.features + 12 * sizes.edges)

    def build(self, graph: Graph) -> None:
        own = self.features.dense()
        matrix, smoothed, total = gcn_adjacency(graph, self.device), own, torch.zeros_like(own)
        for _ in range(self.settings.steps):
            smoothed = matrix @ smoothed
            total += smoothed
        alpha = self.settings.own_share
        self.rows: Tensor = alpha * own + (1 - alpha) / max(1, self.settings.steps) * total

    def begin(self) -> None:
        """Do nothing: there is no training."""

    def step(self, epoch: int) -> Tensor:
        return torch.zeros(())

    def embedding(self) -> Tensor:
        return self.rows


DIFFUSION = 0.9
"""Strength of the diffusion, see `Smoother`."""


def raw_features(graph: Graph) -> npt.NDArray[np.float32]:
    """Return the unscaled features, `[nodes, features]`."""
    return graph.dense_features().numpy()


def smoothed_features(graph: Graph, hops: int) -> npt.NDArray[np.float32]:
    r"""Return :math:`[\hat X \,|\, \bar A \hat X \,|\, \bar A^2 \hat X]` of unit rows and mean neighbours."""
    mean = neighbour_mean(adjacency(graph, self_loops=False))
    steps = [torch.nn.functional.normalize(graph.dense_features(), dim=1)]
    for _ in range(hops):
        steps.append(mean @ steps[-1])
    return torch.cat(steps, dim=1).numpy()


def diffused_features(graph: Graph, smoothing: float = DIFFUSION) -> npt.NDArray[np.float32]:
    """Return the unit features after H3GNN's own smoothing by random walks, `[nodes, features]`."""
    unit = torch.nn.functional.normalize(graph.dense_features(), dim=1)
    support = step_support(graph.edge_index, graph.num_nodes, graph.edge_weight)
    walk = StepMatrix(support, "walks", unit.device)
    return Smoother(walk, smoothing)(unit).numpy()
