"""Convert the graphs of PyG, networkx and DGL to a `Graph`, and several node types to a `RelationalGraph`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from h3gnn.errors import GraphError, as_list, as_option, shortened
from h3gnn.graphs.checks import (
    DATES,
    as_classes,
    as_masks,
    as_numpy,
    check_features,
    holds_dates,
    split_masks,
)
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_ids, is_missing, quoted
from h3gnn.graphs.provenance import Kind, Repair
from h3gnn.graphs.relational import NodeTable, Relation, RelationalGraph
from h3gnn.graphs.scaling import scipy_features
from h3gnn.graphs.structural import build_graph
from h3gnn.graphs.targets import has_fractions, split_known, unknown_labels
from h3gnn.tables.roles import is_class_name
from h3gnn.tables.rows import decode_times

FEATURES, LABEL, SPLIT = "x", "y", "split"
"""Node attributes of networkx graphs that are used by default."""


def import_pyg() -> Any:
    """Return `torch_geometric`, imported without its deprecation warnings."""
    with warnings.catch_warnings(action="ignore"):
        import torch_geometric
        import torch_geometric.data
        import torch_geometric.datasets
        import torch_geometric.utils
    return torch_geometric


def from_pyg(data: Any, *, source: str, kind: Kind = "object") -> Graph:
    """Convert a PyG `Data`: `x`, `edge_index`, `y`, masks, and `edge_weight` or one column of `edge_attr`."""
    get = getattr(data, "get", None)
    if get is None or not hasattr(data, "edge_index") or hasattr(data, "node_types"):
        message = f"a PyG {type(data).__name__} is not a graph with one node type; give a Data"
        if hasattr(data, "node_types"):
            message += ", or read its types by from_hetero_data, and make the graph of one by type_view"
        raise GraphError(message, code="not-a-graph")
    edges, labels = get("edge_index"), get("y")
    repairs = [*unknown_labels(labels)]
    if edges is None:
        raise GraphError("the PyG Data has no edge_index", code="edges-missing")
    weights = get("edge_weight")
    if weights is None and (attributes := get("edge_attr")) is not None:
        if attributes.numel() == attributes.shape[0]:
            weights = attributes.reshape(-1)
        else:
            message = "edge_attr has more than one column and is not used"
            repairs.append(Repair("edge-attributes-unused", message, fields=("edge_attr",), warn=True))
    return build_graph(
        get("x"),
        edges,
        nodes=_pyg_nodes(data, edges),
        edge_weight=weights,
        **split_known(labels),
        masks=as_masks(get("train_mask"), get("val_mask"), get("test_mask")),
        source=source,
        kind=kind,
        repairs=tuple(repairs),
    )


def _pyg_nodes(data: Any, edges: Any) -> int:
    """Return the number of nodes, without the warning of PyG if there are edges only."""
    if "num_nodes" in data:
        return int(data.num_nodes)
    for name in ("x", "y", "train_mask"):
        if (values := data.get(name)) is not None:
            return int(values.shape[0])
    return int(edges.max()) + 1 if edges.numel() else 0


def from_hetero_data(data: Any, *, source: str = "PyG HeteroData") -> RelationalGraph:
    """Convert a PyG `HeteroData`; `type_view` then makes the graph of one node type.

    Of each node type `x`, `y` (the label `"y"`), `time` and the masks are used, and of each edge type
    `edge_index`, `edge_weight`, `edge_attr` and `time`. Edges with attributes become nodes that link two
    others, like the rows of a link table. A reversed edge type `rev_…` is left out, since relations count in
    both directions.
    """
    if not hasattr(data, "node_types") or not hasattr(data, "edge_types"):
        message = f"a {type(data).__name__} is not a HeteroData; as_graph reads graphs with one node type"
        raise GraphError(message, code="not-a-graph")
    stores = {kinds: data[kinds] for kinds in data.edge_types if not _is_reverse(data, *kinds)}
    for kinds, store in stores.items():
        if store.get("edge_index") is None:
            raise GraphError(f"the edge type {kinds} has no edge_index", code="edges-missing")
    types, relations = dict[str, NodeTable](), list[Relation]()
    for name in data.node_types:
        types[name] = _hetero_nodes(name, data[name], stores)
    links = set()
    for (first, verb, second), store in stores.items():
        ends = as_numpy(store["edge_index"], "the edges")
        named = [one for one in stores if (one[0], one[1]) == (first, verb)]
        name = f"{first}.{verb}" + (f" {second}" if len(named) > 1 else "")
        time, attributes = _hetero_times(name, store), store.get("edge_attr")
        if attributes is None:
            weight = store.get("edge_weight")
            weight = None if weight is None else as_numpy(weight, "the edge weights").astype(np.float32)
            relations.append(Relation(name, first, second, ends.astype(np.int64), time, weight))
            continue
        rows = np.arange(ends.shape[1])
        values = _hetero_features(name, attributes)
        types[name] = NodeTable(name, rows, values, has_ids=False, time=time)
        links.add(name)
        for kind, end, role in ((first, ends[0], "source"), (second, ends[1], "target")):
            relations.append(Relation(f"{name}.{role}", name, kind, np.stack([rows, end]), time))
    left = [" ".join(one) for one in data.edge_types if one not in stores]
    message = f"reversed edge types are not needed, and left out: {shortened(left, 6)}"
    repairs = (Repair("relations-reversed", message, len(left)),) if left else ()
    return RelationalGraph(types, tuple(relations), frozenset(links), source, repairs)


def _is_reverse(data: Any, first: str, verb: str, second: str) -> bool:
    """Whether an edge type holds the edges of another in the other direction, as PyG's ToUndirected adds."""
    forward = (second, verb.removeprefix("rev_"), first)
    if not verb.startswith("rev_") or forward not in data.edge_types:
        return False
    pairs = [as_numpy(data[one].get("edge_index"), "the edges") for one in ((first, verb, second), forward)]
    one, two = (ends[:, np.lexsort(ends)] for ends in (pairs[0][::-1], pairs[1]))
    return np.array_equal(one, two)


