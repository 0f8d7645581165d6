"""MUSE: multi-view contrastive learning for heterophilous graphs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import bytes_for_pairs, two_view_loss
from h3gnn.baselines.embedder import Embedder, EmbedderSettings
from h3gnn.baselines.layers import Convolution, SparseMatrix, adjacency, only, row_sums, to_device
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.sampling import EdgePairs
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True)
class MUSESettings(EmbedderSettings):
    """Settings of MUSE; the authors', but with equal weights of the losses and a target of one half.

    Attributes:
        width: of the embedding and of the projection; the hidden layer is twice as wide.
        dropout: of the features' values.
        feature_drop, edge_drop: drop probabilities of feature columns and of edges.
        temperature: of the similarities.
        neighbour_weight, fused_weight: of the losses of neighbours and of the mixture.
        target, target_weight: t and λ₃, of the mean weight of the neighbours.
        size_weight: λ₄, of the norm of all weights.
        gate_width, gate_dropout: of the controller.
    """

    width: int = 128
    epochs: int = 100
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    dropout: float = 0.2
    feature_drop: float = 0.2
    edge_drop: float = 0.2
    temperature: float = 0.5
    neighbour_weight: float = 1.0
    fused_weight: float = 1.0
    target: float = 0.5
    target_weight: float = 1.0
    size_weight: float = 1.0
    gate_width: int = 30
    gate_dropout: float = 0.4


class MUSE(Embedder):
    r"""Contrastive learning of a semantic and a contextual view, fused per node (Yuan et al., 2023).

    .. math:: f(X, A) = \mathrm{PReLU}(A \, \mathrm{ReLU}(A X W_1 + b_1) W_2 + b_2), \quad
        S = f(X, I), \; N = f(X, A), \; Z = S + \beta N

    The augmented views :math:`S'` and :math:`N'` drop feature columns and edges. With GRACE's loss G of
    projections, the loss of the encoder is

    .. math:: G(S, S') + \lambda_1 G(N, N') + \lambda_2 G(S + \beta N, S' + \beta N')

    and the controller learns the weight β of each node's neighbours, where d is the degree:

    .. math:: \beta = \sigma(w^\top [W_3 S, W_4 N, d] + b), \quad
        \textstyle\sum_v \beta_v \cos(s_v, n_v) + \lambda_3 n \, |\tfrac1n \sum_v \beta_v - t|
        + \lambda_4 \lVert \beta \rVert_2
    """

    settings_class = MUSESettings

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: MUSESettings) -> int:
        hidden = 4 * sizes.nodes * settings.width * 40
        return super().bytes_for(sizes, settings) + hidden + bytes_for_pairs(sizes.nodes, 3)

    def build(self, graph: Graph) -> None:
        width = self.settings.width
        self.matrix = to_device(adjacency(graph, self_loops=False), self.device)
        self.degrees = row_sums(self.matrix)[:, None]
        self.pairs = EdgePairs(self.matrix)
        self.first, self.second = Convolution(graph.num_features, 2 * width), Convolution(2 * width, width)
        self.activation = nn.PReLU()
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ELU(), nn.Linear(width, width)
        )
        self.controller = Controller(width, self.settings.gate_width, self.settings.gate_dropout)

    def begin(self) -> None:
        encoder = (self.first, self.second, self.activation, self.head)
        self.optimizer = self.adam_of(one for part in encoder for one in part.parameters())
        self.mixing = self.adam_of(self.controller.parameters())

    def step(self, epoch: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.contrast()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.mixing.zero_grad()
        with torch.no_grad():
            product = self.product()
            own, near = self.encode(product), self.encode(product, self.matrix)
        self.mixture_loss(own, near).backward()  # type: ignore[no-untyped-call]
        self.mixing.step()
        return loss.detach()

    def product(self, kept: Tensor | None = None) -> Tensor:
        """Return `X W`, with values of X dropped; columns that are not kept count as zero."""
        return self.features.dropped(self.settings.dropout) @ only(self.first.weight, kept)

    def encode(self, product: Tensor, matrix: SparseMatrix | None = None) -> Tensor:
        """Encode `X W` over a matrix, or each node by itself."""
        hidden = torch.relu((product if matrix is None else matrix @ product) + self.first.bias)
        hidden = hidden @ self.second.weight
        return self.activation((hidden if matrix is None else matrix @ hidden) + self.second.bias)

    def contrast(self) -> Tensor:
        """Return the encoder's loss, with the controller as it is."""
        settings = self.settings
        kept = torch.rand(self.features.shape[1], device=self.device) >= settings.feature_drop
        fewer = self.matrix.with_values(self.matrix.values * self.pairs.kept(settings.edge_drop))
        whole, part = self.product(), self.product(kept)
        own, own_copy = self.encode(whole), self.encode(part)
        near, near_copy = self.encode(whole, self.matrix), self.encode(whole, fewer)
        with torch.no_grad():
            shares = self.controller(own, near, self.degrees)
        fused = self.agreement(own + shares * near, own_copy + shares * near_copy)
        loss = self.agreement(own, own_copy) + settings.fused_weight * fused
        return loss + settings.neighbour_weight * self.agreement(near, near_copy)

    def agreement(self, first: Tensor, second: Tensor) -> Tensor:
        """Return GRACE's loss of two copies, projected."""
        return two_view_loss(self.head(first), self.head(second), self.settings.temperature)

    def mixture_loss(self, own: Tensor, near: Tensor) -> Tensor:
        """Return the controller's loss: less of neighbours that are alike, and so much in all."""
        settings = self.settings
        shares: Tensor = self.controller(own, near, self.degrees).squeeze(1)
        alike = shares @ functional.cosine_similarity(own, near, dim=1)
        off = (shares.mean() - settings.target).abs()
        off = settings.target_weight * len(shares) * off
        return alike + off + settings.size_weight * shares.norm()

    def embedding(self) -> Tensor:
        product = self.features @ self.first.weight
        own, near = self.encode(product), self.encode(product, self.matrix)
        return own + self.controller(own, near, self.degrees) * near


class Controller(nn.Module):
    """Says from both views and the degree how much of its neighbours each node takes."""

    def __init__(self, width: int, gate_width: int, dropout: float) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(width, gate_width), nn.Linear(width, gate_width)
        self.share = nn.Linear(2 * gate_width + 1, 1)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.own, self.near, self.share):
            nn.init.xavier_normal_(layer.weight, gain=2**0.5)

    def forward(self, own: Tensor, near: Tensor, degrees: Tensor) -> Tensor:
        """Return shares `[nodes, 1]` for views `[nodes, width]` and degrees `[nodes, 1]`."""
        seen = [self.dropout(self.own(own)), self.dropout(self.near(near)), degrees]
        return torch.sigmoid(self.dropout(self.share(torch.cat(seen, dim=1))))
