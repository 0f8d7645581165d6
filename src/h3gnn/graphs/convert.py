"""One argument in, a graph out: whatever object a person already has in Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import DATES, check_graph, holds_dates, is_sparse
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.guards import ROWS_OF_AN_ADJACENCY, input_kind
from h3gnn.graphs.ids import as_ids, quoted
from h3gnn.graphs.labels import as_classes, as_labels, as_masks, split_masks
from h3gnn.graphs.provenance import Kind, Repair, warn_about_repairs
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
from h3gnn.tables.roles import is_class_name

READABLE = (
    "give a PyG Data, a networkx graph, a scipy sparse adjacency, a DGL graph, "
    "or features together with edge_index"
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
    kind = input_kind(data)
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
    if input_kind(features) in ("graph", "pyg", "networkx"):
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


DGL_FEATURES = ("feat", "x", "attr", "feature", "features")
DGL_LABELS = ("label", "y", "labels")
DGL_WEIGHTS = ("weight", "w", "edge_weight")


def import_pyg() -> Any:
    """Return `torch_geometric`, without the deprecation notes that its own import gives out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric
        import torch_geometric.data
        import torch_geometric.datasets
        import torch_geometric.utils
    return torch_geometric


def from_pyg(data: Any, *, source: str, kind: Kind = "object") -> Graph:
    """Read a PyG `Data`: `x`, `edge_index`, `y`, masks, and `edge_weight` or one column of `edge_attr`."""
    get = getattr(data, "get", None)
    if get is None or not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        raise GraphError(f"a PyG {type(data).__name__} is not a graph with one kind of node; give a Data")
    edges, features = get("edge_index"), get("x")
    if edges is None:
        raise GraphError("the PyG Data has no edge_index")
    labels, repairs = get("y"), []
    weights = get("edge_weight")
    if weights is None and (attributes := get("edge_attr")) is not None:
        if attributes.numel() == attributes.shape[0]:
            weights = attributes.reshape(-1)
        else:
            message = "edge_attr has more than one column and is not used"
            repairs.append(Repair("edge-attributes-unused", message, fields=("edge_attr",), warn=True))
    return build_graph(
        features,
        edges,
        nodes=_pyg_nodes(data, edges),
        edge_weight=weights,
        labels=None if labels is None else as_labels(labels),
        masks=as_masks(get("train_mask"), get("val_mask"), get("test_mask")),
        source=source,
        kind=kind,
        repairs=tuple(repairs),
    )


def _pyg_nodes(data: Any, edges: Any) -> int:
    """Count the nodes of a Data that may hold nothing but edges, without PyG's warning about it."""
    if "num_nodes" in data:
        return int(data.num_nodes)
    for name in ("x", "y", "train_mask"):
        if (values := data.get(name)) is not None:
            return int(values.shape[0])
    return int(edges.max()) + 1 if edges.numel() else 0