def _hetero_nodes(name: str, store: Any, edges: Mapping[tuple[str, str, str], Any]) -> NodeTable:
    """Return the nodes of a type, as many as its features, labels or edges have."""
    known = [store[one] for one in ("x", "y", "time", "train_mask") if store.get(one) is not None]
    if "num_nodes" in store:
        count = int(store["num_nodes"])
    elif known:
        count = int(known[0].shape[0])
    else:
        ends = [of["edge_index"][at] for kinds, of in edges.items() for at in (0, 1) if kinds[at * 2] == name]
        count = max((int(one.max()) + 1 for one in ends if one.numel()), default=0)
    features, labels = store.get("x"), store.get("y")
    values = np.zeros((count, 0), np.float32) if features is None else _hetero_features(name, features)
    cells = {} if labels is None else {LABEL: _hetero_labels(name, labels)}
    masks = as_masks(*(store.get(f"{part}_mask") for part in ("train", "val", "test")))
    time = _hetero_times(name, store)
    return NodeTable(name, np.arange(count), values, has_ids=False, time=time, labels=cells, masks=masks)


def _hetero_features(name: str, values: Any) -> Any:
    """Return finite features as an array or a sparse matrix."""
    values = values.reshape(-1, 1) if values.ndim == 1 else values
    found = check_features(values, lambda part, row: f"{name}, {part} {row}")
    return as_numpy(found, "the features") if found.layout == torch.strided else scipy_features(found)


def _hetero_labels(name: str, labels: Any) -> Any:
    """Return classes or numbers, with negative classes and NaN as missing."""
    values = as_numpy(labels, "the labels").squeeze()
    if values.ndim != 1:
        message = f"the labels of {name} have the shape {list(labels.shape)}: give one for each node"
        raise GraphError(message, code="labels-shape")
    known = values >= 0 if values.dtype.kind in "iu" else ~np.isnan(values)
    return pd.Series(values.astype(object)).where(known, None).rename(LABEL)


def _hetero_times(name: str, store: Any) -> npt.NDArray[np.int64] | None:
    """Return times: seconds since 1970 or their fractions, or years."""
    times = store.get("time")
    if times is None:
        return None
    return decode_times(pd.DataFrame({"time": as_numpy(times, "the times").ravel()}), "time", name)


