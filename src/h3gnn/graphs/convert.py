"""One argument in, a graph out: whatever object a person already has in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.featurechecks import is_sparse
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_ids, find_ids
from h3gnn.graphs.structural import structural_features

NO_FEATURES = "no features in the data: structural features were built from the edges"

READABLE = (
    "give a PyG Data, a networkx graph, a scipy sparse adjacency, a DGL graph, "
    "or features together with edge_index"
)


def as_graph(data: Any, edge_index: Any = None, *, source: str | None = None) -> Graph:
    """Return a checked `Graph` from the object that a person has.

    Args:
        data: a `Graph` (returned as it is); a PyG `Data`; a networkx graph; a square scipy sparse adjacency;
            an object shaped like a DGL graph; or the features, `[nodes, features]`, as NumPy array, tensor,
            pandas DataFrame (its index names the nodes) or scipy sparse matrix.
        edge_index: with features only: `[2, edges]`, a scipy sparse adjacency, or a DataFrame of source,
            target and perhaps weight, whose node ids are those of the features' index.
        source: what to call the graph in its provenance.

    Raises:
        GraphError: in one sentence, for what cannot be read.
    """
    if edge_index is not None:
        return _from_arrays(data, edge_index, source or "arrays")
    if isinstance(data, Graph):
        return data
    if _comes_from(data, "torch_geometric"):
        return _from_pyg(data, source or "PyG Data")
    if _comes_from(data, "networkx"):
        from h3gnn.graphs.networks import from_networkx

        return from_networkx(data, source=source or "networkx graph")
    if all(hasattr(data, name) for name in ("edges", "num_nodes", "ndata")):
        from h3gnn.graphs.networks import from_dgl

        return from_dgl(data, source=source or "DGL graph")
    if is_sparse(data):
        edges, weights = edges_of_adjacency(data)
        return build_graph(
            None, edges, nodes=data.shape[0], edge_weight=weights, source=source or "adjacency"
        )
    raise GraphError(f"a {type(data).__name__} without edge_index is not a graph: {READABLE}")


def build_graph(
    features: Any, edge_index: Any, *, nodes: int, notes: tuple[str, ...] = (), **known: Any
) -> Graph:
    """Check the parts of a graph; where there are no features, build structural ones and say so."""
    if features is None:
        placeholder = np.zeros((nodes, 1), dtype=np.float32)
        edges = check_graph(placeholder, edge_index, locate=known.get("locate")).edge_index
        features = structural_features(edges, nodes)
        notes = (*notes, NO_FEATURES)
    return check_graph(features, edge_index, notes=notes, **known)


def edges_of_adjacency(matrix: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any] | None]:
    """Return `[2, edges]` and the weights of a square sparse matrix; all ones are no weights."""
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise GraphError(f"an adjacency matrix must be square, not {list(matrix.shape)}: {READABLE}")
    coo = matrix.tocoo()
    stored = coo.data != 0
    edges = np.stack([coo.row[stored], coo.col[stored]]).astype(np.int64)
    weights = coo.data[stored]
    return edges, None if (weights == 1).all() else weights


def as_labels(values: Any) -> npt.NDArray[np.int64]:
    """Return one whole number per node; `[nodes, 1]` and whole floats are accepted, NaN is unknown."""
    labels = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        if not (np.isfinite(labels) & (labels == np.floor(labels))).all():
            raise GraphError("the labels are not whole numbers; h3gnn carries classes, not measured values")
    elif labels.dtype.kind not in "iub":
        raise GraphError(f"the labels must be whole numbers, not {labels.dtype}")
    return labels.astype(np.int64)


def as_masks(train: Any, val: Any, test: Any) -> tuple[Any, Any, Any] | None:
    """Return three masks `[nodes, splits]`; a missing one is empty, a single column serves every split."""
    given = [None if mask is None else torch.as_tensor(mask).bool() for mask in (train, val, test)]
    if given[0] is None:
        return None
    shaped = [None if mask is None else mask.reshape(mask.shape[0], -1) for mask in given]
    splits = max(mask.shape[1] for mask in shaped if mask is not None)
    empty = torch.zeros(given[0].shape[0], splits, dtype=torch.bool)
    full = [
        empty if mask is None else mask.expand(-1, splits) if mask.shape[1] == 1 else mask for mask in shaped
    ]
    return full[0], full[1], full[2]


def _comes_from(data: Any, library: str) -> bool:
    """Tell by its class where an object comes from, without importing the library."""
    return any(cls.__module__.partition(".")[0] == library for cls in type(data).__mro__)


def _from_pyg(data: Any, source: str) -> Graph:
    get = getattr(data, "get", None)
    if get is None or not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise GraphError(f"a PyG {type(data).__name__} is not a graph with one kind of node; give a Data")
    edges, features = get("edge_index"), get("x")
    if edges is None:
        raise GraphError("the PyG Data has no edge_index")
    labels, notes = get("y"), []
    weights = get("edge_weight")
    if weights is None and (attributes := get("edge_attr")) is not None:
        if attributes.numel() == attributes.shape[0]:
            weights = attributes.reshape(-1)
        else:
            notes.append("edge_attr has more than one column and was left out")
    return build_graph(
        features,
        edges,
        nodes=_pyg_nodes(data, edges),
        edge_weight=weights,
        labels=None if labels is None else as_labels(labels),
        masks=as_masks(get("train_mask"), get("val_mask"), get("test_mask")),
        source=source,
        notes=tuple(notes),
    )


def _pyg_nodes(data: Any, edges: Any) -> int:
    """Count the nodes of a Data that may hold nothing but edges, without PyG's warning about it."""
    if "num_nodes" in data:
        return int(data.num_nodes)
    for name in ("x", "y", "train_mask"):
        if (values := data.get(name)) is not None:
            return int(values.shape[0])
    return int(edges.max()) + 1 if edges.numel() else 0


