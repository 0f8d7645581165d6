"""Drawing as many neighbours for every node, all at once, for systems that look at a fixed number of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix


class Drawn(NamedTuple):
    """Some neighbours of every node.

    Attributes:
        nodes: int64 `[nodes, count]`; of a node without neighbours, the node itself.
        fresh: bool `[nodes, count]`; False where a neighbour is drawn again because there are too few.
    """

    nodes: Tensor
    fresh: Tensor


class Neighbours:
    """The neighbours of every node: the places of a matrix, on its device."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.rows, self.cols = matrix.rows, matrix.cols
        self.first = matrix.crow[:-1]
        self.degree = matrix.crow.diff()

    def draw(self, count: int) -> Drawn:
        """Draw neighbours: without repeating as long as there are others, then any of them again."""
        nodes, edges = self.degree.numel(), self.cols.numel()
        device = self.degree.device
        place, degree = torch.arange(count, device=device), self.degree[:, None]
        fresh = place < degree
        if not edges:
            return Drawn(torch.arange(nodes, device=device)[:, None].expand(-1, count), fresh)
        order = torch.rand(edges, device=device).argsort()
        order = order[self.rows[order].argsort(stable=True)]  # each node's neighbours among themselves
        again = (torch.rand(nodes, count, device=device) * degree).long().clamp(max=(degree - 1).clamp_min(0))
        where = self.first[:, None] + torch.where(fresh, place, again)
        drawn = self.cols[order[where.clamp_max(edges - 1)]]
        return Drawn(torch.where(degree > 0, drawn, torch.arange(nodes, device=device)[:, None]), fresh)
