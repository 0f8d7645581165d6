"""Read-outs, after training: embeddings carried along the edges, or set off against the neighbours."""

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
POWERS = 8
"""So many powers of Ã count alike."""
COLUMNS = 1024
"""So many columns are worked on at a time."""
ROWS = 1 << 16
"""So many rows of a matrix in files are read at a time."""
SMOOTHERS = ("walks", "powers")


class StepMatrix:
    """One step along the edges, each both ways, or to the node itself, from a support in memory or in files.

    Args:
        support: from `step_support`, or the same rows in files.
        kind: "walks" divides each row by its sum; "powers" is the symmetric Ã.
        device: where the embeddings lie; None reads the support's rows as they are needed, on the CPU.
    """

    def __init__(self, support: Support, kind: str, device: torch.device | None = None) -> None:
        self.support, self.kind = support, kind
        self._matrix: Tensor | None = None
        if device is not None:
            self._matrix = self._rows(0, support.nodes).to(device)

    def __matmul__(self, rows: Tensor) -> Tensor:
        """Return what each node finds one step away, `[nodes, D]`."""
        if self._matrix is not None:
            return self._matrix @ rows
        found = torch.empty_like(rows)
        for first in range(0, self.support.nodes, ROWS):
            last = min(first + ROWS, self.support.nodes)
            found[first:last] = self._rows(first, last) @ rows
        return found

    def _rows(self, first: int, last: int) -> Tensor:
        """Return a range of rows as a CSR matrix."""
        pattern = self.support.pattern
        crow = pattern.crow[first : last + 1].long()
        begin, end = int(crow[0]), int(crow[-1])
        entries = torch.arange(begin, end, device=crow.device)
        if self.kind == "powers":
            values = self.support.normalized(entries)
        else:
            row = torch.searchsorted(pattern.crow, entries, right=True) - 1
            own = self.support.weight
            values = (torch.ones(len(entries)) if own is None else own[entries]) / self.support.receives[row]
        size = (last - first, self.support.nodes)
        return csr_tensor(crow - begin, pattern.cols[begin:end].long(), values, size)


class Smoother:
    r"""Replaces each embedding by what is found along the edges.

    `"walks"`: by the one expected at the end of a random walk that may stop at every step. With the walk
    matrix P, which steps to the node itself or to a neighbour in proportion to the edges' weights (every edge
    both ways), and the strength s,

    .. math:: Z = (1 - s) \sum_{k \ge 0} s^k P^k H = (1 - s) (I - s P)^{-1} H

    s = 0 changes nothing; the nearer to 1, the longer the walks. Below 0 the sum alternates: what a node
    shares with its neighbours is made smaller and what sets it apart larger, as suits heterophily. A column
    that is the same everywhere stays as it is. P has real eigenvalues between −1 and 1, so Chebyshev's
    semi-iteration finds the sum in about √(1/(1 − \|s\|)) products.

    `"powers"`: by the mean over the first K = 8 powers of the symmetric Ã with self-loops, the weights of S²GC
    (Zhu and Koniusz, 2021),

    .. math:: Z = (1 - s) H + \frac sK \sum_{k=1}^K \tilde A^k H

    Args:
        step: one step along the edges; None where the strength is 0.
        strength: s, between −0.99 and 0.99.
    """

    def __init__(self, step: StepMatrix | None, strength: float) -> None:
        self.step, self.strength = step, strength

    @torch.no_grad()
    def __call__(self, embedding: Tensor, columns: int = COLUMNS) -> Tensor:
        """Return the smoothed embedding `[nodes, D]`, of the same type and on the same device."""
        if not self.strength:
            return embedding
        pieces = [self.solve(piece.contiguous()) for piece in torch.split(embedding, columns, dim=1)]
        return torch.cat(pieces, dim=1)

    def solve(self, rows: Tensor) -> Tensor:
        """Return some columns smoothed."""
        assert self.step is not None
        return self._powers(rows) if self.step.kind == "powers" else self._walks(rows)

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

    def _walks(self, rows: Tensor) -> Tensor:
        """Solve (I − s P) Z = (1 − s) H by Chebyshev's semi-iteration."""
        assert self.step is not None
        strength = self.strength
        start = (1 - strength) * rows
        before, now = rows, torch.add(start, self.step @ rows, alpha=strength)
        weight = 1 / (1 - strength**2 / 2)
        for _ in range(math.ceil(math.log(2 / PRECISION) / math.acosh(1 / abs(strength)))):
            after = torch.add(start, self.step @ now, alpha=strength)
            before, now = now, before + weight * (after - before)
            weight = 1 / (1 - strength**2 * weight / 4)
        return now

    def _powers(self, rows: Tensor) -> Tensor:
        """Add up the powers of Ã."""
        assert self.step is not None
        total, power = (1 - self.strength) * rows, rows
        for _ in range(POWERS):
            power = self.step @ power
            total.add_(power, alpha=self.strength / POWERS)
        return total


def step_support(edge_index: Tensor, nodes: int, edge_weight: Tensor | None) -> Support:
    """Return where a step may lead: along every edge both ways, or nowhere."""
    return build_support(edge_index, nodes, edge_weight=edge_weight, undirected=True, self_loops=True)
