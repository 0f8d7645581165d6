"""Read the text or JSON file of one of several tables; the cells of a text file stay text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from h3gnn.errors import GraphError
from h3gnn.tables.files import split_line
from h3gnn.tables.headers import find_delimiter, find_header, holds_value

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
    """Return the bytes of a file, decompressed."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
