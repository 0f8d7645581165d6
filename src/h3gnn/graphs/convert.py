"""Recognize arrays, data frames and graph objects of other libraries, and convert them to a `Graph`.

Edges or adjacency matrices given as features or labels are rejected.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.graphs import checks
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.graphs.ids import as_ids, find_ids, quoted
from h3gnn.graphs.libraries import from_dgl, from_networkx, from_pyg
from h3gnn.graphs.link_columns import LinkPlan
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.graphs.structural import build_graph
from h3gnn.tables.features import FeatureOptions, read_features
from h3gnn.tables.plan import TablePlan
from h3gnn.tables.read import labels_of_features, read_graph
from h3gnn.tables.roles import SOURCE_NAMES, TARGET_NAMES

WIDEST_SUBSET = 2.5
"""Largest ratio of columns to rows at which a table is tested for being rows of an adjacency matrix."""

ROW_SUBSET = (
    "row subset of an adjacency matrix (for example from cross_val_score): fit H3GNN on the full graph, and "
    "cross-validate a classifier on model.embedding_"
)


def as_graph(
    data: Any,
    edge_index: Any = None,
    *,
    edges: Any = None,
    source: str | None = None,
    features: str | Sequence[str] | None = None,
    labels: str | None = None,
    columns: Mapping[str, str] | None = None,
    plan: TablePlan | None = None,
    link_columns: str | bool | LinkPlan = "auto",
) -> Graph:
    """Return a validated `Graph`.

    Args:
        data: a `Graph` (returned unchanged); a PyG `Data`; a networkx graph; a square scipy sparse adjacency;
            an object shaped like a DGL graph; or the features, `[nodes, features]`, as NumPy array, tensor,
            scipy sparse matrix, or data frame of pandas or Polars, whose ids are found as in a file: in
            `id`, another column of unique ids, or the index.
        edge_index: with features only: `[2, edges]`, rows of source and target, or a scipy sparse adjacency.
        edges: the same, or a data frame of source, target and optionally weight, by id.
        source: name of the graph in its provenance.
        features, labels: node attributes of a networkx graph that hold features and the class; by default
            `x` and `y`. A warning names unused attributes.
        columns: types of columns of a DataFrame, by name; the others are inferred.
        plan: `graph.plan` of a fitted graph, by which a DataFrame of features is encoded.
        link_columns: of a data frame of edges; see `read_graph`.
    """
    edge_index = one_of(edge_index, edges)
    kind = input_kind(data)
    if (features is not None or labels is not None) and kind != "networkx":
        message = "features= and labels= name node attributes of a networkx graph only"
        raise GraphError(message, code="attributes-unsupported")
    if edge_index is not None:
        graph = _from_arrays(data, edge_index, source or "arrays", columns, plan, link_columns)
    elif kind == "graph":
        data.check_unchanged()
        return data  # type: ignore[no-any-return]
    elif kind == "pyg":
        graph = from_pyg(data, source=source or "PyG Data")
    elif kind == "networkx":
        graph = from_networkx(data, source=source or "networkx graph", features=features, labels=labels)
    elif kind == "dgl":
        graph = from_dgl(data, source=source or "DGL graph")
    elif checks.is_sparse(data):
        edges, weights = _edges_of_adjacency(data)
        name = source or "adjacency"
        graph = build_graph(None, edges, nodes=data.shape[0], edge_weight=weights, source=name, kind="object")
    else:
        raise GraphError(
            f"a {type(data).__name__} without edge_index is not a graph: give a PyG Data, a networkx graph, "
            "a scipy sparse adjacency, a DGL graph, or features together with edges",
            code="not-a-graph",
        )
    warn_about_repairs(graph.provenance.repairs)
    return graph


def one_of(edge_index: Any, edges: Any) -> Any:
    """Return the one of two arguments that is given, if any."""
    if edge_index is not None and edges is not None:
        raise InputError("edges= and edge_index= are both given: give one of them", code="two-edges")
    return edge_index if edges is None else edges


def _edges_of_adjacency(matrix: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any] | None]:
    """Return `[2, edges]` and the weights of a square sparse matrix, None if all are 1."""
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise GraphError(
            f"an adjacency matrix must be square, but has the shape {list(matrix.shape)}. It may be a "
            f"{ROW_SUBSET}",
            code="adjacency-not-square",
        )
    coo = matrix.tocoo()
    stored = coo.data != 0
    edges = np.stack([coo.row[stored], coo.col[stored]]).astype(np.int64)
    weights = coo.data[stored]
    return edges, None if (weights == 1).all() else weights


def _from_arrays(
    features: Any,
    edges: Any,
    source: str,
    columns: Mapping[str, str] | None,
    plan: TablePlan | None,
    links: str | bool | LinkPlan,
) -> Graph:
    """Return the graph of features and edges; a data frame of edges is read as the file of them is."""
    if input_kind(features) in ("graph", "pyg", "networkx"):
        raise GraphError("the first argument is already a graph; give no edges beside it", code="two-graphs")
    plan = None if plan is None or plan.takes_all else plan
    if checks.is_table(edges):
        check_edge_index(edges, count_rows(features))
        graph = read_graph(edges, features=[features], columns=columns, plan=plan, link_columns=links)
        return replace(graph, provenance=replace(graph.provenance, source=source, kind="arrays"))
    nodes = read_features([features], FeatureOptions(columns=columns or {}, plan=plan))
    count, weights, unused = nodes.ids.size, None, list[Repair]()
    if checks.is_sparse(edges):
        edges, weights = _edges_of_adjacency(edges)
    else:
        check_edge_index(edges, count)
        edges, unused = _edges_of_array(edges, nodes.ids)
    labels = labels_of_features(nodes, columns)
    graph = build_graph(
        nodes.values,
        edges,
        nodes=count,
        edge_weight=weights,
        node_ids=nodes.ids if nodes.named else None,
        source=source,
        repairs=(*nodes.repairs, *unused, *(() if labels is None else labels.column.repairs)),
        feature_names=nodes.names,
        **({} if labels is None else labels.for_nodes(np.arange(count), count)),
    )
    return graph if nodes.plan is None else replace(graph, plan=nodes.plan)


def _edges_of_array(edges: Any, known: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], list[Repair]]:
    """Return `[2, edges]` unchanged; rows of source and target are transposed, further columns are not used.

    An array of two rows is always `[2, edges]`. Numbers are positions; anything else is the id of a node.
    """
    array = checks.as_numpy(edges, "the edges")
    odd = array.ndim != 2 or array.shape[1] not in (2, 3, 4) or array.shape in ((1, 3), (1, 4))
    if odd or len(array) == 2:
        return array, []  # [2, edges], or a shape that the check of a graph rejects
    ends = array[:, :2]
    if ends.dtype.kind in "OUS":
        ends = np.stack([_positions(ends[:, one], f"column {one + 1}", known) for one in range(2)], axis=1)
    elif not (np.isfinite(ends) & (ends == np.floor(ends)) & (np.abs(ends) < 2**53)).all():
        message = "the first two columns of the edges must be integers, the positions of nodes"
        raise GraphError(message, code="edge-index-not-integers")
    names = tuple(f"column {one + 1}" for one in range(2, array.shape[1]))
    message = f"edges: not used: {shortened(names)}; only a column called weight holds edge weights"
    unused = Repair("edge-columns-unused", message, fields=names, warn=True)
    return ends.astype(np.int64).T, [unused] if names else []


def _positions(column: Any, place: str, known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    ids = as_ids(column, f"the {place} of the edges")
    found = find_ids(ids, known)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        message = f"edges, row {row}: node {quoted(ids[row])} is unknown; it has no row in the features"
        raise GraphError(message, code="edge-node-unknown")
    return found


def nearest_neighbour_graph(table: object, scaled: Tensor, neighbours: int, **known: Any) -> Graph:
    """Return the graph of a table, in which every row has edges from its nearest other rows.

    Euclidean distances are computed on the `scaled` rows. `known` holds further arguments of `check_graph`.
    """
    rows = scaled.shape[0]
    count = min(neighbours, rows - 1)
    found = find_nearest(scaled, scaled, count + 1) if count else np.empty((rows, 0), dtype=np.int64)
    target, source = np.repeat(np.arange(rows), found.shape[1]), found.ravel()
    others = target != source
    edge_index = np.stack([source[others], target[others]])
    message = f"no edges in the data: each row is connected to its {count} nearest rows"
    repair = Repair("nearest-neighbor-edges", message, count)
    return checks.check_graph(table, edge_index, source="table", kind="table", repairs=[repair], **known)


def find_nearest(known: Tensor, rows: Tensor, neighbours: int) -> npt.NDArray[np.int64]:
    """Return the positions of the nearest rows in `known` of each of `rows`, `[rows, neighbours]`."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(neighbours, known.shape[0])).fit(known.to_dense().numpy())
    return np.asarray(search.kneighbors(rows.to_dense().numpy(), return_distance=False), dtype=np.int64)


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
    return "adjacency" if checks.is_sparse(data) and data.shape[1:] == data.shape[:1] else None


