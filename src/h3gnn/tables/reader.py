"""Read CSV, TSV and Parquet files into memory, as Arrow columns.

pyarrow is fast but says little about an invalid file. When it fails, the block is walked line by line to
report file, line and column.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.ids import PLAIN, one_kind, quoted
from h3gnn.tables import files
from h3gnn.tables.files import (
    MOST_SHOWN,
    Problems,
    check_file,
    check_parquet,
    check_table_memory,
    find_delimiter,
    first_rows,
    reading,
    rows_of,
    split_line,
    text_blocks,
)
from h3gnn.tables.infer import MISSING_WORDS, Cells
from h3gnn.tables.roles import row_is_header

if TYPE_CHECKING:
    import pandas as pd

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".edges", ".edgelist")
PARQUET_SUFFIXES = (".parquet", ".pq")
SAMPLE_ROWS = 1000  # rows from which the header is inferred
FIX_CELLS = "correct the line; a text that contains the delimiter needs quotation marks around it"
FIX_NUMBER = "only numbers can be read here; `h3gnn fit` with --edges and --features encodes other columns"
FIX_ID = "fill the cell or remove the line"

RowCheck = Callable[[Problems, int, str, list[str]], None]
"""Given a row's number, place and cells, adds its problems."""


def decode_ids(column: Any, place: str) -> tuple[npt.NDArray[Any], int]:
    """Return an Arrow column as int64 if it holds plain integers, else as text, "" where missing.

    The second value is the first row without a value, -1 if there is none.
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
            pass  # beyond 64 bits an id is text
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    if not any(is_kind(kind) for is_kind in known):
        message = f"{place}: column type {kind} cannot be used as node ids; use integers or strings"
        raise GraphError(message, code="id-type-invalid")
    texts = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    if pc.all(pc.match_substring_regex(texts, PLAIN)).as_py():
        try:
            return np.asarray(texts.cast(pa.int64()).to_numpy()), -1
        except pa.ArrowInvalid:
            pass
    encoded = texts.dictionary_encode()  # a text that occurs in many rows is made once
    words = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return words[encoded.indices.to_numpy()], int(pc.index(texts, "").as_py())


def decode_numbers(column: Any, place: str) -> npt.NDArray[np.float64]:
    """Return an Arrow column as `[rows, values]`, NaN where missing: one value, or those of a list."""
    import pyarrow as pa

    rows = len(column)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if _is_list(kind):
        column, kind = column.flatten(), kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise GraphError(f"{place}: {kind} is not a column of numbers", code="column-not-numeric")
    numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64).reshape(rows, -1 if len(numbers) else 0)


def odd_list(column: Any, width: int | None) -> int | None:
    """Return the first row of an Arrow column whose list has another length than those before, if any."""
    import pyarrow.compute as pc

    if not _is_list(column.type):
        return None
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    odd = np.flatnonzero(lengths != (max(0, lengths[0]) if width is None else width))
    return int(odd[0]) if odd.size else None


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@dataclass(frozen=True)
class LoadedTable:
    """Columns of a table in memory: text for a text file, the types of a Parquet file."""

    table: Table
    columns: Mapping[int, Any]  # Arrow columns by their position in the file

    def ids(self, at: int) -> npt.NDArray[Any]:
        """Return a column as node ids, none of which is missing."""
        words, missing = self._ids(at)
        if missing >= 0:
            raise GraphError(f"{self.table.place(missing, at)}: the node id is missing", code="id-missing")
        return words

    def _ids(self, at: int) -> tuple[npt.NDArray[Any], int]:
        parts, missing, rows = [], -1, 0
        with reading(self.table.path, "a table"):
            for chunk in self.columns[at].chunks:
                words, gap = decode_ids(chunk, f"{self.table.path}{self.table.title(at)}")
                missing = rows + gap if gap >= 0 and missing < 0 else missing
                rows += len(words)
                parts.append(words)
        return one_kind(parts), missing

    def is_unique(self, at: int) -> bool:
        """Whether a column has another value in every row."""
        import pandas as pd
        import pyarrow as pa

        kind = self.columns[at].type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_integer(kind) or _is_text(kind)):
            return False
        words, missing = self._ids(at)
        return bool(pd.Index(words).is_unique) and missing != 0

    def numbers(self, columns: Sequence[int]) -> npt.NDArray[np.float64] | None:
        """Return columns as `[rows, values]` if all of them are finite numbers; None if any is not."""
        parts = []
        for at in columns:
            values = _finite_numbers(self.columns[at], parse=self.table.delimiter is not None)
            if values is None:
                return None
            parts.append(values)
        return np.concatenate(parts, axis=1)

    def weights(self, at: int) -> npt.NDArray[np.float64] | None:
        """Return a column of numbers, NaN where missing; None if a cell is something else."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.columns[at]
        if _is_text(column.type) and self.table.delimiter is not None:
            texts = pc.ascii_trim_whitespace(column)
            missing = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(sorted(MISSING_WORDS)))
            try:
                column = pc.if_else(missing, None, texts).cast(pa.float64())
            except pa.ArrowInvalid:
                return None
        with reading(self.table.path, "a table"):
            parts = [decode_numbers(one, f"{self.table.path}{self.table.title(at)}") for one in column.chunks]
        return np.concatenate(parts)[:, 0]

    def frame(self, columns: Sequence[int]) -> pd.DataFrame:
        """Return columns as a DataFrame."""
        import pandas as pd

        check_table_memory(self.table.path, sum(self.columns[at].nbytes for at in columns))
        names = self.table.unique_names(columns)
        with reading(self.table.path, "a table"):
            return pd.DataFrame(
                {
                    name: pd.Series(_as_pandas(self.columns[at]), dtype=None)
                    for name, at in zip(names, columns, strict=True)
                }
            )

    def cells(self, at: int) -> Cells:
        """Return the cells of a column."""
        return Cells(self.frame([at]).iloc[:, 0])


