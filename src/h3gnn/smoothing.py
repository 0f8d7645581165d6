"""Embeddings averaged along random walks, or sharpened against them: a read-out, after training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from h3gnn.graphs.graph import Graph
from h3gnn.sparse import adjacency_entries, csr_tensor, row_pointers

LIMIT = 0.99
"""Strengths beyond this would take hundreds of products and say nearly the same."""
PRECISION = 1e-4
"""The sum over all walks is taken to this share of its error at the start."""
COLUMNS = 1024
"""So many columns are worked on at a time."""


class Smoother:
    r"""Replaces each embedding by the one expected at the end of a random walk that may stop at every step.

    With the walk matrix P, which steps to the node itself or to a neighbour in proportion to the edges'
    weights (every edge both ways), and the strength s,

    .. math:: Z = (1 - s) \sum_{k \ge 0} s^k P^k H = (1 - s) (I - s P)^{-1} H

    s = 0 changes nothing; the nearer to 1, the longer the walks. Below 0 the sum alternates: what a node
    shares with its neighbours is made smaller and what sets it apart larger, as suits heterophily. A column
    that is the same everywhere stays as it is. P has real eigenvalues between −1 and 1, so Chebyshev's
    semi-iteration finds the sum in about √(1/(1 − \|s\|)) products.

    Args:
        graph: whose edges to walk along.
        strength: s, between −0.99 and 0.99.
        device: where the embeddings lie.
    """

    def __init__(self, graph: Graph, strength: float, device: torch.device) -> None:
        self.strength = strength
        if strength:
            self.walk = walk_matrix(graph).to(device)

    @torch.no_grad()
    def __call__(self, embedding: Tensor) -> Tensor:
        """Return the smoothed embedding `[nodes, D]`, of the same type and on the same device."""
        if not self.strength:
            return embedding
        pieces = [self._solve(piece.contiguous()) for piece in torch.split(embedding, COLUMNS, dim=1)]
        return torch.cat(pieces, dim=1)

    def attach(self, embedding: Tensor, known: Tensor, neighbours: Tensor) -> Tensor:
        """Return the embeddings of new nodes that hear known ones and are heard by nobody, `[new, D]`.

        Args:
            embedding: the new nodes' own, not smoothed, `[new, D]`.
            known: the smoothed embeddings of the known nodes, `[nodes, D]`.
            neighbours: the k known nodes that each new one hears, `[new, k]`.
        """
        if not self.strength:
            return embedding
        heard = torch.nn.functional.embedding_bag(neighbours, known, mode="sum")
        step = self.strength / (neighbours.shape[1] + 1)
        return ((1 - self.strength) * embedding + step * heard) / (1 - step)

    def _solve(self, rows: Tensor) -> Tensor:
        """Solve (I − s P) Z = (1 − s) H by Chebyshev's semi-iteration."""
        strength = self.strength
        start = (1 - strength) * rows
        before, now = rows, torch.addmm(start, self.walk, rows, alpha=strength)
        weight = 1 / (1 - strength**2 / 2)
        for _ in range(math.ceil(math.log(2 / PRECISION) / math.acosh(1 / abs(strength)))):
            after = torch.addmm(start, self.walk, now, alpha=strength)
            before, now = now, before + weight * (after - before)
            weight = 1 / (1 - strength**2 * weight / 4)
        return now


def walk_matrix(graph: Graph) -> Tensor:
    """Return P as a CSR matrix: each row holds the chances of one step, the node itself among its targets."""
    nodes = graph.num_nodes
    keys, weights = adjacency_entries(
        graph.edge_index, graph.edge_weight, nodes, undirected=True, self_loops=True
    )
    rows = keys // nodes
    chance = weights / torch.zeros(nodes).index_add_(0, rows, weights)[rows]
    return csr_tensor(row_pointers(rows, nodes), keys % nodes, chance, (nodes, nodes))
