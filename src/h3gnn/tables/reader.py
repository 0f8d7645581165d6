"""Read CSV, TSV and Parquet files into memory, as Arrow columns.

Malformed rows are left out, and listed with the other problems of a table, such as missing ids, so that one
error describes all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import column_names, counted, is_frame, is_table
from h3gnn.graphs.ids import (
    LARGEST_EXACT,
    PLAIN,
    NodeIndex,
    dates_as_text,
    id_text,
    is_missing,
    is_plain,
    one_kind,
    quoted,
)
from h3gnn.tables import files
from h3gnn.tables.files import Problems, check_table_memory, reading, rows_of, split_line, text_blocks
from h3gnn.tables.infer import NO_ROWS, Cells, Floats, Rows, are_codes, decode_plain_numbers
from h3gnn.tables.notations import THOUSANDS, may_be_compact, may_be_thousands
from h3gnn.tables.texts import find_delimiter, find_header

TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".edges", ".edgelist")
PARQUET_SUFFIXES = (".parquet", ".pq")
SAMPLE_ROWS = 1000  # rows from which the header is inferred
FEW_ROWS = 10  # with fewer rows nothing is concluded from repeated values
FIX_CELLS = "correct the line; a text that contains the delimiter needs quotation marks around it"
FIX_NUMBER = "only numbers can be read here; `h3gnn fit` with --edges and --features encodes other columns"
FIX_ID = "fill the cell or remove the line"
FIX_DUPLICATE = "keep one row per node, or name another column of ids (--id-column, --label-id-column)"
FIX_UNKNOWN = "give it a row, or remove it (--unknown-nodes drop, or add, if the command has it)"

Ids = npt.NDArray[Any]


def arrow_ids(column: Any, place: str) -> Any:
    """Return an Arrow column of node ids as int64 or as trimmed text, whichever its type decides."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_integer(kind) and kind != pa.uint64():  # beyond 64 bits an id is text
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return _whole_numbers(column, place)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.array(dates_as_text(column.to_numpy(zero_copy_only=False)), pa.string())
    if not (pa.types.is_integer(kind) or _is_text(kind) or pa.types.is_null(kind)):
        gaps = f", and fill the {column.null_count:,} missing ids" if column.null_count else ""
        message = f"{place}: column type {kind} cannot be used as node ids; use integers or strings{gaps}"
        raise GraphError(message, code="id-type-invalid")
    return pc.utf8_trim_whitespace(column.cast(pa.string()))


def _whole_numbers(column: Any, place: str) -> Any:
    """Return ids that are stored as floats, as a column of integers with gaps is, as int64."""
    column = pc.if_else(pc.is_nan(column), None, column.cast(pa.float64()))
    numbers = column.drop_null().to_numpy(zero_copy_only=False)
    odd = numbers[~(np.abs(numbers) < LARGEST_EXACT) | (numbers != np.floor(numbers))]
    if odd.size:
        what = f"{odd[0]:.17g} is a float and no exact node id"
        raise GraphError(f"{place}: {what}; store the ids as integers or as text", code="id-type-invalid")
    return column.cast(pa.int64())


def decode_ids(column: Any, place: str) -> Ids:
    """Return an Arrow column as int64 if it holds plain integers, else as text, "" where missing."""
    ids = arrow_ids(column, place)
    if pa.types.is_integer(ids.type) and not ids.null_count:
        return np.asarray(ids.to_numpy())
    texts = pc.fill_null(ids.cast(pa.string()), "")
    try:
        if pc.all(pc.match_substring_regex(texts, PLAIN)).as_py():
            return np.asarray(texts.cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid:
        pass
    encoded = texts.dictionary_encode()  # a text that occurs in many rows is made once
    words = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return np.asarray(words[encoded.indices.to_numpy()])


ENCODED = "encode it (`h3gnn.encode_table` in Python) or choose other columns by --feature-columns"
"""What to do with a column of words where only numbers are read."""


def decode_numbers(column: Any, place: str) -> Floats:
    """Return an Arrow column as `[rows, values]`, NaN where missing: one value, or those of a list."""
    rows = len(column)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_list(column.type):
        column = column.flatten()
    if not _is_numeric(column.type):
        raise GraphError(
            f"{place}: {column.type} is not a column of numbers; {ENCODED}", code="column-not-numeric"
        )
    numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float64).reshape(rows, -1 if len(numbers) else 0)


