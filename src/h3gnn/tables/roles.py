"""Column roles: whether the first row is a header, and which columns hold ids, edge ends or classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.ids import INDEX_NAMES, is_id_name, words_in
from h3gnn.graphs.labels import SPLIT_NAMES
from h3gnn.tables.infer import Cells, InferredType, is_measurement, is_number

if TYPE_CHECKING:
    from h3gnn.tables.reader import Table

SOURCE_NAMES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "head")
TARGET_NAMES = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "tail")
WEIGHT_NAMES = ("weight", "weights", "edge_weight", "w")
ID_NAMES = ("id", "node", "node_id", "nodeid", "name", *INDEX_NAMES)
"""Usual names of ids, the best first; `account_id` and the like come before `name`, see `infer_id_column`."""
CLASS_NAMES = ("label", "labels", "class", "y", "target", "is_fraud")
"""Usual names of the class, the best first."""
SPLIT_PREFIX = "split"
MOST_CLASSES = 50  # A column with more distinct values is not the class, whatever its name
END_WORDS = {
    **{"from": ("to",), "source": ("target", "destination", "dest"), "src": ("dst", "dest", "tgt")},
    **{"sender": ("receiver", "recipient"), "payer": ("payee",), "origin": ("destination", "dest")},
    **{"orig": ("dest",), "caller": ("callee",), "follower": ("followee", "followed"), "citing": ("cited",)},
    **{"head": ("tail",), "start": ("end",), "parent": ("child",), "buyer": ("seller",)},
    **{"debtor": ("creditor",), "left": ("right",), "first": ("second",), "1": ("2",), "a": ("b",)},
}
"""Words in the name of a source, and those in the name of the corresponding target."""

SURE_ENDS = frozenset(END_WORDS) - {"1", "a", "left", "first", "start", "head"}
"""Words that identify a header; the others could name a node."""

NO_ENDS = frozenset(
    [
        *("date", "time", "timestamp", "day", "month", "year", "at", "amount", "balance", "currency"),
        *("country", "city", "lat", "lon", "type", "x", "y"),
    ]
)
"""Words with which `from_date` and `to_date` are not the ends of an edge."""

ROW_WORDS = frozenset(
    [
        *("tx", "txn", "transaction", "transfer", "payment", "edge", "row", "event", "record"),
        *("message", "order", "line"),
    ]
)
"""Words in the id of a row, which is not a node."""

_NAMES = {
    "edges": {*SOURCE_NAMES, *TARGET_NAMES, *WEIGHT_NAMES},
    "features": {*ID_NAMES},
    "labels": {*ID_NAMES, *CLASS_NAMES},
}
FEW_ROWS = 10  # with fewer rows nothing is concluded from repeated values
Column = str | int  # A column by name, or by position counted from 1
Position = TypeVar("Position", int, None)


def pick_column(
    table: Table, wanted: Column | None, what: str, *, known: Sequence[str] = (), default: Position
) -> int | Position:
    """Return the position of a column; without `wanted` the first of the `known` names, else the default."""
    names, path = table.names, table.path
    if wanted is None:
        lowered = [name.lower() for name in names]
        return next((lowered.index(name) for name in known if name in lowered), default)
    if isinstance(wanted, str) and wanted in names:
        if names.count(wanted) > 1:
            raise InputError(
                f"{path}: several columns are called {wanted!r}; give the position instead",
                code="column-ambiguous",
            )
        return names.index(wanted)
    if str(wanted).isdecimal() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    if str(wanted).isdecimal():
        message = f"{path}: there is no column {wanted} for the {what}; the file has {len(names)}"
    else:
        message = f"{path}: there is no column {wanted!r} for the {what}; there are {', '.join(names[:12])}"
    raise InputError(message, code="column-missing")


def row_is_header(rows: Sequence[Sequence[str]], role: str, expected: Sequence[str], path: Path) -> bool:
    """Decide whether the first of some rows holds names.

    It does if it holds a name that the caller asked for; if its first two cells (for features: its first) are
    names that the role knows, such as source and target; if its words are those of names, such as
    from_account and to_account, or account_id; if its first cell is empty; if a column that repeats few words
    below starts with another; or if every column that holds numbers or dates below starts with something
    else. If only some of those columns do, a guess could lose a node, so the user is asked.
    """
    first = rows[0]
    lowered = [cell.lower() for cell in first]
    if any(name in first for name in expected) or lowered[:1] == [""]:
        return True
    needed = 1 if role == "features" else 2
    if len(first) >= needed and all(_is_usual(cell, role) for cell in lowered[:needed]):
        return True
    below = [row for row in rows[1:] if len(row) == len(first)]
    if _looks_like_names(first, below, role):
        return True
    numeric = [
        column
        for column in range(len(first))
        if first[column]
        and any(row[column] for row in below)
        and all(is_measurement(row[column]) for row in below if row[column])
    ]
    named = [column for column in numeric if not is_measurement(first[column])]
    if not named:
        return False
    if len(named) == len(numeric):
        return True
    raise GraphError(
        f"{path}: the first row may be a header or data ({', '.join(first[:4])}); "
        "say which (--header, --no-header)",
        code="header-ambiguous",
    )


def _looks_like_names(first: Sequence[str], below: Sequence[Sequence[str]], role: str) -> bool:
    """Whether the first row holds names of the user's own: none repeats below, and they say id or ends."""
    under = [{row[column] for row in below} for column in range(len(first))]
    if not below or any(
        not name or is_number(name) or name in cells for name, cells in zip(first, under, strict=True)
    ):
        return False
    if role == "edges":
        ids = [pair for pair in _pairs_of_ends(first) if "id" in words_in(first[pair[0]])]
        return bool(ids or _pairs_of_ends(first, SURE_ENDS))
    if any(is_id_name(name) or name.lower() in ID_NAMES for name in first):
        return True
    few = any(len(cells) <= 0.3 * len(below) for cells in under[1:])
    return few and len(below) >= FEW_ROWS and len({*first}) == len(first)


