"""Embeddings averaged along random walks, or sharpened against them: a read-out, after training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from h3gnn.encoder.sparse import csr_tensor
from h3gnn.encoder.support import Support, build_support

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
        walk: P, from `walk_matrix`, on the device of the embeddings; None where the strength is 0.
        strength: s, between −0.99 and 0.99.
    """

    def __init__(self, walk: Tensor | None, strength: float) -> None:
        self.walk, self.strength = walk, strength

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
        assert self.walk is not None
        strength = self.strength
        start = (1 - strength) * rows
        before, now = rows, torch.addmm(start, self.walk, rows, alpha=strength)
        weight = 1 / (1 - strength**2 / 2)
        for _ in range(math.ceil(math.log(2 / PRECISION) / math.acosh(1 / abs(strength)))):
            after = torch.addmm(start, self.walk, now, alpha=strength)
            before, now = now, before + weight * (after - before)
            weight = 1 / (1 - strength**2 * weight / 4)
        return now


def walk_support(edge_index: Tensor, nodes: int, edge_weight: Tensor | None) -> Support:
    """Return where a walk may step: along every edge both ways, or nowhere."""
    return build_support(edge_index, nodes, edge_weight=edge_weight, undirected=True, self_loops=True)


def walk_matrix(support: Support) -> Tensor:
    """Return P as a CSR matrix: each row holds the chances of one step, the node itself among its targets.

    Args:
        support: from `walk_support`.
    """
    pattern = support.pattern
    weight = torch.ones(pattern.entries) if support.weight is None else support.weight
    chance = weight / support.receives[pattern.rows]
    return csr_tensor(pattern.crow, pattern.cols, chance, (support.nodes, support.nodes))
