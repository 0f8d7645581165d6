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
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.networks import from_dgl, from_networkx, from_pyg
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.graphs.structural import build_graph
from h3gnn.tables.frames import (
    as_frame,
    column_names,
    edges_of_array,
    edges_of_frame,
    encode_frame,
    is_frame,
    is_mixed,
    node_names,
    numbers_of_table,
)
from h3gnn.tables.plan import TablePlan, plain_plan

READABLE = (
    "give a PyG Data, a networkx graph, a scipy sparse adjacency, a DGL graph, "
    "or features together with edge_index"
)

ROWS_OF_AN_ADJACENCY = (
    "rows of an adjacency matrix without the columns that belong to them, as cross-validation cuts them: a "
    "graph is not cut, so fit H3GNN once on the whole of it, and cross-validate a classifier over its "
    "model.embedding_"
)


def as_graph(
    data: Any,
    edge_index: Any = None,
    *,
    source: str | None = None,
    features: str | Sequence[str] | None = None,
    labels: str | None = None,
    columns: Mapping[str, str] | None = None,
    plan: TablePlan | None = None,
) -> Graph:
    """Return a checked `Graph` from the object that a person has.

    Args:
        data: a `Graph` (returned as it is); a PyG `Data`; a networkx graph; a square scipy sparse adjacency;
            an object shaped like a DGL graph; or the features, `[nodes, features]`, as NumPy array, tensor,
            pandas DataFrame (its index names the nodes) or scipy sparse matrix.
        edge_index: with features only: `[2, edges]`, rows of source and target, a scipy sparse adjacency,
            or a DataFrame of source, target and perhaps weight, by the names of the features' index.
        source: what to call the graph in its provenance.
        features, labels: of a networkx graph, the node attributes that are features and the one that is the
            class; without them `x` and `y`. What is not used is named in a warning.
        columns: what columns of a DataFrame of features hold, by name; the others are recognised.
        plan: of a fitted graph, `graph.plan`: a DataFrame of features is then encoded as there.

    Raises:
        GraphError: in one sentence, for what cannot be read.
    """
    data, edge_index = as_frame(data), as_frame(edge_index)
    kind = _kind_of(data)
    if (features is not None or labels is not None) and kind != "networkx":
        raise GraphError(
            "features= and labels= name the node attributes of a networkx graph, and of no other"
        )
    if edge_index is not None:
        graph = _from_arrays(data, edge_index, source or "arrays", columns, plan)
    elif kind == "graph":
        return data  # type: ignore[no-any-return]
    elif kind == "pyg":
        graph = from_pyg(data, source=source or "PyG Data")
    elif kind == "networkx":
        graph = from_networkx(data, source=source or "networkx graph", features=features, labels=labels)
    elif kind == "dgl":
        graph = from_dgl(data, source=source or "DGL graph")
    elif is_sparse(data):
        edges, weights = _edges_of_adjacency(data)
        name = source or "adjacency"
        return build_graph(None, edges, nodes=data.shape[0], edge_weight=weights, source=name, kind="object")
    else:
        raise GraphError(f"a {type(data).__name__} without edge_index is not a graph: {READABLE}")
    warn_about_repairs(graph.provenance.repairs)
    return graph


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
        raise GraphError(
            f"an adjacency matrix must be square, and {list(matrix.shape)} may be {ROWS_OF_AN_ADJACENCY}"
        )
    coo = matrix.tocoo()
    stored = coo.data != 0
    edges = np.stack([coo.row[stored], coo.col[stored]]).astype(np.int64)
    weights = coo.data[stored]
    return edges, None if (weights == 1).all() else weights


def _from_arrays(
    features: Any, edge_index: Any, source: str, columns: Mapping[str, str] | None, plan: TablePlan | None
) -> Graph:
    if _kind_of(features) in ("graph", "pyg", "networkx"):
        raise GraphError("edge_index is given although the first argument is a graph already; leave it out")
    plan = None if plan is None or plan.as_is else plan
    encoded: tuple[Repair, ...] = ()
    if is_mixed(features) or (is_frame(features) and (columns or plan is not None)):
        features, plan, encoded = encode_frame(features, columns=columns, plan=plan)
    else:
        plan = None
    table, ids = numbers_of_table(features), node_names(features)
    nodes = int(table.shape[0])
    known = np.arange(nodes, dtype=np.int64) if ids is None else ids
    weights: Any = None
    unused: tuple[Repair, ...] = ()
    if is_sparse(edge_index):
        if nodes == 0:
            raise GraphError("the graph is empty: the features have no row, so there is no node")
        edge_index, weights = _edges_of_adjacency(edge_index)
    elif is_frame(edge_index):
        edge_index, weights, unused = edges_of_frame(edge_index, known)
    else:
        edge_index, weights, unused = edges_of_array(edge_index, known)
    names = column_names(features)
    graph = build_graph(
        table,
        edge_index,
        nodes=nodes,
        edge_weight=weights,
        node_ids=ids,
        source=source,
        repairs=(*encoded, *unused),
        feature_names=names,
    )
    return replace(graph, plan=plan or (plain_plan(names, [1] * len(names)) if names else None))


def nearest_neighbour_graph(table: object, scaled: Tensor, neighbours: int, **known: Any) -> Graph:
    """Return the graph of a table: edges run from each row's nearest rows to it.

    Rows are compared by Euclidean distance after scaling, so that no column's unit decides. A row is not its
    own neighbour.

    Args:
        table: the rows as the user gave them; they become the features.
        scaled: the same rows, scaled.
        neighbours: how many for each row; fewer where the table has fewer other rows.
        known: what else `check_graph` takes, such as the names of nodes and columns.
    """
    rows = scaled.shape[0]
    count = min(neighbours, rows - 1)
    found = find_nearest(scaled, scaled, count + 1) if count else np.empty((rows, 0), dtype=np.int64)
    target, source = np.repeat(np.arange(rows), found.shape[1]), found.ravel()
    others = target != source
    edge_index = np.stack([source[others], target[others]])
    message = f"no edges in the data: each row is connected to its {count} nearest rows"
    repair = Repair("nearest-neighbor-edges", message, count)
    return check_graph(table, edge_index, source="table", kind="table", repairs=[repair], **known)


def find_nearest(known: Tensor, rows: Tensor, neighbours: int) -> npt.NDArray[np.int64]:
    """Return, for each of `rows`, the positions of its nearest rows in `known`, `[rows, neighbours]`."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(neighbours, known.shape[0])).fit(known.to_dense().numpy())
    found: npt.NDArray[np.int64] = search.kneighbors(rows.to_dense().numpy(), return_distance=False)
    return found.astype(np.int64)
