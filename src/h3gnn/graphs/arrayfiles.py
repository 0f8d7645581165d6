"""Arrays in NumPy files: feature tables, and whole graphs in the layout of the heterophilous benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.convert import as_labels, build_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.opening import check_file, reading

ARRAY_SUFFIXES = (".npy", ".npz")
FEATURE_KEYS = ("features", "x", "X", "node_features", "arr_0")


def read_array_features(path: str | Path) -> Any:
    """Read features without ids: row 0 is node 0.

    Args:
        path: an NPY file; an NPZ file with one array, or with one called features, x, X or node_features;
            or an NPZ file that `scipy.sparse.save_npz` wrote.
    """
    file = check_file(path, ARRAY_SUFFIXES, role="file of features")
    if file.suffix.lower() == ".npy":
        with reading(file, "NPY"), file.open("rb") as stream:
            return _numbers(np.load(stream, allow_pickle=False), file)
    arrays = read_npz(file)
    if {"indices", "indptr", "shape"} <= arrays.keys():
        return _sparse_matrix(file)
    name = next((key for key in FEATURE_KEYS if key in arrays), None)
    if name is None and len(arrays) == 1:
        name = next(iter(arrays))
    if name is None:
        raise GraphError(f"{file}: none of its arrays ({', '.join(arrays)}) is called features")
    return _numbers(arrays[name], file)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return every array of an NPZ file; objects, which could execute code, are refused by NumPy."""
    with reading(path, "NPZ"), path.open("rb") as stream:
        archive = np.load(stream, allow_pickle=False)
        if not hasattr(archive, "files"):
            raise GraphError(f"{path} is not an NPZ file but a single array; call it .npy")
        return {name: np.asarray(archive[name]) for name in archive.files}


def graph_from_npz(path: str | Path, *, source: str | None = None) -> Graph:
    """Read a graph in the layout of the heterophilous benchmark (Platonov et al., 2023).

    Arrays: `edges [pairs, 2]`, each undirected edge in any direction; `node_features`, `node_labels`,
    `train_masks`, `val_masks`, `test_masks [splits, nodes]` where there are any.
    """
    file = check_file(path, (".npz",), role="graph file")
    with reading(file, "a graph"):
        return _graph_of(read_npz(file), file, source or file.name)


def _graph_of(arrays: dict[str, npt.NDArray[Any]], file: Path, source: str) -> Graph:
    if "edges" not in arrays:
        raise GraphError(f"a graph needs an array called edges; there are {', '.join(arrays)}")
    edges = arrays["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise GraphError("edges must be whole numbers of the shape [pairs, 2]")
    features, labels = arrays.get("node_features"), arrays.get("node_labels")
    masks = [arrays.get(f"{name}_masks") for name in ("train", "val", "test")]
    if any(mask is not None and mask.ndim != 2 for mask in masks):
        raise GraphError("train_masks, val_masks and test_masks must have the shape [splits, nodes]")
    nodes = next((len(one) for one in (features, labels) if one is not None and one.ndim), _last(edges))
    complete = [mask.T for mask in masks if mask is not None]
    return build_graph(
        None if features is None else _numbers(features, file),
        undirected(edges.T.astype(np.int64)),
        nodes=nodes,
        labels=None if labels is None else as_labels(labels),
        masks=(complete[0], complete[1], complete[2]) if len(complete) == 3 else None,
        source=source,
    )


def undirected(edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each pair in both directions once, `[2, edges]`; a self-loop stays one edge."""
    both = np.concatenate([edges, edges[::-1]], axis=1)
    return np.unique(both, axis=1)


def _last(edges: npt.NDArray[Any]) -> int:
    return int(edges.max()) + 1 if edges.size else 0


def _numbers(array: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    if array.dtype.kind not in "biuf":
        raise GraphError(f"{path}: the features hold {array.dtype}, not numbers")
    return array


def _sparse_matrix(path: Path) -> Any:
    import scipy.sparse as sp

    with reading(path, "a scipy sparse matrix"), path.open("rb") as stream:
        stored = sp.load_npz(stream)
        if hasattr(stored, "check_format"):
            stored.check_format(full_check=True)  # wrong indices would make scipy read foreign memory
        matrix = sp.csr_matrix(stored)
    _numbers(matrix.data, path)
    return matrix
