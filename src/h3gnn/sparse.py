"""Compressed sparse rows, the one sparse layout in use, and the entries of a graph's adjacency."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor


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


def transpose_csr(matrix: Tensor) -> Tensor:
    """Return the transpose of a CSR matrix, as CSR."""
    crow, cols = matrix.crow_indices(), matrix.col_indices()
    rows = torch.repeat_interleave(torch.arange(matrix.shape[0], device=crow.device), crow.diff())
    order = torch.argsort(cols * matrix.shape[0] + rows)
    size = (matrix.shape[1], matrix.shape[0])
    return csr_tensor(row_pointers(cols[order], size[0]), rows[order], matrix.values()[order], size)


def adjacency_entries(
    edge_index: Tensor, edge_weight: Tensor | None, nodes: int, *, undirected: bool, self_loops: bool
) -> tuple[Tensor, Tensor]:
    """Return the sorted keys `row * nodes + column` of A (or A + I) and the weight of each.

    Self-loops of the data are left out. Of an edge that is there both ways with two weights, the larger
    counts. A loop of A + I weighs as much as the mean edge.
    """
    source, target = edge_index
    weights = torch.ones(source.shape[0]) if edge_weight is None else edge_weight.to(torch.float32)
    between = source != target
    source, target, weights = source[between], target[between], weights[between]
    if undirected:
        source, target = torch.cat([source, target]), torch.cat([target, source])
        weights = weights.repeat(2)
    if self_loops:
        loop = torch.arange(nodes)
        source, target = torch.cat([source, loop]), torch.cat([target, loop])
        typical = weights.mean() if weights.numel() else torch.tensor(1.0)
        weights = torch.cat([weights, typical.expand(nodes)])
    keys, position = torch.unique(target * nodes + source, return_inverse=True)
    strongest = torch.zeros(keys.shape[0]).scatter_reduce_(0, position, weights, "amax")
    return keys, strongest