def odd_list(column: Any, width: int | None) -> int | None:
    """Return the first row of an Arrow column whose list has another length than those before, if any."""
    if not _is_list(column.type):
        return None
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    odd = np.flatnonzero(lengths != (max(0, lengths[0]) if width is None else width))
    return int(odd[0]) if odd.size else None


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


@dataclass(frozen=True)
class LoadedTable:
    """Columns of a table in memory, text for a text file, and the problems found in them so far."""

    table: Table
    columns: Mapping[int, Any]  # Arrow columns by their position in the file
    problems: Problems
    malformed: Sequence[int] = ()  # the rows of the file that were left out
    first: int = 0  # the number of the first row in the file

    def place(self, row: int, at: int | None = None) -> str:
        """Name a row (and a column) of the file."""
        row += self.first
        for left_out in self.malformed:
            row += left_out <= row
        return self.table.place(row, at)

    def add(self, row: int, at: int | None, what: str, remedy: str, code: str) -> None:
        """Add a problem of a row (and a column)."""
        self.problems.add(partial(self.place, row, at), what, remedy, code)

    def ids(self, at: int) -> Ids:
        """Return a column as node ids; missing ones are problems."""
        ids = self._ids(at)
        for row in np.flatnonzero(ids == "").tolist():
            self.add(row, at, "the node id is missing", FIX_ID, "id-missing")
        return ids

    def unique_ids(self, at: int) -> Ids:
        """Return a column as node ids that are all present and distinct."""
        ids = self.ids(at)
        add_duplicates(self.problems, ids, self.place)
        self.problems.check()
        return ids

    def _ids(self, at: int) -> Ids:
        place = f"{self.table.path}{self.table.title(at)}"
        self.table.check_ids(at)
        with reading(self.table.path, "a table"):
            return one_kind([decode_ids(chunk, place) for chunk in self.columns[at].chunks])

    def is_unique(self, at: int) -> bool:
        """Whether a column has another value in every row."""
        ids = self._ids(at) if self._may_be_ids(at) else None
        return ids is not None and bool(pd.Index(ids).is_unique and ids[0] != "")

    def _may_be_ids(self, at: int) -> bool:
        kind = self.columns[at].type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return bool(pa.types.is_integer(kind) or _is_text(kind))

    def find(self, at: int, nodes: NodeIndex) -> Rows:
        """Return the node of each row by the id in a column, -1 where unknown; nothing if it holds no ids."""
        try:
            return nodes.find(self._ids(at))
        except GraphError as error:
            if error.code != "id-type-invalid":
                raise
            return NO_ROWS

    def check_known(self, parts: Sequence[Ids], known: Ids, known_by: Path | None) -> None:
        """Add the rows with an id that is not among the known ones to the problems; `parts` are columns."""
        index = NodeIndex(known)
        unknown = np.stack([(index.find(ids) < 0) & (ids != "") for ids in parts], axis=1)
        written = {} if not unknown.any() else {_alike(one): one for one in known.tolist()}
        for row, part in np.argwhere(unknown).tolist():
            node = parts[part][row]
            shown = str(node) if is_plain(str(node)) else quoted(node)
            hint = "" if row or self.table.header else "if this row is a header, use --header; "
            what = f"node {shown} is unknown; it is not in {known_by}"
            if (other := written.get(_alike(node))) is not None and _alike(node) is not None:
                what += f", which has {other}: ids are compared as text"
            self.add(row, None, what, hint + FIX_UNKNOWN, "node-unknown")

    def numbers(self, columns: Sequence[int]) -> Floats | None:
        """Return columns as `[rows, values]` if all of them are finite numbers; None if any is not."""
        parts = []
        for at in columns:
            values = _finite_numbers(self.columns[at], parse=self.table.delimiter is not None)
            if values is None:
                return None
            parts.append(values)
        return np.concatenate(parts, axis=1)

    def column_numbers(self, at: int) -> tuple[Floats, Rows]:
        """Return a column of numbers, NaN where missing, and the rows that hold something else."""
        column, place = self.columns[at], f"{self.table.path}{self.table.title(at)}"
        if _is_text(column.type):
            try:
                numbers = pc.ascii_trim_whitespace(column).cast(pa.float64())
            except pa.ArrowInvalid:
                return decode_plain_numbers(self.cells(at).texts)
            if _has_codes(column):
                message = f"{place}: digits such as 007 are codes and no numbers; leave the column out"
                raise GraphError(message, code="column-not-numeric")
            if _may_be_thousands(column):
                what = "a separator before three digits may separate thousands or decimals"
                remedy = "write the numbers without separators between thousands, and decimals as 1200.500"
                raise GraphError(f"{place}: {what}; {remedy}", code="number-ambiguous")
            column = numbers
        if _is_list(column.type):
            raise GraphError(f"{place}: {column.type} is not a column of numbers", code="column-not-numeric")
        return np.concatenate([decode_numbers(one, place) for one in column.chunks])[:, 0], NO_ROWS

    def add_unreadable(self, at: int, rows: Rows, remedy: str) -> None:
        """Add cells of a column that are not numbers to the problems."""
        for row in rows.tolist():
            what = f"{str(self.columns[at][row]).strip()!r} is not a number"
            self.add(row, at, what, remedy, "cell-unreadable")

    def frame(self, columns: Sequence[int]) -> pd.DataFrame:
        """Return columns as a DataFrame."""
        check_table_memory(self.table.path, sum(self.columns[at].nbytes for at in columns))
        names = self.table.unique_names(columns)
        with reading(self.table.path, "a table"):
            return pd.DataFrame(
                {name: _series(self.columns[at]) for name, at in zip(names, columns, strict=True)}
            )

    def cells(self, at: int) -> Cells:
        """Return the cells of a column."""
        return Cells(self.frame([at]).iloc[:, 0])


