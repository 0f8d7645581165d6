"""Classes and splits as people write them, turned into numbers and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.ids import is_missing

SPLIT_NAMES = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "dev": 1,
    "test": 2,
    "testing": 2,
}


def as_classes(values: Sequence[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Number the classes in order: whole numbers by value, text by alphabet; missing becomes -1."""
    known = [_plain(one) for one in values]
    whole = all(one is None or isinstance(one, int) for one in known)
    distinct = {one for one in known if one is not None}
    ordered = sorted(distinct) if whole else sorted({str(one) for one in distinct})
    number = {str(one): position for position, one in enumerate(ordered)}
    codes = [-1 if one is None else number[str(one)] for one in known]
    return np.array(codes, dtype=np.int64), tuple(str(one) for one in ordered)


def masks_of_split(
    values: Sequence[Any], place: str
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the train, validation and test masks of a column of words; missing means in none of them."""
    codes = np.full(len(values), -1)
    for position, one in enumerate(values):
        word = "" if is_missing(one) else str(one).strip().lower()
        if word in ("", "none"):
            continue
        if word not in SPLIT_NAMES:
            raise GraphError(f"{place}, row {position}: {one!r} is not one of train, val, test")
        codes[position] = SPLIT_NAMES[word]
    return codes == 0, codes == 1, codes == 2


def _plain(one: Any) -> Any:
    """Return an int, a text, or None for missing; NumPy scalars and whole floats become ints."""
    if is_missing(one):
        return None
    if isinstance(one, np.generic):
        one = one.item()
    if isinstance(one, float) and one.is_integer():
        return int(one)
    if isinstance(one, bool):
        return int(one)
    return one if isinstance(one, int) else (str(one) or None)
