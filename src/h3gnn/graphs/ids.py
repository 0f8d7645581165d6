"""Node ids: normalization, lookup, and matching the nodes of two graphs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError, InputError

if TYPE_CHECKING:
    import pandas as pd

    from h3gnn.graphs.graph import GraphLike

PLAIN = r"^(0|-?[1-9][0-9]{0,18})$"
"""Canonical integers. "007" and "+7" stay strings: as integers they would collide with node 7."""

LARGEST_EXACT = 2.0**53
"""From here on a float may represent several integers."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")

BLOCK_ROWS = 1 << 16
"""Rows of features compared at a time."""

Ids = npt.NDArray[Any]
"""Node ids: int64, or strings in an object array."""
Positions = npt.NDArray[np.int64]
"""Positions of nodes, -1 where there is none."""


def as_ids(values: Any, place: str) -> Ids:
    """Return ids as int64 if all are integers, otherwise as strings; `place` names them in error messages."""
    array = np.asarray(values, dtype=None if hasattr(values, "dtype") else object)
    if array.ndim != 1:
        raise GraphError(f"{place} must be one column of node ids", code="ids-not-one-column")
    if array.dtype.kind in "iu" and (array.size == 0 or array.max() < 2**63):
        return array.astype(np.int64)
    ids = dates_as_text(array) if array.dtype.kind in "mM" else array.tolist()
    if ids and all(isinstance(value, int) and not isinstance(value, bool) for value in ids):
        try:
            return np.array(ids, dtype=np.int64)
        except OverflowError:
            pass  # integers beyond 64 bits become strings
    for row, value in enumerate(ids):
        if is_missing(value):
            raise GraphError(f"{place}, row {row}: the node id is missing", code="id-missing")
        if isinstance(value, float) and not abs(value) < LARGEST_EXACT:
            message = (
                f"{place}, row {row}: {value:.17g} is a float and no exact node id; give integers or text"
            )
            raise GraphError(message, code="id-type-invalid")
    texts = np.empty(len(ids), dtype=object)
    texts[:] = [id_text(value) for value in ids]
    return texts


def dates_as_text(dates: Any) -> list[str | None]:
    """Return 2024-01-01 for a date, which `tolist` would return as a count of nanoseconds."""
    import pandas as pd

    texts = pd.Index(dates).astype(str).tolist()
    return [None if missing else text for missing, text in zip(np.isnat(dates), texts, strict=True)]


def id_text(value: Any) -> str:
    """Return "3" for 3.0: pandas stores a column of integers with missing values as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class NodeIndex:
    """Finds nodes by unique ids, or by position if `known` is a number of nodes.

    Ids of different types are compared as strings: "7" and 7 are the same node.
    """

    def __init__(self, known: Ids | int) -> None:
        import pandas as pd

        self._index = pd.RangeIndex(known) if isinstance(known, int) else _indexed(known)
        if not self._index.is_unique:
            duplicate = self._index[int(np.flatnonzero(self._index.duplicated())[0])]
            raise GraphError(f"the node id {quoted(duplicate)} is not unique", code="node-id-duplicate")

    def find(self, wanted: Ids) -> Positions:
        """Return the position of each wanted id, -1 where it is unknown."""
        if self._index.dtype.kind != "i":
            return self._positions(as_text(wanted))
        is_integer = np.ones(wanted.size, dtype=bool)
        if wanted.dtype.kind != "i":
            is_integer = np.array([is_plain(value) for value in wanted.tolist()], dtype=bool)
        found = np.full(wanted.size, -1, dtype=np.int64)
        found[is_integer] = self._positions(wanted[is_integer].astype(np.int64))
        return found

    def _positions(self, wanted: Ids) -> Positions:
        return np.asarray(self._index.get_indexer(_indexed(wanted)), dtype=np.int64)


def _indexed(ids: Ids) -> pd.Index[Any]:
    """Return an index; strings stay objects, because the string type of pandas rejects lone surrogates."""
    import pandas as pd

    index: pd.Index[Any] = pd.Index(ids, dtype=object if ids.dtype.kind == "O" else None)
    return index


def find_ids(wanted: Ids, known: Ids) -> Positions:
    """Return the position of each wanted id among the known ones, -1 where it is unknown."""
    return NodeIndex(known).find(wanted)


def match_by_id_or_position(known: GraphLike, other: GraphLike) -> Positions:
    """Return the node of `known` with the same id as each node of `other`; without ids, the same position."""
    if known.has_ids or other.has_ids:
        return find_ids(other.node_ids, known.node_ids)
    nodes = np.arange(other.num_nodes)
    return np.where(nodes < known.num_nodes, nodes, -1)


def match_nodes(known: GraphLike, other: GraphLike) -> Tensor:
    """Return the node of `known` that equals each node of `other`, or -1.

    Without ids on both sides, nodes are equal if position and features are: position alone could match
    unrelated nodes.
    """
    if known.has_ids and other.has_ids:
        return torch.from_numpy(find_ids(other.node_ids, known.node_ids))
    same = torch.full((other.num_nodes,), -1)
    if known.num_features != other.num_features:
        return same
    shared = min(known.num_nodes, other.num_nodes)
    for start in range(0, shared, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, shared)
        equal = (known.dense_rows(start, stop) == other.dense_rows(start, stop)).all(dim=1)
        same[start:stop] = torch.where(equal, torch.arange(start, stop), -1)
    return same


def match_rows(known: Tensor, rows: Tensor) -> Positions:
    """Return the position of an equal row in `known`, preferably the row's own position, or -1."""
    stored, wanted = known.to_dense().numpy(), rows.to_dense().numpy()
    first: dict[bytes, int] = {}
    for position, row in enumerate(stored):
        first.setdefault(row.tobytes(), position)
    found = np.array([first.get(row.tobytes(), -1) for row in wanted], dtype=np.int64)
    shared = min(len(stored), len(wanted))
    in_place = np.flatnonzero((stored[:shared] == wanted[:shared]).all(axis=1))
    found[in_place] = in_place
    return found


def as_text(ids: Ids) -> Ids:
    """Return ids as strings."""
    if ids.dtype.kind == "O":
        return ids
    texts = np.empty(ids.size, dtype=object)
    texts[:] = [str(value) for value in ids.tolist()]
    return texts


def one_kind(parts: Sequence[Ids]) -> Ids:
    """Concatenate ids: integers if all parts hold integers, otherwise strings."""
    kinds = {part.dtype.kind for part in parts}
    return np.concatenate(parts if len(kinds) == 1 else [as_text(part) for part in parts])


def is_plain(text: str) -> bool:
    """Return whether a string is a canonical 64-bit integer."""
    return re.fullmatch(PLAIN, text) is not None and -(2**63) <= int(text) < 2**63


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def quoted(value: Any) -> str:
    """Return an id for a message: a string in quotation marks, a number without."""
    return repr(value) if isinstance(value, str) else str(value)


def check_ids(ids: Any, path: Path | None = None) -> None:
    """Reject ids that no table, such as the file at `path`, can hold: UTF-8 has no lone surrogates."""
    texts = [one for one in ids if isinstance(one, str)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        node = next(one for one in texts if LONE_SURROGATE.search(one))
        what = "a table" if path is None else str(path)
        message = f"{what} cannot hold the node id {node!a}: it contains a lone surrogate; rename the node"
        raise InputError(message, code="id-not-utf8") from None
