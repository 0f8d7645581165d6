"""Files that hold a whole graph: GraphML, GML, a PyG `Data` in .pt, and NPZ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.arrays import read_npz, real_numbers
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.names import as_labels
from h3gnn.graphs.networks import from_networkx, from_pyg, import_pyg
from h3gnn.graphs.provenance import Kind, warn_about_repairs
from h3gnn.graphs.room import check_archive
from h3gnn.graphs.structural import build_graph
from h3gnn.resources import check_memory
from h3gnn.tables.reader import check_file, reading

PARTS = ("x", "edge_index", "edge_weight", "edge_attr", "y", "train_mask", "val_mask", "test_mask")


def read_graph_file(
    path: str | Path, *, features: str | Sequence[str] | None = None, labels: str | None = None
) -> Graph:
    """Read one file that holds a whole graph; its suffix says what it is.

    Args:
        path: .graphml, .gml, .pt (a PyG `Data`, or a dict with its parts) or .npz (heterophilous benchmark).
        features, labels: of GraphML and GML, the node attributes that are features and the one that is the
            class; without them `x0`, `x1`, … (or `x`) and `y`. What is not used is named in a warning.

    Raises:
        GraphError: in one sentence that names the file.
    """
    file = check_file(path, tuple(READERS), role="graph file")
    suffix = file.suffix.lower()
    if suffix in NETWORKS:
        graph = _from_network(NETWORKS[suffix](file), file, features, labels)
        warn_about_repairs(graph.provenance.repairs)
        return graph
    if features is not None or labels is not None:
        raise GraphError(
            f"{path}: features and labels are chosen by the names of node attributes, which .graphml and "
            ".gml files have"
        )
    whole: Graph = READERS[suffix](file)
    return whole


def _read_graphml(path: Path) -> Any:
    networkx = _networkx(path)
    with reading(path, "GraphML"):
        return networkx.read_graphml(path)


def _read_gml(path: Path) -> Any:
    networkx = _networkx(path)
    with reading(path, "GML"):
        try:
            return networkx.read_gml(path, label="label")
        except networkx.NetworkXError as error:
            if "label" not in str(error):
                raise
            return networkx.read_gml(path, label="id")


def _networkx(path: Path) -> Any:
    try:
        import networkx
    except ImportError:
        raise InputError(
            f"{path}: reading it needs networkx; install it with `pip install networkx`"
        ) from None
    return networkx


def _from_network(
    network: Any, path: Path, features: str | Sequence[str] | None, labels: str | None
) -> Graph:
    """Gather `x0`, `x1`, … or a text of numbers into `x`, since these formats store single values."""
    if network.number_of_nodes() == 0:
        raise GraphError(f"{path} holds no node")
    numbered = re.compile(r"x_?(\d{1,18})")
    for name, attributes in network.nodes(data=True) if features is None else ():
        parts = {int(found[1]): key for key in attributes if (found := numbered.fullmatch(str(key)))}
        if isinstance(attributes.get("x"), str):
            attributes["x"] = _numbers_of(attributes["x"], name, path)
        elif parts and "x" not in attributes:
            attributes["x"] = [attributes.pop(parts[number]) for number in sorted(parts)]
    with reading(path, "a graph"):
        return from_networkx(network, source=path.name, kind="files", features=features, labels=labels)


def _numbers_of(text: str, name: Any, path: Path) -> list[float]:
    try:
        return [float(part) for part in re.split(r"[,;\s]+", text.strip(" []()\t\n"))]
    except ValueError:
        raise GraphError(f"{path}: node {name!r}: the attribute 'x' is not a list of numbers") from None


def _read_pt(path: Path) -> Graph:
    """Read with `weights_only`: only tensors and PyG's own containers are made, and nothing is called.

    There is no second way for a file that needs more: it could execute code.
    """
    with reading(path, "a PyG Data without other objects"):
        with torch.serialization.safe_globals(_pyg_containers()):
            check_archive(path)
            stored = torch.load(path, map_location="cpu", weights_only=True)
        parts = _tensors_of(stored)
    if "edge_index" not in parts:
        raise GraphError(f"{path} holds no tensor called edge_index, so it is not a graph")
    data = import_pyg().data.Data(**parts)
    with reading(path, "a graph"):
        return from_pyg(data, source=path.name, kind="files")


def _pyg_containers() -> list[Any]:
    pyg = import_pyg()
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    return [pyg.data.Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]


def _tensors_of(stored: Any) -> dict[str, Any]:
    """Take the known parts out of what was read, so that nothing else of the object is used."""
    if isinstance(stored, tuple | list) and stored and isinstance(stored[0], dict):
        stored = stored[0]  # as PyG's InMemoryDataset saves one graph
    get: Callable[[str], Any]
    if isinstance(stored, dict):
        get = stored.get
    elif type(stored).__name__ == "Data":
        get = dict(stored.to_dict()).get
    else:
        raise GraphError(f"it holds a {type(stored).__name__}, not a PyG Data")
    found = {name: get(name) for name in PARTS}
    nodes = get("num_nodes")
    tensors = {name: one for name, one in found.items() if isinstance(one, torch.Tensor)}
    dense = [one for one in tensors.values() if one.layout == torch.strided]
    check_memory(24 * sum(one.numel() for one in dense), "its tensors", GraphError)  # some share a few values
    return {**tensors, "num_nodes": nodes} if isinstance(nodes, int) else tensors


def read_npz_graph(path: str | Path, *, source: str | None = None, kind: Kind = "files") -> Graph:
    """Read a graph in the layout of the heterophilous benchmark (Platonov et al., 2023).

    Arrays: `edges [pairs, 2]`, each undirected edge in any direction; `node_features`, `node_labels`,
    `train_masks`, `val_masks`, `test_masks [splits, nodes]` where there are any.
    """
    file = check_file(path, (".npz",), role="graph file")
    with reading(file, "a graph"):
        return _graph_of(read_npz(file), file, source or file.name, kind)


def _graph_of(arrays: dict[str, npt.NDArray[Any]], file: Path, source: str, kind: Kind) -> Graph:
    if "edges" not in arrays:
        raise GraphError(f"a graph needs an array called edges; there are {', '.join(arrays)}")
    edges = arrays["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise GraphError("edges must be whole numbers of the shape [pairs, 2]")
    features, labels = arrays.get("node_features"), arrays.get("node_labels")
    masks = [arrays.get(f"{name}_masks") for name in ("train", "val", "test")]
    if any(mask is not None and mask.ndim != 2 for mask in masks):
        raise GraphError("train_masks, val_masks and test_masks must have the shape [splits, nodes]")
    nodes = next(
        (len(one) for one in (features, labels) if one is not None and one.ndim),
        int(edges.max(initial=-1)) + 1,
    )
    pairs = edges.T.astype(np.int64)
    complete = [mask.T for mask in masks if mask is not None]
    return build_graph(
        None if features is None else real_numbers(features, file),
        np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1),  # both ways; a self-loop once
        nodes=nodes,
        labels=None if labels is None else as_labels(labels),
        masks=(complete[0], complete[1], complete[2]) if len(complete) == 3 else None,
        source=source,
        kind=kind,
    )


NETWORKS: dict[str, Callable[[Path], Any]] = {".graphml": _read_graphml, ".gml": _read_gml}
"""What reads a networkx graph, whose nodes have attributes, from a file of each suffix."""
READERS: dict[str, Callable[[Path], Any]] = {**NETWORKS, ".pt": _read_pt, ".npz": read_npz_graph}
"""The reader for each suffix of a graph file."""
