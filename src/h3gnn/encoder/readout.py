"""Read-outs after training: scaling of columns, and smoothing of embeddings along the edges."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.sparse import Pattern
from h3gnn.encoder.support import Support, build_support

TOLERANCE = 1e-4  # the iteration for the sum over walks ends at this fraction of the initial error
POWERS = 8  # number K of averaged powers of Ã
COLUMNS = 1024  # smoothed at a time
ROWS = 1 << 16  # of a memory-mapped matrix that are read at a time
PAIRS, CANDIDATES, QUERIES, NEAREST, MAX_COLUMNS = 5000, 5000, 2000, 5, 8192
"""Sample sizes of `feature_similarity`: edges, nodes, queries, nearest nodes per query, and columns."""
MIN_SIMILARITY, MAX_SIMILARITY, MAX_SMOOTHING = 0.02, 0.15, 0.6
"""`suggest_smoothing` rises from 0 to its maximum between these similarities."""


class StepMatrix:
    """The matrix of one step along the undirected edges with self-loops, in memory or memory-mapped.

    The kind "walks" divides each row by its sum; "powers" is the symmetric Ã. Without a device, rows of the
    support are read as needed, on the CPU.
    """

    def __init__(self, support: Support, kind: str, device: torch.device | None = None) -> None:
        self.support, self.kind = support, kind
        self._whole: tuple[Pattern, Tensor] | None = None
        if device is not None:
            pattern, values = self._rows(0, support.nodes)
            self._whole = pattern.to(device), values.to(device)

    def __matmul__(self, rows: Tensor) -> Tensor:
        """Multiply with an embedding `[nodes, D]`."""
        if self._whole is not None:
            pattern, values = self._whole
            return pattern.product(values, rows)
        product = torch.empty_like(rows)
        for first in range(0, self.support.nodes, ROWS):
            last = min(first + ROWS, self.support.nodes)
            pattern, values = self._rows(first, last)
            product[first:last] = pattern.product(values, rows)
        return product

    def transposed(self, rows: Tensor) -> Tensor:
        """Multiply the transpose of the whole matrix with rows `[nodes, D]`."""
        pattern, values = self._whole or self._rows(0, self.support.nodes)
        return pattern.transposed_product(values, rows)

    def _rows(self, first: int, last: int) -> tuple[Pattern, Tensor]:
        """Return the sparsity pattern and the values of a range of rows."""
        pattern = self.support.pattern
        crow = pattern.crow[first : last + 1].long()
        begin, end = int(crow[0]), int(crow[-1])
        entries = torch.arange(begin, end, device=crow.device)
        if self.kind == "powers":
            values = self.support.normalized(entries)
        else:
            row = torch.searchsorted(pattern.crow, entries, right=True) - 1
            weight = self.support.weight
            given = torch.ones(len(entries)) if weight is None else weight[entries]
            values = given / self.support.in_degree[row]
        return Pattern(crow - begin, pattern.cols[begin:end].long(), self.support.nodes), values


class ColumnScaler:
    """Standardises columns to mean 0 and variance 1 over the fitted nodes; constant columns become 0."""

    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        self.mean, self.spread = mean, spread

    @classmethod
    def fit(cls, rows: Tensor) -> ColumnScaler:
        """Fit to an embedding `[nodes, D]`."""
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        return cls.from_moments(mean, variance)

    @classmethod
    def from_moments(cls, mean: Tensor, variance: Tensor) -> ColumnScaler:
        """Use the given mean and variance of each column."""
        spread = variance.sqrt()
        return cls(mean.float(), torch.where(spread > 1e-8, spread, float("inf")).float())

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the standardised embedding."""
        return (rows - self.mean.to(rows.device)) / self.spread.to(rows.device)


