"""Graph convolutions over constant features and a constant adjacency, for the self-supervised baselines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from h3gnn.baselines.matrices import SparseMatrix, adjacency, symmetric, to_device
from h3gnn.baselines.stacks import Features
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import fit_scaler


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


def gcn_adjacency(graph: Graph, device: torch.device) -> SparseMatrix:
    r"""Return :math:`\tilde D^{-1/2}(A + I)\tilde D^{-1/2}`."""
    return to_device(symmetric(adjacency(graph, self_loops=True)), device)
