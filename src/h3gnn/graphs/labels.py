"""Labels and splits as users give them, converted to class numbers and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.ids import is_missing, is_plain

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
"""Names of the train (0), validation (1) and test (2) part of a split."""

Mask = npt.NDArray[np.bool_]


def as_classes(values: Sequence[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Number the classes in order, integers by value and strings alphabetically; missing values become -1."""
    known = [_plain(value) for value in values]
    integers = all(value is None or isinstance(value, int) for value in known)
    distinct = {value for value in known if value is not None}
    ordered = sorted(distinct) if integers else sorted({str(value) for value in distinct})
    number = {str(value): position for position, value in enumerate(ordered)}
    codes = [-1 if value is None else number[str(value)] for value in known]
    return np.array(codes, dtype=np.int64), tuple(str(value) for value in ordered)


def _plain(value: Any) -> Any:
    """Return an int, a string, or None for missing; NumPy scalars and integral floats become ints."""
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value if isinstance(value, int) else (str(value) or None)


def as_labels(values: Any) -> npt.NDArray[np.int64]:
    """Return one integer per node; `[nodes, 1]` and integral floats are accepted, NaN is unknown."""
    labels = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        if not (np.isfinite(labels) & (labels == np.floor(labels))).all():
            raise GraphError("labels must be classes, not real numbers", code="labels-not-integers")
    elif labels.dtype.kind not in "iub":
        raise GraphError(f"labels must be integers, not {labels.dtype}", code="labels-not-integers")
    return labels.astype(np.int64)


def known_labels(ids: npt.NDArray[Any]) -> list[Any]:
    """Return None for missing and negative labels, and integers where only missing values made strings."""
    values = [None if value == "" else value for value in ids.tolist()]
    if all(value is None or isinstance(value, int) or is_plain(value) for value in values):
        numbers = [None if value is None else int(value) for value in values]
        return [None if number is None or number < 0 else number for number in numbers]
    return values


def as_masks(train: Any, val: Any, test: Any) -> tuple[Any, Any, Any] | None:
    """Return three masks `[nodes, splits]`; a missing one is empty, one column serves all splits."""
    given = [None if mask is None else torch.as_tensor(mask).bool() for mask in (train, val, test)]
    if given[0] is None:
        return None
    shaped = [None if mask is None else mask.reshape(mask.shape[0], -1) for mask in given]
    splits = max(mask.shape[1] for mask in shaped if mask is not None)
    empty = torch.zeros(given[0].shape[0], splits, dtype=torch.bool)
    full = [
        empty if mask is None else mask.expand(-1, splits) if mask.shape[1] == 1 else mask for mask in shaped
    ]
    return full[0], full[1], full[2]


def split_masks(values: Sequence[Any], place: Callable[[int], str]) -> tuple[Mask, Mask, Mask]:
    """Return the train, validation and test masks of a column of split names; missing names are in no mask.

    Args:
        values: the names.
        place: returns the name of a row for error messages.
    """
    words = ["" if is_missing(value) else str(value).strip().lower() for value in values]
    code = {word: SPLIT_NAMES.get(word, -1) for word in set(words)}
    if unknown := {word for word in code if code[word] < 0} - {"", "none"}:
        row = next(row for row, word in enumerate(words) if word in unknown)
        raise GraphError(
            f"{place(row)}: {str(values[row])!r} is not one of train, val, test", code="split-unknown"
        )
    codes = np.array([code[word] for word in words], dtype=np.int64)
    return codes == 0, codes == 1, codes == 2
