"""Graphs of other libraries: PyG's `Data` and its dataset classes, networkx, anything shaped like DGL's."""

from __future__ import annotations

import contextlib
import inspect
import io
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.attributes import NodeAttributes, unused_of
from h3gnn.graphs.checks import DATES, holds_dates
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.names import as_ids, as_labels, as_masks
from h3gnn.graphs.provenance import Kind, Repair
from h3gnn.graphs.structural import build_graph

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


def load_pyg(name: str, folders: Sequence[Path]) -> Graph:
    """Load `pyg:Class/Name` or `pyg:Class` through PyG, which downloads it where it is not cached.

    PyG's processed pickle is made anew each time in a folder of its own, for a pickle that lies in a cache
    could have come from anywhere.

    Args:
        name: the name with its prefix.
        folders: data folders, in which raw files lie under `pyg/Class/Name`; what is downloaded is kept in
            the last of them, and the others are never written.

    Raises:
        InputError: when there is no such class or graph, or it cannot be fetched.
    """
    class_name, _, graph_name = name.removeprefix("pyg:").partition("/")
    if not all(part.replace("-", "").replace("_", "").isalnum() for part in (class_name, graph_name or "x")):
        raise InputError(f"{name!r} is not the name of a graph")
    arguments = _arguments(name, class_name, graph_name)
    places = [folder / "pyg" / class_name / (graph_name or class_name) for folder in folders]
    raw_only = shutil.ignore_patterns("processed")
    found = next((place for place in places if place.is_dir()), None)
    with tempfile.TemporaryDirectory(prefix="h3gnn-") as root:
        if found is not None:
            shutil.copytree(found, root, dirs_exist_ok=True, ignore=raw_only)
        given = {**arguments, "root": root} if "root" in arguments else arguments
        data = _single_graph(name, class_name, given, places[-1])
        if found is None and any(Path(root).rglob("raw")):
            shutil.copytree(root, places[-1], dirs_exist_ok=True, ignore=raw_only)
    graph = from_pyg(data, source=name, kind="dataset")
    return graph.with_repairs(Repair("files-not-pinned", "the raw files have no pinned checksum"))


def _arguments(name: str, class_name: str, graph_name: str) -> dict[str, str]:
    pyg = import_pyg()
    dataset_class = getattr(pyg.datasets, class_name, None)
    if not (isinstance(dataset_class, type) and issubclass(dataset_class, pyg.data.Dataset)):
        raise InputError(
            f"PyG has no dataset class {class_name!r}; write pyg:Class/Name, as in pyg:Amazon/Photo"
        )
    parameters = inspect.signature(dataset_class).parameters
    if "name" in parameters and not graph_name:
        raise InputError(f"{name} needs the name of a graph as well, as in pyg:Amazon/Photo")
    if graph_name and "name" not in parameters:
        raise InputError(f"PyG's {class_name} holds one graph without a name; write pyg:{class_name}")
    return {
        **({"root": ""} if "root" in parameters else {}),
        **({"name": graph_name} if graph_name else {}),
    }


def _single_graph(name: str, class_name: str, arguments: dict[str, str], kept: Path) -> Any:
    pyg = import_pyg()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            dataset = getattr(pyg.datasets, class_name)(**arguments)
            count = len(dataset)
            data = dataset[0] if count else None
    except Exception as error:  # a dataset class may fail in any way: wrong name, no network, damaged file
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"PyG could not load {name} ({detail}); check the name, or put its raw files under {kept}"
        ) from None
    if count != 1 or not isinstance(data, pyg.data.Data):
        raise InputError(f"{name} is not one graph with one kind of node: it holds {count} graph(s)")
    return data
