"""One argument in, a graph out: whatever object a person already has in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import check_graph, is_sparse
from h3gnn.graphs.encoding import encode_table
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.names import as_ids, find_ids
from h3gnn.graphs.networks import from_dgl, from_networkx, from_pyg
from h3gnn.graphs.plan import TablePlan, plain_plan
from h3gnn.graphs.structural import build_graph

READABLE = (
    "give a PyG Data, a networkx graph, a scipy sparse adjacency, a DGL graph, "
    "or features together with edge_index"
)


def as_graph(
    data: Any,
    edge_index: Any = None,
    *,
    source: str | None = None,
    columns: Mapping[str, str] | None = None,
    plan: TablePlan | None = None,
) -> Graph:
    """Return a checked `Graph` from the object that a person has.

    Args:
        data: a `Graph` (returned as it is); a PyG `Data`; a networkx graph; a square scipy sparse adjacency;
            an object shaped like a DGL graph; or the features, `[nodes, features]`, as NumPy array, tensor,
            pandas DataFrame (its index names the nodes) or scipy sparse matrix.
        edge_index: with features only: `[2, edges]`, a scipy sparse adjacency, or a DataFrame of source,
            target and perhaps weight, whose node ids are those of the features' index.
        source: what to call the graph in its provenance.
        columns: what columns of a DataFrame of features hold, by name; the others are recognised.
        plan: of a fitted graph, `graph.plan`: a DataFrame of features is then encoded as there.

    Raises:
        GraphError: in one sentence, for what cannot be read.
    """
    if edge_index is not None:
        return _from_arrays(data, edge_index, source or "arrays", columns, plan)
    kind = _kind_of(data)
    if kind == "graph":
        return data  # type: ignore[no-any-return]
    if kind == "pyg":
        return from_pyg(data, source=source or "PyG Data")
    if kind == "networkx":
        return from_networkx(data, source=source or "networkx graph")
    if kind == "dgl":
        return from_dgl(data, source=source or "DGL graph")
    if is_sparse(data):
        edges, weights = _edges_of_adjacency(data)
        return build_graph(
            None, edges, nodes=data.shape[0], edge_weight=weights, source=source or "adjacency"
        )
    raise GraphError(f"a {type(data).__name__} without edge_index is not a graph: {READABLE}")


def is_graph(data: Any) -> bool:
    """Tell an object that is a graph on its own from a table of features, which needs edges beside it."""
    return _kind_of(data) is not None


def _kind_of(data: Any) -> str | None:
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


def _edges_of_adjacency(matrix: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any] | None]:
    """Return `[2, edges]` and the weights of a square sparse matrix; all ones are no weights."""
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise GraphError(f"an adjacency matrix must be square, not {list(matrix.shape)}: {READABLE}")
    coo = matrix.tocoo()
    stored = coo.data != 0
    edges = np.stack([coo.row[stored], coo.col[stored]]).astype(np.int64)
    weights = coo.data[stored]
    return edges, None if (weights == 1).all() else weights


def _from_arrays(
    features: Any, edge_index: Any, source: str, said: Mapping[str, str] | None, plan: TablePlan | None
) -> Graph:
    if _kind_of(features) in ("graph", "pyg", "networkx"):
        raise GraphError("edge_index is given although the first argument is a graph already; leave it out")
    notes: tuple[str, ...] = ()
    if _comes_from(features, "pandas"):
        table, plan, notes = encode_frame(features, columns=said, plan=plan)
        ids, named = _ids_of(features)
    else:
        table, plan = _table_of(features), None
        ids, named = np.arange(table.shape[0], dtype=np.int64), False
    nodes = int(table.shape[0])
    weights: Any = None
    if is_sparse(edge_index):
        edge_index, weights = _edges_of_adjacency(edge_index)
        if nodes == 0:
            raise GraphError("the graph is empty: the features have no row, so there is no node")
    elif _comes_from(edge_index, "pandas"):
        edge_index, weights = _edges_of_frame(edge_index, ids)
    names = ids if named else None
    graph = build_graph(
        table, edge_index, nodes=nodes, edge_weight=weights, node_ids=names, source=source, notes=notes
    )
    return replace(graph, plan=plan)


def _ids_of(frame: Any) -> tuple[npt.NDArray[Any], bool]:
    """Return the index of a DataFrame as ids, and whether it is more than 0, 1, …"""
    ids = as_ids(frame.index, "the index of the features")
    return ids, not (ids.dtype.kind == "i" and np.array_equal(ids, np.arange(ids.size)))


def _table_of(features: Any) -> Any:
    table = features if is_sparse(features) or isinstance(features, Tensor) else _as_array(features)
    if len(table.shape) != 2:
        raise GraphError(
            f"the features must be a table, one row per node, but have {len(table.shape)} dimension(s)"
        )
    return table


def is_frame(data: Any) -> bool:
    """Tell a DataFrame, whose columns have names and kinds."""
    return _comes_from(data, "pandas") and hasattr(data, "columns")


def encode_frame(
    features: Any, *, columns: Mapping[str, str] | None = None, plan: TablePlan | None = None
) -> tuple[npt.NDArray[np.float64], TablePlan, tuple[str, ...]]:
    """Return the features of a DataFrame, the plan by which they were made, and what there is to say."""
    if not is_frame(features):
        raise GraphError(
            "the features must be a table with one row per node, but a pandas Series is one column"
        )
    frame = features.set_axis([str(name) for name in features.columns], axis=1)
    if not frame.columns.is_unique:
        again = frame.columns[frame.columns.duplicated()][0]
        raise GraphError(f"two columns of the features are called {again!r}; give each a name of its own")
    if 0 in frame.shape:  # which the checks refuse
        return np.empty(frame.shape), plain_plan([], []), ()
    if plan is None and not columns and not is_mixed(frame):
        numbers = np.column_stack([frame[name].to_numpy(dtype=np.float64) for name in frame])
        return numbers, plain_plan(list(frame.columns), [1] * frame.shape[1]), ()
    return encode_table(frame, plan, columns=columns)


def is_mixed(data: Any) -> bool:
    """Tell a DataFrame whose columns have to be encoded; one of numbers alone is an array with names."""
    return is_frame(data) and data.size > 0 and not all(_is_plain(column) for _, column in data.items())


def _is_plain(column: Any) -> bool:
    """Tell a column of numbers without gaps, which stays as it is."""
    kind = getattr(column.dtype, "kind", "O")
    return kind in "biuf" and not bool(column.isna().any())


def _as_array(values: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise GraphError("the features are ragged: their rows do not all have the same length") from None


def _edges_of_frame(
    frame: Any, known: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any] | None]:
    if not hasattr(frame, "columns") or frame.shape[1] not in (2, 3):
        raise GraphError("edges in a DataFrame need two columns (source, target), or three with the weight")
    ends = []
    for position in range(2):
        ids = as_ids(frame.iloc[:, position], f"the column {frame.columns[position]!r} of the edges")
        found = find_ids(ids, known)
        if (found < 0).any():
            row = int(np.flatnonzero(found < 0)[0])
            raise GraphError(f"edges, row {row}: node {ids[row]!r} is unknown; it has no row in the features")
        ends.append(found)
    weights = None
    if frame.shape[1] == 3:
        try:
            weights = frame.iloc[:, 2].to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            raise GraphError(
                f"the weight column {frame.columns[2]!r} holds something that is not a number"
            ) from None
    return np.stack(ends), weights


def nearest_neighbour_graph(
    table: object, scaled: Tensor, neighbours: int, plan: TablePlan | None = None, notes: Sequence[str] = ()
) -> Graph:
    """Return the graph of a table: edges run from each row's nearest rows to it.

    Rows are compared by Euclidean distance after scaling, so that no column's unit decides. A row is not its
    own neighbour.

    Args:
        table: the rows as the user gave them; they become the features.
        scaled: the same rows, scaled.
        neighbours: how many for each row; fewer where the table has fewer other rows.
        plan: how the table's columns became the rows.
        notes: what there is to say about that.
    """
    rows = scaled.shape[0]
    count = min(neighbours, rows - 1)
    found = find_nearest(scaled, scaled, count + 1) if count else np.empty((rows, 0), dtype=np.int64)
    target, source = np.repeat(np.arange(rows), found.shape[1]), found.ravel()
    others = target != source
    edge_index = np.stack([source[others], target[others]])
    note = f"no edges were given: each row is joined to its {count} nearest rows"
    return replace(check_graph(table, edge_index, source="table", notes=[*notes, note]), plan=plan)


def find_nearest(known: Tensor, rows: Tensor, neighbours: int) -> npt.NDArray[np.int64]:
    """Return, for each of `rows`, the positions of its nearest rows in `known`, `[rows, neighbours]`."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(neighbours, known.shape[0])).fit(known.to_dense().numpy())
    found: npt.NDArray[np.int64] = search.kneighbors(rows.to_dense().numpy(), return_distance=False)
    return found.astype(np.int64)