def _from_arrays(features: Any, edge_index: Any, source: str) -> Graph:
    if (
        isinstance(features, Graph)
        or _comes_from(features, "torch_geometric")
        or _comes_from(features, "networkx")
    ):
        raise GraphError("edge_index is given although the first argument is a graph already; leave it out")
    table, ids, named = _features_and_ids(features)
    nodes = int(table.shape[0])
    weights: Any = None
    if is_sparse(edge_index):
        edge_index, weights = edges_of_adjacency(edge_index)
        if nodes == 0:
            raise GraphError("the graph is empty: the features have no row, so there is no node")
    elif _comes_from(edge_index, "pandas"):
        edge_index, weights = _edges_of_frame(edge_index, ids)
    return build_graph(
        table, edge_index, nodes=nodes, edge_weight=weights, node_ids=ids if named else None, source=source
    )


def _features_and_ids(features: Any) -> tuple[Any, npt.NDArray[Any], bool]:
    """Return the numbers, the node ids, and whether the user chose these ids."""
    if not _comes_from(features, "pandas"):
        table = features if is_sparse(features) or isinstance(features, Tensor) else _as_array(features)
        if len(table.shape) != 2:
            raise GraphError(
                f"the features must be a table, one row per node, but have {len(table.shape)} dimension(s)"
            )
        return table, np.arange(table.shape[0], dtype=np.int64), False
    if not hasattr(features, "columns"):
        raise GraphError(
            "the features must be a table with one row per node, but a pandas Series is one column"
        )
    columns = []
    for name in features.columns:
        try:
            columns.append(features[name].to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError):
            raise GraphError(
                f"the column {name!r} of the features holds something that is not a number"
            ) from None
    ids = as_ids(features.index, "the index of the features")
    counted = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(ids.size))
    table = np.stack(columns, axis=1) if columns else np.empty((ids.size, 0))
    return table, ids, not counted


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