def _is_usual(name: str, role: str) -> bool:
    return name in _NAMES[role] or (role == "labels" and name.startswith(SPLIT_PREFIX))


def infer_id_column(names: Sequence[str], is_unique: Callable[[int], bool]) -> int:
    """Return the column of the node ids: a usual name, else `…_id`, an index, column 1.

    Of several candidates, it is the first in which every row has another value.
    """
    lowered = [name.lower() for name in names]
    usual = [lowered.index(name) for name in ID_NAMES[:4] if name in lowered]
    if usual:
        return usual[0]
    likely = [column for column, name in enumerate(names) if is_id_name(name)]
    likely += [lowered.index(name) for name in ID_NAMES[4:5] if name in lowered]
    pandas_index = [lowered.index(name) for name in INDEX_NAMES if name in lowered]
    first = [0] if 0 not in pandas_index else []
    candidates = list(dict.fromkeys([*likely, *(pandas_index if not likely else []), *first])) or [0]
    return next((column for column in candidates[:-1] if is_unique(column)), candidates[-1])


def infer_ends(names: Sequence[str], place: str = "the edges") -> tuple[int, int, bool]:
    """Return source and target by the names of the columns, and whether the names decide; else 1 and 2.

    Raises:
        GraphError: if several pairs of columns could be meant.
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
        shown = " or ".join(f"{names[start]} to {names[end]}" for start, end in pairs[:3])
        raise GraphError(
            f"{place}: an edge could run from {shown}; say which (--source-column, --target-column)",
            code="edge-columns-ambiguous",
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
    for start, start_words in enumerate(words):
        for word in starts & {*start_words}:
            rest = [one for one in start_words if one != word]
            if NO_ENDS & {*rest} or (not rest and word in ("1", "a")):
                continue
            for end, end_words in enumerate(words):
                other = next((one for one in END_WORDS[word] if one in end_words), None)
                if other is not None and [one for one in end_words if one != other] == rest:
                    found.append((start, end))
    return list(dict.fromkeys(found))


def is_class_name(name: str, names: Sequence[str] = ()) -> bool:
    """Whether a column has a usual name of the class; y beside x is a coordinate."""
    lowered = str(name).lower()
    return lowered in CLASS_NAMES and not (lowered == "y" and "x" in [str(one).lower() for one in names])


def is_question(name: str) -> bool:
    """Whether a name asks for yes or no: is_fraud, hasChildren."""
    return words_in(name)[:1] in (["is"], ["has"])


def is_no_feature(name: str, names: Sequence[str]) -> bool:
    """Whether a column's name is one of ids or classes, which are no features even if they are numbers."""
    return is_id_name(name) or name.lower() in INDEX_NAMES or is_class_name(name, names)


def infer_class_column(names: Sequence[str], columns: Sequence[int]) -> int | None:
    """Return the column among some that most likely holds the class: by its name, else the first."""
    usual = [at for one in CLASS_NAMES for at in columns if names[at].lower() == one]
    words = {*CLASS_NAMES[:4]}
    likely = [at for at in columns if is_question(names[at]) or words & {*words_in(names[at])}]
    return next(iter([*usual, *likely, *columns]), None)


def class_reason(name: str, cells: Cells, found: InferredType, names: Sequence[str]) -> str:
    """Return why a column of features is the class, which is not to be trained on; "" if it is not.

    It is if it has a usual name of the class and few distinct values, or if it is a yes-or-no question that
    is answered in less than half of the rows.
    """
    if is_class_name(name, names) and found.kind not in ("constant", "text", "date", "list"):
        measured = found.kind == "number" and any("." in one for one in cells.distinct)
        if len(cells.distinct) <= MOST_CLASSES and not measured:
            return "its name says that it is the class"
    if is_question(name) and found.kind == "boolean":
        known = len(cells.known) / len(cells)
        if known < 0.5:
            return f"a yes or no that is known for {100 * known:.0f} % of the rows"
    return ""


def is_split_column(name: str, cells: Cells) -> bool:
    """Whether a column assigns nodes to train, val and test."""
    if not str(name).lower().startswith(SPLIT_PREFIX):
        return False
    words = {one.lower() for one in cells.distinct} - {"none"}
    return bool(words) and words <= SPLIT_NAMES.keys()
