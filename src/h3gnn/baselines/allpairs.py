"""Sums and nearest neighbours over all pairs of nodes, computed in blocks of rows.

A contrastive loss needs a sum over all nodes for each node. Value and gradient are computed together, so that
no matrix of all pairs outlives the call; on large graphs none is ever held completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix

BLOCK = 2**24
"""Pairs in a block: 64 MiB of similarities."""
KEPT = 2**27
"""Blocks are kept for the gradient up to this many pairs in total; beyond it they are recomputed."""
SMALLEST = 1e-30
"""Lower bound of a sum, for a sum over no nodes."""


def bytes_for_pairs(nodes: int, matrices: int = 1) -> int:
    """Return the memory of sums over pairs that keep this many matrices: 1, or 3 with `within`."""
    pairs = nodes * nodes
    return 4 * (3 * min(pairs, BLOCK + nodes) + min(matrices * pairs, KEPT))


def mean_log_sums(
    first: Tensor,
    second: Tensor,
    temperature: float,
    *,
    within: bool = False,
    left_out: LeftOut | None = None,
) -> Tensor:
    r"""Return the mean logarithm of each node's sum over the other view, for views `[nodes, channels]`.

    .. math:: \tfrac{1}{2n} \sum_i \Big[\log \sum_k e^{\cos(a_i, b_k)/\tau}
        + \log \sum_k e^{\cos(b_i, a_k)/\tau}\Big]

    With `within`, each sum is also over the other nodes k ≠ i of the node's own view.
    """
    if left_out is None:
        left_out = LeftOut.nothing(first)
    rows = functional.normalize(first), functional.normalize(second)
    return _MeanLogSums.apply(*rows, temperature, within, left_out)  # type: ignore[no-untyped-call]


def two_view_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    r"""Return GRACE's loss: a node's other view against all other nodes, of both views.

    .. math:: -\tfrac{1}{2n} \sum_i \log \frac{e^{\cos(a_i, b_i)/\tau}}
        {\sum_k e^{\cos(a_i, b_k)/\tau} + \sum_{k \ne i} e^{\cos(a_i, a_k)/\tau}}
        + \text{the same from b to a}
    """
    alike = functional.cosine_similarity(first, second, dim=1).mean() / temperature
    return mean_log_sums(first, second, temperature, within=True) - alike


def log_sums(rows: Tensor, temperature: float) -> Tensor:
    r"""Return :math:`\log \sum_k e^{z_i^\top z_k / \tau}` of every row, which has unit length; `[nodes]`."""
    return _LogSums.apply(rows, temperature)  # type: ignore[no-untyped-call]


def sum_of_softplus(rows: Tensor) -> Tensor:
    r"""Return :math:`\sum_{ij} \log(1 + e^{z_i^\top z_j})` over all pairs of rows `[nodes, channels]`."""
    return _SumOfSoftplus.apply(rows)  # type: ignore[no-untyped-call]


def edge_cross_entropy(rows: Tensor, edges: Tensor, linked: float) -> Tensor:
    r"""Return the weighted cross-entropy of edges `[2, edges]` and all pairs, given by inner products.

    .. math:: \tfrac1{n^2 - e} \sum_{ij} -\tfrac{n^2 - e}{e} A_{ij} \log \sigma(z_i^\top z_j)
        - (1 - A_{ij}) \log(1 - \sigma(z_i^\top z_j)), \quad e = \text{linked}
    """
    rest = len(rows) ** 2 - linked
    products = (rows[edges[0]] * rows[edges[1]]).sum(dim=1)
    of_edges = rest / linked * functional.softplus(-products) - functional.softplus(products)
    return (sum_of_softplus(rows) + of_edges.sum()) / rest


class LeftOut:
    """Pairs (i, k) that are excluded from the sum of i's first view over k's second, and vice versa.

    Entry (i, k) of the matrix of first by second view is excluded from the sum over row i, and (k, i) from
    that over column i: each entry has two weights, 0 or 1.
    """

    def __init__(self, rows: Tensor, cols: Tensor, in_row: Tensor, in_col: Tensor, starts: list[int]) -> None:
        self.rows, self.cols, self.in_row, self.in_col, self.starts = rows, cols, in_row, in_col, starts

    @classmethod
    def of(cls, pairs: SparseMatrix) -> LeftOut:
        """Exclude the entries of a matrix, whatever their values."""
        nodes = pairs.shape[0]
        ahead, back = pairs.rows * nodes + pairs.cols, pairs.cols * nodes + pairs.rows
        places = torch.unique(torch.cat([ahead, back]))
        rows = places // nodes
        in_row, in_col = ((~torch.isin(places, one)).float() for one in (ahead, back))
        counts = torch.bincount(rows, minlength=nodes).cumsum(0)
        return cls(rows, places % nodes, in_row, in_col, [0, *counts.tolist()])

    @classmethod
    def nothing(cls, like: Tensor) -> LeftOut:
        empty, none = torch.empty(0, dtype=torch.int64, device=like.device), like.new_empty(0)
        return cls(empty, empty, none, none, [0] * (len(like) + 1))


class _MeanLogSums(torch.autograd.Function):
    """See `mean_log_sums`; the rows have unit length, and the gradient is computed with the value."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, temperature: float, within: bool, left_out: LeftOut
    ) -> Tensor:
        across = _Block(first, second, temperature, left_out, keep=(3 if within else 1) * len(first) ** 2)
        rows, cols = across.sums()
        inner = []
        if within:
            nothing = LeftOut.nothing(first)
            inner = [
                _Block(view, view, temperature, nothing, keep=across.pairs, loops=False)
                for view in (first, second)
            ]
            rows, cols = rows + inner[0].sums()[0], cols + inner[1].sums()[0]
        rows, cols = rows.clamp_min(SMALLEST), cols.clamp_min(SMALLEST)
        nodes = max(1, len(first))
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            row_share, col_share = (0.5 / nodes / temperature / sums for sums in (rows, cols))
            to_first, to_second = across.gradients(row_share, col_share)
            if within:
                to_first += inner[0].inner_gradient(row_share)
                to_second += inner[1].inner_gradient(col_share)
            ctx.save_for_backward(to_first, to_second)
        return (rows.log().sum() + cols.log().sum()) / (2 * nodes) + 1 / temperature

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        to_first, to_second = ctx.saved_tensors
        return to_first * gradients[0], to_second * gradients[0], None, None, None