def from_dgl(network: Any, *, source: str) -> Graph:
    """Convert an object shaped like a DGL graph with one node and edge type, without importing DGL."""
    try:
        edges = np.stack([np.asarray(end) for end in network.edges()])
        nodes = int(network.num_nodes())
        node_data, edge_data = dict(network.ndata), dict(getattr(network, "edata", {}))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        message = f"the {type(network).__name__} does not have one list of edges: {error}"
        raise GraphError(message, code="not-a-graph") from None

    def first(values: dict[str, Any], *names: str) -> Any:
        return next((values[name] for name in names if name in values), None)

    labels = first(node_data, "label", "y", "labels")
    return build_graph(
        first(node_data, "feat", "x", "attr", "feature", "features"),
        edges,
        nodes=nodes,
        edge_weight=first(edge_data, "weight", "w", "edge_weight"),
        **split_known(labels),
        masks=as_masks(node_data.get("train_mask"), node_data.get("val_mask"), node_data.get("test_mask")),
        source=source,
        kind="object",
        repairs=unknown_labels(labels),
    )


def from_networkx(
    network: Any,
    *,
    source: str,
    kind: Kind = "object",
    features: str | Sequence[str] | None = None,
    labels: str | None = None,
) -> Graph:
    """Convert a networkx graph: node attributes `x` (numbers), `y` (class), `split`; edge attribute `weight`.

    `features` and `labels` name other attributes instead of `x` and `y`. Nodes keep their order and ids. An
    undirected edge becomes two. Unused attributes are recorded as repairs.
    """
    nodes = list(network.nodes)
    names = np.empty(len(nodes), dtype=object)
    names[:] = nodes  # a tuple that names a node must not become a row
    ids = as_ids(names, "the nodes")
    position = {name: number for number, name in enumerate(nodes)}
    pairs = [(position[start], position[end]) for start, end in network.edges()]
    edge_index = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    weights = _networkx_weights(network)
    if not network.is_directed():
        between = edge_index[0] != edge_index[1]  # a self-loop is one edge, not two
        edge_index = np.concatenate([edge_index, edge_index[::-1, between]], axis=1)
        weights = None if weights is None else np.concatenate([weights, weights[between]])
    attributes = _NodeAttributes(nodes, [network.nodes[name] for name in nodes])
    values, columns = attributes.features(features)
    edge_keys = dict.fromkeys(key for *_, keys in network.edges(data=True) for key in keys if key != "weight")
    positions = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(ids.size))
    return build_graph(
        values,
        edge_index,
        nodes=len(nodes),
        edge_weight=weights,
        **attributes.labels(labels),
        node_ids=None if positions else ids,
        feature_names=columns,
        source=source,
        kind=kind,
        repairs=(*attributes.unused(), *_unused("edge", list(edge_keys))),
    )


def _networkx_weights(network: Any) -> npt.NDArray[Any] | None:
    given = [weight for _, _, weight in network.edges(data="weight")]
    if all(weight is None for weight in given):
        return None
    if holds_dates(np.array([*given, None], dtype=object)):
        raise GraphError(f"the edge attribute 'weight' holds {DATES}", code="dates")
    try:
        return np.array([1.0 if weight is None else float(weight) for weight in given])  # as networkx does
    except (TypeError, ValueError):
        raise GraphError("the edge attribute 'weight' is not a number", code="not-numbers") from None


