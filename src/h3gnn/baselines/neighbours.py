"""Drawing as many neighbours for every node, all at once, for systems that look at a fixed number of them."""

from __future__ import annotations

import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix


class Neighbours:
    """The neighbours of every node: the places of a matrix, on its device."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.rows, self.cols = matrix.rows, matrix.cols
        self.first = matrix.crow[:-1]
        self.degree = matrix.crow.diff()

    def draw(self, count: int) -> Tensor:
        """Draw neighbours `[nodes, count]`: others as long as there are any, then any of them again.

        Of a node without neighbours, the node itself.
        """
        nodes, edges = self.degree.numel(), self.cols.numel()
        device = self.degree.device
        place, degree = torch.arange(count, device=device), self.degree[:, None]
        itself = torch.arange(nodes, device=device)[:, None]
        if not edges:
            return itself.expand(-1, count)
        order = torch.rand(edges, device=device).argsort()
        order = order[self.rows[order].argsort(stable=True)]  # each node's neighbours among themselves
        again = self._any(degree.expand(-1, count))
        where = self.first[:, None] + torch.where(place < degree, place, again)
        drawn = self.cols[order[where.clamp_max(edges - 1)]]
        return torch.where(degree > 0, drawn, itself)

    def edge(self, nodes: Tensor) -> Tensor:
        """Draw one of the edges of each of these nodes, as its place among all; each must have one."""
        return self.first[nodes] + self._any(self.degree[nodes])

    @staticmethod
    def _any(degree: Tensor) -> Tensor:
        """Draw a number below each degree; 0 below 0."""
        drawn = (torch.rand(degree.shape, device=degree.device) * degree).long()
        return torch.minimum(drawn, (degree - 1).clamp_min(0))