def _finite_numbers(column: Any, *, parse: bool) -> npt.NDArray[np.float64] | None:
    """Return an Arrow column of finite numbers, `[rows, values]`; `parse` reads those written as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, width = [], None
    for chunk in column.chunks:
        numbers = chunk
        if parse and _is_text(chunk.type):
            try:
                numbers = pc.ascii_trim_whitespace(chunk).cast(pa.float64())
            except pa.ArrowInvalid:
                return None
        item = numbers.type.value_type if _is_list(numbers.type) else numbers.type
        if not (pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)):
            return None
        if odd_list(numbers, width) is not None:
            return None
        parts.append(decode_numbers(numbers, ""))
        width = parts[-1].shape[1]
        if not np.isfinite(parts[-1]).all():
            return None
    return np.concatenate(parts)


def _as_pandas(column: Any) -> Any:
    """Return an Arrow column for pandas; text stays objects."""
    if _is_text(column.type):
        listed = np.empty(len(column), dtype=object)
        listed[:] = column.to_pylist()
        return listed
    return column.to_pandas()


@dataclass(frozen=True)
class Table:
    """A file whose columns are known; its rows are read on request."""

    path: Path
    names: tuple[str, ...]  # `column 1`, `column 2`, … without header
    header: bool = True  # whether the file itself names its columns
    guessed: bool = False  # whether that was inferred, not given
    delimiter: str | None = None  # None for Parquet
    start: int = 0  # the byte at which the rows of a text file begin
    line: int = 0  # the number of lines before

    def load(self, columns: Sequence[int]) -> LoadedTable:
        """Return all rows of some columns as Arrow columns."""
        import pyarrow as pa

        wanted = list(dict.fromkeys(columns))
        blocks = list(self._arrow_blocks(wanted))
        if not blocks:
            what = "a header and no row" if self.delimiter else "no row"
            raise GraphError(f"{self.path} has {what}", code="table-empty")
        parts = zip(wanted, zip(*blocks, strict=True), strict=True)
        return LoadedTable(self, {at: pa.chunked_array(list(chunks)) for at, chunks in parts})

    def unique_names(self, columns: Sequence[int]) -> list[str]:
        """Return the names of some columns; one that occurs twice contains its position."""
        return [
            name if self.names.count(name) == 1 else f"{name} (column {column + 1})"
            for column in columns
            for name in (self.names[column],)
        ]

    def place(self, row: int, column: int | None = None) -> str:
        """Name a row (and a column): by its line in a text file, else by its number."""
        if self.delimiter is None:
            return f"{self.path}, row {row + 1}{self.title(column)}"
        blocks = text_blocks(self.path, self.start, self.line)
        lines = (line for before, content in blocks for line, _ in rows_of(before, content))
        return f"{self.path}, line {next(itertools.islice(lines, row, None), 0)}{self.title(column)}"

    def title(self, column: int | None) -> str:
        """Name a column after the name of a row."""
        if column is None:
            return ""
        return f", column {column + 1}" + (f" ({self.names[column]})" if self.header else "")

    def walk(self, columns: Sequence[int]) -> Iterator[tuple[str, int, list[str] | None]]:
        """Yield the place of every row, its number of cells, and the cells of some columns, to find problems.

        It is slow. The cells are None for a row with too few or too many of them.
        """
        if self.delimiter is None:
            loaded = self.load(columns)
            texts = [loaded.cells(at).words() for at in columns]
            for row, words in enumerate(zip(*texts, strict=True)):
                yield f"{self.path}, row {row + 1}", len(self.names), list(words)
            return
        for before, content in text_blocks(self.path, self.start, self.line):
            for line, cells in self._split_rows(before, content):
                complete = len(cells) == len(self.names)
                some = [cells[column].strip() for column in columns] if complete else None
                yield f"{self.path}, line {line}", len(cells), some

    def find_problems(self, ids: Sequence[int], others: Sequence[int], check: RowCheck) -> Problems:
        """Walk row by row, and return all problems: malformed rows, missing ids, and what `check` adds."""
        problems = Problems(self.path)
        for row, (place, count, cells) in enumerate(self.walk((*ids, *others))):
            if cells is None:
                self.add_cell_count(problems, place, count)
                continue
            for at, cell in zip(ids, cells, strict=False):
                if not cell:
                    problems.add(place + self.title(at), "the node id is missing", FIX_ID, "id-missing")
            check(problems, row, place, cells)
        return problems

    def _split_rows(self, before: int, content: bytes) -> list[tuple[int, list[str]]]:
        """Return the line and the cells of every row of a block."""
        assert self.delimiter is not None
        with reading(self.path, "a table"):
            return [
                (line, split_line(text.decode(), self.delimiter)) for line, text in rows_of(before, content)
            ]

    def _arrow_blocks(self, wanted: Sequence[int]) -> Iterator[list[Any]]:
        """Yield some columns, a block of rows at a time; those of a text file are text."""
        if self.delimiter is None:
            yield from self._parquet_blocks(wanted)
            return
        for before, content in text_blocks(self.path, self.start, self.line):
            if content.strip(b"\r\n"):
                yield self._parse(before, content, wanted)

    def _parse(self, before: int, content: bytes, wanted: Sequence[int]) -> list[Any]:
        import pyarrow as pa
        from pyarrow import csv as arrow

        labels = [str(position) for position in range(len(self.names))]
        block_size = max(1 << 20, 4096 * len(labels))  # pieces that threads share; a row must fit into one
        try:
            table = arrow.read_csv(
                pa.BufferReader(content),
                arrow.ReadOptions(column_names=labels, block_size=block_size),
                arrow.ParseOptions(delimiter=self.delimiter),
                arrow.ConvertOptions(
                    include_columns=[labels[at] for at in wanted],
                    column_types=dict.fromkeys(labels, pa.string()),
                ),
            )
        except pa.ArrowException as error:
            self._report_rows(before, content, str(error))
        return [column.combine_chunks() for column in table.columns]

    def _report_rows(self, before: int, content: bytes, reason: str) -> NoReturn:
        problems = Problems(self.path)
        for line, cells in self._split_rows(before, content):
            if len(cells) != len(self.names):
                self.add_cell_count(problems, f"{self.path}, line {line}", len(cells), remedy="")
        problems.check()
        message = f"{self.path} cannot be read as a table ({' '.join(reason.split())[:200]})"
        raise GraphError(message, code="file-damaged")

    def add_cell_count(self, problems: Problems, place: str, count: int, remedy: str = FIX_CELLS) -> None:
        """Add a row that has too few or too many cells to the problems."""
        what = f"{count} cell(s), the first row has {len(self.names)}"
        problems.add(place, what, remedy, "row-length-differs")

    def _parquet_blocks(self, wanted: Sequence[int]) -> Iterator[list[Any]]:
        import pyarrow.parquet as pq

        unique = len(set(self.names)) == len(self.names)
        names = [self.names[column] for column in wanted] if unique else None
        with reading(self.path, "Parquet"):
            file = pq.ParquetFile(self.path, page_checksum_verification=True, pre_buffer=False)
            check_parquet(self.path, file, wanted)
            batches = file.iter_batches(batch_size=files.BLOCK_ROWS, columns=names)
        with file:
            while True:
                with reading(self.path, "Parquet"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    batch.validate(full=True)
                check_table_memory(self.path, batch.nbytes)
                yield [batch.column(one) for one in names or wanted]


def open_table(
    path: str | Path,
    *,
    role: str,
    header: bool | None = None,
    delimiter: str | None = None,
    expected: Sequence[Any] = (),
) -> Table:
    """Open a CSV, TSV or Parquet file, and infer header and delimiter from its first rows if not given.

    Args:
        path: the file; its suffix decides the format.
        role: "edges", "features" or "labels", which decides how a header is recognised.
        header, delimiter: of text files.
        expected: names that the caller asks for; a row that holds one of them is a header.
    """
    file = check_file(path, (*TEXT_SUFFIXES, *PARQUET_SUFFIXES), role=f"table of {role}")
    try:
        import pyarrow.parquet as pq
    except ImportError:
        message = f"{path}: reading tables needs pyarrow; install it with `pip install pyarrow`"
        raise InputError(message, code="library-missing") from None
    if file.suffix.lower() in PARQUET_SUFFIXES:
        with reading(file, "Parquet"):
            return Table(file, tuple(pq.read_schema(file).names))
    rows, line, begin, after = first_rows(file, SAMPLE_ROWS)
    chosen = delimiter or find_delimiter(file, rows[0])
    if len(chosen) != 1 or not (chosen.isprintable() or chosen == "\t"):
        raise GraphError(f"the delimiter {chosen!r} is not one character", code="value-invalid")
    with reading(file, "a table"):
        cells = [[cell.strip() for cell in split_line(row, chosen)] for row in rows]
    names = [name for name in expected if isinstance(name, str)]
    known = row_is_header(cells, role, names, file) if header is None else header
    columns = cells[0] if known else [f"column {position + 1}" for position in range(len(cells[0]))]
    return Table(file, tuple(columns), known, header is None, chosen, after if known else begin, line + known)


def check_once(ids: npt.NDArray[Any], place: Callable[[int], str], what: object = "the ids") -> None:
    """Check that a table has one row per node; `place` names its rows."""
    import pandas as pd

    problems = Problems(what)
    for row in np.flatnonzero(pd.Index(ids).duplicated()).tolist():
        first = int(np.flatnonzero(ids == ids[row])[0]) if problems.count < MOST_SHOWN else 0
        shown = f"node {quoted(ids[row])} is already in {place(first)}" if problems.count < MOST_SHOWN else ""
        remedy = "keep one row per node; if another column holds the ids, name it (--id-column)"
        problems.add(partial(place, row), shown, remedy, "id-duplicate")
    problems.check()


def joined_place(places: Sequence[Callable[[int], str]], sizes: Sequence[int]) -> Callable[[int], str]:
    """Return a function that names a row of several tables of these sizes, one below the other."""
    ends = [0, *np.cumsum(sizes).tolist()]

    def place(row: int) -> str:
        at = int(np.searchsorted(ends[1:], row, side="right"))
        return places[at](row - ends[at])

    return place