class Smoother:
    r"""Smooths embeddings along the edges, with strength s between −0.99 and 0.99.

    `"walks"` takes the expected embedding at the end of a random walk that may stop at every step. With the
    walk matrix P, which steps to the node itself or to a neighbour in proportion to the edge weights,

    .. math:: Z = (1 - s) \sum_{k \ge 0} s^k P^k H = (1 - s) (I - s P)^{-1} H

    The larger s, the longer the walks; 0 changes nothing. A negative s alternates the signs, which reduces
    what a node shares with its neighbours and amplifies the differences, as suits heterophily. Constant
    columns are unchanged. P has real eigenvalues between −1 and 1, so Chebyshev's semi-iteration converges in
    about √(1/(1 − \|s\|)) products.

    `"powers"` averages the first K = 8 powers of the symmetric Ã with self-loops, with the weights of S²GC
    (Zhu and Koniusz, 2021),

    .. math:: Z = (1 - s) H + \frac sK \sum_{k=1}^K \tilde A^k H

    With strength 0, `step` may be None.
    """

    def __init__(self, step: StepMatrix | None, strength: float) -> None:
        self.step, self.strength = step, strength

    @torch.no_grad()
    def __call__(self, embedding: Tensor, columns: int = COLUMNS) -> Tensor:
        """Return the smoothed embedding `[nodes, D]`, `columns` at a time."""
        if not self.strength:
            return embedding
        assert self.step is not None
        smooth = self._powers if self.step.kind == "powers" else self._walks
        pieces = [smooth(self.step, piece.contiguous()) for piece in torch.split(embedding, columns, dim=1)]
        return torch.cat(pieces, dim=1)

    def _walks(self, step: StepMatrix, rows: Tensor) -> Tensor:
        """Solve (I − s P) Z = (1 − s) H by Chebyshev's semi-iteration."""
        strength = self.strength
        start = (1 - strength) * rows
        before, now = rows, torch.add(start, step @ rows, alpha=strength)
        weight = 1 / (1 - strength**2 / 2)
        for _ in range(math.ceil(math.log(2 / TOLERANCE) / math.acosh(1 / abs(strength)))):
            after = torch.add(start, step @ now, alpha=strength)
            before, now = now, before + weight * (after - before)
            weight = 1 / (1 - strength**2 * weight / 4)
        return now

    def _powers(self, step: StepMatrix, rows: Tensor) -> Tensor:
        total, power = (1 - self.strength) * rows, rows
        for _ in range(POWERS):
            power = step @ power
            total.add_(power, alpha=self.strength / POWERS)
        return total


def step_support(edge_index: Tensor, nodes: int, edge_weight: Tensor | None) -> Support:
    """Return the support of `StepMatrix`: undirected edges and self-loops."""
    return build_support(edge_index, nodes, edge_weight=edge_weight, undirected=True, self_loops=True)


def feature_similarity(graph: GraphRows) -> tuple[float, float]:
    r"""Return the mean feature similarity of neighbours, and of each node's nearest nodes.

    The columns are split at random into two halves. Nearest nodes are found in one half and compared in the
    other, so that chance similarity does not count; neighbours are compared there, too:

    .. math:: \operatorname*{mean} \langle \tilde x_u, \tilde x_v \rangle \, / \,
        \operatorname*{mean} \lVert \tilde x_v \rVert^2

    with centred rows of length 1. A fixed sample of some thousand nodes and edges is used.
    """
    support, draw = graph.support, torch.Generator().manual_seed(0)
    if not support.entries or graph.columns < 2:
        return 0.0, 0.0
    entries = torch.randint(support.entries, (PAIRS,), generator=draw).sort().values
    receiver = torch.searchsorted(support.pattern.crow.cpu(), entries, right=True) - 1
    ends = torch.stack([receiver, support.pattern.cols.cpu()[entries].long()])
    ends = ends[:, ends[0] != ends[1]]
    sample = torch.randperm(support.nodes, generator=draw)[:CANDIDATES]
    nodes, position = torch.unique(torch.cat([sample, *ends]), return_inverse=True)
    columns = torch.randperm(graph.columns, generator=draw)[:MAX_COLUMNS]
    rows = graph.read(nodes).to_dense()[:, columns]
    among, (source, target) = position[: len(sample)], position[len(sample) :].view(2, -1)
    halves = [unit - unit.mean(dim=0) for unit in map(_unit, rows.tensor_split(2, dim=1))]
    of_neighbours, of_nearest = 0.0, 0.0
    for search, judge in (halves, halves[::-1]):
        size = judge.square().sum(dim=1).mean().clamp_min(1e-12)
        queries = among[:QUERIES]
        similarity = _unit(search[queries]) @ _unit(search[among]).T
        similarity[torch.arange(len(queries)), torch.arange(len(queries))] = -2.0
        nearest = among[similarity.topk(min(NEAREST, len(among) - 1), dim=1).indices]
        of_nearest += float((judge[queries][:, None] * judge[nearest]).sum(dim=2).mean() / size) / 2
        of_neighbours += float((judge[source] * judge[target]).sum(dim=1).mean() / size) / 2
    return of_neighbours, of_nearest


def suggest_smoothing(graph: GraphRows) -> float:
    r"""Choose the smoothing strength from features and edges, without labels.

    Smoothing helps where neighbours are similar, and as similar as nodes with near features. With the two
    values of `feature_similarity`, g of neighbours and k of nearest nodes,
    :math:`t = g \min(g / k, 1.5)` is about 0 on heterophilous graphs and 0.2 on citation graphs. The strength
    rises with the logarithm of t from 0 at t = 0.02 to 0.6 at t = 0.15.
    """
    of_neighbours, of_nearest = feature_similarity(graph)
    if of_neighbours <= 0:
        return 0.0
    similarity = of_neighbours * min(of_neighbours / max(of_nearest, 1e-9), 1.5)
    share = math.log(max(similarity, 1e-9) / MIN_SIMILARITY) / math.log(MAX_SIMILARITY / MIN_SIMILARITY)
    return round(MAX_SMOOTHING * min(max(share, 0.0), 1.0), 2)


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=1)
