"""Masked autoencoders of node features: GraphMAE and GraphMAE2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import Attention, SparseMatrix, adjacency, linear_layers, to_device
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.sampling import frozen_copy, set_learning_rate, update_average
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.training.optimizer import warmup_cosine


@dataclass(frozen=True)
class GraphMAESettings(EmbedderSettings):
    """Settings of GraphMAE.

    Attributes:
        width: of the embedding and of every hidden layer, shared among the heads.
        learning_rate, weight_decay: of Adam; the rate falls to zero as half a cosine.
        heads: of attention, in every layer of the encoder.
        layers: of the encoder.
        mask_ratio: fraction of masked nodes.
        replace_ratio: fraction of the masked nodes that show another node's features instead of the token.
        gamma: exponent of the error; a large one gives easy nodes less weight.
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
    r"""A masked graph autoencoder of the features (Hou et al., 2022).

    .. math:: \tilde x_v = t \text{ (or some } x_u) \text{ for masked } v, \quad H = f(\tilde X, A), \quad
        \hat X = g(M H W, A), \quad
        \mathcal L = \tfrac1{|V_m|} \textstyle\sum_{v \in V_m} (1 - \cos(x_v, \hat x_v))^\gamma

    The token t is learned, and :math:`M` sets masked rows to zero again ("re-mask"), so that a
    reconstruction depends on the neighbours alone. The decoder averages first and maps to features
    afterwards, for masked nodes only, which its linearity allows.
    """

    settings_class = GraphMAESettings

    def build(self, graph: Graph) -> None:
        settings, features = self.settings, graph.num_features
        if settings.width % settings.heads:
            raise InputError(
                f"heads ({settings.heads}) must divide width ({settings.width})", code="invalid-setting"
            )
        self.targets = functional.normalize(self.features.dense(), dim=1)
        self.edges = to_device(adjacency(graph, self_loops=True), self.device)
        self.encoder = Encoder(features, settings)
        self.token = nn.Parameter(torch.zeros(features))
        self.bridge = nn.Linear(settings.width, settings.width, bias=False)
        self.decoder = Attention(settings.width, features, 1, settings.attention_drop)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        edges = sizes.edges * (3 * settings.width // settings.heads + 12 * settings.heads)
        decoded = 6 * sizes.nodes * sizes.features
        return super().bytes_for(sizes, settings) + int(4 * (edges + decoded))

    def after(self, epoch: int) -> None:
        share = warmup_cosine(epoch + 1, self.settings.epochs, 0)
        set_learning_rate(self.optimizer, self.settings.learning_rate * share)

    def loss(self, epoch: int) -> Tensor:
        order = torch.randperm(self.features.shape[0], device=self.device)
        masked = order[: share_of(order.numel(), self.settings.mask_ratio)]
        code = self.bridge(self.encode_masked(masked))
        return self.error(code.index_fill(0, masked, 0.0), masked)

    def encode_masked(self, masked: Tensor) -> Tensor:
        """Encode the graph with masked nodes replaced by the token or by another node's features."""
        nodes, drop = self.features.shape[0], self.settings.feature_drop
        weight = self.encoder.first.weight
        replaced = int(self.settings.replace_ratio * masked.numel())
        noisy, hidden = masked[:replaced], masked[replaced:]
        shown = torch.arange(nodes, device=self.device)
        shown[noisy] = torch.randperm(nodes, device=self.device)[:replaced]
        product = self.features.dropped(drop) @ weight
        token = functional.dropout(self.token.expand(hidden.numel(), -1), drop) @ weight
        return self.encoder(product.index_select(0, shown).index_copy(0, hidden, token), self.edges)

    def error(self, code: Tensor, masked: Tensor) -> Tensor:
        """Return the scaled cosine error of the masked nodes."""
        code = functional.dropout(code, self.settings.feature_drop)
        decoded = functional.normalize(self.decoder.averaged(code, self.edges, masked), dim=1)
        alike = (decoded * self.targets.index_select(0, masked)).sum(dim=1)
        return scaled(1 - alike, self.settings.gamma).mean()

    def embedding(self) -> Tensor:
        return self.encoder(self.features @ self.encoder.first.weight, self.edges)


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
        return hidden


def scaled(error: Tensor, gamma: float) -> Tensor:
    """Return the error to a power; rounding may have made it slightly negative."""
    return error.clamp_min(0) ** gamma


def share_of(count: int, ratio: float) -> int:
    """Return a fraction of a count, at least one."""
    return max(1, int(ratio * count))


NARROW = 256
"""Width of the projector's hidden layer."""


@dataclass(frozen=True)
class GraphMAE2Settings(GraphMAESettings):
    """Settings of GraphMAE2.

    Attributes:
        decodings: number of decodings, each with other re-masked nodes; 0 for one, as GraphMAE does.
        hidden_ratio: fraction of re-masked nodes.
        latent_weight: λ, of the latent prediction.
        momentum: of the target encoder.
    """

    epochs: int = 150
    replace_ratio: float = 0.0
    decodings: int = 3
    hidden_ratio: float = 0.5
    latent_weight: float = 0.5
    momentum: float = 0.996


class GraphMAE2(GraphMAE):
    r"""GraphMAE with multi-view random re-masking and latent prediction (Hou et al., 2023).

    .. math:: \mathcal L = \textstyle\sum_{k=1}^K \tfrac1{|V_m|} \sum_{v \in V_m}
        (1 - \cos(x_v, \hat x^k_v))^\gamma + \lambda \tfrac1n \sum_v (1 - \cos(q(p(h_v)), \bar p(\bar h_v)))

    :math:`\bar H = \bar f(X, A)` and :math:`\bar p` are moving averages of the encoder and its projector;
    they see the features of all nodes. Re-masked nodes enter the decoder as a second token. Both tokens start
    at zero.
    """

    settings_class = GraphMAE2Settings

    def build(self, graph: Graph) -> None:
        super().build(graph)
        width = self.settings.width
        self.second_token = nn.Parameter(torch.zeros(width))
        self.projector = linear_layers(width, NARROW, width, activation=nn.PReLU)
        self.predictor = nn.Sequential(nn.PReLU(), nn.Linear(width, width))
        self.target_encoder, self.target_projector = frozen_copy(self.encoder), frozen_copy(self.projector)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        more = max(0, settings.decodings - 1) * sizes.nodes * (3 * sizes.features + 6 * settings.width)
        return super().bytes_for(sizes, settings) + int(4 * more)

    def loss(self, epoch: int) -> Tensor:
        settings = self.settings
        order = torch.randperm(self.features.shape[0], device=self.device)
        masked = order[: share_of(order.numel(), settings.mask_ratio)]
        encoded = self.encode_masked(masked)
        code = self.bridge(encoded)
        if settings.decodings:
            decoded = torch.stack(
                [self.error(self.hide(code), masked) for _ in range(settings.decodings)]
            ).sum()
        else:
            decoded = self.error(code.index_fill(0, masked, 0.0), masked)
        return decoded + settings.latent_weight * self.disagreement(encoded)

    def hide(self, code: Tensor) -> Tensor:
        """Replace random nodes by the second token."""
        order = torch.randperm(len(code), device=self.device)
        hidden = order[: share_of(len(code), self.settings.hidden_ratio)]
        return code.index_copy(0, hidden, self.second_token.expand(len(hidden), -1))

    def disagreement(self, encoded: Tensor) -> Tensor:
        """Return the cosine error of the latent prediction."""
        with torch.no_grad():
            shown = self.features.dropped(self.settings.feature_drop) @ self.target_encoder.first.weight
            target = self.target_projector(self.target_encoder(shown, self.edges))
        predicted = self.predictor(self.projector(encoded))
        return (1 - functional.cosine_similarity(predicted, target, dim=1)).mean()

    def after(self, epoch: int) -> None:
        super().after(epoch)
        update_average(self.target_encoder, self.encoder, self.settings.momentum)
        update_average(self.target_projector, self.projector, self.settings.momentum)
