"""Convert arrays, data frames and graph objects of other libraries to a `Graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_graph, is_sparse
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.guards import ROW_SUBSET, check_edge_index, count_rows, input_kind
from h3gnn.graphs.libraries import from_dgl, from_networkx, from_pyg
from h3gnn.graphs.link_columns import LinkPlan
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.graphs.structural import build_graph
from h3gnn.tables.features import FeatureOptions, read_features
from h3gnn.tables.frames import edges_of_array, is_table
from h3gnn.tables.plan import TablePlan
from h3gnn.tables.read import labels_of_features, read_graph


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
    elif is_sparse(data):
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
    if is_table(edges):
        check_edge_index(edges, count_rows(features))
        graph = read_graph(edges, features=[features], columns=columns, plan=plan, link_columns=links)
        return replace(graph, provenance=replace(graph.provenance, source=source, kind="arrays"))
    nodes = read_features([features], FeatureOptions(columns=columns or {}, plan=plan))
    count, weights, unused = nodes.ids.size, None, tuple[Repair, ...]()
    if is_sparse(edges):
        edges, weights = _edges_of_adjacency(edges)
    else:
        check_edge_index(edges, count)
        edges, weights, unused = edges_of_array(edges, nodes.ids)
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
    return check_graph(table, edge_index, source="table", kind="table", repairs=[repair], **known)


def find_nearest(known: Tensor, rows: Tensor, neighbours: int) -> npt.NDArray[np.int64]:
    """Return the positions of the nearest rows in `known` of each of `rows`, `[rows, neighbours]`."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(neighbours, known.shape[0])).fit(known.to_dense().numpy())
    return np.asarray(search.kneighbors(rows.to_dense().numpy(), return_distance=False), dtype=np.int64)