def _finite_numbers(column: Any, *, parse: bool) -> Floats | None:
    """Return an Arrow column of finite numbers, `[rows, values]`; `parse` reads those written as text."""
    parts, width = [], None
    for chunk in column.chunks:
        numbers = chunk
        if parse and _is_text(chunk.type):
            try:
                numbers = pc.ascii_trim_whitespace(chunk).cast(pa.float64())
            except pa.ArrowInvalid:
                return None
        item = numbers.type.value_type if _is_list(numbers.type) else numbers.type
        if not _is_numeric(item) or odd_list(numbers, width) is not None:
            return None
        parts.append(decode_numbers(numbers, ""))
        width = parts[-1].shape[1]
        if not np.isfinite(parts[-1]).all():
            return None
    values = np.concatenate(parts)
    if parse and _is_text(column.type) and (_has_codes(column) or _may_be_thousands(column)):
        return None
    return None if values.shape[1] == 1 and may_be_compact(values[:, 0]) else values


def _has_codes(column: Any) -> bool:
    """Whether numbers written as text contain codes such as 007; Arrow rules most cells out."""
    texts = pc.ascii_trim_whitespace(column)
    longer = pc.greater(pc.binary_length(texts), 1)
    zeros = pc.and_(longer, pc.and_not(pc.starts_with(texts, "0"), pc.starts_with(texts, "0.")))
    likely = texts.filter(pc.or_(zeros, pc.starts_with(texts, "+")))
    return are_codes(pc.unique(likely).to_pylist())


