"""What a person hands to the estimator: taken for what it is, or refused with the call that is right.

Each of these mistakes would give an embedding, and a wrong one: edges in the place of labels or of features,
rows of an adjacency matrix as a table, columns in another order, a table without the edges that its model was
fitted with.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import DATES, holds_dates, is_sparse
from h3gnn.graphs.convert import ROWS_OF_AN_ADJACENCY, is_graph
from h3gnn.graphs.frames import column_names, counted, is_frame, names_edges, node_names
from h3gnn.graphs.graph import Graph, with_columns

NO_EDGES = (
    "X alone has no edges, and its rows are not those of the graph that H3GNN was fitted on: give the edges "
    "with transform(X, edge_index=E), or, in a Pipeline, after "
    "sklearn.set_config(enable_metadata_routing=True), use "
    "H3GNN().set_fit_request(edge_index=True).set_transform_request(edge_index=True), and then "
    "pipeline.predict(X, edge_index=E)"
)
WIDEST_CUT = 2.5
"""So many times as wide as high may a table be that is looked at as rows of an adjacency matrix."""


def check_target(X: Any, y: Any) -> None:  # noqa: N803
    """Refuse a `y` that is edges: labels are one value, or one row of values, for each row of X."""
    if y is None:
        return
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


def check_table(table: Any) -> None:
    """Refuse a table without edges that is a graph, or a piece of one, or holds dates."""
    if is_frame(table):
        if names_edges(table) and len(table.columns) <= 4:
            raise InputError(
                _x_is_edges("a DataFrame with the columns " + ", ".join(map(str, table.columns)))
            )
        dated = [name for name in column_names(table) or () if holds_dates(table[name])]
        if dated:
            raise GraphError(f"the column {dated[0]!r} of the features holds {DATES}")
        return  # names say that columns are features
    if is_sparse(table):
        _check_not_rows(table)
        return
    array = np.asarray(table)
    if array.ndim != 2 or array.size == 0:
        return  # scikit-learn has words for it
    if holds_dates(array):
        raise GraphError(f"the features hold {DATES}")
    if array.dtype.kind in "iu" and array.min() >= 0 and _is_list_of_edges(array):
        raise InputError(_x_is_edges(f"an array of whole numbers of the shape {list(array.shape)}"))
    if array.dtype.kind in "biuf":
        _check_not_adjacency(array)
        _check_not_rows(array)


def _x_is_edges(what: str) -> str:
    return (
        f"X is {what}, which looks like edges: call fit(features, edge_index=edges), or, without features, "
        "give a networkx graph or a square scipy sparse adjacency"
    )


def _is_list_of_edges(array: npt.NDArray[Any]) -> bool:
    """Tell `[2, edges]`, and pairs in which the numbers from 0 on all appear, and not very often."""
    if array.shape[0] == 2:
        return array.shape[1] > 2
    nodes = int(array.max()) + 1
    dense = nodes >= max(5, len(array) / 20) and np.unique(array).size > 0.9 * nodes
    return bool(array.shape[1] == 2 and dense)


def _check_not_adjacency(array: npt.NDArray[Any]) -> None:
    rows, columns = array.shape
    if rows != columns or rows < 3 or np.diagonal(array).any():
        return
    if np.array_equal(array, array.T) or np.isin(array, (0, 1)).all():
        raise InputError(
            f"X is a square table of the shape {list(array.shape)} with an empty diagonal, which looks like "
            "an adjacency matrix: give it as scipy.sparse.csr_array(X)"
        )


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


def column_order(fitted: tuple[str, ...], given: tuple[str, ...]) -> list[int] | None:
    """Return where each fitted column stands among the given ones; None where all stand in their places.

    Raises:
        GraphError: where names on both sides are not the same.
    """
    if given == fitted:
        return None
    place = {name: position for position, name in enumerate(given)}
    missing = [name for name in fitted if name not in place]
    known = set(fitted)
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        said = [f"{_listed(missing)} missing"] if missing else []
        said += [f"{_listed(unknown)} not known"] if unknown else []
        raise GraphError(
            f"the feature columns are not those of the fit: {', and '.join(said)}; give the fitted columns "
            f"({', '.join(fitted[:8])}{', …' if len(fitted) > 8 else ''}), in any order, and no others"
        )
    return [place[name] for name in fitted]


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" * (len(names) > 5))
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def by_name(fitted: Graph, graph: Graph) -> Graph:
    """Return a new graph with its feature columns in the order of the fitted one's.

    Columns without names are known by their places, which is said aloud where the other side has names.
    """
    if graph.feature_names or fitted.feature_names:
        positions = counted(fitted.num_features), counted(graph.num_features)
        names = fitted.feature_names or positions[0], graph.feature_names or positions[1]
        if graph.feature_names and (fitted.feature_names or set(names[0]) == set(names[1])):
            order = column_order(*names)
            return graph if order is None else with_columns(graph, order, fitted.feature_names)
        has, had = ("has", "without") if graph.feature_names else ("does not have valid", "with")
        warnings.warn(f"X {has} feature names, but H3GNN was fitted {had} feature names", stacklevel=3)
    if graph.num_features != fitted.num_features:
        raise GraphError(
            f"X has {graph.num_features} features, but H3GNN is expecting {fitted.num_features} features "
            "as input"
        )
    return graph


def read_table(
    estimator: BaseEstimator, table: Any, fitted: Graph | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the numbers of a table as scikit-learn checks them, and the names of its rows and columns.

    Args:
        estimator: to which the columns are known, or made known where there is no `fitted` graph.
        table: one row per node.
        fitted: the graph whose columns these must be, in any order.
    """
    names = column_names(table)
    if names:
        table = table.set_axis(list(names), axis="columns")  # scikit-learn knows names that are texts
    if fitted is None:
        check_table(table)
    elif names and (fitted.feature_names or {*names} == {*counted(fitted.num_features)}):
        order = column_order(fitted.feature_names or counted(fitted.num_features), names)
        table = table if order is None else table.iloc[:, order]
        table = table if fitted.feature_names else table.set_axis(range(len(names)), axis="columns")
    numbers = validate_data(estimator, table, accept_sparse="csr", dtype=np.float32, reset=fitted is None)
    unique = is_frame(table) and table.index.is_unique and not table.index.hasnans
    return numbers, {"feature_names": names, "node_ids": node_names(table) if unique else None}


def are_rows_of(fitted: Graph, rows: Graph) -> bool:
    """Tell whether rows without edges are those of the fitted graph: all of them, in their order."""
    if rows.has_ids and not (fitted.has_ids and np.array_equal(rows.node_ids, fitted.node_ids)):
        return False
    ours, theirs = fitted.features, rows.features
    if ours.shape != theirs.shape:
        return False
    if ours.layout == theirs.layout == torch.sparse_csr:
        return all(torch.equal(a, b) for a, b in zip(_parts(ours), _parts(theirs), strict=True))
    return torch.equal(ours.to_dense(), theirs.to_dense())


def _parts(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return features.crow_indices(), features.col_indices(), features.values()


def named_rows(estimator: BaseEstimator, embedding: npt.NDArray[np.float32], graph: Graph) -> Any:
    """Return an embedding as it is; where pandas output is set, as a DataFrame under the names of nodes."""
    from sklearn.utils._set_output import _get_output_config

    if not graph.has_ids or _get_output_config("transform", estimator)["dense"] != "pandas":
        return embedding
    import pandas as pd

    return pd.DataFrame(embedding, index=pd.Index(graph.node_ids), columns=estimator.get_feature_names_out())
