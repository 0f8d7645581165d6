"""Read-outs, after training: embeddings carried along the edges, or set off against the neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.sparse import Pattern
from h3gnn.encoder.support import Support, build_support

PRECISION = 1e-4
"""The sum over all walks is taken to this share of its error at the start."""
POWERS = 8
"""So many powers of Ã count alike."""
COLUMNS = 1024
"""So many columns are worked on at a time."""
ROWS = 1 << 16
"""So many rows of a matrix in files are read at a time."""
PAIRS, CANDIDATES, QUERIES, NEAREST, MOST_COLUMNS = 5000, 5000, 2000, 5, 8192
"""How many edges, nodes and columns are looked at to choose the smoothing, and how many nearest nodes."""
LEAST_LIKENESS, FULL_LIKENESS, STRONGEST = 0.02, 0.15, 0.6
"""Between which answers of the features smoothing rises from nothing to its strongest."""


class StepMatrix:
    """One step along the edges, each both ways, or to the node itself, from a support in memory or in files.

    Args:
        support: from `step_support`, or the same rows in files.
        kind: "walks" divides each row by its sum; "powers" is the symmetric Ã.
        device: where the embeddings lie; None reads the support's rows as they are needed, on the CPU.
    """

    def __init__(self, support: Support, kind: str, device: torch.device | None = None) -> None:
        self.support, self.kind = support, kind
        self._whole: tuple[Pattern, Tensor] | None = None
        if device is not None:
            pattern, values = self._rows(0, support.nodes)
            self._whole = pattern.to(device), values.to(device)

    def __matmul__(self, rows: Tensor) -> Tensor:
        """Return what each node finds one step away, `[nodes, D]`."""
        if self._whole is not None:
            pattern, values = self._whole
            return pattern.product(values, rows)
        found = torch.empty_like(rows)
        for first in range(0, self.support.nodes, ROWS):
            last = min(first + ROWS, self.support.nodes)
            pattern, values = self._rows(first, last)
            found[first:last] = pattern.product(values, rows)
        return found

    def _rows(self, first: int, last: int) -> tuple[Pattern, Tensor]:
        """Return the places of a range of rows, and the values there."""
        pattern = self.support.pattern
        crow = pattern.crow[first : last + 1].long()
        begin, end = int(crow[0]), int(crow[-1])
        entries = torch.arange(begin, end, device=crow.device)
        if self.kind == "powers":
            values = self.support.normalized(entries)
        else:
            row = torch.searchsorted(pattern.crow, entries, right=True) - 1
            own = self.support.weight
            values = (torch.ones(len(entries)) if own is None else own[entries]) / self.support.in_degree[row]
        return Pattern(crow - begin, pattern.cols[begin:end].long(), self.support.nodes), values


class ColumnScaler:
    """Brings every column to mean 0 and variance 1 over the fitted nodes; a constant one to 0.

    Args:
        mean, spread: of the fitted columns `[D]`.
    """

    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        self.mean, self.spread = mean, spread

    @classmethod
    def fit(cls, rows: Tensor) -> ColumnScaler:
        """Learn from an embedding `[nodes, D]`."""
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        return cls.from_moments(mean, variance)

    @classmethod
    def from_moments(cls, mean: Tensor, variance: Tensor) -> ColumnScaler:
        """Take the mean and variance of each column, in any precision."""
        spread = variance.sqrt()
        return cls(mean.float(), torch.where(spread > 1e-8, spread, float("inf")).float())

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the embedding on that scale."""
        return (rows - self.mean.to(rows.device)) / self.spread.to(rows.device)


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

    `"powers"`: by the mean over the first K = 8 powers of the symmetric Ã with self-loops, the weights of
    S²GC (Zhu and Koniusz, 2021),

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


def likeness(graph: GraphRows) -> tuple[float, float]:
    r"""Return how alike the features of neighbours are, and how alike those of the most alike nodes.

    The columns are cut at random into two halves. The nearest nodes are found in one half and judged in the
    other, so that what looks near by chance does not count; neighbours are judged there, too:

    .. math:: \operatorname*{mean} \langle \tilde x_u, \tilde x_v \rangle \, / \,
        \operatorname*{mean} \lVert \tilde x_v \rVert^2

    with rows of length 1, centred. Some thousand nodes and edges are looked at, always the same ones.
    """
    support, draw = graph.support, torch.Generator().manual_seed(0)
    if not support.entries or graph.columns < 2:
        return 0.0, 0.0
    entries = torch.randint(support.entries, (PAIRS,), generator=draw).sort().values
    ends = torch.stack(
        [
            torch.searchsorted(support.pattern.crow.cpu(), entries, right=True) - 1,
            support.pattern.cols.cpu()[entries].long(),
        ]
    )
    ends = ends[:, ends[0] != ends[1]]
    some = torch.randperm(support.nodes, generator=draw)[:CANDIDATES]
    nodes, place = torch.unique(torch.cat([some, *ends]), return_inverse=True)
    columns = torch.randperm(graph.columns, generator=draw)[:MOST_COLUMNS]
    rows = graph.read(nodes).to_dense()[:, columns]
    among, (source, target) = place[: len(some)], place[len(some) :].view(2, -1)
    halves = [unit - unit.mean(dim=0) for unit in map(_unit, rows.tensor_split(2, dim=1))]
    of_neighbours, of_nearest = 0.0, 0.0
    for seen, judged in (halves, halves[::-1]):
        size = judged.square().sum(dim=1).mean().clamp_min(1e-12)
        asking = among[:QUERIES]
        alike = _unit(seen[asking]) @ _unit(seen[among]).T
        alike[torch.arange(len(asking)), torch.arange(len(asking))] = -2.0
        nearest = among[alike.topk(min(NEAREST, len(among) - 1), dim=1).indices]
        of_nearest += float((judged[asking][:, None] * judged[nearest]).sum(dim=2).mean() / size) / 2
        of_neighbours += float((judged[source] * judged[target]).sum(dim=1).mean() / size) / 2
    return of_neighbours, of_nearest


def suggest_smoothing(graph: GraphRows) -> float:
    r"""Choose the strength of smoothing from features and edges alone, without labels.

    Smoothing pays where neighbours are alike, and as alike as nodes that are near in their features. With
    both answers of `likeness`, g of neighbours and k of the nearest, :math:`t = g \min(g / k, 1.5)` is about
    0 on heterophilous graphs and 0.2 on citation graphs; the strength rises with its logarithm from 0 at
    t = 0.02 to 0.6 at t = 0.15.
    """
    of_neighbours, of_nearest = likeness(graph)
    if of_neighbours <= 0:
        return 0.0
    told = of_neighbours * min(of_neighbours / max(of_nearest, 1e-9), 1.5)
    share = math.log(max(told, 1e-9) / LEAST_LIKENESS) / math.log(FULL_LIKENESS / LEAST_LIKENESS)
    return round(STRONGEST * min(max(share, 0.0), 1.0), 2)


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=1)
