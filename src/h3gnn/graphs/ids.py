"""Names as people write them: of columns, of nodes, of classes, and of the parts of a split."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError, InputError

if TYPE_CHECKING:
    import pandas as pd

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
"""Train, validation and test, by the words that people use."""

INDEX_NAMES = ("index", "level_0", "__index_level_0__", "unnamed: 0")
"""Names that pandas gives to an index that nobody named."""

PLAIN = r"^(0|-?[1-9][0-9]{0,18})$"
"""Whole numbers in their plain form: "007" and "+7" stay texts, for as numbers they would be the node 7."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
Mask = npt.NDArray[np.bool_]


def words_in(name: str) -> list[str]:
    """Return the words of a column's name in lower case: `fromAccount`, `from_account` -> from, account."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", str(name))
    return [word.lower() for word in re.split(r"[\W_]+", apart) if word]


def is_id_name(name: str) -> bool:
    """Tell whether a name says that the column holds ids: id, account_id, accountId, uuid."""
    words = words_in(name)
    return bool(words) and words[-1] in ("id", "ids", "uuid", "guid", "key")


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
    listed = _dates_as_text(array) if array.dtype.kind in "mM" else array.tolist()
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
    texts[:] = [_id_text(one) for one in listed]
    return texts


def _dates_as_text(dates: npt.NDArray[Any]) -> list[str | None]:
    """Return 2024-01-01 for a date, which NumPy would list as so many nanoseconds."""
    import pandas as pd

    texts = pd.Index(dates).astype(str).tolist()
    return [None if gap else text for gap, text in zip(np.isnat(dates), texts, strict=True)]


class NodeIndex:
    """Finds nodes by their ids.

    Ids of different kinds meet as text: a file of numbers finds the nodes "7" and 7 alike.

    Args:
        known: the ids, each of which must stand once; or how many nodes there are, called by position.
    """

    def __init__(self, known: npt.NDArray[Any] | int) -> None:
        import pandas as pd

        self._index = pd.RangeIndex(known) if isinstance(known, int) else _indexed(known)
        if not self._index.is_unique:
            again = self._index[int(np.flatnonzero(self._index.duplicated())[0])]
            raise GraphError(
                f"the node id {quoted(again)} is given twice, so edges that name it have two meanings"
            )

    def find(self, wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the position of each wanted id, -1 where there is none."""
        if self._index.dtype.kind != "i":
            return self._positions(as_text(wanted))
        there = np.ones(wanted.size, dtype=bool)
        if wanted.dtype.kind != "i":
            there = np.array([is_plain(one) for one in wanted.tolist()], dtype=bool)
        found = np.full(wanted.size, -1, dtype=np.int64)
        found[there] = self._positions(wanted[there].astype(np.int64))
        return found

    def _positions(self, wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.asarray(self._index.get_indexer(_indexed(wanted)), dtype=np.int64)


def _indexed(ids: npt.NDArray[Any]) -> pd.Index[Any]:
    """Return an index of ids as they are: a kind for texts of its own has no place for half a character."""
    import pandas as pd

    index: pd.Index[Any] = pd.Index(ids, dtype=object if ids.dtype.kind == "O" else None)
    return index


def find_ids(wanted: npt.NDArray[Any], known: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the position of each wanted id among the known ones, -1 where there is none."""
    return NodeIndex(known).find(wanted)


def as_text(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ids as text."""
    if ids.dtype.kind == "O":
        return ids
    texts = np.empty(ids.size, dtype=object)
    texts[:] = [str(one) for one in ids.tolist()]
    return texts


def one_kind(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join ids: whole numbers where all parts hold them, otherwise text."""
    kinds = {part.dtype.kind for part in parts}
    return np.concatenate(parts if len(kinds) == 1 else [as_text(part) for part in parts])


def whole_beside_gaps(words: npt.NDArray[Any]) -> list[Any]:
    """Return None for gaps and for numbers below 0, and 1 for "1" where gaps alone made text of it."""
    listed = [None if one == "" else one for one in words.tolist()]
    if all(one is None or isinstance(one, int) or is_plain(one) for one in listed):
        numbers = [None if one is None else int(one) for one in listed]
        return [None if one is None or one < 0 else one for one in numbers]
    return listed


def is_plain(text: str) -> bool:
    """Tell a whole number of 64 bits in its plain form."""
    return re.fullmatch(PLAIN, text) is not None and -(2**63) <= int(text) < 2**63


def is_missing(one: Any) -> bool:
    """Tell whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(one, float):
        return math.isnan(one)
    return one is None or type(one).__name__ in ("NAType", "NaTType")


def _id_text(one: Any) -> str:
    """Return 3 for 3.0: a column of whole numbers with a gap arrives as floats."""
    return str(int(one)) if isinstance(one, float) and one.is_integer() else str(one)


def quoted(one: Any) -> str:
    """Return an id for a message: text in quotation marks, a number without."""
    return repr(one) if isinstance(one, str) else str(one)


def as_classes(values: Sequence[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Number the classes in order: whole numbers by value, text by alphabet; missing becomes -1."""
    known = [_plain(one) for one in values]
    whole = all(one is None or isinstance(one, int) for one in known)
    distinct = {one for one in known if one is not None}
    ordered = sorted(distinct) if whole else sorted({str(one) for one in distinct})
    number = {str(one): position for position, one in enumerate(ordered)}
    codes = [-1 if one is None else number[str(one)] for one in known]
    return np.array(codes, dtype=np.int64), tuple(str(one) for one in ordered)


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


def as_labels(values: Any) -> npt.NDArray[np.int64]:
    """Return one whole number per node; `[nodes, 1]` and whole floats are accepted, NaN is unknown."""
    labels = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        if not (np.isfinite(labels) & (labels == np.floor(labels))).all():
            raise GraphError("the labels are not whole numbers; h3gnn carries classes, not measured values")
    elif labels.dtype.kind not in "iub":
        raise GraphError(f"the labels must be whole numbers, not {labels.dtype}")
    return labels.astype(np.int64)


def as_masks(train: Any, val: Any, test: Any) -> tuple[Any, Any, Any] | None:
    """Return three masks `[nodes, splits]`; a missing one is empty, a single column serves every split."""
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
    """Return the train, validation and test masks of words; a missing one is in none of them.

    Args:
        values: the words.
        place: names a row for the error message.
    """
    words = ["" if is_missing(one) else str(one).strip().lower() for one in values]
    code = {word: SPLIT_NAMES.get(word, -1) for word in set(words)}
    if unknown := {word for word in code if code[word] < 0} - {"", "none"}:
        row = next(row for row, word in enumerate(words) if word in unknown)
        raise GraphError(f"{place(row)}: {str(values[row])!r} is not one of train, val, test")
    codes = np.array([code[word] for word in words], dtype=np.int64)
    return codes == 0, codes == 1, codes == 2


def check_ids(ids: Any, path: Path | None = None) -> None:
    """Reject ids that no table can hold: UTF-8 cannot encode lone surrogates, and pandas fails on them.

    Args:
        ids: node ids.
        path: the file that is to be written, if there is one.
    """
    texts = [one for one in ids if isinstance(one, str)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        node = next(one for one in texts if LONE_SURROGATE.search(one))
        what = "a table" if path is None else str(path)
        raise InputError(
            f"{what} cannot hold the node id {node!a}: it contains a lone surrogate; rename the node",
            code="id-not-utf8",
        ) from None
