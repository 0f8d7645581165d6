"""Tables in memory: what the index, columns and rows of DataFrames and arrays mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.checks import as_numpy, is_sparse
from h3gnn.graphs.ids import as_ids, find_ids, quoted
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.roles import SOURCE_NAMES, TARGET_NAMES

TableOfEdges = tuple[npt.NDArray[np.int64], npt.NDArray[Any] | None, tuple[Repair, ...]]
"""Edges `[2, edges]`, their weights, and unused columns."""


def is_frame(values: Any) -> bool:
    """Whether an object is one of pandas, without importing pandas."""
    return any(cls.__module__.partition(".")[0] == "pandas" for cls in type(values).__mro__)


def is_table(values: Any) -> bool:
    """Whether an object is a data frame of pandas or Polars, or an Arrow table."""
    return hasattr(values, "columns") and (is_frame(values) or hasattr(values, "to_pandas"))


def as_frame(table: Any) -> Any:
    """Convert a Polars or Arrow table to a DataFrame; other objects are returned unchanged."""
    return table.to_pandas() if hasattr(table, "to_pandas") and not is_frame(table) else table


def column_names(table: Any) -> tuple[str, ...]:
    """Return the column names of a DataFrame; () without names, or if they only count."""
    if not is_frame(table) or not hasattr(table, "columns"):
        return ()
    names = tuple(str(name) for name in table.columns)
    again = next((name for position, name in enumerate(names) if name in names[:position]), None)
    if again is not None:
        message = f"{again!r} names more than one column of the features: rename one of them"
        raise GraphError(message, code="column-duplicate")
    return () if names == counted(len(names)) else names


def counted(columns: int) -> tuple[str, ...]:
    """Return the names of columns without names: their positions."""
    return tuple(str(position) for position in range(columns))


def numbers_of_table(features: Any) -> Any:
    """Return the numbers of an array or a sparse matrix, `[nodes, features]`."""
    try:
        table = features if is_sparse(features) or isinstance(features, Tensor) else np.asarray(features)
    except ValueError:
        message = "the features are ragged: their rows do not all have the same length"
        raise GraphError(message, code="not-an-array") from None
    if len(table.shape) != 2:
        message = f"the features must be a table, one row per node, but have {len(table.shape)} dimension(s)"
        raise GraphError(message, code="features-not-a-table")
    return table


def names_edges(table: Any) -> bool:
    """Whether the columns of a DataFrame have the usual names of the ends of an edge."""
    names = {name.lower() for name in map(str, getattr(table, "columns", ()))}
    return bool(names & {*SOURCE_NAMES} and names & {*TARGET_NAMES})


def edges_of_array(edges: Any, known: npt.NDArray[Any]) -> TableOfEdges:
    """Return `[2, edges]` unchanged; rows of source and target are transposed, further columns are not used.

    An array of two rows is always `[2, edges]`. Numbers are positions; anything else is the id of a node.
    """
    array = as_numpy(edges, "the edges")
    odd = array.ndim != 2 or array.shape[1] not in (2, 3, 4) or array.shape in ((1, 3), (1, 4))
    if odd or len(array) == 2:
        return array, None, ()  # [2, edges], or a shape that the check of a graph rejects
    ends = array[:, :2]
    if ends.dtype.kind in "OUS":
        ends = np.stack([_positions(ends[:, one], f"column {one + 1}", known) for one in range(2)], axis=1)
    elif not (np.isfinite(ends) & (ends == np.floor(ends)) & (np.abs(ends) < 2**53)).all():
        message = "the first two columns of the edges must be integers, the positions of nodes"
        raise GraphError(message, code="edge-index-not-integers")
    unused = unused_columns([f"column {one + 1}" for one in range(2, array.shape[1])])
    return ends.astype(np.int64).T, None, unused


def unused_columns(names: list[str]) -> tuple[Repair, ...]:
    """Return the repair that names unused columns of a table of edges, if there are any."""
    if not names:
        return ()
    message = f"edges: not used: {shortened(names)}; only a column called weight holds edge weights"
    return (Repair("edge-columns-unused", message, fields=tuple(names), warn=True),)


def _positions(column: Any, place: str, known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    ids = as_ids(column, f"the {place} of the edges")
    found = find_ids(ids, known)
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        message = f"edges, row {row}: node {quoted(ids[row])} is unknown; it has no row in the features"
        raise GraphError(message, code="edge-node-unknown")
    return found
