"""Compressed sparse rows, the one sparse layout in use: the places of a matrix, and products along them."""

from __future__ import annotations

import warnings
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder.triton import kernels_for

DENSE_NODES = {"cpu": 0, "cuda": 256}
"""Graphs with at most so many nodes are multiplied as dense matrices: fewer launches on a GPU."""
SUM = 0
"""What `torch.embedding_bag` calls a sum."""
ENTRY_COST = 16
"""A multiplication at an entry of a sparse matrix takes as long as so many in a dense one."""


def csr_tensor(crow: Tensor, col: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a CSR tensor over existing buffers, unchecked."""
    _hush_torch()
    return torch.sparse_csr_tensor(crow, col, values, size, check_invariants=False)


@cache
def _hush_torch() -> None:
    """Let torch say, once and unheard, that the layout is young."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(
            torch.tensor([0, 0]), torch.tensor([], dtype=torch.long), torch.tensor([]), (1, 1)
        )


def sum_rows(crow: Tensor, cols: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Return the product of a matrix in compressed rows with `[columns, D]`, on a CPU.

    An embedding table's weighted sums of rows: the same numbers in the same order as the sparse product's, in
    a fraction of its time. Gradients are the caller's affair.
    """
    if not len(cols):
        return dense.new_zeros(len(crow) - 1, dense.shape[1])
    sums: Tensor = torch.embedding_bag(
        dense, cols.to(crow.dtype), crow, mode=SUM, per_sample_weights=values, include_last_offset=True
    )[0]
    return sums


def row_pointers(sorted_rows: Tensor, rows: int) -> Tensor:
    """Return where each row begins, `[rows + 1]`, for entries sorted by row."""
    counts = torch.bincount(sorted_rows, minlength=rows)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def to_csr(matrix: Tensor) -> Tensor:
    """Return a dense or CSR matrix as CSR."""
    if matrix.layout == torch.sparse_csr:
        return matrix
    rows, cols = matrix.nonzero(as_tuple=True)
    return csr_tensor(
        row_pointers(rows, matrix.shape[0]), cols, matrix[rows, cols], (matrix.shape[0], matrix.shape[1])
    )


class Pattern:
    """The places of a sparse matrix: which of `sources` columns stand in each of its rows.

    In a graph a row receives and a column sends. Of the whole graph the pattern is square; of a part of it,
    the rows are the nodes that hear and the columns all that may send.

    Args:
        crow: where each row begins `[targets + 1]`.
        cols: the column of each entry `[entries]`, ascending within a row where products must not depend on
            anything else.
        sources: number of columns.
        weight_of: which edge weight belongs to each entry; None where they lie in the entries' own order.
    """

    def __init__(self, crow: Tensor, cols: Tensor, sources: int, weight_of: Tensor | None = None) -> None:
        self.crow, self.cols, self.sources, self.weight_of = crow, cols, sources, weight_of
        self._stacked: dict[int, Pattern] = {1: self}

    @property
    def targets(self) -> int:
        """Number of rows."""
        return self.crow.shape[0] - 1

    @property
    def entries(self) -> int:
        """Number of places."""
        return self.cols.shape[0]

    @cached_property
    def rows(self) -> Tensor:
        """The row of each entry."""
        each = torch.arange(self.targets, device=self.crow.device)
        return torch.repeat_interleave(each, self.crow.diff(), output_size=self.entries)

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers, columns and order of the transpose."""
        order = torch.argsort(self.cols * max(1, self.targets) + self.rows)
        return row_pointers(self.cols[order], self.sources), self.rows[order], order

    def sum_first(self, in_channels: int, out_channels: int) -> bool:
        """Tell whether `(A H) W` costs less than `A (H W)`, which it equals, for W `[in, out]`.

        Where few of many nodes receive, as in a batch, fewer rows are left to multiply once they are summed;
        that pays unless the sums are much wider. In the whole graph all receive, and W comes first.
        """
        fewer_rows = (self.sources - self.targets) * in_channels * out_channels
        wider_sums = ENTRY_COST * self.entries * (in_channels - out_channels)
        return self.targets < self.sources and fewer_rows > wider_sums

    def matrix(self, values: Tensor) -> Tensor:
        """Return the CSR matrix with these values."""
        return csr_tensor(self.crow, self.cols, values, (self.targets, self.sources))

    def transposed_matrix(self, values: Tensor) -> Tensor:
        """Return its transpose."""
        crow, cols, order = self._transposed
        return csr_tensor(crow, cols, values[order], (self.sources, self.targets))

    def product(self, values: Tensor, messages: Tensor) -> Tensor:
        """Return the matrix with these values times messages `[sources, channels]`."""
        if not messages.is_cuda:
            return sum_rows(self.crow, self.cols, values, messages)
        if (kernels := kernels_for(messages)) is None:
            return self.matrix(values) @ messages
        received: Tensor = kernels.multiply(self.crow, self.cols, values, messages, self._pieces)
        return received

    def transposed_product(self, values: Tensor, gradient: Tensor) -> Tensor:
        """Return its transpose times something `[targets, channels]`."""
        crow, cols, order = self._transposed
        if not gradient.is_cuda:
            return sum_rows(crow, cols, values[order], gradient)
        if (kernels := kernels_for(gradient)) is None:
            return self.transposed_matrix(values) @ gradient
        sent: Tensor = kernels.multiply(crow, cols, values, gradient, self._transposed_pieces, order)
        return sent

    def at_places(self, left: Tensor, right: Tensor) -> Tensor:
        """Return `left @ rightᵀ` at the places alone, `[entries]`."""
        if (kernels := kernels_for(left)) is None:
            empty = self.matrix(left.new_zeros(self.entries))
            sampled: Tensor = torch.sparse.sampled_addmm(empty, left, right.t(), beta=0.0)
            return sampled.values()
        found: Tensor = kernels.at_places(self.rows, self.cols, left, right)  # in float32
        return found

    @cached_property
    def _pieces(self) -> Any:
        """The pieces of long rows, for the kernels that ask for them."""
        return _pieces_of(self.crow)

    @cached_property
    def _transposed_pieces(self) -> Any:
        return _pieces_of(self._transposed[0])

    def stack(self, models: int) -> Pattern:
        """Return this pattern repeated `models` times along the diagonal; built once, then kept.

        One product then serves many models that share the graph but not the edge weights.
        """
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


def _pieces_of(crow: Tensor) -> Any:
    """Return the pieces in which the kernels sum long rows; asked for where these have been found."""
    from h3gnn.encoder.triton.sparse import cut_long_rows

    return cut_long_rows(crow)


class _Propagate(torch.autograd.Function):
    """`A @ H` for sparse A: gradients `Aᵀ @ G` for H and, at A's places only, `G @ Hᵀ` for its values."""

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
            to_values = pattern.at_places(gradient, messages)
        if ctx.needs_input_grad[1]:
            to_messages = pattern.transposed_product(values, gradient)
        return to_values, to_messages, None


def propagate(values: Tensor, messages: Tensor, pattern: Pattern) -> Tensor:
    """Return `A @ H` for the sparse A with these values `[entries]` at its places."""
    received: Tensor = _Propagate.apply(values, messages, pattern)  # type: ignore[no-untyped-call]
    return received


class _TakeRows(torch.autograd.Function):
    """Chosen rows; on the way back, what reaches a row is added in the order of the choices."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.rows = len(rows)
        return rows.index_select(0, chosen)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        return _added(gradients[0].contiguous(), chosen, ctx.rows), None


class _AddRows(torch.autograd.Function):
    """The sum of the rows that are sent to each place: the way back of `_TakeRows`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(places)
        return _added(rows.contiguous(), places, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(0, places), None, None


def _added(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Return `[count, channels]`: of each place, the sum of the rows that name it, in their order."""
    kernels = kernels_for(rows)
    if kernels is None:
        return rows.new_zeros(count, rows.shape[1]).index_add_(0, places, rows)
    ascending, order = places.sort(stable=True)
    crow = torch.searchsorted(ascending, torch.arange(count + 1, device=places.device))
    added: Tensor = kernels.multiply(crow, order, None, rows, None)
    return added


def take_rows(values: Tensor, chosen: Tensor) -> Tensor:
    """Return each model's chosen rows of `[models, nodes, …]`, the same for all or `[models, rows]`."""
    models, nodes = values.shape[:2]
    flat = values.reshape(models * nodes, -1)
    taken: Tensor = _TakeRows.apply(flat, _of_models(chosen, models, nodes))  # type: ignore[no-untyped-call]
    return taken.view(models, -1, *values.shape[2:])


def add_rows(values: Tensor, places: Tensor, nodes: int) -> Tensor:
    """Return `[models, nodes, …]`: of each node, the sum of those of `[models, rows, …]` that name it."""
    models = values.shape[0]
    flat = values.reshape(models * values.shape[1], -1)
    added: Tensor = _AddRows.apply(  # type: ignore[no-untyped-call]
        flat, _of_models(places, models, nodes), models * nodes
    )
    return added.view(models, nodes, *values.shape[2:])


def _of_models(places: Tensor, models: int, nodes: int) -> Tensor:
    """Return places among the nodes of all models, given places `[rows]` or `[models, rows]` in each."""
    return (places + nodes * torch.arange(models, device=places.device)[:, None]).flatten()


class Adjacency:
    """The weighted adjacency of each model; `adjacency @ messages` sums what reaches each node.

    Small graphs are stored dense where that is faster (`DENSE_NODES`). A pattern that lasts is repeated along
    a diagonal for all models; one that a batch made is used model by model.

    Args:
        pattern: where the weights stand; row = receiving node, column = sending node.
        weights: edge weights `[models, weights]`, which the pattern numbers.
        gates: what the weight of each entry is multiplied with, `[models, entries]`; None leaves them.
    """

    def __init__(self, pattern: Pattern, weights: Tensor, gates: Tensor | None = None) -> None:
        self.pattern = pattern
        lasting = pattern.weight_of is None
        weights = weights if pattern.weight_of is None else weights.index_select(1, pattern.weight_of)
        weights = weights if gates is None else weights * gates
        self.values = weights
        self.dense: Tensor | None = None
        if lasting and pattern.targets <= DENSE_NODES[weights.device.type]:
            empty = weights.new_zeros(weights.shape[0], pattern.targets * pattern.sources)
            filled = empty.index_copy(1, pattern.rows * pattern.sources + pattern.cols, weights)
            self.dense = filled.view(-1, pattern.targets, pattern.sources)

    def __matmul__(self, messages: Tensor) -> Tensor:
        """Sum what reaches each target: `[models, sources or more, channels]` to `[models, targets, …]`."""
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
        return stacked([propagate(one, sent.contiguous(), self.pattern) for one, sent in pairs])


def stacked(each: list[Tensor]) -> Tensor:
    """Return one tensor for each model as one tensor for all; that of a single model is not copied."""
    return each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)
