"""The names of columns: whether the first row holds them, and what they say of ids and the ends of edges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.ids import INDEX_NAMES, PLAIN, is_id_name, words_in
from h3gnn.tables.infer import ISO

if TYPE_CHECKING:
    from h3gnn.tables.reader import Table

SOURCE_NAMES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "head")
TARGET_NAMES = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "tail")
WEIGHT_NAMES = ("weight", "weights", "edge_weight", "w")
ID_NAMES = ("id", "node", "node_id", "nodeid", "name", *INDEX_NAMES)
"""Usual names of ids; `account_id` and the like stand before the last ones, see `pick_ids`."""
LABEL_NAMES = ("label", "labels", "class", "y", "target", "category")
SPLIT_PREFIX = "split"
END_WORDS = {
    **{"from": ("to",), "source": ("target", "destination", "dest"), "src": ("dst", "dest", "tgt")},
    **{"sender": ("receiver", "recipient"), "payer": ("payee",), "origin": ("destination", "dest")},
    **{"orig": ("dest",), "caller": ("callee",), "follower": ("followee", "followed"), "citing": ("cited",)},
    **{"head": ("tail",), "start": ("end",), "parent": ("child",), "buyer": ("seller",)},
    **{"debtor": ("creditor",), "left": ("right",), "first": ("second",), "1": ("2",), "a": ("b",)},
}
"""Words in the name of a source, and those in the name of the target that goes with it."""

SURE_ENDS = frozenset(END_WORDS) - {"1", "a", "left", "first", "start", "head"}
"""Words that tell a header; the others could name a node."""

NO_ENDS = frozenset(
    [
        "date",
        "time",
        "timestamp",
        "day",
        "month",
        "year",
        "at",
        "amount",
        "balance",
        "currency",
        "country",
        "city",
        "lat",
        "lon",
        "type",
        "x",
        "y",
    ]
)
"""Words that make of `from_date` and `to_date` something else than the ends of an edge."""

ROW_WORDS = frozenset(
    [
        "tx",
        "txn",
        "transaction",
        "transfer",
        "payment",
        "edge",
        "row",
        "event",
        "record",
        "message",
        "order",
        "line",
    ]
)
"""Words in the id of a row, which is no node."""

_NAMES = {
    "edges": {*SOURCE_NAMES, *TARGET_NAMES, *WEIGHT_NAMES},
    "features": {*ID_NAMES},
    "labels": {*ID_NAMES, *LABEL_NAMES},
}
FEW_ROWS = 10
"""With fewer rows than this nothing is concluded from what stands again."""


def row_is_header(rows: Sequence[Sequence[str]], role: str, expected: Sequence[str], path: Path) -> bool:
    """Decide whether the first of some rows holds names.

    It does when it holds a name that the caller asked for; when its first two cells (for features: its
    first) are names that the role knows, such as source and target; when its words are those of names, such
    as from_account and to_account, or account_id; when its first cell is empty; when a column that repeats
    few words below starts with another; or when every column that holds numbers or dates below starts with
    something else. Where only some of those columns do, a guess could lose a node, so the person is asked.
    """
    first = rows[0]
    lowered = [cell.lower() for cell in first]
    if any(name in first for name in expected) or lowered[:1] == [""]:
        return True
    needed = 1 if role == "features" else 2
    if len(first) >= needed and all(_is_usual(cell, role) for cell in lowered[:needed]):
        return True
    below = [row for row in rows[1:] if len(row) == len(first)]
    if _speaks_of_columns(first, below, role):
        return True
    numeric = [
        column
        for column in range(len(first))
        if any(row[column] for row in below)
        and all(_is_measured(row[column]) for row in below if row[column])
    ]
    switching = [column for column in numeric if first[column] and not _is_measured(first[column])]
    if not switching:
        return False
    if len(switching) == len([column for column in numeric if first[column]]):
        return True
    raise GraphError(
        f"{path}: the first row may be a header or data ({', '.join(first[:4])}); "
        "say which (--header, --no-header)"
    )


def _is_measured(cell: str) -> bool:
    return is_number(cell) or ISO.fullmatch(cell.strip()) is not None


def _speaks_of_columns(first: Sequence[str], below: Sequence[Sequence[str]], role: str) -> bool:
    """Tell names in a person's own words: none stands again below, and they say id, or from and to."""
    under = [{row[column] for row in below} for column in range(len(first))]
    if not below or any(
        not name or is_number(name) or name in met for name, met in zip(first, under, strict=True)
    ):
        return False
    if role == "edges":
        ids = [pair for pair in _pairs_of_ends(first) if "id" in " ".join(words_in(first[pair[0]])).split()]
        return bool(ids or _pairs_of_ends(first, SURE_ENDS))
    if any(is_id_name(name) or name.lower() in ID_NAMES for name in first):
        return True
    few = any(len(met) <= 0.3 * len(below) for met in under[1:])
    return few and len(below) >= FEW_ROWS and len({*first}) == len(first)


