"""Graphs of other libraries: networkx, and anything shaped like a DGL graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.convert import as_labels, as_masks, build_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_ids
from h3gnn.graphs.labels import as_classes, masks_of_split

DGL_FEATURES = ("feat", "x", "attr", "feature", "features")
DGL_LABELS = ("label", "y", "labels")
DGL_WEIGHTS = ("weight", "w", "edge_weight")


def from_networkx(network: Any, *, source: str, notes: tuple[str, ...] = ()) -> Graph:
    """Read a networkx graph: node attributes `x` (numbers), `y` (class), `split`; edge attribute `weight`.

    The nodes keep their order and their names. An undirected edge becomes two. Without `x` structural
    features are built.
    """
    names = list(network.nodes)
    ids = as_ids(_flat(names), "the nodes")
    position = {name: number for number, name in enumerate(names)}
    edges = np.array(
        [(position[start], position[end]) for start, end in network.edges()], dtype=np.int64
    ).reshape(-1, 2)
    weights = _networkx_weights(network)
    edge_index = edges.T
    if not network.is_directed():
        between = edges[:, 0] != edges[:, 1]  # a self-loop is one edge, not two
        edge_index = np.concatenate([edge_index, edge_index[::-1, between]], axis=1)
        weights = None if weights is None else np.concatenate([weights, weights[between]])
    labels = class_names = masks = None
    attributes = [network.nodes[name] for name in names]
    if any("y" in one for one in attributes):
        labels, class_names = as_classes([one.get("y") for one in attributes])
    if any("split" in one for one in attributes):
        masks = masks_of_split([one.get("split") for one in attributes], "the node attribute 'split'")
    counted = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(ids.size))
    return build_graph(
        _networkx_features(names, attributes),
        edge_index,
        nodes=len(names),
        edge_weight=weights,
        labels=labels,
        class_names=class_names or (),
        masks=masks,
        node_ids=None if counted else ids,
        source=source,
        notes=notes,
    )


def _flat(names: list[Any]) -> npt.NDArray[Any]:
    """Keep a tuple that names a node (a grid has them) from becoming a row of numbers."""
    array = np.empty(len(names), dtype=object)
    array[:] = names
    return array


def _networkx_weights(network: Any) -> npt.NDArray[Any] | None:
    given = [weight for _, _, weight in network.edges(data="weight")]
    if all(weight is None for weight in given):
        return None
    try:
        # networkx reads a missing weight as 1
        return np.array([1.0 if weight is None else float(weight) for weight in given])
    except (TypeError, ValueError):
        raise GraphError("the edge attribute 'weight' holds something that is not a number") from None


def _networkx_features(names: list[Any], attributes: list[dict[str, Any]]) -> npt.NDArray[Any] | None:
    have = ["x" in one for one in attributes]
    if not any(have):
        return None
    if not all(have):
        raise GraphError(
            f"node {names[have.index(False)]!r} has no attribute 'x' although other nodes have it"
        )
    rows = []
    for name, one in zip(names, attributes, strict=True):
        try:
            rows.append(np.atleast_1d(np.asarray(one["x"], dtype=np.float64)))
        except (TypeError, ValueError):
            raise GraphError(f"node {name!r}: the attribute 'x' is not a list of numbers") from None
        if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
            raise GraphError(
                f"node {name!r}: the attribute 'x' has another length than that of the first node"
            )
    return np.stack(rows)


def from_dgl(network: Any, *, source: str) -> Graph:
    """Read what looks like a DGL graph with one kind of node and edge; DGL itself is never imported."""
    try:
        start, end = network.edges()
        edges = np.stack([np.asarray(start), np.asarray(end)])
        nodes = int(network.num_nodes())
        node_data = dict(network.ndata)
        edge_data = dict(getattr(network, "edata", {}))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise GraphError(f"the {type(network).__name__} does not give one list of edges: {error}") from None
    labels = _first_of(node_data, DGL_LABELS)
    return build_graph(
        _first_of(node_data, DGL_FEATURES),
        edges,
        nodes=nodes,
        edge_weight=_first_of(edge_data, DGL_WEIGHTS),
        labels=None if labels is None else as_labels(labels),
        masks=as_masks(node_data.get("train_mask"), node_data.get("val_mask"), node_data.get("test_mask")),
        source=source,
    )


def _first_of(values: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if name in values), None)
