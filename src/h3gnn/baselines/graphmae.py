"""GraphMAE (Hou et al., 2022): say the features of masked nodes from their surroundings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.attention import Attention
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import SparseMatrix, adjacency, scaled_features, to_device
from h3gnn.baselines.moving import half_cosine, set_rate
from h3gnn.baselines.systems import ANY, Sizes, System
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class GraphMAESettings(EmbedderSettings):
    """Settings of GraphMAE.

    Attributes:
        width: of the embedding and of every hidden layer, shared among the heads.
        learning_rate, weight_decay: of Adam; the rate falls to zero as half a cosine.
        heads: of attention, in every layer of the encoder.
        layers: of the encoder.
        mask_ratio: the share of nodes whose features are hidden and to be said.
        replace_ratio: the share of those that show another node's features instead of the token.
        gamma: the power of the error: a large one looks away from nodes that are nearly right.
        feature_drop, attention_drop: dropout of what goes into a layer, and of its attention.
    """

    weight_decay: float = 2e-4
    heads: int = 4
    layers: int = 2
    mask_ratio: float = 0.5
    replace_ratio: float = 0.05
    gamma: float = 3.0
    feature_drop: float = 0.2
    attention_drop: float = 0.1


class GraphMAE(Embedder):
    r"""An encoder of graph attention, and a decoder of one such layer that masked nodes enter with nothing.

    .. math:: \tilde x_v = t \text{ (or some } x_u) \text{ for masked } v, \quad H = f(\tilde X, A), \quad
        \hat X = g(M H W, A), \quad
        \mathcal L = \tfrac1{|V_m|} \textstyle\sum_{v \in V_m} (1 - \cos(x_v, \hat x_v))^\gamma

    The token t is learned, and :math:`M` makes masked rows zero a second time ("re-mask"), so that what is
    said of a node comes from its neighbours alone. The decoder's layer is linear but for its attention, so
    that it is averaged first and mapped to features afterwards, for masked nodes only.
    """

    def build(self, graph: Graph) -> None:
        """Make the encoder, the token, the map between and the decoder."""
        settings, features = self.settings, graph.num_features
        if settings.width % settings.heads:
            raise InputError(f"heads: {settings.heads} do not divide the width, {settings.width}, evenly")
        self.features = scaled_features(graph, self.device, settings.scale_features)
        self.targets = functional.normalize(self.features.dense(), dim=1)
        self.edges = to_device(adjacency(graph, self_loops=True), self.device)
        self.encoder = Encoder(features, settings)
        self.token = nn.Parameter(torch.zeros(features))
        self.bridge = nn.Linear(settings.width, settings.width, bias=False)
        self.decoder = Attention(settings.width, features, 1, settings.attention_drop)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Add what lies on the edges, and features that are said for every node."""
        edges = sizes.edges * (3 * settings.width // settings.heads + 12 * settings.heads)
        said = 6 * sizes.nodes * sizes.features
        return super().bytes_for(sizes, settings) + int(4 * (edges + said))

    def after(self, epoch: int) -> None:
        """Lower the rate."""
        share = half_cosine((epoch + 1) / self.settings.epochs)
        set_rate(self.optimiser, self.settings.learning_rate * share)

    def loss(self, epoch: int) -> Tensor:
        """Hide some nodes' features, and say them."""
        order = torch.randperm(self.features.shape[0], device=self.device)
        masked = order[: share_of(order.numel(), self.settings.mask_ratio)]
        code = self.bridge(self.encode_masked(masked))
        return self.error(code.index_fill(0, masked, 0.0), masked)

    def encode_masked(self, masked: Tensor) -> Tensor:
        """Encode the graph with the token, or some other node's features, in place of masked nodes' own."""
        nodes, drop = self.features.shape[0], self.settings.feature_drop
        weight = self.encoder.first.weight
        replaced = int(self.settings.replace_ratio * masked.numel())
        noisy, hidden = masked[:replaced], masked[replaced:]
        shown = torch.arange(nodes, device=self.device)
        shown[noisy] = torch.randperm(nodes, device=self.device)[:replaced]
        product = self.features.dropped(drop) @ weight
        token = functional.dropout(self.token.expand(hidden.numel(), -1), drop) @ weight
        result: Tensor = self.encoder(product.index_select(0, shown).index_copy(0, hidden, token), self.edges)
        return result

    def error(self, code: Tensor, masked: Tensor) -> Tensor:
        """Return how far the decoder is from masked nodes' features: the scaled cosine error."""
        code = functional.dropout(code, self.settings.feature_drop)
        said = functional.normalize(self.decoder.averaged(code, self.edges, masked), dim=1)
        alike = (said * self.targets.index_select(0, masked)).sum(dim=1)
        return scaled(1 - alike, self.settings.gamma).mean()

    def embedding(self) -> Tensor:
        """Encode the graph as it is."""
        rows: Tensor = self.encoder(self.features @ self.encoder.first.weight, self.edges)
        return rows


class Encoder(nn.Module):
    """Layers of graph attention, each with a PReLU; it is given the features times the first weight."""

    def __init__(self, features: int, settings: GraphMAESettings) -> None:
        super().__init__()
        shape = settings.width, settings.heads, settings.attention_drop
        self.first = Attention(features, *shape)
        self.others = nn.ModuleList(Attention(settings.width, *shape) for _ in range(settings.layers - 1))
        self.activations = nn.ModuleList(nn.PReLU() for _ in range(settings.layers))
        self.drop = nn.Dropout(settings.feature_drop)

    def forward(self, product: Tensor, edges: SparseMatrix) -> Tensor:
        """Return the embedding `[nodes, width]`."""
        hidden = self.activations[0](self.first(product, edges))
        for attention, activation in zip(self.others, self.activations[1:], strict=True):
            product = self.drop(hidden) @ attention.weight
            hidden = activation(attention(product, edges))
        result: Tensor = hidden
        return result


def scaled(error: Tensor, gamma: float) -> Tensor:
    """Return the error to a power; rounding may have left it just below zero, which has no power."""
    return error.clamp_min(0) ** gamma


def share_of(count: int, ratio: float) -> int:
    """Return how many a ratio of so many is, at least one."""
    return max(1, int(ratio * count))


SYSTEM = System(
    name="graphmae",
    title="GraphMAE",
    estimator="GraphMAE",
    group="self-supervised",
    paper="Hou et al.: GraphMAE: Self-Supervised Masked Graph Autoencoders. KDD",
    year=2022,
    sees=("features", "edges"),
    kind=GraphMAE,
    settings=GraphMAESettings(),
    cost="attention over every edge, and features said for the masked nodes, in every epoch",
    ranges={
        "mask_ratio": (0.5, 0.25, 0.75),
        "gamma": (3.0, 1.0, 2.0),
        "replace_ratio": (0.05, 0.0, 0.1),
        "width": (512, 256, 1024),
        "learning_rate": (0.001, 0.0005, 0.005),
    },
    published={
        ANY: {"scale_features": "sums"},
        "cora": {"epochs": 1500},
        "citeseer": {"heads": 2, "weight_decay": 2e-5, "replace_ratio": 0.1, "gamma": 1.0},
        "pubmed": {
            "width": 1024,
            "weight_decay": 1e-5,
            "mask_ratio": 0.75,
            "replace_ratio": 0.0,
            "epochs": 1000,
        },
    },
    source="the public code's settings; those of Cora, Citeseer and PubMed alone",
)
