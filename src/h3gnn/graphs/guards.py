"""One thing in the place of another: edges as labels or features, rows of an adjacency matrix as a table.

Each of these would give an embedding, and a wrong one; so it is refused, with the call that is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import DATES, holds_dates, is_sparse
from h3gnn.graphs.graph import Graph
from h3gnn.tables.frames import as_frame, column_names, is_frame, names_edges

WIDEST_CUT = 2.5
"""So many times as wide as high may a table be that is looked at as rows of an adjacency matrix."""


def check_target(X: Any, y: Any) -> None:  # noqa: N803
    """Refuse a `y` that is edges: labels are one value, or one row of values, for each row of X."""
    if y is None:
        return
    y = as_frame(y)
    if is_graph(y) or names_edges(y):
        raise InputError(_y_is_edges(type(y).__name__))
    shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
    if len(shape) != 2:
        return
    if shape[0] != _rows_of(X) or (shape[1] == 2 and _numbers_nodes(np.asarray(y), shape[0])):
        raise InputError(_y_is_edges(f"{type(y).__name__} of the shape {list(shape)}"))


def _rows_of(X: Any) -> int:  # noqa: N803
    """Return how many nodes a graph or a table has."""
    if hasattr(X, "shape"):
        return int(X.shape[0])
    nodes = getattr(X, "num_nodes", None)
    if nodes is None:
        return len(X) if hasattr(X, "__len__") else len(np.asarray(X))
    return int(nodes() if callable(nodes) else nodes)


def _y_is_edges(what: str) -> str:
    return (
        f"y, the second argument, is for labels and is ignored, and this {what} looks like edges: "
        "call fit(X, edge_index=edges)"
    )


def _numbers_nodes(pairs: npt.NDArray[Any], nodes: int) -> bool:
    """Tell whether whole numbers are positions among so many nodes, rather than classes."""
    if pairs.dtype.kind not in "iu" or nodes < 5:
        return False
    return bool(pairs.min() >= 0 and nodes // 2 <= pairs.max() < nodes)


def check_dates(table: Any) -> None:
    """Refuse a table that holds dates, of which scikit-learn would make numbers."""
    if is_frame(table):
        for position, name in enumerate(getattr(table, "columns", ())):
            if holds_dates(table.iloc[:, position]):
                raise GraphError(f"the column {name!r} of the features holds {DATES}")
    elif not is_sparse(table) and holds_dates(np.asarray(table)):
        raise GraphError(f"the features hold {DATES}")


def check_table(table: Any) -> None:
    """Refuse a table without edges that is a graph, or a piece of one."""
    if is_frame(table):
        _check_frame(table)
        if column_names(table):
            return  # names say that columns are features
    if is_sparse(table):
        _check_not_rows(table)
        return
    array = np.asarray(table)
    if array.ndim != 2 or array.size == 0:
        return  # scikit-learn has words for it
    if array.dtype.kind in "iu" and array.min() >= 0 and _is_list_of_edges(array):
        raise InputError(_x_is_edges(f"an array of whole numbers of the shape {list(array.shape)}"))
    if array.dtype.kind in "biuf":
        _check_not_adjacency(array)
        _check_not_rows(array)


def _check_frame(frame: Any) -> None:
    if not hasattr(frame, "columns"):
        return  # scikit-learn has words for a Series
    if names_edges(frame) and len(frame.columns) <= 4:
        raise InputError(_x_is_edges("a DataFrame with the columns " + ", ".join(map(str, frame.columns))))
    if len(frame) > 2 and frame.columns.equals(frame.index) and column_names(frame):
        raise InputError(_x_is_adjacency("a table whose columns are called as its rows"))


def _x_is_adjacency(what: str) -> str:
    return f"X is {what}, which looks like an adjacency matrix: give it as scipy.sparse.csr_array(X)"


def _x_is_edges(what: str) -> str:
    return (
        f"X is {what}, which looks like edges: call fit(features, edge_index=edges), or, without features, "
        "give a networkx graph or a square scipy sparse adjacency"
    )


def _is_list_of_edges(array: npt.NDArray[Any]) -> bool:
    """Tell `[2, edges]`, and pairs in which the numbers from 0 on all appear, and not very often."""
    if array.shape[0] == 2:
        return bool(array.shape[1] > 2)
    nodes = int(array.max()) + 1
    dense = nodes >= max(5, len(array) / 20) and np.unique(array).size > 0.9 * nodes
    return bool(array.shape[1] == 2 and dense)


def _check_not_adjacency(array: npt.NDArray[Any]) -> None:
    rows, columns = array.shape
    if rows != columns or rows < 3 or np.diagonal(array).any():
        return
    if np.array_equal(array, array.T) or np.isin(array, (0, 1)).all():
        what = f"a square table of the shape {list(array.shape)} with an empty diagonal"
        raise InputError(_x_is_adjacency(what))


def _check_not_rows(table: Any) -> None:
    """Refuse some rows of an adjacency matrix, known by their counts.

    In an undirected graph a node has as many entries in its column as in its row. So, of the rows that are
    left, the entries per column are those per row, each kept with the share of rows that is left. A table of
    words is not so: its texts are about equally long, and its words are not equally frequent.
    """
    rows, columns = table.shape
    if not (10 < rows < columns <= WIDEST_CUT * rows):
        return
    there = table != 0
    per_row, per_column = (np.asarray(there.sum(axis=axis)).ravel() for axis in (1, 0))
    if per_row.sum() > 0.5 * rows * columns:
        return
    kept = np.random.default_rng(0).binomial(per_row.astype(np.int64), rows / columns)
    steps = np.arange(int(max(kept.max(), per_column.max())) + 1)
    shares = [
        np.searchsorted(np.sort(counts), steps, side="right") / counts.size for counts in (kept, per_column)
    ]
    far = max(
        0.2, 1.36 * np.sqrt((rows + columns) / (rows * columns))
    )  # or what chance alone does to few rows
    if np.abs(shares[0] - shares[1]).max() < far:
        raise InputError(
            f"X has {rows} rows, {columns} columns and no edges: they look like {ROWS_OF_AN_ADJACENCY}; if "
            "the columns are features, name them (a DataFrame), or give edge_index=kneighbors_graph(X, 10)"
        )


ROWS_OF_AN_ADJACENCY = (
    "rows of an adjacency matrix without the columns that belong to them, as cross-validation cuts them: a "
    "graph is not cut, so fit H3GNN once on the whole of it, and cross-validate a classifier over its "
    "model.embedding_"
)


def is_graph(data: Any) -> bool:
    """Tell an object that is a graph on its own from a table of features, which needs edges beside it."""
    return input_kind(data) is not None


def input_kind(data: Any) -> str | None:
    """Say what an object is, by its class and those that it inherits from; no library is imported for it."""
    if isinstance(data, Graph):
        return "graph"
    if _comes_from(data, "torch_geometric"):
        return "pyg"
    if _comes_from(data, "networkx"):
        return "networkx"
    if all(hasattr(data, name) for name in ("edges", "num_nodes", "ndata")):
        return "dgl"
    return "adjacency" if is_sparse(data) and data.shape[1:] == data.shape[:1] else None


def _comes_from(data: Any, library: str) -> bool:
    """Tell by its class where an object comes from, without importing the library."""
    return any(cls.__module__.partition(".")[0] == library for cls in type(data).__mro__)
