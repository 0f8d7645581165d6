"""Views of a graph: some feature columns and some edges gone, degrees counted anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix, adjacency, pairs_of, symmetric, to_device
from h3gnn.graphs.graph import Graph


@dataclass(frozen=True, eq=False)
class View:
    """A graph with some feature columns and some edges gone.

    Attributes:
        kept_columns: bool `[features]`; None for all.
        matrix: the GCN's adjacency of what is left.
    """

    kept_columns: Tensor | None
    matrix: SparseMatrix


class EdgePairs:
    """Draws which edges of a symmetric matrix are left: both directions of an edge, or none."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.count, self.pair_of = pairs_of(matrix)

    def kept(self, drop: float) -> Tensor:
        """Draw bool `[edges]`, False for about a share of `drop`."""
        coins = torch.rand(self.count, device=self.pair_of.device) >= drop
        return coins[self.pair_of]


class Views:
    """Draws views: columns are dropped for all nodes, an edge in both directions, degrees counted anew."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        loops = to_device(adjacency(graph, self_loops=True), device)
        self.loops, self.pairs = loops, EdgePairs(loops)
        self.is_loop = loops.rows == loops.cols
        self.columns, self.device = graph.num_features, device

    def full(self) -> View:
        """Return the whole graph."""
        return View(None, symmetric(self.loops))

    def draw(self, feature_drop: float, edge_drop: float) -> View:
        """Return a view with these shares dropped."""
        columns = torch.rand(self.columns, device=self.device) >= feature_drop
        kept = self.pairs.kept(edge_drop) | self.is_loop
        return View(columns, symmetric(self.loops.with_values(self.loops.values * kept)))
