"""Features are checked here: a table of finite numbers, one row per node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.sparse import csr_tensor

Locate = Callable[[str, int], str]
"""Turns (part, position) into words for a person: ("features", 6) -> "features.csv, line 8"."""

SPARSE_BELOW = 0.1
"""Sparse input stays sparse under this share of non-zero values; above it, dense is smaller and faster."""


def check_features(features: Any, where: Locate) -> Tensor:
    """Return float32 features `[nodes, features]`, dense, or CSR where sparse ones came in."""
    if isinstance(features, Tensor) and features.layout != torch.strided:
        features = _scipy_matrix(features)
    if is_sparse(features):
        matrix = sp.csr_matrix(features)
        matrix.sum_duplicates()
        check_numbers(matrix.data, "features")
        if 0 < matrix.nnz < SPARSE_BELOW * matrix.shape[0] * matrix.shape[1]:
            return _check_sparse(matrix, where)
        features = matrix.toarray()
    array = as_numpy(features, "the features")
    if array.ndim != 2:
        raise GraphError(
            f"the features must be a table with one row per node, but have {array.ndim} dimension(s)"
        )
    _check_size(*array.shape)
    check_numbers(array, "features")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise _not_finite(array[row, column], row, column, where)
    return torch.from_numpy(np.ascontiguousarray(values))


def _check_sparse(matrix: sp.csr_matrix, where: Locate) -> Tensor:
    _check_size(*matrix.shape)
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        row = int(np.searchsorted(matrix.indptr, bad[0], side="right")) - 1
        raise _not_finite(matrix.data[bad[0]], row, int(matrix.indices[bad[0]]), where)
    return csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(values),
        (int(matrix.shape[0]), int(matrix.shape[1])),
    )


def _scipy_matrix(features: Tensor) -> Any:
    """Return a sparse tensor as a scipy matrix, so that it is never made dense on its way in."""
    if features.ndim != 2:
        raise GraphError(
            f"the features must be a table with one row per node, but have {features.ndim} dimension(s)"
        )
    entries = torch.Tensor.to_sparse(features.detach().cpu()).coalesce()
    rows, columns = entries.indices().numpy()
    values = as_numpy(entries.values(), "the features")
    return sp.csr_matrix((values, (rows, columns)), shape=(features.shape[0], features.shape[1]))


def _check_size(nodes: int, columns: int) -> None:
    if nodes == 0:
        raise GraphError("the graph is empty: the features have no row, so there is no node")
    if columns == 0:
        raise GraphError("the features have no column; leave them out to have structural features built")


def check_numbers(array: npt.NDArray[Any], part: str) -> None:
    """Raise where an array holds something that cannot be read as real numbers."""
    if np.iscomplexobj(array):
        raise GraphError(f"the {part} hold complex numbers. Complex data not supported")
    if array.dtype.kind not in "biufOUS":
        raise GraphError(f"the {part} hold something that is not a number: {array.dtype}")
    if array.dtype.kind in "OUS":
        try:
            array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise GraphError(f"the {part} hold something that is not a number: {error}") from None


def _not_finite(value: Any, row: int, column: int, where: Locate) -> GraphError:
    number = float(value)
    name = "NaN" if np.isnan(number) else "infinity" if np.isinf(number) else f"{number:g}, beyond float32,"
    return GraphError(
        f"{where('features', row)}, column {column + 1}: {name} is not a usable feature value; "
        "fill the gap or drop the column first"
    )


def as_numpy(values: Any, part: str) -> npt.NDArray[Any]:
    """Return values as an array; what cannot become one is named."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            plain: npt.NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
            return plain
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        raise GraphError(f"{part} are not an array; do all rows have the same length?") from None


def is_sparse(values: Any) -> bool:
    """Tell whether this is a scipy sparse matrix or array."""
    return bool(sp.issparse(values))
