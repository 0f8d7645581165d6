"""Files that hold a whole graph: GraphML, GML, a PyG `Data` in .pt, and NPZ."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_matrix
from h3gnn.graphs.convert import from_networkx, from_pyg, import_pyg
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.labels import as_labels
from h3gnn.graphs.provenance import Kind, warn_about_repairs
from h3gnn.graphs.structural import build_graph
from h3gnn.resources import check_memory, format_bytes
from h3gnn.tables.files import check_file, reading

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


ARRAY_SUFFIXES = (".npy", ".npz")
FEATURE_KEYS = ("features", "x", "X", "node_features", "arr_0")


def array_place(path: str | Path) -> Callable[[int], str]:
    """Return words for the rows of an array."""
    return lambda row: f"{path}, row {row} (counted from 0)"


def read_array(path: str | Path, *, mapped: bool = False) -> Any:
    """Read features without ids `[nodes, features]`: row 0 is node 0.

    Args:
        path: an NPY file; an NPZ file with one array, or with one called features, x, X or node_features;
            or an NPZ file that `scipy.sparse.save_npz` wrote.
        mapped: leave an NPY file where it is, to be read where it is touched.
    """
    file = check_file(path, ARRAY_SUFFIXES, role="file of features")
    if file.suffix.lower() == ".npz":
        values = _features_of_npz(file)
    elif mapped:
        with reading(file, "NPY"):
            values = real_numbers(np.load(file, mmap_mode="r", allow_pickle=False), file)
    else:
        with reading(file, "NPY"), file.open("rb") as stream:
            check_npy(stream, file.stat().st_size, file)
            stream.seek(0)
            values = real_numbers(np.load(stream, allow_pickle=False), file)
    if len(values.shape) != 2:
        raise GraphError(f"{path}: features need the shape [nodes, features], not {list(values.shape)}")
    if 0 in values.shape:
        raise GraphError(f"{path} holds no features: its shape is {list(values.shape)}")
    return values


def _features_of_npz(file: Path) -> Any:
    arrays = read_npz(file)
    if {"indices", "indptr", "shape"} <= arrays.keys():
        return _sparse_matrix(file)
    name = next((key for key in FEATURE_KEYS if key in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise GraphError(f"{file}: none of its arrays ({', '.join(arrays)}) is called features")
    return real_numbers(arrays[name], file)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return every array of an NPZ file; objects, which could execute code, are refused by NumPy."""
    with reading(path, "NPZ"), path.open("rb") as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            raise GraphError(f"{path} is not an NPZ file but a single array; call it .npy")
        check_npz(path)
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        return {name: np.asarray(archive[name]) for name in archive.files}


def real_numbers(array: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    """Return an array of numbers as it is, and refuse any other."""
    if array.dtype.kind not in "biuf":
        raise GraphError(f"{path}: the features hold {array.dtype}, not numbers")
    return array


def _lies_within(begins: npt.NDArray[Any], stored: int) -> bool:
    """Tell whether no row begins outside the stored values: scipy compares differences, which overflow."""
    return bool(((begins >= 0) & (begins <= stored)).all())


def _sparse_matrix(path: Path) -> Any:
    import scipy.sparse as sp

    with reading(path, "a scipy sparse matrix"), path.open("rb") as stream:
        stored: Any = sp.load_npz(stream)
        check_matrix(stored.shape[0], stored.shape[1], stored.nnz, "a sparse matrix")
        if hasattr(stored, "indptr") and not _lies_within(stored.indptr, len(stored.indices)):
            raise GraphError(f"{path} is damaged: its rows begin where it holds no values")
        if hasattr(stored, "check_format"):
            stored.check_format(full_check=True)  # wrong indices would make scipy read foreign memory
        matrix = sp.csr_matrix(stored)
    real_numbers(matrix.data, path)
    return matrix


def check_npy(stream: BinaryIO, size: int, path: Path, name: str = "") -> None:
    """Refuse an array whose header declares more than the file holds, or than there is memory for.

    Args:
        stream: at its beginning, to which it does not return.
        size: bytes of the file, or of the file in an archive.
        path: the file.
        name: of the array in an archive.
    """
    form = np.lib.format
    version = form.read_magic(stream)
    read: Any = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    if version not in ((1, 0), (2, 0)):  # 3.0 differs in the encoding of field names, which features lack
        return
    shape, _, dtype = read(stream)
    declared = math.prod(shape) * dtype.itemsize
    what = f"the array {name}" if name else "the array"
    if declared > size:
        raise GraphError(
            f"{path}: {what} says that it holds {format_bytes(declared)}, but has {size:,} bytes"
        )
    check_memory(3 * declared, f"reading {what} of {path}", GraphError)


def check_npz(path: Path) -> None:
    """Refuse an archive that unpacks to more than there is memory for, or whose arrays say so."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_memory(3 * sum(one.file_size for one in members), f"unpacking {path}", GraphError)
        for one in members:
            if one.filename.endswith(".npy"):
                with archive.open(one) as stream:
                    check_npy(stream, one.file_size, path, one.filename.removesuffix(".npy"))  # type: ignore[arg-type]


def check_archive(path: Path) -> None:
    """Refuse a `.pt` file that unpacks to more than there is memory for; an old one is no archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(one.file_size for one in archive.infolist())
            check_memory(3 * size, f"unpacking {path}", GraphError)
