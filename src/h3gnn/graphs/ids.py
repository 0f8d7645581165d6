"""Names of nodes: whole numbers where all of them are, text otherwise, never a mixture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError


def as_ids(values: Any, place: str) -> npt.NDArray[Any]:
    """Return ids as int64 where all are whole numbers, otherwise as text in an object array.

    Args:
        values: any sequence of ids.
        place: where they stand, for the error message.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise GraphError(f"{place} must be one column of node ids")
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    listed = array.tolist()
    whole = [isinstance(one, int) and not isinstance(one, bool) for one in listed]
    if all(whole) and listed:
        try:
            return np.array(listed, dtype=np.int64)
        except OverflowError:
            pass  # beyond 64 bits an id is as good as a text
    missing = [position for position, one in enumerate(listed) if is_missing(one)]
    if missing:
        raise GraphError(f"{place}, row {missing[0]}: the node id is missing")
    texts = np.empty(len(listed), dtype=object)
    texts[:] = [_as_text(one) for one in listed]
    return texts


def find_ids(wanted: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the position of each wanted id among the known ones, -1 where there is none.

    Ids of different kinds meet as text: a file of numbers finds the nodes "7" and 7 alike.
    """
    import pandas as pd

    if wanted.dtype.kind != known.dtype.kind:
        wanted, known = as_text(wanted), as_text(known)
    index = pd.Index(known)
    if not index.is_unique:
        again = known[int(np.flatnonzero(index.duplicated())[0])]
        raise GraphError(f"the node id {again!r} is given twice, so edges that name it have two meanings")
    return np.asarray(index.get_indexer(pd.Index(wanted)), dtype=np.int64)


def as_text(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ids as text."""
    if ids.dtype.kind == "O":
        return ids
    texts = np.empty(ids.size, dtype=object)
    texts[:] = [str(one) for one in ids.tolist()]
    return texts


def whole_numbers(texts: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Return texts as int64 where every one is a whole number in its plain form, None otherwise.

    "007" and "+7" stay texts: as numbers they would become the same node as "7".
    """
    try:
        numbers = texts.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    plain = numbers.astype(str).astype(object)
    return numbers if bool((plain == texts).all()) else None


def is_missing(one: Any) -> bool:
    """Tell whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(one, float):
        return math.isnan(one)
    return one is None or type(one).__name__ in ("NAType", "NaTType")


def _as_text(one: Any) -> str:
    """Return 3 for 3.0: a column of whole numbers with a gap arrives as floats."""
    return str(int(one)) if isinstance(one, float) and one.is_integer() else str(one)


def quoted(one: Any) -> str:
    """Return an id for a message: text in quotation marks, a number without."""
    return repr(one) if isinstance(one, str) else str(one)
