"""Structural distances between nodes, as struc2vec defines them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.baselines.layers import SparseMatrix, adjacency
from h3gnn.graphs.graph import Graph

HALF = 0.5
"""Added to degrees before their ratio, which allows a degree of 0."""
SOURCES = 256
"""Nodes whose rings are computed together."""
PAIRS = 2**13
"""Pairs of sequences that are warped together."""

Sequences = tuple[Tensor, Tensor, Tensor]
"""Sorted degrees `[sequences, longest]`, their counts, and the lengths `[sequences]`."""


@dataclass(frozen=True, eq=False)
class StructuralDistances:
    """Distances of candidate pairs of similar nodes.

    Attributes:
        pairs: int64 `[pairs, 2]`, the smaller node first, each pair once.
        distances: float64 `[layers, pairs]`, up to the ring of that layer; infinite for an empty ring.
        nodes: number of nodes.
    """

    pairs: Tensor
    distances: Tensor
    nodes: int

    def layer(self, index: int, nearest: int = 0) -> SparseMatrix:
        r"""Return one layer's weights :math:`e^{-f_k(u, v)}`, each row divided by its sum.

        Args:
            index: of the layer.
            nearest: number of the most similar nodes to keep per node; 0 for all.
        """
        found = torch.isfinite(self.distances[index])
        one, two = self.pairs[found].unbind(1)
        rows, cols = torch.cat([one, two]), torch.cat([two, one])
        far = self.distances[index][found].repeat(2)
        order = torch.argsort(far, stable=True)
        order = order[torch.argsort(rows[order], stable=True)]  # by row, the most alike first
        rows, cols, far = rows[order], cols[order], far[order]
        starts = torch.searchsorted(rows, torch.arange(self.nodes, device=rows.device))
        if nearest:
            kept = torch.arange(rows.numel(), device=rows.device) - starts[rows] < nearest
            rows, cols, far = rows[kept], cols[kept], far[kept]
            starts = torch.searchsorted(rows, torch.arange(self.nodes, device=rows.device))
        weights = (far[starts[rows]] - far).exp()
        total = weights.new_zeros(self.nodes).index_add_(0, rows, weights)
        position = torch.argsort(rows * self.nodes + cols)
        values = (weights / total[rows]).float()
        return SparseMatrix(rows[position], cols[position], values[position], (self.nodes, self.nodes))


def structural_distances(graph: Graph, layers: int, device: torch.device) -> StructuralDistances:
    r"""Return structural distances between nodes (Ribeiro et al., 2017).

    .. math:: f_k(u, v) = f_{k-1}(u, v) + \mathrm{DTW}\big(s(R_k(u)), s(R_k(v))\big)

    :math:`s(R_k(u))` is the sorted degree sequence of the nodes at distance k from u; DTW is dynamic time
    warping. Sequences are compressed to pairs (degree, count), and two pairs cost
    :math:`(\max(a, b) / \min(a, b) - 1) \max(n_a, n_b)`, where a and b are the degrees plus one half. A node
    is compared with the :math:`\log_2 n` nodes before and after it in the order of degrees; ties are broken
    by a fixed shuffle, independent of node numbers. `layers` counts the rings, the node itself first.
    """
    edges = adjacency(graph, self_loops=False)
    degrees = edges.crow.diff().numpy()
    pairs = _candidates(degrees)
    parts = []
    for counts in _rings(edges, degrees, layers):
        unique, kind = np.unique(counts, axis=0, return_inverse=True)
        kinds = torch.from_numpy(kind.reshape(-1).astype(np.int64))[pairs]
        sequences = compressed(np.unique(degrees), unique)
        parts.append(_distances_of(kinds, sequences, device))
    distances = torch.stack(parts).cumsum(0) if parts else torch.zeros(0, pairs.shape[0])
    return StructuralDistances(pairs.to(device), distances, graph.num_nodes)


def compressed(degrees: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Sequences:
    """Return sequences from how often each degree occurs in each, `[sequences, degrees]`."""
    present = counts > 0
    order = np.argsort(~present, axis=1, kind="stable")[:, : max(1, int(present.sum(1).max(initial=0)))]
    values = np.where(np.take_along_axis(present, order, 1), degrees[order], 0)
    often = np.take_along_axis(counts, order, 1)
    return (
        torch.from_numpy(values).double(),
        torch.from_numpy(often).double(),
        torch.from_numpy(present.sum(1)),
    )


def warped(one: Sequences, two: Sequences) -> Tensor:
    """Return the cost of warping each sequence onto its partner, `[pairs]`; infinite for an empty one.

    The table of all pairs is filled along its anti-diagonals: each needs the two before it alone.
    """
    (degrees, often, length), (others, other_often, other_length) = one, two
    count, rows, columns = degrees.shape[0], degrees.shape[1], others.shape[1]
    found = torch.full((count,), torch.inf, dtype=torch.float64, device=degrees.device)
    before = torch.full((count, rows + 1), torch.inf, dtype=torch.float64, device=degrees.device)
    last = before.clone()
    before[:, 0] = 0  # nothing onto nothing
    for diagonal in range(2, rows + columns + 1):
        low, high = max(1, diagonal - columns), min(rows, diagonal - 1)
        position = torch.arange(low, high + 1, device=degrees.device)
        a, b = degrees[:, position - 1] + HALF, others[:, diagonal - position - 1] + HALF
        cost = torch.maximum(a, b) / torch.minimum(a, b) - 1
        cost = cost * torch.maximum(often[:, position - 1], other_often[:, diagonal - position - 1])
        least = torch.minimum(
            torch.minimum(last[:, position - 1], last[:, position]), before[:, position - 1]
        )
        now = torch.full_like(last, torch.inf)
        now[:, position] = cost + least
        ends = (length + other_length == diagonal) & (length >= low) & (length <= high)
        found = torch.where(ends, now.gather(1, length.clamp_max(rows)[:, None]).squeeze(1), found)
        before, last = last, now
    return torch.where((length > 0) & (other_length > 0), found, torch.inf)


def _distances_of(kinds: Tensor, sequences: Sequences, device: torch.device) -> Tensor:
    """Return the cost of each pair of sequences `[pairs, 2]`; pairs of the same two are warped once."""
    sorted_kinds = kinds.sort(dim=1).values
    number = sequences[0].shape[0]
    keys, which = torch.unique(sorted_kinds[:, 0] * number + sorted_kinds[:, 1], return_inverse=True)
    one, two = keys // number, keys % number
    work = torch.argsort(sequences[2][one] + sequences[2][two])
    costs = torch.empty(keys.numel(), dtype=torch.float64, device=device)
    for start in range(0, work.numel(), PAIRS):
        some = work[start : start + PAIRS]
        left, right = (_some(sequences, ends[some], device) for ends in (one, two))
        costs[some.to(device)] = warped(left, right)
    return costs[which.to(device)]


def _some(sequences: Sequences, chosen: Tensor, device: torch.device) -> Sequences:
    """Return some of the sequences, no wider than their longest."""
    degrees, often, length = sequences
    longest = max(1, int(length[chosen].max()))
    shorter = degrees[chosen, :longest], often[chosen, :longest]
    return shorter[0].to(device), shorter[1].to(device), length[chosen].to(device)


def _candidates(degrees: npt.NDArray[np.int64]) -> Tensor:
    """Return the pairs of nodes close to each other in the order of degrees, each once."""
    nodes = degrees.shape[0]
    shuffle = np.random.default_rng(0).permutation(nodes)
    order = torch.from_numpy(shuffle[np.argsort(degrees[shuffle], kind="stable")])
    reach = min(nodes - 1, max(1, math.ceil(math.log2(max(2, nodes)))))
    ends = [torch.stack([order[:-step], order[step:]], dim=1) for step in range(1, reach + 1)]
    pairs = torch.cat(ends) if ends else torch.empty(0, 2, dtype=torch.int64)
    return pairs.sort(dim=1).values


def _rings(edges: SparseMatrix, degrees: npt.NDArray[np.int64], layers: int) -> list[npt.NDArray[np.int64]]:
    """Return for each layer how often each degree occurs in the ring of each node, `[nodes, degrees]`."""
    import scipy.sparse as sp

    nodes = degrees.shape[0]
    ones = np.ones(edges.cols.numel(), dtype=np.float32)
    near = sp.csr_array((ones, edges.cols.numpy(), edges.crow.numpy()), shape=edges.shape)
    known, kind = np.unique(degrees, return_inverse=True)
    one_hot = sp.csr_array(
        (np.ones(nodes, dtype=np.float32), (kind, np.arange(nodes))), shape=(known.size, nodes)
    )
    counts = [np.zeros((nodes, known.size), dtype=np.int64) for _ in range(layers)]
    for start in range(0, nodes, SOURCES):
        sources = np.arange(start, min(nodes, start + SOURCES))
        ring = np.zeros((nodes, sources.size), dtype=np.float32)
        ring[sources, sources - start] = 1
        seen = ring > 0
        for layer in range(layers):
            counts[layer][sources] = np.rint(one_hot @ ring).T
            ring = ((near @ ring > 0) & ~seen).astype(np.float32)
            seen |= ring > 0
    return counts
