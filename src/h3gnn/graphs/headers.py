"""Telling a header from the first row of data, and finding the columns that are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from h3gnn.errors import GraphError, InputError

SOURCE_NAMES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "head")
TARGET_NAMES = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "tail")
WEIGHT_NAMES = ("weight", "weights", "edge_weight", "w")
ID_NAMES = ("id", "node", "node_id", "nodeid", "name", "index", "__index_level_0__")
LABEL_NAMES = ("label", "labels", "class", "y", "target", "category")
SPLIT_PREFIX = "split"

_NAMES = {
    "edges": {*SOURCE_NAMES, *TARGET_NAMES, *WEIGHT_NAMES},
    "features": {*ID_NAMES},
    "labels": {*ID_NAMES, *LABEL_NAMES},
}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)


def is_number(cell: str) -> bool:
    """Tell whether a cell holds one number as files write them: no blanks inside, no underscores."""
    return _NUMBER.fullmatch(cell.strip()) is not None


def row_is_header(rows: Sequence[Sequence[str]], role: str, expected: Sequence[str], path: Path) -> bool:
    """Decide whether the first of some rows holds names.

    It does when it holds a name that the caller asked for; when its first two cells (for features: its
    first) are names that the role knows, such as source and target; when its first cell is empty; or when
    every column that holds numbers below starts with something that is no number. Where only some of those
    columns do, a guess could lose a node, so the person is asked.
    """
    first = rows[0]
    lowered = [cell.lower() for cell in first]
    if any(name in first for name in expected) or lowered[:1] == [""]:
        return True
    needed = 1 if role == "features" else 2
    if len(first) >= needed and all(_is_usual(cell, role) for cell in lowered[:needed]):
        return True
    below = [row for row in rows[1:] if len(row) == len(first)]
    numeric = [
        column
        for column in range(len(first))
        if any(row[column] for row in below) and all(is_number(row[column]) for row in below if row[column])
    ]
    switching = [column for column in numeric if first[column] and not is_number(first[column])]
    if not switching:
        return False
    if len(switching) == len([column for column in numeric if first[column]]):
        return True
    raise GraphError(
        f"{path}: the first row may be a header or data ({', '.join(first[:4])}); "
        "say which (--header, --no-header)"
    )


def _is_usual(name: str, role: str) -> bool:
    return name in _NAMES[role] or (role == "labels" and name.startswith(SPLIT_PREFIX))


def pick_column(
    names: Sequence[str],
    wanted: str | int | None,
    *,
    known: Sequence[str],
    default: int | None,
    path: Path,
    what: str,
) -> int | None:
    """Return the position of a column.

    Args:
        names: the columns of the table.
        wanted: a name, a position counted from 1, or None for the usual names and then the default.
        known: usual names, in lower case, the best first.
        default: the position where nothing else tells; None where the column may be missing.
        path: the file, for the message.
        what: what the column holds, for the message.
    """
    if wanted is None:
        lowered = [name.lower() for name in names]
        return next((lowered.index(name) for name in known if name in lowered), default)
    if isinstance(wanted, str) and wanted in names:
        if list(names).count(wanted) > 1:
            raise InputError(f"{path}: several columns are called {wanted!r}; give the position instead")
        return list(names).index(wanted)
    if str(wanted).isdecimal():
        position = int(wanted)
        if 1 <= position <= len(names):
            return position - 1
        raise InputError(f"{path}: there is no column {position} for the {what}; the file has {len(names)}")
    raise InputError(
        f"{path}: there is no column {wanted!r} for the {what}; there are {', '.join(names[:12])}"
    )