def from_networkx(
    network: Any,
    *,
    source: str,
    kind: Kind = "object",
    features: str | Sequence[str] | None = None,
    labels: str | None = None,
) -> Graph:
    """Read a networkx graph: node attributes `x` (numbers), `y` (class), `split`; edge attribute `weight`.

    The nodes keep their order and their names. An undirected edge becomes two. Without features structural
    ones are built. Unused attributes are recorded as repairs.

    Args:
        network: the graph.
        source, kind: its provenance.
        features: the node attributes that are features, numbers or lists of them, instead of `x`.
        labels: the node attribute that is the class, instead of `y`.
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
    attributes = NodeAttributes(names, [network.nodes[name] for name in names])
    values, columns = attributes.features(features)
    on_edges = dict.fromkeys(key for *_, one in network.edges(data=True) for key in one)
    counted = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(ids.size))
    return build_graph(
        values,
        edge_index,
        nodes=len(names),
        edge_weight=weights,
        **attributes.labels(labels),
        node_ids=None if counted else ids,
        feature_names=columns,
        source=source,
        kind=kind,
        repairs=(*attributes.unused(), *unused_of("edge", [key for key in on_edges if key != "weight"])),
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
    if holds_dates(np.array([*given, None], dtype=object)):
        raise GraphError(f"the edge attribute 'weight' holds {DATES}")
    try:
        # networkx reads a missing weight as 1
        return np.array([1.0 if weight is None else float(weight) for weight in given])
    except (TypeError, ValueError):
        raise GraphError("the edge attribute 'weight' holds something that is not a number") from None


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
        kind="object",
    )


def _first_of(values: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if name in values), None)


FEATURES, LABEL, SPLIT = "x", "y", "split"
"""The attributes that are used where nothing else is said."""

Values = dict[Any, Any]


class NodeAttributes:
    """What the nodes of a graph carry, and what of it has been asked for.

    Args:
        names: the nodes.
        values: for each node its attributes.
    """

    def __init__(self, names: Sequence[Any], values: Sequence[Values]) -> None:
        self._names, self._values = names, values
        self._keys = list(dict.fromkeys(key for one in values for key in one))
        self._used = {SPLIT}

    def features(self, wanted: str | Sequence[str] | None) -> tuple[npt.NDArray[Any] | None, tuple[str, ...]]:
        """Return the numbers of some attributes side by side, and a name for each column.

        Without `wanted` it is `x`, which has no names; and nothing where no node has that.
        """
        if wanted is None:
            if FEATURES not in self._keys:
                return None, ()
            self._used.add(FEATURES)
            return self._numbers(FEATURES), ()
        chosen = [wanted] if isinstance(wanted, str) else list(wanted)
        if not chosen or len(set(chosen)) < len(chosen):
            raise GraphError("features= needs the names of node attributes, each of them once")
        columns: list[npt.NDArray[Any]] = []
        titles: list[str] = []
        for key in chosen:
            self._check(key, "features")
            columns.append(self._numbers(key))
            width = columns[-1].shape[1]
            titles += [str(key)] if width == 1 else [f"{key}[{place}]" for place in range(width)]
        return np.concatenate(columns, axis=1), tuple(titles)

    def labels(self, wanted: str | None) -> dict[str, Any]:
        """Return labels, the names of the classes and the masks, as far as the nodes have them."""
        found: dict[str, Any] = {}
        if wanted is not None:
            self._check(wanted, "labels")
        if wanted is not None or LABEL in self._keys:
            key = LABEL if wanted is None else wanted
            self._used.add(key)
            found["labels"], found["class_names"] = as_classes([one.get(key) for one in self._values])
        if SPLIT in self._keys:
            words = [one.get(SPLIT) for one in self._values]
            found["masks"] = split_masks(words, lambda row: f"the node attribute 'split', row {row}")
        return found

    def unused(self) -> tuple[Repair, ...]:
        """Return the repair that names unused attributes and how to use them."""
        left = [key for key in self._keys if key not in self._used]
        label = self._likely_label(left)
        numeric = [
            key for key in left if key != label and all(_is_number(one.get(key)) for one in self._values)
        ]
        python = [f"features={[str(key) for key in numeric]}"] if numeric else []
        command = [f"--feature-columns {','.join(map(str, numeric))}"] if numeric else []
        if label is not None:
            python.append(f"labels={str(label)!r}")
            command.append(f"--label-column {label}")
        hint = (
            f"; use them by {', '.join(python)} of as_graph or read_graph_file ({' '.join(command)})"
            if python
            else ""
        )
        return unused_of("node", left, hint)

    def _likely_label(self, keys: Sequence[Any]) -> Any:
        """Return the attribute that has a usual name of a class, or else few words for many nodes."""
        usual = [key for key in keys if is_class_name(str(key), [str(one) for one in keys])]
        for key in [] if usual else keys:
            words = [one[key] for one in self._values if isinstance(one.get(key), str)]
            if len({*words}) <= len(words) / 2:
                usual += [key] if words else []
        return usual[0] if usual else None

    def _check(self, key: str, role: str) -> None:
        if key not in self._keys:
            known = ", ".join(str(one) for one in self._keys[:8]) or "none at all"
            raise GraphError(f"no node has the attribute {key!r}, named as {role}; there are: {known}")
        self._used.add(key)

    def _numbers(self, key: str) -> npt.NDArray[np.float64]:
        """Return one attribute as `[nodes, values]`: a number, or a list of as many numbers at every node."""
        rows: list[npt.NDArray[np.float64]] = []
        for name, one in zip(self._names, self._values, strict=True):
            if key not in one:
                raise GraphError(f"node {name!r} has no attribute {key!r} although other nodes have it")
            if holds_dates(np.array([one[key], None], dtype=object)):
                raise GraphError(f"node {name!r}: the attribute {key!r} holds {DATES}")
            try:
                rows.append(np.atleast_1d(np.asarray(one[key], dtype=np.float64)))
            except (TypeError, ValueError):
                raise GraphError(_no_numbers(name, key, one[key])) from None
            if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
                raise GraphError(
                    f"node {name!r}: the attribute {key!r} has another length than that of the first node"
                )
        return np.stack(rows)


def unused_of(part: str, keys: Sequence[Any], hint: str = "") -> tuple[Repair, ...]:
    """Return the repair that names unused attributes of nodes or edges, if there are any."""
    if not keys:
        return ()
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    names = tuple(str(key) for key in keys)
    message = f"{part} attributes not used: {', '.join(names[:8])}{more}{hint}"
    return (Repair(f"{part}-attributes-unused", message, fields=names, warn=True),)


def _no_numbers(name: Any, key: str, value: Any) -> str:
    if key == FEATURES or not isinstance(value, str):
        return f"node {name!r}: the attribute {key!r} is not a list of numbers"
    return f"node {name!r}: the attribute {key!r} is not a number but {quoted(value)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number)