def _may_be_thousands(column: Any) -> bool:
    """Whether numbers written as text may have points between thousands; Arrow rules most columns out."""
    texts = pc.ascii_trim_whitespace(column)
    pointed = pc.match_substring(texts, ".")
    decimals = pc.and_not(pointed, pc.match_substring_regex(texts, f"^{THOUSANDS.pattern}$"))
    if not pc.any(pointed).as_py() or pc.any(decimals).as_py():
        return False
    return may_be_thousands(pc.unique(texts).to_pylist())


def _series(column: Any) -> pd.Series[Any]:
    """Return an Arrow column as a Series; text stays objects."""
    if not _is_text(column.type):
        return pd.Series(column.to_pandas(), dtype=None)
    texts = np.empty(len(column), dtype=object)
    texts[:] = column.to_pylist()
    return pd.Series(texts, dtype=None)


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
    rows_named: bool | None = None  # of a data frame: whether its index has a name or holds no integers

    def load(self, columns: Sequence[int]) -> LoadedTable:
        """Return all rows of some columns as Arrow columns."""
        wanted = list(dict.fromkeys(columns))
        malformed = dict[int, int]()
        blocks = list(self._arrow_blocks(wanted, malformed))
        problems = self._malformed_rows(malformed)
        if not any(len(block[0]) for block in blocks):
            problems.check()
            self._reject_empty()
        parts = zip(wanted, zip(*blocks, strict=True), strict=True)
        columns_by_position = {at: pa.chunked_array(list(chunks)) for at, chunks in parts}
        return LoadedTable(self, columns_by_position, problems, [*malformed])

    def load_blocks(self, columns: Sequence[int]) -> Iterator[LoadedTable]:
        """Yield some columns, a block of rows at a time; reject malformed rows and an empty table."""
        wanted, malformed, first = list(dict.fromkeys(columns)), dict[int, int](), 0
        for block in self._arrow_blocks(wanted, malformed):
            self._malformed_rows(malformed).check()
            chunks = {at: pa.chunked_array([column]) for at, column in zip(wanted, block, strict=True)}
            yield LoadedTable(self, chunks, Problems(self.path), first=first)
            first += len(block[0])
        if not first:
            self._reject_empty()

    def count_blocks(self) -> int:
        """Return the number of blocks that `load_blocks` yields, approximately."""
        if self.delimiter is not None:
            return 1 + self.path.stat().st_size // files.BLOCK_BYTES
        with reading(self.path, "Parquet"):
            return 1 + int(pq.read_metadata(self.path).num_rows) // files.BLOCK_ROWS

    def check_ids(self, at: int) -> None:
        """Reject a column of ids in which two cells of different types have the same text."""

    def _malformed_rows(self, counts: Mapping[int, int]) -> Problems:
        """Return rows that have too few or too many cells as problems."""
        problems = Problems(self.path)
        for row, count in counts.items():
            what = f"{count} cell(s), the first row has {len(self.names)}"
            problems.add(partial(self.place, row), what, FIX_CELLS, "row-length-differs")
        return problems

    def _reject_empty(self) -> NoReturn:
        what = "a header and no row" if self.delimiter else "no row"
        raise GraphError(f"{self.path} has {what}", code="table-empty")

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

    def _arrow_blocks(self, wanted: Sequence[int], malformed: dict[int, int]) -> Iterator[list[Any]]:
        """Yield some columns, a block of rows at a time; count the cells of malformed rows."""
        if self.delimiter is None:
            yield from self._parquet_blocks(wanted)
            return
        rows = 0
        for _, content in text_blocks(self.path, self.start, self.line):
            if content.strip(b"\r\n"):
                columns, odd = self._parse(content, wanted)
                malformed.update({rows + row: count for row, count in odd.items()})
                rows += len(columns[0]) + len(odd)
                yield columns

    def _parse(self, content: bytes, wanted: Sequence[int]) -> tuple[list[Any], dict[int, int]]:
        """Return some columns of a text as text, and its malformed rows with the number of their cells."""
        labels = [str(position) for position in range(len(self.names))]
        block_size = max(1 << 20, 4096 * len(labels))  # pieces that threads share; a row must fit into one
        skipped = []

        def skip(row: Any) -> str:
            skipped.append(row)
            return "skip"

        assert self.delimiter is not None
        with reading(self.path, "a table"):
            table = csv.read_csv(
                pa.BufferReader(content),
                csv.ReadOptions(column_names=labels, block_size=block_size),
                csv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=skip),
                csv.ConvertOptions(
                    include_columns=[labels[at] for at in wanted],
                    column_types=dict.fromkeys(labels, pa.string()),
                ),
            )
            odd = dict[int, int]()
            if skipped:  # Arrow does not number them
                counts = (len(split_line(line.decode(), self.delimiter)) for _, line in rows_of(0, content))
                odd = {row: count for row, count in enumerate(counts) if count != len(labels)}
            if len(odd) != len(skipped):
                raise GraphError("quotation marks divide a row in several ways", code="file-damaged")
        return [column.combine_chunks() for column in table.columns], odd

    def _parquet_blocks(self, wanted: Sequence[int]) -> Iterator[list[Any]]:
        unique = len(set(self.names)) == len(self.names)
        names = [self.names[column] for column in wanted] if unique else None
        with reading(self.path, "Parquet"):
            file = pq.ParquetFile(self.path, page_checksum_verification=True, pre_buffer=False)
            files.check_parquet(self.path, file, wanted)
            rows = min(files.BLOCK_ROWS, max(256, files.BLOCK_BYTES // len(wanted)))  # fewer of wide tables
            batches = file.iter_batches(batch_size=rows, columns=names)
        with file:
            while True:
                with reading(self.path, "Parquet"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    batch.validate(full=True)
                check_table_memory(self.path, batch.nbytes)
                yield [batch.column(one) for one in names or wanted]


@dataclass(frozen=True)
class FrameTable(Table):
    """A data frame in memory; the position after the last column is that of its index."""

    cells: Sequence[Any] = ()  # the columns and the index

    def load(self, columns: Sequence[int]) -> LoadedTable:
        """Return all rows of some columns, and the index."""
        return super().load([*columns, len(self.names)])

    def place(self, row: int, column: int | None = None) -> str:
        """Name a row by its position, as `iloc` does."""
        return f"{self.path}, row {row}{self.title(column)}"

    def title(self, column: int | None) -> str:
        """Name a column after the name of a row."""
        if column is None:
            return ""
        return ", the index" if column == len(self.names) else f", column {self.names[column]!r}"

    def check_ids(self, at: int) -> None:
        """Reject a column of ids in which two cells of different types have the same text."""
        if pd.api.types.is_object_dtype(self.cells[at]):
            forms = {(isinstance(one, str), id_text(one)) for one in self.cells[at] if not is_missing(one)}
            texts = Counter(text for _, text in forms)
            if len(texts) < len(forms):
                both = texts.most_common(1)[0][0]
                message = f"{self.path}{self.title(at)}: {both} and {both!r} are ids of different types"
                raise GraphError(f"{message}; store all ids as text, or all as integers", code="id-ambiguous")

    def _arrow_blocks(self, wanted: Sequence[int], malformed: dict[int, int]) -> Iterator[list[Any]]:
        yield [_arrow_column(self.cells[at]) for at in wanted]


def _arrow_column(cells: Any) -> Any:
    """Return a column of a data frame as an Arrow array; cells of several types become text."""
    if isinstance(getattr(cells, "dtype", None), pd.SparseDtype):
        cells = cells.sparse.to_dense()
    try:
        column = cells if isinstance(cells, pa.ChunkedArray) else pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        column = pa.array([None if is_missing(one) else id_text(one) for one in cells], pa.string())
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.large_string()) if column.type == pa.string_view() else column


def _open_frame(frame: Any, role: str) -> FrameTable:
    """Open a data frame of pandas or Polars, or an Arrow table."""
    if not is_table(frame):
        message = f"a table of {role} is a file or a data frame, not a {type(frame).__name__}"
        raise GraphError(message, code=f"{role}-not-a-table")
    rows_named = False
    if is_frame(frame):
        names, index = tuple(map(str, frame.columns)), frame.index
        cells = [*(frame.iloc[:, at] for at in range(len(names))), index]
        rows_named = index.name is not None or index.dtype.kind not in "iu"
    else:
        table = frame if isinstance(frame, pa.Table) else frame.to_arrow()
        names, cells = tuple(table.column_names), [*table.columns, np.arange(len(table))]
    if role == "features" and is_frame(frame):
        column_names(frame)  # rejects duplicates
    header = names != counted(len(names))
    return FrameTable(Path(role), names, header, rows_named=rows_named, cells=cells)


def open_table(
    path: Any,
    *,
    role: str,
    header: bool | None = None,
    delimiter: str | None = None,
    expected: Sequence[Any] = (),
) -> Table:
    """Open a CSV, TSV or Parquet file, and infer header and delimiter from its first rows if not given.

    Args:
        path: the file, whose suffix decides the format; or a data frame.
        role: "edges", "features" or "labels", which decides how a header is recognised.
        header, delimiter: of text files.
        expected: names that the caller asks for; a row that holds one of them is a header.
    """
    if not isinstance(path, str | Path):
        return _open_frame(path, role)
    file = files.check_file(path, (*TEXT_SUFFIXES, *PARQUET_SUFFIXES), role=f"table of {role}")
    if file.suffix.lower() in PARQUET_SUFFIXES:
        with reading(file, "Parquet"):
            return Table(file, tuple(pq.read_schema(file).names))
    rows, line, begin, after = files.first_rows(file, SAMPLE_ROWS)
    if delimiter is None and file.suffix.lower() in (".tsv", ".tab"):
        delimiter = "\t"
    with reading(file, "a table"):
        delimiter = delimiter or find_delimiter(rows, file)
    if len(delimiter) != 1 or not (delimiter.isprintable() or delimiter == "\t"):
        raise GraphError(f"the delimiter {delimiter!r} is not one character", code="value-invalid")
    with reading(file, "a table"):
        cells = [[cell.strip() for cell in split_line(row, delimiter, whole=True)] for row in rows]
    names = [name for name in expected if isinstance(name, str)]
    known = find_header(cells, role, names, file) if header is None else header
    columns = cells[0] if known else [f"column {position + 1}" for position in range(len(cells[0]))]
    start = after if known else begin
    return Table(file, tuple(columns), known, header is None, delimiter, start, line + known)


def _alike(node: Any) -> int | None:
    """Return the integer that a number, or a text such as 1.0, 007 or 1e5, may denote."""
    try:
        number = float(node) if isinstance(node, str | int) else 0.5
    except ValueError:
        return None
    return int(number) if abs(number) < LARGEST_EXACT and number.is_integer() else None


def add_duplicates(problems: Problems, ids: Ids, place: Callable[[int], str]) -> None:
    """Add the rows whose id an earlier row has to the problems; `place` names a row."""
    for row in np.flatnonzero(pd.Index(ids).duplicated() & (ids != "")).tolist():
        what = ""
        if problems.count < files.MOST_SHOWN:
            first = int(np.flatnonzero(ids == ids[row])[0])
            what = f"node {quoted(ids[row])} is already in {place(first)}"
        problems.add(partial(place, row), what, FIX_DUPLICATE, "id-duplicate")


def joined_place(places: Sequence[Callable[[int], str]], sizes: Sequence[int]) -> Callable[[int], str]:
    """Return a function that names a row of several tables of these sizes, one below the other."""
    ends = [0, *np.cumsum(sizes).tolist()]

    def place(row: int) -> str:
        at = int(np.searchsorted(ends[1:], row, side="right"))
        return places[at](row - ends[at])

    return place
