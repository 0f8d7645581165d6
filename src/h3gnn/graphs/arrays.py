"""Arrays of features in NumPy files: the row number, from 0, is the id of a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.room import check_matrix, check_npy, check_npz
from h3gnn.tables.reader import check_file, reading

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
