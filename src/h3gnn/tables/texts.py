"""Text and JSON files: the delimiter, whether the first row holds names, and the cells of linked tables.

Where a choice would be a guess, the user is asked. The cells of a text file stay text.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from h3gnn.errors import GraphError, shortened
from h3gnn.tables.files import split_line
from h3gnn.tables.infer import is_measurement, is_missing_word
from h3gnn.tables.notations import date_form, find_notation
from h3gnn.tables.roles import (
    CLASS_NAMES,
    ID_NAMES,
    SPLIT_PREFIX,
    SURE_ENDS,
    is_id_name,
    pairs_of_ends,
    words_in,
)

RARELY = 1 / 150  # the chance below which a row that differs from all others is no data
ENDS_ONLY = SURE_ENDS - {"origin", "parent", "buyer"}
"""Words that name the end of an edge and hardly a node, so that they need no word beside them."""

Row = Sequence[str]


def find_delimiter(rows: Sequence[str], path: Path) -> str:
    """Return the character that divides some rows into equally many cells; the user is asked if two do.

    A semicolon divides numbers with decimal commas.
    """
    there = [mark for mark in "\t,;|" if mark in rows[0]]
    if len(there) < 2:
        return there[0] if there else " "
    even = [mark for mark in there if len({len(split_line(row, mark)) for row in rows}) == 1] or there
    if {",", ";"} <= {*even}:
        cells = [split_line(row, ";") for row in rows[1:] or rows]
        with_commas = [cell.strip() for row in cells for cell in row if "," in cell]
        if all(find_notation([cell]) for cell in with_commas):
            if any("," in row[0] for row in cells):
                message = f"{path}: both , and ; divide the rows evenly; choose --delimiter"
                raise GraphError(message, code="delimiter-ambiguous")
            return ";"
    return even[0]


def find_header(rows: Sequence[Row], role: str, expected: Sequence[str], path: Path) -> bool:
    """Return whether the first of some rows holds names.

    It does if it holds a name that the caller asked for; if it has the words of a header, such as source and
    target, from_account and to_account, id, or account_id; if its first cell is empty; if every column that
    holds numbers or dates below starts with something else; or if its cells differ in form and value from all
    below. Where the cells disagree with the words, the user is asked.
    """
    first = rows[0]
    if any(name in first for name in expected):
        return True
    below = [row for row in rows[1:] if len(row) == len(first)]
    columns = [[row[at] for row in below if not _is_gap(row[at])] for at in range(len(first))]
    numeric = [
        at for at, cells in enumerate(columns) if cells and all(map(holds_value, dict.fromkeys(cells)))
    ]
    numeric = [at for at in numeric if not _is_gap(first[at])]
    numbers = [first[at] for at in numeric if holds_value(first[at])]
    counted = len(numbers) > 1 and _are_consecutive(numbers)  # years, or columns without names
    if not first[0]:
        return counted or len(numbers) < len(numeric) or not numeric
    if names := _role_names(first, role):
        disagrees = numbers and len(numbers) == len(numeric) and not counted
        if disagrees or any(name in cells for name in names for cells in columns):
            _ask(first, path)
        return True
    if numbers and len(numbers) < len(numeric):
        _ask(first, path)
    only_counts = role == "edges" and len(numbers) == len(first) and numbers[0] == "0"  # pandas without names
    if counted and _may_be_names(numbers) and (only_counts or (role == "features" and 0 not in numeric)):
        _ask(first, path)
    if numeric or any(map(_is_gap, first)):  # no column is called NA
        return bool(numeric) and not numbers
    return _differs(first, columns, role)


def _ask(first: Row, path: Path) -> None:
    cells = shortened(first, 4)
    message = f"{path}: the first row may be a header or data ({cells}); choose --header or --no-header"
    raise GraphError(message, code="header-ambiguous")


def _is_gap(cell: str) -> bool:
    return not cell or is_missing_word(cell)


def holds_value(cell: str) -> bool:
    """Whether a cell holds a number, with or without a unit, a date, or a word for a missing one."""
    return (
        _is_gap(cell)
        or is_measurement(cell)
        or find_notation([cell]) is not None
        or date_form([cell]) is not None
    )


def _are_consecutive(numbers: Row) -> bool:
    """Whether some texts are integers that count."""
    if not all(one.isdecimal() and len(one) < 10 for one in numbers):
        return False
    return [int(one) for one in numbers] == [*range(int(numbers[0]), int(numbers[0]) + len(numbers))]


def _may_be_names(numbers: Row) -> bool:
    """Whether consecutive integers may name columns: years, or positions."""
    start = int(numbers[0])
    return 1800 <= start <= 2100 or (start < 2 and len(numbers) > 2)


def _role_names(first: Row, role: str) -> list[str]:
    """Return the cells of a row that are the words of a header; none if the words could be data."""
    if role == "edges":
        pairs = [
            pair
            for pair in pairs_of_ends(first, SURE_ENDS)
            if ENDS_ONLY & {*words_in(first[pair[0]])} or len(words_in(first[pair[0]])) > 1
        ]
        ids = [name for name in first if is_id_name(name) and len(words_in(name)) > 1]
        return [first[at] for at in pairs[0]] if pairs else ids if len(ids) > 1 else []
    lowered = [name.lower() for name in first]
    ids = [name for name in first if is_id_name(name) and (len(words_in(name)) > 1 or name.lower() == "id")]
    ids += [first[0]] if lowered[0] in ID_NAMES else []
    if role == "labels" and not ids and len(first) > 1:
        known = [one in CLASS_NAMES or one.startswith(SPLIT_PREFIX) for one in lowered[:2]]
        return list(first[:2]) if all(known) else []
    return ids


def _differs(first: Row, columns: Sequence[Row], role: str) -> bool:
    """Whether the ids have another form than all below, and it is unlikely that a data row differs so."""
    chance = 1.0
    for at, (cell, below) in enumerate(zip(first, columns, strict=True)):
        by_form = _chance(_form(cell), [_form(one) for one in below])
        if by_form == 1.0 and at < (2 if role == "edges" else 1):
            return False
        chance *= min(by_form, _chance(cell, below))
    return chance < RARELY


def _chance(cell: str, below: Row) -> float:
    """Return the estimated probability of a value that no other row has (Good-Turing); 1 if one has it."""
    counts = Counter(below)
    if cell in counts or not below:
        return 1.0
    return (1 + sum(count == 1 for count in counts.values())) / (1 + len(below))


def _form(cell: str) -> str:
    """Return a cell with letters and digits replaced: C-001 -> a-9."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", cell))


