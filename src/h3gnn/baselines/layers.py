"""What baselines are built from: constant features that are multiplied fast, and graph convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from h3gnn.baselines.matrices import SparseMatrix, sparse_matrix
from h3gnn.baselines.stacks import Noise
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import fit_scaler

SPARSE_BELOW = 0.06
"""Features with a smaller share of non-zero values are multiplied as sparse matrices."""


class Features:
    """The constant node features `[nodes, features]`, sparse or dense as their density asks."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        features = features.to(device)
        self.shape = features.shape
        stored = features.values() if features.layout == torch.sparse_csr else features
        filled = int(torch.count_nonzero(stored)) / max(1, features.numel())
        self.matrix: SparseMatrix | Tensor
        self.matrix = sparse_matrix(features) if filled < SPARSE_BELOW else features.to_dense()

    def product(self, weight: Tensor, noise: Noise | None = None) -> Tensor:
        """Return `X W`, `[nodes, models, out]`, for weights `[in, models, out]`; with noise, X is dropped.

        Models with one seed and one rate see the same dropped X, so that one product serves them.
        """
        if noise is None:
            return self._times(self.matrix, weight)
        coins = [self._coins(generator) for generator in noise.generators]
        return torch.cat(
            [
                self._times(self._dropped(coins[seed], rate), weight[:, models])
                for models, seed, rate in noise.blocks()
            ],
            dim=1,
        )

    def _values(self) -> Tensor:
        return self.matrix if isinstance(self.matrix, Tensor) else self.matrix.values

    def _coins(self, generator: torch.Generator) -> Tensor:
        values = self._values()
        return torch.rand(values.shape, generator=generator, device=values.device)

    def _dropped(self, coins: Tensor, rate: float) -> SparseMatrix | Tensor:
        values = self._values() * ((coins >= rate) / (1 - rate))
        return values if isinstance(self.matrix, Tensor) else self.matrix.with_values(values)

    @staticmethod
    def _times(matrix: SparseMatrix | Tensor, weight: Tensor) -> Tensor:
        flat = weight.reshape(weight.shape[0], -1)
        product: Tensor = matrix @ flat
        return product.view(-1, *weight.shape[1:])


class Convolution(nn.Module):
    r"""One graph convolution, :math:`\tilde A H W + b`."""

    def __init__(self, in_channels: int, out_channels: int, generator: torch.Generator) -> None:
        super().__init__()
        weight = torch.empty(in_channels, out_channels)
        nn.init.xavier_uniform_(weight, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def of_features(self, features: Features, matrix: SparseMatrix, kept: Tensor | None = None) -> Tensor:
        """Convolve the features; columns that are not kept `[features]` count as zero."""
        weight = self.weight if kept is None else self.weight * kept[:, None]
        return matrix @ features.product(weight.unsqueeze(1)).squeeze(1) + self.bias

    def forward(self, hidden: Tensor, matrix: SparseMatrix) -> Tensor:
        """Convolve hidden values `[nodes, in]`."""
        return matrix @ (hidden @ self.weight) + self.bias


def scaled_features(graph: Graph, device: torch.device) -> Features:
    """Return the features of a graph, scaled as H3GNN scales them by default."""
    return Features(fit_scaler(graph.features, "auto")(graph.features), device)
