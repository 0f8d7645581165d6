"""Features in a table with an id column, or in an array whose row numbers are the ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.arrayfiles import ARRAY_SUFFIXES, read_array_features
from h3gnn.graphs.headers import ID_NAMES, pick_column
from h3gnn.graphs.tables import Column, Table, check_once, open_table, read_ids


@dataclass(frozen=True)
class FeatureFile:
    """Features and the ids of their rows.

    Attributes:
        values: `[nodes, features]`, array or scipy sparse matrix.
        ids: `[nodes]`.
        named: whether the file gives the ids, rather than their order.
        place: words for a row.
        path: the file.
    """

    values: Any
    ids: npt.NDArray[Any]
    named: bool
    place: Callable[[int], str]
    path: Path


def read_features(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureFile:
    """Read the features and the ids of their rows."""
    if Path(path).suffix.lower() in ARRAY_SUFFIXES:
        return _from_array(Path(path))
    table = open_table(path, role="features", expected=(id_column, *(columns or ())), **style)
    file, names = table.path, table.names
    key = pick_column(names, id_column, known=ID_NAMES, default=0, path=file, what="node ids") or 0
    if columns is None:
        chosen = [column for column in range(len(names)) if column != key]
    else:
        picked = [pick_column(names, one, known=(), default=0, path=file, what="features") for one in columns]
        chosen = [column for column in picked if column is not None]
    if not chosen:
        raise GraphError(f"{file} has no column of features beside the node ids")
    ids = read_ids(table, (key,))[0]
    check_once(ids, table)
    values = table.numbers(chosen)
    _check_cells(values, table, chosen)
    return FeatureFile(values, ids, True, table.place, file)


def _from_array(path: Path) -> FeatureFile:
    values = read_array_features(path)
    if len(values.shape) != 2:
        raise GraphError(f"{path}: features need the shape [nodes, features], not {list(values.shape)}")
    if 0 in values.shape:
        raise GraphError(f"{path} holds no features: its shape is {list(values.shape)}")
    ids = np.arange(values.shape[0], dtype=np.int64)
    return FeatureFile(values, ids, False, lambda row: f"{path}, row {row} (counted from 0)", path)


def _check_cells(values: npt.NDArray[np.float64], table: Table, columns: Sequence[int]) -> None:
    """Name the cell of a gap here, where its column in the file is still known."""
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        row, position = (int(one) for one in bad[0])
        column = columns[position] if values.shape[1] == len(columns) else None
        word = "empty or NaN" if np.isnan(values[row, position]) else "infinity"
        raise GraphError(
            f"{table.place(row, column)}: the value is {word}; fill the gap or leave the column out"
        )