NULLS = ("\\N", "NULL")
"""What database exports write for a missing value."""
SAMPLE_LINES, SAMPLE_BYTES = 500, 1 << 20
UNIT, COMMA = "\x1f", "\u2063"
"""Characters in place of a delimiter of two, and of a comma within a text."""
SPACED = (".dat", ".asc", ".txt")
"""Endings of files whose cells may be divided by spaces."""


def read_json(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read records, one JSON object per line, or an object from ids to values; return notes as well."""
    content, notes = _content(path).decode("utf-8-sig"), []
    try:
        found: Any = json.loads(content)
    except json.JSONDecodeError:
        found = [json.loads(line) for line in content.splitlines() if line.strip()]
    if isinstance(found, dict):
        notes.append(f"{path.name} is one object: its names are read as ids, its values as rows")
        if all(isinstance(one, list) for one in found.values()):
            return pd.DataFrame({"id": [*found], "items": pd.Series([*found.values()], dtype=object)}), notes
        items = found.items()
        found = [{"id": key} | (one if isinstance(one, dict) else {"value": one}) for key, one in items]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise GraphError("not a list of records, or an object from ids to values", code="json-not-a-table")
    return pd.json_normalize(found), notes


def read_text(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read a text file, of which quoted cells may span lines, and return notes on how it was read."""
    import pyarrow as pa

    content, notes = _decoded(path)
    lines = [line for line in content[:SAMPLE_BYTES].splitlines()[:SAMPLE_LINES] if line]
    if not lines:
        raise GraphError("it has no row", code="table-empty")
    if _is_even(lines, "::"):
        content, lines = content.replace("::", UNIT), [line.replace("::", UNIT) for line in lines]
    mark = _delimiter(lines, path)
    cells = [[cell.strip() for cell in split_line(line, mark)] for line in lines]
    header, note = _has_header(cells, path)
    notes += [f"{path.name}: {note}"] if note else []
    names = [(name if header else "") or f"column {at + 1}" for at, name in enumerate(cells[0])]
    check_names(names)
    try:
        table = _parse(content, names, mark, header=header)
    except pa.ArrowInvalid:
        if mark != ",":
            raise
        table = _parse(content.replace(", ", COMMA), names, mark, header=header)
        table = table.map(lambda cell: cell.replace(COMMA, ", ") if COMMA in cell else cell)
        note = "a comma before a space belongs to the text: otherwise rows differ in length"
        notes.append(f"{path.name}: {note}")
    return table.replace(dict.fromkeys(("", *NULLS))), notes


def _has_header(cells: Sequence[Sequence[str]], path: Path) -> tuple[bool, str]:
    """Return whether the first row holds names, and a note unless that is clear.

    A row of texts above texts holds names unless one of them occurs below, since few tables have no header.
    """
    try:
        if len(cells) > 1 and find_header(cells, "features", (), path):
            return True, ""
    except GraphError as error:
        message = f"{str(error).partition('; ')[0]}: write the names of its columns into the first row"
        raise GraphError(message, code=error.code) from None
    known = [{row[at] for row in cells[1:] if len(row) > at} for at in range(len(cells[0]))]
    texts = not any(map(holds_value, cells[0])) and len({*cells[0]}) == len(cells[0])
    if texts and not any(one in below for one, below in zip(cells[0], known, strict=True)):
        return True, "its first row is taken for the names of its columns"
    return False, "it has no header, and its columns are called column 1, column 2, …"


def check_names(names: Sequence[str]) -> None:
    """Raise if two columns have the same name."""
    again = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if again is not None:
        raise GraphError(f"several columns are called {again!r}: rename one of them", code="column-duplicate")


def _is_even(lines: Sequence[str], mark: str) -> bool:
    """Whether a delimiter divides all lines into equally many cells, more than one."""
    counts = {line.count(mark) for line in lines}
    return len(counts) == 1 and counts != {0}


def _delimiter(lines: Sequence[str], path: Path) -> str:
    """Return the delimiter of a file; a comma if there is none."""
    if UNIT in lines[0]:
        return UNIT
    if any(mark in lines[0] for mark in "\t,;|"):
        return find_delimiter(lines, path)
    spaced = {*path.suffixes} & {*SPACED} and _is_even([line.strip() for line in lines], " ")
    return " " if spaced else ","


def _parse(content: str, names: Sequence[str], mark: str, *, header: bool) -> pd.DataFrame:
    """Split text into cells; every row must have as many as there are names."""
    import pyarrow as pa
    from pyarrow import csv

    table = csv.read_csv(
        pa.BufferReader(content.encode()),
        read_options=csv.ReadOptions(column_names=list(names), skip_rows_after_names=int(header)),
        parse_options=csv.ParseOptions(delimiter=mark, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return pd.DataFrame(
        {name: [cell.strip() for cell in cells] for name, cells in columns.items()}, dtype=object
    )


def _decoded(path: Path) -> tuple[str, list[str]]:
    """Return the text of a file, and a note if it is not UTF-8."""
    content = _content(path)
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16"), [f"{path.name} is read as UTF-16"]
    try:
        return content.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        return content.decode("latin-1"), [f"{path.name} is not UTF-8 and is read as Latin-1"]


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
