"""Sparse matrices in compressed rows (CSR): sparsity patterns, products with autograd, and adjacencies."""

from __future__ import annotations

import warnings
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder.triton import kernels_for

DENSE_NODES = {"cpu": 0, "cuda": 256}
"""Graphs with at most this many nodes are multiplied as dense matrices: fewer kernel launches."""
SUM = 0  # a mode of `torch.embedding_bag`
ENTRY_COST = 16  # of a multiplication in a sparse product, relative to one in a dense product


def csr_tensor(crow: Tensor, col: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a CSR tensor over existing buffers, without checks."""
    _suppress_beta_warning()
    return torch.sparse_csr_tensor(crow, col, values, size, check_invariants=False)


@cache
def _suppress_beta_warning() -> None:
    """Trigger torch's warnings about CSR tensors, which it gives once, while warnings are off."""
    checks: Any = torch.sparse.check_sparse_tensor_invariants
    if not checks.is_enabled():
        checks.disable()  # the default, which torch warns about unless it is explicit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.eye(1).to_sparse_csr()


def sum_rows(crow: Tensor, cols: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Return the product of a CSR matrix with `[columns, D]` on a CPU, without autograd.

    `embedding_bag` adds in the same order as torch's sparse product, in a fraction of the time, and rows in
    bfloat16 in float32.
    """
    if not len(cols):
        return dense.new_zeros(len(crow) - 1, dense.shape[1])
    sums: Tensor = torch.embedding_bag(
        dense,
        cols.to(crow.dtype),
        crow,
        mode=SUM,
        per_sample_weights=values.to(dense.dtype),
        include_last_offset=True,
    )[0]
    return sums


def row_pointers(sorted_rows: Tensor, rows: int) -> Tensor:
    """Return the start of each row, `[rows + 1]`, for entries sorted by row."""
    counts = torch.bincount(sorted_rows, minlength=rows)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def to_csr(matrix: Tensor) -> Tensor:
    """Return a dense or CSR matrix as CSR."""
    if matrix.layout == torch.sparse_csr:
        return matrix
    rows, cols = matrix.nonzero(as_tuple=True)
    nodes, columns = matrix.shape
    return csr_tensor(row_pointers(rows, nodes), cols, matrix[rows, cols], (nodes, columns))


class Pattern:
    """The sparsity pattern of a matrix; in a graph, rows receive and columns send.

    The pattern of the whole graph is square; in a batch, there are fewer receivers than senders. Columns
    ascend within a row for reproducible sums. `weight_of` is the index of the edge weight of each entry; None
    if weights are in the order of the entries.
    """

    def __init__(self, crow: Tensor, cols: Tensor, sources: int, weight_of: Tensor | None = None) -> None:
        self.crow, self.cols, self.sources, self.weight_of = crow, cols, sources, weight_of
        self._stacked: dict[int, Pattern] = {}

    @property
    def targets(self) -> int:
        """Number of rows."""
        return self.crow.shape[0] - 1

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.cols.shape[0]

    @cached_property
    def rows(self) -> Tensor:
        """The row of each entry."""
        each = torch.arange(self.targets, device=self.crow.device)
        return torch.repeat_interleave(each, self.crow.diff(), output_size=self.entries)

    @cached_property
    def _transpose(self) -> tuple[Pattern, Tensor]:
        """The pattern of the transpose, and the order of the values in it."""
        order = torch.argsort(self.cols * max(1, self.targets) + self.rows)
        crow = row_pointers(self.cols[order], self.sources)
        return Pattern(crow, self.rows[order], self.targets), order

    @cached_property
    def _pieces(self) -> Any:
        """Pieces of long rows, for the kernels."""
        from h3gnn.encoder.triton.sparse import cut_long_rows

        return cut_long_rows(self.crow)

    def sum_first(self, in_channels: int, out_channels: int) -> bool:
        """Return whether `(A H) W` costs less than `A (H W)`, for W `[in, out]`.

        In a batch few nodes receive, and fewer rows are multiplied after the sum; that pays off unless the
        sums are much wider. In the whole graph W comes first.
        """
        fewer_rows = (self.sources - self.targets) * in_channels * out_channels
        wider_sums = ENTRY_COST * self.entries * (in_channels - out_channels)
        return self.targets < self.sources and fewer_rows > wider_sums

    def matrix(self, values: Tensor) -> Tensor:
        """Return the CSR matrix with these values."""
        return csr_tensor(self.crow, self.cols, values, (self.targets, self.sources))

    def product(self, values: Tensor, messages: Tensor, order: Tensor | None = None) -> Tensor:
        """Return `A @ messages` for `[sources, channels]`; `order` indexes the value of each entry."""
        kernels = kernels_for(messages) if messages.is_cuda else None
        if kernels is not None:
            product: Tensor = kernels.multiply(self.crow, self.cols, values, messages, self._pieces, order)
            return product
        values = values if order is None else values[order]
        if messages.is_cuda:
            return self.matrix(values) @ messages
        return sum_rows(self.crow, self.cols, values, messages)

    def transposed_product(self, values: Tensor, gradient: Tensor) -> Tensor:
        """Return `Aᵀ @ gradient` for `[targets, channels]`."""
        transpose, order = self._transpose
        return transpose.product(values, gradient, order)

    def sampled_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `left @ rightᵀ` at the entries only, `[entries]`."""
        if (kernels := kernels_for(left)) is None:
            dtype = torch.promote_types(left.dtype, torch.float32)
            left, right = left.to(dtype), right.to(dtype)
            empty = self.matrix(left.new_zeros(self.entries))
            sampled: Tensor = torch.sparse.sampled_addmm(empty, left, right.t(), beta=0.0)
            return sampled.values()
        found: Tensor = kernels.sampled_product(self.rows, self.cols, left, right)  # in float32
        return found

    def stack(self, models: int) -> Pattern:
        """Return the block-diagonal pattern of `models` copies, cached.

        One product then serves all models, which share the graph but not the edge weights.
        """
        if models == 1:
            return self
        if models not in self._stacked:
            each = torch.arange(models, device=self.crow.device)[:, None]
            crow = (self.crow[:-1] + each * self.entries).flatten()
            crow = torch.cat([crow, crow.new_full((1,), models * self.entries)])
            cols = (self.cols + each * self.sources).flatten()
            self._stacked[models] = Pattern(crow, cols, models * self.sources)
        return self._stacked[models]

    def to(self, device: torch.device) -> Pattern:
        """Return the pattern on another device."""
        if self.crow.device == device:
            return self
        weight_of = None if self.weight_of is None else self.weight_of.to(device)
        return Pattern(self.crow.to(device), self.cols.to(device), self.sources, weight_of)


class _Propagate(torch.autograd.Function):
    """`A @ H` for sparse A; gradients `Aᵀ @ G` for H and `G @ Hᵀ` at the entries of A for its values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, messages: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(values, messages if ctx.needs_input_grad[0] else None)
        ctx.pattern = pattern
        return pattern.product(values, messages)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, messages = ctx.saved_tensors
        pattern: Pattern = ctx.pattern
        gradient = gradients[0].contiguous()
        to_values = to_messages = None
        if ctx.needs_input_grad[0]:
            to_values = pattern.sampled_product(gradient, messages)
        if ctx.needs_input_grad[1]:
            to_messages = pattern.transposed_product(values, gradient)
        return to_values, to_messages, None


def propagate(values: Tensor, messages: Tensor, pattern: Pattern) -> Tensor:
    """Return `A @ H` for the sparse A with these values `[entries]`."""
    received: Tensor = _Propagate.apply(values, messages, pattern)  # type: ignore[no-untyped-call]
    return received


class _MoveRows(torch.autograd.Function):
    """Select rows by index, or add them up by index into `count` rows: each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, count: int | None) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows, ctx.takes = len(rows), count is None
        return rows.index_select(0, index) if count is None else _scatter_add(rows, index, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (index,), (gradient,) = ctx.saved_tensors, gradients
        taken = _scatter_add(gradient, index, ctx.rows) if ctx.takes else gradient.index_select(0, index)
        return taken, None, None


def _scatter_add(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Return the sum of the rows with each index, in their order, `[count, channels]`."""
    rows, kernels = rows.contiguous(), kernels_for(rows)
    if kernels is None:
        return rows.new_zeros(count, rows.shape[1]).index_add_(0, index, rows)
    ascending, order = index.sort(stable=True)
    crow = torch.searchsorted(ascending, torch.arange(count + 1, device=index.device))
    added: Tensor = kernels.multiply(crow, order, None, rows, None)
    return added


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return rows of `[models, nodes, …]` by an index `[rows]` or `[models, rows]`."""
    return _move_rows(values, index, values.shape[1], None)


def add_rows(values: Tensor, index: Tensor, nodes: int) -> Tensor:
    """Return `[models, nodes, …]`, the sum of the rows of `[models, rows, …]` with each index."""
    return _move_rows(values, index, nodes, nodes * len(values))


def _move_rows(values: Tensor, index: Tensor, nodes: int, count: int | None) -> Tensor:
    models, flat = len(values), values.reshape(values.shape[0] * values.shape[1], -1)
    of_all = (index + nodes * torch.arange(models, device=index.device)[:, None]).flatten()
    moved: Tensor = _MoveRows.apply(flat, of_all, count)  # type: ignore[no-untyped-call]
    return moved.view(models, -1, *values.shape[2:])


class Adjacency:
    """The weighted adjacency of each model; `adjacency @ messages` sums incoming messages.

    Small graphs are dense where that is faster (`DENSE_NODES`). The pattern of the whole graph is stacked
    block-diagonally for all models; that of a batch, which is used once, is multiplied model by model.
    Weights are `[models, weights]`, indexed by `pattern.weight_of`, and `gates` a factor of each entry.
    """

    def __init__(self, pattern: Pattern, weights: Tensor, gates: Tensor | None = None) -> None:
        self.pattern = pattern
        weights = weights if pattern.weight_of is None else weights.index_select(1, pattern.weight_of)
        self.values = weights = weights if gates is None else weights * gates
        self.dense: Tensor | None = None
        if pattern.weight_of is None and pattern.targets <= DENSE_NODES[weights.device.type]:
            empty = weights.new_zeros(weights.shape[0], pattern.targets * pattern.sources)
            filled = empty.index_copy(1, pattern.rows * pattern.sources + pattern.cols, weights)
            self.dense = filled.view(-1, pattern.targets, pattern.sources)

    def __matmul__(self, messages: Tensor) -> Tensor:
        """Sum incoming messages: `[models, sources or more, channels]` to `[models, targets, channels]`."""
        if messages.shape[1] > self.pattern.sources:
            messages = messages[:, : self.pattern.sources]
        if self.dense is not None:
            return torch.bmm(self.dense.to(messages.dtype), messages)
        models, _, channels = messages.shape
        if self.pattern.entries == 0:
            return 0.0 * (messages[:, : self.pattern.targets] + self.values.sum())
        if self.pattern.weight_of is None:
            flat = messages.reshape(models * self.pattern.sources, channels).contiguous()
            received = propagate(self.values.flatten(), flat, self.pattern.stack(models))
            return received.view(models, self.pattern.targets, channels)
        pairs = zip(self.values, messages, strict=True)
        return stack_models([propagate(one, sent.contiguous(), self.pattern) for one, sent in pairs])


def stack_models(each: list[Tensor]) -> Tensor:
    """Stack one tensor per model; that of a single model is not copied."""
    return each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)
