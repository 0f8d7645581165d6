"""Read graph files (GraphML, GML, PyG `Data` in .pt, NPZ) and arrays of features (NPY, NPZ).

Sizes that a file declares are compared with the file and with the available memory before it is read.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_size
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.libraries import from_networkx, from_pyg, import_pyg
from h3gnn.graphs.provenance import Kind, warn_about_repairs
from h3gnn.graphs.structural import build_graph
from h3gnn.graphs.targets import split_known, unknown_labels
from h3gnn.resources import check_memory, format_bytes
from h3gnn.tables.files import check_file, reading

PARTS = ("x", "edge_index", "edge_weight", "edge_attr", "y", "train_mask", "val_mask", "test_mask")
NETWORKS = (".graphml", ".gml")
READERS = (*NETWORKS, ".pt", ".npz")
ARRAY_SUFFIXES = (".npy", ".npz")
FEATURE_KEYS = ("features", "x", "X", "node_features", "arr_0")


def read_graph_file(
    path: str | Path, *, features: str | Sequence[str] | None = None, labels: str | None = None
) -> Graph:
    """Read one file that holds a whole graph, by its suffix.

    Args:
        path: .graphml, .gml, .pt (a PyG `Data`, or a dict of its parts) or .npz (heterophilous benchmark).
        features, labels: node attributes of GraphML and GML that hold features and the class; by default
            `x0`, `x1`, … (or `x`) and `y`. A warning names unused attributes.
    """
    file = check_file(path, READERS, role="graph file")
    suffix = file.suffix.lower()
    if suffix in NETWORKS:
        graph = _from_network(file, features, labels)
        warn_about_repairs(graph.provenance.repairs)
        return graph
    if features is not None or labels is not None:
        raise GraphError(
            f"{path}: only .graphml and .gml files have node attributes to choose features and labels from",
            code="attributes-unsupported",
        )
    return _read_pt(file) if suffix == ".pt" else read_npz_graph(file)


def _read_network(path: Path) -> Any:
    """Read GraphML or GML, whose nodes have attributes, as a networkx graph."""
    try:
        import networkx
    except ImportError:
        message = f"{path}: reading it needs networkx; install it with `pip install networkx`"
        raise InputError(message, code="library-missing") from None
    with reading(path, "GML" if path.suffix.lower() == ".gml" else "GraphML"):
        if path.suffix.lower() == ".graphml":
            return networkx.read_graphml(path)
        try:
            return networkx.read_gml(path, label="label")
        except networkx.NetworkXError as error:
            if "label" not in str(error):
                raise
            return networkx.read_gml(path, label="id")


def _from_network(path: Path, features: str | Sequence[str] | None, labels: str | None) -> Graph:
    """Collect `x0`, `x1`, … or a string of numbers in `x`, since these formats store single values."""
    network = _read_network(path)
    if network.number_of_nodes() == 0:
        raise GraphError(f"{path} holds no node", code="graph-empty")
    numbered = re.compile(r"x_?(\d{1,18})")
    for name, attributes in network.nodes(data=True) if features is None else ():
        parts = {int(found[1]): key for key in attributes if (found := numbered.fullmatch(str(key)))}
        if isinstance(attributes.get("x"), str):
            try:
                numbers = re.split(r"[,;\s]+", attributes["x"].strip(" []()\t\n"))
                attributes["x"] = [float(number) for number in numbers]
            except ValueError:
                message = f"{path}: node {name!r}: the attribute 'x' is not a list of numbers"
                raise GraphError(message, code="not-numbers") from None
        elif parts and "x" not in attributes:
            attributes["x"] = [attributes.pop(parts[number]) for number in sorted(parts)]
    with reading(path, "a graph"):
        return from_networkx(network, source=path.name, kind="files", features=features, labels=labels)


def _read_pt(path: Path) -> Graph:
    """Read with `weights_only`: torch creates tensors and PyG's containers only, and executes no code."""
    with reading(path, "a PyG Data without other objects"):
        pyg = import_pyg()
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import GlobalStorage

        safe = [pyg.data.Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
        with torch.serialization.safe_globals(safe):
            _check_file(path)
            stored = torch.load(path, map_location="cpu", weights_only=True)
        parts = _tensors_of(stored)
    if "edge_index" not in parts:
        raise GraphError(f"{path} holds no tensor called edge_index", code="edges-missing")
    with reading(path, "a graph"):
        return from_pyg(pyg.data.Data(**parts), source=path.name, kind="files")


def _tensors_of(stored: Any) -> dict[str, Any]:
    """Return the known parts of a stored object, so that nothing else of it is used."""
    if isinstance(stored, tuple | list) and stored and isinstance(stored[0], dict):
        stored = stored[0]  # as PyG's InMemoryDataset saves one graph
    if type(stored).__name__ == "Data":
        stored = stored.to_dict()
    if not isinstance(stored, dict):
        raise GraphError(f"it holds a {type(stored).__name__}, not a PyG Data", code="not-a-graph")
    parts = {name: stored.get(name) for name in PARTS}
    tensors = {name: part for name, part in parts.items() if isinstance(part, torch.Tensor)}
    dense = [tensor for tensor in tensors.values() if tensor.layout == torch.strided]
    # a tensor may declare more values than it stores
    check_memory(24 * sum(tensor.numel() for tensor in dense), "its tensors", GraphError)
    nodes = stored.get("num_nodes")
    return {**tensors, "num_nodes": nodes} if isinstance(nodes, int) else tensors


def read_npz_graph(path: str | Path, *, source: str | None = None, kind: Kind = "files") -> Graph:
    """Read a graph in the layout of the heterophilous benchmark (Platonov et al., 2023).

    Arrays: `edges [pairs, 2]`, each undirected edge in any direction; optionally `node_features`,
    `node_labels`, and `train_masks`, `val_masks`, `test_masks [splits, nodes]`.
    """
    file = check_file(path, (".npz",), role="graph file")
    with reading(file, "a graph"):
        return _graph_of(_read_npz(file), file, source or file.name, kind)


def _graph_of(arrays: dict[str, npt.NDArray[Any]], file: Path, source: str, kind: Kind) -> Graph:
    if "edges" not in arrays:
        raise GraphError(f"no array is called edges; there are {', '.join(arrays)}", code="edges-missing")
    edges = arrays["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise GraphError("edges must be integers of the shape [pairs, 2]", code="edge-index-shape")
    features, labels = arrays.get("node_features"), arrays.get("node_labels")
    masks = [arrays[f"{name}_masks"] for name in ("train", "val", "test") if f"{name}_masks" in arrays]
    if any(mask.ndim != 2 for mask in masks):
        raise GraphError("train, val and test masks must have the shape [splits, nodes]", code="mask-shape")
    nodes = next(
        (len(part) for part in (features, labels) if part is not None and part.ndim),
        int(edges.max(initial=-1)) + 1,
    )
    pairs = edges.T.astype(np.int64)
    return build_graph(
        None if features is None else _check_real(features, file),
        np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1),  # both directions; a self-loop once
        nodes=nodes,
        **split_known(labels),
        masks=(masks[0].T, masks[1].T, masks[2].T) if len(masks) == 3 else None,
        source=source,
        kind=kind,
        repairs=unknown_labels(labels),
    )


def array_place(path: str | Path) -> Callable[[int], str]:
    """Return a function that names the rows of an array in error messages."""
    return lambda row: f"{path}, row {row} (counted from 0)"


def read_array(path: str | Path, *, mapped: bool = False) -> Any:
    """Read features without ids `[nodes, features]`: row 0 is node 0.

    Args:
        path: an NPY file; an NPZ file with one array, or with one called features, x, X or node_features;
            or an NPZ file written by `scipy.sparse.save_npz`.
        mapped: memory-map an NPY file instead of loading it.
    """
    file = check_file(path, ARRAY_SUFFIXES, role="file of features")
    if file.suffix.lower() == ".npz":
        values = _features_of_npz(file)
    else:
        with reading(file, "NPY"):
            if mapped:
                values = np.lib.format.open_memmap(file, mode="r")
            else:
                _check_file(file)
                values = np.load(file, allow_pickle=False)
        _check_real(values, file)
    if len(values.shape) != 2:
        message = f"{path}: features need the shape [nodes, features], not {list(values.shape)}"
        raise GraphError(message, code="features-not-a-table")
    if 0 in values.shape:
        message = f"{path} holds no features: its shape is {list(values.shape)}"
        raise GraphError(message, code="features-empty")
    return values


def _features_of_npz(file: Path) -> Any:
    arrays = _read_npz(file)
    if {"indices", "indptr", "shape"} <= arrays.keys():
        return _sparse_matrix(file)
    names = [key for key in FEATURE_KEYS if key in arrays] or list(arrays)
    if not names or (names[0] not in FEATURE_KEYS and len(arrays) > 1):
        message = f"{file}: none of its arrays ({', '.join(arrays)}) is called features"
        raise GraphError(message, code="features-missing")
    return _check_real(arrays[names[0]], file)


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return every array of an NPZ file; NumPy rejects objects, which could execute code."""
    with reading(path, "NPZ"), path.open("rb") as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            raise GraphError(f"{path} is a single array; rename it to .npy", code="file-suffix-unknown")
        _check_file(path)
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        return {name: np.asarray(archive[name]) for name in archive.files}


def _check_real(array: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    """Return an array of real numbers unchanged, and reject any other."""
    if array.dtype.kind not in "biuf":
        raise GraphError(f"{path}: the features are {array.dtype}, not numbers", code="not-numbers")
    return array


def _sparse_matrix(path: Path) -> Any:
    with reading(path, "a scipy sparse matrix"), path.open("rb") as stream:
        stored: Any = sp.load_npz(stream)
        check_size(stored)
        if hasattr(stored, "indptr"):  # scipy compares differences, which may overflow
            starts = stored.indptr
            if not ((starts >= 0) & (starts <= len(stored.indices))).all():
                raise GraphError(f"{path} is damaged: its row pointers are invalid", code="file-damaged")
        if hasattr(stored, "check_format"):
            stored.check_format(full_check=True)  # invalid indices would make scipy read foreign memory
        matrix = sp.csr_matrix(stored)
    _check_real(matrix.data, path)
    return matrix


def _check_npy(stream: IO[bytes], size: int, what: str) -> None:
    """Reject an array whose header declares more bytes than it has; the stream ends after the header."""
    form = np.lib.format
    version = form.read_magic(stream)
    if version not in ((1, 0), (2, 0)):  # 3.0 differs in the encoding of field names, which features lack
        return
    read: Any = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    shape, _, dtype = read(stream)
    declared = math.prod(shape) * dtype.itemsize
    if declared > size:
        message = f"{what} declares {format_bytes(declared)}, but has {size:,} bytes"
        raise GraphError(message, code="file-damaged")


def _check_file(path: Path) -> None:
    """Reject an NPY, NPZ or .pt file that does not fit in memory, unpacked, or whose headers are wrong."""
    size = path.stat().st_size
    if path.suffix.lower() == ".npy":
        with path.open("rb") as stream:
            _check_npy(stream, size, f"{path}: the array")
    elif zipfile.is_zipfile(path):  # .pt files of old versions are none
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    with archive.open(member) as stream:
                        name = member.filename.removesuffix(".npy")
                        _check_npy(stream, member.file_size, f"{path}: the array {name}")
    check_memory(3 * size, f"reading {path}", GraphError)
