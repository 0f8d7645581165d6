"""Tables in text files (CSV, TSV): found out once how they are written, then read by pyarrow.

pyarrow is fast but says little about a bad file. So the good case runs through it, and when it fails, the
file is walked line by line to name the place.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.headers import is_number, row_is_header
from h3gnn.graphs.ids import whole_numbers
from h3gnn.graphs.opening import check_file

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".edges", ".edgelist")
SAMPLE_ROWS = 1000
"""The header is told from the rows by looking at this many of them."""


@dataclass(frozen=True)
class TextTable:
    """A text file whose delimiter and header are known; cells are read when they are asked for.

    Attributes:
        path: the file.
        content: its bytes, known to be UTF-8, without byte order mark.
        names: one name per column; `column 1`, `column 2`, … without header.
        delimiter: the character between cells.
        header: whether the first row holds names.
        guessed: whether that was found out, not told.
        comments: number of lines before the first row.
    """

    path: Path
    content: bytes
    names: tuple[str, ...]
    delimiter: str
    header: bool
    guessed: bool
    comments: int

    def texts(self, columns: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Return columns of whole numbers as int64, others as text, blanks around the values removed."""
        import pyarrow.compute as pc

        table = self._parse(columns, number=False)
        arrays = []
        for column in table.columns:
            trimmed = pc.utf8_trim_whitespace(column).combine_chunks().dictionary_encode()
            words = np.array(trimmed.dictionary.to_pylist(), dtype=object)
            numbers = whole_numbers(words)
            arrays.append((words if numbers is None else numbers)[trimmed.indices.to_numpy()])
        return arrays

    def numbers(self, columns: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return `[rows, columns]`; an empty cell becomes NaN, which the checks then name."""
        table = self._parse(columns, number=True)
        return np.stack([column.to_numpy() for column in table.columns], axis=1)

    def place(self, row: int, column: int | None = None) -> str:
        """Name a row (and a column) of the table as a person sees it in an editor."""
        line = next(itertools.islice(self._lines(), row + self.header, None), (0, b""))[0]
        cell = "" if column is None else f", column {column + 1}"
        if column is not None and self.header:
            cell += f" ({self.names[column]})"
        return f"{self.path}, line {line}{cell}"

    def _parse(self, columns: Sequence[int], *, number: bool) -> Any:
        import pyarrow as pa
        from pyarrow import csv as arrow

        labels = [str(position) for position in range(len(self.names))]
        wanted = [labels[column] for column in columns]
        kind = pa.float64() if number else pa.string()
        skipped = self.comments + self._blank_before_header()
        try:
            return arrow.read_csv(
                pa.BufferReader(self.content),
                arrow.ReadOptions(column_names=labels, skip_rows=skipped, skip_rows_after_names=0),
                arrow.ParseOptions(delimiter=self.delimiter),
                arrow.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, kind)),
            )
        except pa.ArrowException as error:
            self._name_the_fault(columns if number else (), str(error))

    def _blank_before_header(self) -> int:
        """Count the lines up to and with the header, which are skipped by number."""
        if not self.header:
            return 0
        first, _ = next(self._lines())
        return first - self.comments

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (line number, line) of every row, header included; blank lines are no rows."""
        for number, line in enumerate(self.content.splitlines(), start=1):
            if number > self.comments and line:
                yield number, line

    def _name_the_fault(self, number_columns: Sequence[int], reason: str) -> NoReturn:
        for number, line in self._lines():
            cells = split_line(line.decode(), self.delimiter)
            if len(cells) != len(self.names):
                raise GraphError(
                    f"{self.path}, line {number}: {len(cells)} cell(s), the first row has {len(self.names)}"
                )
        for row, (_, line) in enumerate(itertools.islice(self._lines(), int(self.header), None)):
            cells = split_line(line.decode(), self.delimiter)
            for column in number_columns:
                if cells[column].strip() and not is_number(cells[column]):
                    raise GraphError(f"{self.place(row, column)}: {cells[column]!r} is not a number")
        raise GraphError(f"{self.path} cannot be read as a table ({' '.join(reason.split())[:200]})")


def split_line(line: str, delimiter: str) -> list[str]:
    """Split one line into its cells, quotation marks removed."""
    return next(csv.reader([line], delimiter=delimiter), [])


def open_text_table(
    path: str | Path,
    *,
    header: bool | None = None,
    delimiter: str | None = None,
    role: str,
    expected: Sequence[str],
) -> TextTable:
    """Find out how a text file is written.

    Args:
        path: the file.
        header: whether the first row holds names; None to find out, by `row_is_header`.
        delimiter: the character between cells; None to find out: a tab in `.tsv`, otherwise the first of
            tab, comma, semicolon that stands in the first row, otherwise a blank.
        role: "edges", "features" or "labels", which decides by what a header is known.
        expected: names that the caller asks for; a row that holds one of them is a header.
    """
    file = check_file(path, TEXT_SUFFIXES, role=f"table of {role}")
    content = _decoded(file)
    lines = content.splitlines()
    comments = sum(
        1 for _ in itertools.takewhile(lambda line: line[:2] in (b"# ", b"#\t", b"#") or not line, lines)
    )
    rows = [line.decode() for line in itertools.islice((one for one in lines[comments:] if one), SAMPLE_ROWS)]
    if not rows:
        raise GraphError(f"{file} has no row")
    _check_quotes(file, content, lines)
    chosen = delimiter or _delimiter_of(file, rows[0])
    if len(chosen) != 1 or not (chosen.isprintable() or chosen == "\t"):
        raise GraphError(f"the delimiter {chosen!r} is not one character")
    cells = [[cell.strip() for cell in split_line(row, chosen)] for row in rows]
    known = row_is_header(cells, role, expected, file) if header is None else header
    if known and len(rows) < 2:
        raise GraphError(f"{file} has a header and no row")
    names = tuple(cells[0]) if known else tuple(f"column {position + 1}" for position in range(len(cells[0])))
    return TextTable(file, content, names, chosen, known, header is None, comments)


def _decoded(path: Path) -> bytes:
    """Return the bytes of a file that are known to be UTF-8 text."""
    content = path.read_bytes()
    if content[:4] in (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff") or content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise GraphError(f"{path} is written in UTF-16 or UTF-32; save it as UTF-8")
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = len(content[: error.start].splitlines()) or 1
        raise GraphError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    if b"\0" in content:
        line = len(content[: content.index(b"\0")].splitlines()) or 1
        raise GraphError(f"{path}, line {line}: a zero byte, so this is not a text file")
    return content


def _check_quotes(path: Path, content: bytes, lines: list[bytes]) -> None:
    """A value never goes over several lines: an open quotation mark would swallow the rows after it."""
    if b'"' not in content:
        return
    for number, line in enumerate(lines, start=1):
        if line.count(b'"') % 2:
            raise GraphError(f"{path}, line {number}: a quotation mark is not closed on its line")


def _delimiter_of(path: Path, row: str) -> str:
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t"
    return next((mark for mark in "\t,;" if mark in row), " ")
