"""The columns of a table: whether the first row names them, which are meant, and what values they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.names import PLAIN

if TYPE_CHECKING:
    from h3gnn.graphs.tables import Table

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)

Column = str | int
"""A column by name, or by position counted from 1."""

Position = TypeVar("Position", int, None)


def is_number(cell: str) -> bool:
    """Tell whether a cell holds one number as files write them: no blanks inside, no underscores."""
    return _NUMBER.fullmatch(cell.strip()) is not None


def pick_column(
    table: Table, wanted: Column | None, what: str, *, known: Sequence[str] = (), default: Position
) -> int | Position:
    """Return the position of a column.

    Args:
        table: the table.
        wanted: a name, a position counted from 1, or None for the usual names and then the default.
        what: what the column holds, for the message.
        known: usual names, in lower case, the best first.
        default: the position where nothing else tells; None where the column may be missing.
    """
    names, path = table.names, table.path
    if wanted is None:
        lowered = [name.lower() for name in names]
        return next((lowered.index(name) for name in known if name in lowered), default)
    if isinstance(wanted, str) and wanted in names:
        if names.count(wanted) > 1:
            raise InputError(f"{path}: several columns are called {wanted!r}; give the position instead")
        return names.index(wanted)
    if str(wanted).isdecimal():
        if 1 <= int(wanted) <= len(names):
            return int(wanted) - 1
        raise InputError(f"{path}: there is no column {wanted} for the {what}; the file has {len(names)}")
    raise InputError(
        f"{path}: there is no column {wanted!r} for the {what}; there are {', '.join(names[:12])}"
    )


def words_of(column: Any, place: str) -> tuple[npt.NDArray[Any], int]:
    """Return an Arrow column as int64 where it holds plain whole numbers, else as text, "" where missing.

    Beside it stands the first row without a value, -1 where there is none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count:
        try:
            return np.asarray(column.cast(pa.int64()).to_numpy()), -1
        except pa.ArrowInvalid:
            pass  # beyond 64 bits an id is as good as a text
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    if not any(is_kind(kind) for is_kind in known):
        raise GraphError(f"{place}: {kind} is no kind of id")
    texts = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    if pc.all(pc.match_substring_regex(texts, PLAIN)).as_py():
        try:
            return np.asarray(texts.cast(pa.int64()).to_numpy()), -1
        except pa.ArrowInvalid:
            pass
    encoded = texts.dictionary_encode()  # a text that stands in many rows is made once
    words = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return words[encoded.indices.to_numpy()], int(pc.index(texts, "").as_py())


def numbers_of(column: Any, place: str) -> npt.NDArray[np.float64]:
    """Return an Arrow column as `[rows, values]`, NaN where missing: one value, or those of a list."""
    import pyarrow as pa

    rows = len(column)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if _is_list(kind):
        column, kind = column.flatten(), kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise GraphError(f"{place}: {kind} is not a column of numbers")
    numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64).reshape(rows, -1 if len(numbers) else 0)


def odd_list(column: Any, width: int | None) -> int | None:
    """Return the first row of an Arrow column whose list is longer or shorter than the others, if any.

    Args:
        column: the column; one that holds no lists has no odd one.
        width: the length of the lists before; None at the beginning.
    """
    import pyarrow.compute as pc

    if not _is_list(column.type):
        return None
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    odd = np.flatnonzero(lengths != (max(0, lengths[0]) if width is None else width))
    return int(odd[0]) if odd.size else None


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