class _LogSums(torch.autograd.Function):
    """See `log_sums`; blocks are recomputed for the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, temperature: float) -> Tensor:
        ctx.temperature = temperature
        sums = _LogSums.block(rows, temperature).sums()[0]
        ctx.save_for_backward(rows, sums)
        return sums.log() + 1 / temperature

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, sums = ctx.saved_tensors
        share = gradients[0] / sums / ctx.temperature
        return _LogSums.block(rows, ctx.temperature).inner_gradient(share), None

    @staticmethod
    def block(rows: Tensor, temperature: float) -> _Block:
        return _Block(rows, rows, temperature, LeftOut.nothing(rows), keep=KEPT + 1)


class _SumOfSoftplus(torch.autograd.Function):
    r"""See `sum_of_softplus`; the gradient, :math:`2 \sigma(Z Z^\top) Z`, is computed with the value."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        total, gradient = rows.new_zeros(()), torch.empty_like(rows)
        for block in blocks_of(len(rows)):
            products = rows[block] @ rows.t()
            total += functional.softplus(products).sum()
            if ctx.needs_input_grad[0]:
                gradient[block] = products.sigmoid_() @ rows
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        saved: Tensor = ctx.saved_tensors[0]
        return 2 * gradients[0] * saved


class _Block:
    """The matrix of `exp((cos - 1) / temperature)`, in blocks of rows that are kept or recomputed."""

    def __init__(
        self,
        first: Tensor,
        second: Tensor,
        temperature: float,
        left_out: LeftOut,
        keep: int,
        *,
        loops: bool = True,
    ) -> None:
        self.first, self.second, self.temperature = first, second, temperature
        self.left_out, self.pairs, self.loops = left_out, keep, loops
        self.kept: list[tuple[slice, Tensor, slice, Tensor]] = []

    def blocks(self) -> Iterator[tuple[slice, Tensor, slice, Tensor]]:
        """Yield rows, their exponentials, and the excluded entries with their exponentials."""
        if self.kept:
            yield from self.kept
            return
        for rows in blocks_of(len(self.first)):
            values = (self.first[rows] @ self.second.t()).sub_(1).div_(self.temperature).exp_()
            if not self.loops:
                values.diagonal(rows.start).zero_()
            apart = slice(self.left_out.starts[rows.start], self.left_out.starts[rows.stop])
            places = self.left_out.rows[apart] - rows.start, self.left_out.cols[apart]
            left = values[places]
            values[places] = 0
            if self.pairs <= KEPT:
                self.kept.append((rows, values, apart, left))
            yield rows, values, apart, left

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums over rows and over columns."""
        row_sums, col_sums = self.first.new_zeros(len(self.first)), self.first.new_zeros(len(self.second))
        out = self.left_out
        for rows, values, apart, left in self.blocks():
            row_sums[rows] += values.sum(dim=1)
            col_sums += values.sum(dim=0)
            row_sums.index_add_(0, out.rows[apart], left * out.in_row[apart])
            col_sums.index_add_(0, out.cols[apart], left * out.in_col[apart])
        return row_sums, col_sums

    def gradients(self, row_share: Tensor, col_share: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of `row_share @ row sums + col_share @ column sums`."""
        to_first, to_second = torch.empty_like(self.first), torch.zeros_like(self.second)
        out = self.left_out
        for rows, values, apart, left in self.blocks():
            weights = values.mul_(row_share[rows, None] + col_share)
            row, col = out.rows[apart], out.cols[apart]
            shares = out.in_row[apart] * row_share[row] + out.in_col[apart] * col_share[col]
            weights[row - rows.start, col] = left * shares
            to_first[rows] = weights @ self.second
            to_second.addmm_(weights.t(), self.first[rows])
        return to_first, to_second

    def inner_gradient(self, share: Tensor) -> Tensor:
        """Return the gradient of `share @ row sums` where both views are the same."""
        gradient = torch.empty_like(self.first)
        for rows, values, *_ in self.blocks():
            gradient[rows] = values.mul_(share[rows, None] + share) @ self.first
        return gradient


def nearest_others(rows: Tensor, count: int) -> Tensor:
    """Return the nearest other rows by cosine, int64 `[nodes, min(count, nodes - 1)]`."""
    unit = functional.normalize(rows)
    count = min(count, max(0, len(unit) - 1))
    found = []
    for block in blocks_of(len(unit)):
        alike = unit[block] @ unit.t()
        alike.diagonal(block.start).fill_(-torch.inf)
        found.append(alike.topk(count, dim=1).indices)
    return torch.cat(found)


def blocks_of(nodes: int) -> Iterator[slice]:
    """Yield blocks of rows with at most `BLOCK` pairs each."""
    size = max(1, BLOCK // max(1, nodes))
    for start in range(0, nodes, size):
        yield slice(start, min(nodes, start + size))
