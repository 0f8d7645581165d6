"""Views of a graph: some feature columns and some edges gone, degrees counted anew."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix, adjacency, symmetric, to_device
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


class Views:
    """Draws views: columns are dropped for all nodes, an edge in both directions, degrees counted anew."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        loops = to_device(adjacency(graph, self_loops=True), device)
        low, high = torch.minimum(loops.rows, loops.cols), torch.maximum(loops.rows, loops.cols)
        pairs, pair_of = torch.unique(low * graph.num_nodes + high, return_inverse=True)
        self.loops, self.pairs, self.pair_of = loops, pairs.numel(), pair_of
        self.is_loop = loops.rows == loops.cols
        self.columns, self.device = graph.num_features, device

    def full(self) -> View:
        """Return the whole graph."""
        return View(None, symmetric(self.loops))

    def draw(self, feature_drop: float, edge_drop: float) -> View:
        """Return a view with these shares dropped."""
        columns = torch.rand(self.columns, device=self.device) >= feature_drop
        coins = torch.rand(self.pairs, device=self.device) >= edge_drop
        kept = coins[self.pair_of] | self.is_loop
        return View(columns, symmetric(self.loops.with_values(self.loops.values * kept)))