def is_graph(data: Any) -> bool:
    """Return whether an object is a graph rather than a table of features."""
    return input_kind(data) is not None


def check_target(X: Any, y: Any) -> None:  # noqa: N803
    """Reject edges as `y`: labels are one value, or one row of values, for each row of X."""
    if y is None:
        return
    y = checks.as_frame(y)
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
    if checks.is_frame(table):
        for position, name in enumerate(getattr(table, "columns", ())):
            if checks.holds_dates(table.iloc[:, position]):
                raise GraphError(f"the column {name!r} of the features holds {checks.DATES}", code="dates")
    elif not checks.is_sparse(table) and checks.holds_dates(np.asarray(table)):
        raise GraphError(f"the features hold {checks.DATES}", code="dates")


def names_edges(table: Any) -> bool:
    """Whether the columns of a DataFrame have the usual names of the ends of an edge."""
    names = {name.lower() for name in map(str, getattr(table, "columns", ()))}
    return bool(names & {*SOURCE_NAMES} and names & {*TARGET_NAMES})


def check_edge_index(edge_index: Any, nodes: int) -> None:
    """Reject a dense adjacency matrix, which cannot be distinguished from a table of edges."""
    shape = (
        edge_index.shape if hasattr(edge_index, "shape") else checks.as_numpy(edge_index, "the edges").shape
    )
    if tuple(shape) == (nodes, nodes) and nodes > 2 and not names_edges(edge_index):
        raise GraphError(
            f"edge_index of the shape {list(shape)} may be a table of edges or an adjacency matrix: give a "
            "matrix as scipy.sparse.csr_array(edge_index), and name the columns of a table source and target",
            code="edges-or-adjacency",
        )


def check_table(table: Any) -> None:
    """Reject a table without edges that is a graph, and warn if it looks like rows of an adjacency matrix."""
    if checks.is_frame(table):
        _check_frame(table)
        if checks.column_names(table):
            return  # named columns are features
    if checks.is_sparse(table):
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
    if len(frame) > 2 and frame.columns.equals(frame.index) and checks.column_names(frame):
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
