"""Random views of a graph, sampled neighbours, learning-rate schedules and moving averages."""

from __future__ import annotations

import copy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from h3gnn.baselines.layers import SparseMatrix, adjacency, pairs_of, symmetric
from h3gnn.graphs.graph import Graph
from h3gnn.training.teacher import move_towards


class View(NamedTuple):
    """The GCN adjacency of a graph with dropped edges, and which feature columns are kept, `[features]`."""

    matrix: SparseMatrix
    kept_columns: Tensor


class EdgePairs:
    """Samples edges of a symmetric matrix; both directions of an edge are kept or dropped."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.count, self.pair_of = pairs_of(matrix)

    def kept(self, drop: float) -> Tensor:
        """Sample bool `[entries]`, False with probability `drop`."""
        coins = torch.rand(self.count, device=self.pair_of.device) >= drop
        return coins[self.pair_of]


class Views:
    """Samples views with dropped feature columns and edges; degrees are recomputed."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        loops = adjacency(graph, self_loops=True).to(device)
        self.loops, self.pairs = loops, EdgePairs(loops)
        self.is_loop = loops.rows == loops.cols
        self.columns, self.device = graph.num_features, device

    def full(self) -> SparseMatrix:
        return symmetric(self.loops)

    def draw(self, feature_drop: float, edge_drop: float) -> View:
        columns = torch.rand(self.columns, device=self.device) >= feature_drop
        kept = self.pairs.kept(edge_drop) | self.is_loop
        return View(symmetric(self.loops.with_values(self.loops.values * kept)), columns)


Module = TypeVar("Module", bound=nn.Module)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def frozen_copy(module: Module) -> Module:
    """Return a copy without gradients; constant features are shared."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, module: nn.Module, momentum: float) -> None:
    """Move the parameters of a moving average towards those of a module."""
    move_towards(list(average.parameters()), list(module.parameters()), 1 - momentum)


class Neighbours:
    """Samples neighbours: the entries of a matrix, on its device."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.rows, self.cols = matrix.rows, matrix.cols
        self.first = matrix.crow[:-1]
        self.degree = matrix.crow.diff()

    def draw(self, count: int) -> Tensor:
        """Sample neighbours `[nodes, count]`, without replacement if possible; a lone node is its own."""
        nodes, edges = self.degree.numel(), self.cols.numel()
        device = self.degree.device
        number, degree = torch.arange(count, device=device), self.degree[:, None]
        itself = torch.arange(nodes, device=device)[:, None]
        if not edges:
            return itself.expand(-1, count)
        order = torch.rand(edges, device=device).argsort()
        order = order[self.rows[order].argsort(stable=True)]  # each node's neighbours among themselves
        again = self._any(degree.expand(-1, count))
        where = self.first[:, None] + torch.where(number < degree, number, again)
        drawn = self.cols[order[where.clamp_max(edges - 1)]]
        return torch.where(degree > 0, drawn, itself)

    def edge(self, nodes: Tensor) -> Tensor:
        """Sample the index of an edge of each of these nodes; each must have one."""
        return self.first[nodes] + self._any(self.degree[nodes])

    @staticmethod
    def _any(degree: Tensor) -> Tensor:
        """Sample an integer below each degree; 0 for degree 0."""
        drawn = (torch.rand(degree.shape, device=degree.device) * degree).long()
        return torch.minimum(drawn, (degree - 1).clamp_min(0))
