"""Recognize input objects, and reject edges or adjacency matrices given as features or labels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import DATES, as_numpy, holds_dates, is_sparse
from h3gnn.graphs.graph import GraphLike
from h3gnn.tables.frames import as_frame, column_names, is_frame, names_edges

WIDEST_SUBSET = 2.5
"""Largest ratio of columns to rows at which a table is tested for being rows of an adjacency matrix."""

ROW_SUBSET = (
    "row subset of an adjacency matrix (for example from cross_val_score): fit H3GNN on the full graph, and "
    "cross-validate a classifier on model.embedding_"
)


def input_kind(data: Any) -> str | None:
    """Return the kind of a graph object, by its base classes, without importing their libraries."""
    libraries = {cls.__module__.partition(".")[0] for cls in type(data).__mro__}
    if isinstance(data, GraphLike):
        return "graph" if data.in_memory else "mapped"
    if "torch_geometric" in libraries:
        return "pyg"
    if "networkx" in libraries:
        return "networkx"
    if all(hasattr(data, name) for name in ("edges", "num_nodes", "ndata")):
        return "dgl"
    return "adjacency" if is_sparse(data) and data.shape[1:] == data.shape[:1] else None


def is_graph(data: Any) -> bool:
    """Return whether an object is a graph rather than a table of features."""
    return input_kind(data) is not None


def check_target(X: Any, y: Any) -> None:  # noqa: N803
    """Reject edges as `y`: labels are one value, or one row of values, for each row of X."""
    if y is None:
        return
    y = as_frame(y)
    shape = tuple(y.shape) if hasattr(y, "shape") else () if is_graph(y) else np.asarray(y).shape
    edges = is_graph(y) or names_edges(y)
    if not edges and len(shape) == 2:
        edges = shape[0] != count_rows(X) or (shape[1] == 2 and _holds_positions(np.asarray(y), shape[0]))
    if edges:
        raise InputError(
            f"y is for labels, which are ignored, but this {type(y).__name__} looks like edges: call "
            "fit(X, edges=edges)",
            code="target-is-edges",
        )


def count_rows(X: Any) -> int:  # noqa: N803
    """Return the number of nodes of a graph object, or of rows of a table."""
    if hasattr(X, "num_nodes"):
        return int(X.num_nodes() if callable(X.num_nodes) else X.num_nodes)
    return int(X.shape[0] if hasattr(X, "shape") else len(X))


def _holds_positions(pairs: npt.NDArray[Any], nodes: int) -> bool:
    """Return whether integers are positions of nodes rather than classes."""
    if pairs.dtype.kind not in "iu" or nodes < 5:
        return False
    return bool(pairs.min() >= 0 and nodes // 2 <= pairs.max() < nodes)


def check_dates(table: Any) -> None:
    """Reject dates, which scikit-learn would convert to numbers."""
    if is_frame(table):
        for position, name in enumerate(getattr(table, "columns", ())):
            if holds_dates(table.iloc[:, position]):
                raise GraphError(f"the column {name!r} of the features holds {DATES}", code="dates")
    elif not is_sparse(table) and holds_dates(np.asarray(table)):
        raise GraphError(f"the features hold {DATES}", code="dates")


def check_edge_index(edge_index: Any, nodes: int) -> None:
    """Reject a dense adjacency matrix, which cannot be distinguished from a table of edges."""
    shape = edge_index.shape if hasattr(edge_index, "shape") else as_numpy(edge_index, "the edges").shape
    if tuple(shape) == (nodes, nodes) and nodes > 2 and not names_edges(edge_index):
        raise GraphError(
            f"edge_index of the shape {list(shape)} may be a table of edges or an adjacency matrix: give a "
            "matrix as scipy.sparse.csr_array(edge_index), and name the columns of a table source and target",
            code="edges-or-adjacency",
        )


def check_table(table: Any) -> None:
    """Reject a table without edges that is a graph, and warn if it looks like rows of an adjacency matrix."""
    if is_frame(table):
        _check_frame(table)
        if column_names(table):
            return  # named columns are features
    if is_sparse(table):
        _warn_about_row_subset(table)
        return
    array = np.asarray(table)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "biuf":
        return  # scikit-learn rejects it
    if array.dtype.kind in "iu" and array.min() >= 0 and _is_edge_list(array):
        raise _features_are("edges", f"an integer array of the shape {list(array.shape)}")
    rows, columns = array.shape
    no_loops = rows == columns > 2 and not np.diagonal(array).any()
    if no_loops and (np.array_equal(array, array.T) or np.isin(array, (0, 1)).all()):
        raise _features_are("adjacency", f"a table of the shape {list(array.shape)} with zero diagonal")
    _warn_about_row_subset(array)


def _check_frame(frame: Any) -> None:
    if not hasattr(frame, "columns"):
        return  # a Series, which scikit-learn rejects
    if names_edges(frame) and len(frame.columns) <= 4:
        raise _features_are("edges", "a DataFrame with the columns " + ", ".join(map(str, frame.columns)))
    if len(frame) > 2 and frame.columns.equals(frame.index) and column_names(frame):
        raise _features_are("adjacency", "a table whose column names equal its index")


def _features_are(part: str, what: str) -> InputError:
    """Return the error for a table X that looks like "edges" or an "adjacency" matrix."""
    remedy = (
        "call fit(features, edges=edges), or, without features, give a networkx graph or a square scipy "
        "sparse adjacency"
        if part == "edges"
        else "if it is an adjacency matrix, give it as scipy.sparse.csr_array(X)"
    )
    return InputError(f"X is {what}, which looks like {part}: {remedy}", code=f"features-are-{part}")


def _is_edge_list(array: npt.NDArray[Any]) -> bool:
    """Return whether integers are `[2, edges]`, or pairs that use nearly all positions and repeat few."""
    if array.shape[0] == 2:
        return bool(array.shape[1] > 2)
    nodes = int(array.max()) + 1
    dense = nodes >= max(5, len(array) / 20) and np.unique(array).size > 0.9 * nodes
    return bool(array.shape[1] == 2 and dense)


def _warn_about_row_subset(table: Any) -> None:
    """Warn if the rows look like rows of an adjacency matrix, by the distribution of their counts.

    In an undirected graph a node has as many entries in its column as in its row. In a subset of the rows,
    each entry of a column remains with probability p = rows / columns, so the counts per column follow the
    mixture of Binomial(count of a row, p). The counts of a document-term matrix do not.
    """
    from scipy.stats import binom

    rows, columns = table.shape
    if not (10 < rows < columns <= WIDEST_SUBSET * rows):
        return
    filled = table != 0
    per_row, per_column = (np.asarray(filled.sum(axis=axis)).ravel().astype(np.int64) for axis in (1, 0))
    if per_row.sum() > 0.5 * rows * columns:
        return
    counts = np.arange(int(max(per_row.max(), per_column.max())) + 1)
    degree, frequency = np.unique(per_row, return_counts=True)
    expected = frequency @ binom.cdf(counts[None, :], degree[:, None], rows / columns) / rows
    observed = np.searchsorted(np.sort(per_column), counts, side="right") / columns
    # Kolmogorov-Smirnov distance; the second bound is its 5 % quantile for few rows
    if np.abs(expected - observed).max() < max(0.2, 1.36 * np.sqrt((rows + columns) / (rows * columns))):
        warnings.warn(
            f"X has {rows} rows, {columns} columns and no edges, and looks like a {ROW_SUBSET}. If the "
            "columns are features, give them names (a DataFrame) to avoid this warning.",
            stacklevel=2,
        )