def _is_usual(name: str, role: str) -> bool:
    return name in _NAMES[role] or (role == "labels" and name.startswith(SPLIT_PREFIX))


def pick_ids(table: Table, wanted: Column | None) -> int:
    """Return the column of the node ids: the given one, else a usual name, `…_id`, an index, column 1.

    Of several that may be meant, it is the first in which every row has another value.
    """
    if wanted is not None:
        return pick_column(table, wanted, "node ids", default=0)
    lowered = [name.lower() for name in table.names]
    usual = [lowered.index(name) for name in ID_NAMES[:4] if name in lowered]
    if usual:
        return usual[0]
    likely = [column for column, name in enumerate(table.names) if is_id_name(name)]
    likely += [lowered.index(name) for name in ID_NAMES[4:5] if name in lowered]
    pandas_index = [lowered.index(name) for name in INDEX_NAMES if name in lowered]
    first = [0] if 0 not in pandas_index else []
    candidates = list(dict.fromkeys([*likely, *(pandas_index if not likely else []), *first])) or [0]
    return next((column for column in candidates[:-1] if _is_different(table, column)), candidates[-1])


def _is_different(table: Table, column: int) -> bool:
    """Tell whether every row of a column has a value, and another one."""
    import pandas as pd

    try:
        words = table.read([], words=[column]).words[0]
    except GraphError:
        return False
    return bool(pd.Index(words).is_unique) and "" not in words[:1]


def pick_ends(table: Table) -> tuple[int, int, bool]:
    """Return source and target of a table by `ends_of`; columns without names are the first two."""
    return ends_of(table.names, str(table.path)) if table.header else (0, 1, False)


def ends_of(names: Sequence[str], place: str = "the edges") -> tuple[int, int, bool]:
    """Return source and target by the names of the columns, and whether the names tell; else 1 and 2.

    Raises:
        GraphError: where several pairs of columns could be meant.
    """
    lowered = [name.lower() for name in names]
    start = next((lowered.index(name) for name in SOURCE_NAMES if name in lowered), None)
    end = next((lowered.index(name) for name in TARGET_NAMES if name in lowered), None)
    if start is not None and end is not None:
        return start, end, True
    pairs = _pairs_of_ends(names)
    named = [pair for pair in pairs if any(is_id_name(names[column]) for column in pair)]
    pairs = named if len(named) == 1 else pairs
    if len(pairs) > 1:
        told = " or ".join(f"{names[start]} to {names[end]}" for start, end in pairs[:3])
        raise GraphError(
            f"{place}: an edge could run from {told}; say which (--source-column, --target-column)"
        )
    if pairs:
        return *pairs[0], True
    ids = [at for at, name in enumerate(names) if is_id_name(name) and not ROW_WORDS & {*words_in(name)}]
    if len(ids) == 2:
        return ids[0], ids[1], True
    return 0, 1, False


def _pairs_of_ends(
    names: Sequence[str], starts: frozenset[str] = frozenset(END_WORDS)
) -> list[tuple[int, int]]:
    """Return the columns whose names differ by one pair of words: from_account, to_account."""
    words = [re.sub(r"(?<=\D)(\d)$", r" \1", " ".join(words_in(name))).split() for name in names]
    found = []
    for start, of_start in enumerate(words):
        for word in starts & {*of_start}:
            rest = [one for one in of_start if one != word]
            if NO_ENDS & {*rest} or (not rest and word in ("1", "a")):
                continue
            for end, of_end in enumerate(words):
                other = next((one for one in END_WORDS[word] if one in of_end), None)
                if other is not None and [one for one in of_end if one != other] == rest:
                    found.append((start, end))
    return list(dict.fromkeys(found))


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