class _NodeAttributes:
    """Attributes of the nodes of a networkx graph, and which of them are used."""

    def __init__(self, nodes: Sequence[Any], values: Sequence[dict[Any, Any]]) -> None:
        self._nodes, self._values = nodes, values
        self._keys = list(dict.fromkeys(key for attributes in values for key in attributes))
        self._used = {SPLIT}

    def features(self, wanted: str | Sequence[str] | None) -> tuple[npt.NDArray[Any] | None, tuple[str, ...]]:
        """Return the wanted attributes as columns, with their names; by default `x`, if nodes have it."""
        if wanted is None:
            return (self._numbers(FEATURES) if FEATURES in self._keys else None), ()
        keys = [wanted] if isinstance(wanted, str) else list(wanted)
        if not keys or len(set(keys)) < len(keys):
            raise GraphError("features= needs names of node attributes, each once", code="attribute-names")
        columns, names = [], list[str]()
        for key in keys:
            self._check(key, "features")
            columns.append(self._numbers(key))
            width = columns[-1].shape[1]
            names += [str(key)] if width == 1 else [f"{key}[{number}]" for number in range(width)]
        return np.concatenate(columns, axis=1), tuple(names)

    def labels(self, wanted: str | None) -> dict[str, Any]:
        """Return labels, class names and masks, as far as the nodes have them."""
        found: dict[str, Any] = {}
        if wanted is not None:
            self._check(wanted, "labels")
        key = LABEL if wanted is None else wanted
        if key in self._keys:
            self._used.add(key)
            values = [attributes.get(key) for attributes in self._values]
            gaps = [np.nan if is_missing(one) else one for one in values]
            if all(isinstance(one, float | int | np.number) for one in gaps) and has_fractions(gaps):
                found["targets"], found["target_name"] = np.array(gaps, dtype=np.float64), str(key)
            else:
                found["labels"], found["class_names"] = as_classes(values)
        if SPLIT in self._keys:
            words = [attributes.get(SPLIT) for attributes in self._values]
            found["masks"] = split_masks(words, lambda row: f"the node attribute 'split', row {row}")
        return found

    def unused(self) -> tuple[Repair, ...]:
        """Return the repair that names unused attributes and how to use them."""
        left = [key for key in self._keys if key not in self._used]
        label = self._likely_label(left)
        numbers = bool | int | float | np.number
        numeric = [
            str(key)
            for key in left
            if key != label and all(isinstance(row.get(key), numbers) for row in self._values)
        ]
        python = [f"features={numeric}"] if numeric else []
        command = [as_option("--feature-columns", as_list(numeric))] if numeric else []
        if label is not None:
            python.append(f"labels={str(label)!r}")
            command.append(as_option("--label-column", str(label)))
        how = f"; use them by {', '.join(python)} of as_graph or read_graph_file ({' '.join(command)})"
        return _unused("node", left, how if python else "")

    def _likely_label(self, keys: Sequence[Any]) -> Any:
        """Return the attribute with a usual name of a class, else one with few distinct strings."""
        names = [str(key) for key in keys]
        named = next((key for key in keys if is_class_name(str(key), names)), None)
        for key in keys if named is None else ():
            words = [row[key] for row in self._values if isinstance(row.get(key), str)]
            if words and len({*words}) <= len(words) / 2:
                return key
        return named

    def _check(self, key: str, role: str) -> None:
        if key not in self._keys:
            known = shortened(self._keys) or "none"
            message = f"no node has the attribute {key!r}, named as {role}; existing attributes: {known}"
            raise GraphError(message, code="attribute-unknown")

    def _numbers(self, key: str) -> npt.NDArray[np.float64]:
        """Return one attribute as `[nodes, values]`: numbers, or lists of the same number of numbers."""
        self._used.add(key)
        rows: list[npt.NDArray[np.float64]] = []
        for node, attributes in zip(self._nodes, self._values, strict=True):
            place = f"node {node!r}: the attribute {key!r}"
            if key not in attributes:
                raise GraphError(f"{place} is missing, but other nodes have it", code="attribute-missing")
            value = attributes[key]
            if holds_dates(np.array([value, None], dtype=object)):
                raise GraphError(f"{place} holds {DATES}", code="dates")
            try:
                rows.append(np.atleast_1d(np.asarray(value, dtype=np.float64)))
            except (TypeError, ValueError):
                text = f"a number but {quoted(value)}" if isinstance(value, str) else "a list of numbers"
                raise GraphError(f"{place} is not {text}", code="not-numbers") from None
            if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
                message = f"{place} has another length than that of the first node"
                raise GraphError(message, code="attribute-length")
        return np.stack(rows)


def _unused(part: str, keys: Sequence[Any], hint: str = "") -> tuple[Repair, ...]:
    """Return the repair that names unused attributes of nodes or edges, if there are any."""
    if not keys:
        return ()
    names = tuple(str(key) for key in keys)
    message = f"{part} attributes not used: {shortened(names)}{hint}"
    return (Repair(f"{part}-attributes-unused", message, fields=names, warn=True),)
