"""All that is wrong with a file, gathered and said at once, each with what to do about it."""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.ids import as_text, one_kind, quoted
from h3gnn.resources import available_memory, check_memory
from h3gnn.tables.infer import cells_of, texts_of
from h3gnn.tables.roles import is_number, numbers_of, odd_list, row_is_header, words_of

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 20
"""So many problems are spelled out; the others are counted."""


class Problems:
    """Gathers what is wrong; `check` raises one error that tells it all.

    Args:
        what: the file, or what else the problems are of.
    """

    def __init__(self, what: object) -> None:
        self.what = what
        self.count = 0
        self._told: list[tuple[str, str]] = []

    def add(self, place: str | Callable[[], str], what: str, remedy: str = "") -> None:
        """Note where something is wrong, what, and the remedy; a place that costs time is a function."""
        self.count += 1
        if len(self._told) < SHOWN:
            self._told.append((f"{place if isinstance(place, str) else place()}: {what}", remedy))

    def check(self) -> None:
        """Raise if there is any."""
        if self.count:
            self.fail()

    def fail(self) -> NoReturn:
        """Raise: a sentence for one problem; a list for several, each remedy below those it is for."""
        if self.count == 1:
            raise GraphError("; ".join(filter(None, self._told[0])))
        first = f", the first {SHOWN} of which are" if self.count > SHOWN else ""
        lines = [f"{self.what}: {self.count:,} problems{first}:"]
        for at, (problem, remedy) in enumerate(self._told):
            lines.append(f"  {problem}")
            last = at + 1 == len(self._told) or self._told[at + 1][1] != remedy
            if remedy and last:
                lines.append(f"    what to do: {remedy}")
        raise GraphError("\n".join(lines))


BLOCK_BYTES = 16 << 20
"""A text file is read this many bytes at a time, cut at the end of a line."""


def check_file(path: str | Path, suffixes: tuple[str, ...] = (), role: str = "file") -> Path:
    """Return the path of a file that is there, is not empty, can be read and has one of the suffixes."""
    path = Path(path)
    try:
        if path.is_dir():
            raise GraphError(f"{path} is a directory; a {role} is needed")
        if suffixes and path.suffix.lower() not in suffixes:
            raise GraphError(f"{path}: a {role} ends in one of {', '.join(suffixes)}")
        if not path.exists():
            raise GraphError(f"{path} does not exist; a {role} is needed")
        with path.open("rb") as file:
            if not file.read(1):
                raise GraphError(f"{path} is empty: it has 0 bytes")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise GraphError(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    return path


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever another library raises over a damaged file into one sentence.

    Parsers of foreign formats fail in any way at all (`KeyError`, `struct.error`, `MemoryError`, ...), so
    every exception is caught here, and only here. Their warnings about a damaged file are held back: the
    checks that follow decide. A sentence of ours that does not name the file yet gets its name.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}", code=error.code) from None
    except MemoryError:
        raise GraphError(f"{path} cannot be read as {kind}: there is not enough memory for it") from None
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        reason = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
        raise GraphError(f"{path} cannot be read as {kind} ({reason})") from None


def text_blocks(path: Path, start: int = 0, line: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a text file, some megabytes at a time, and how many lines stand before them.

    What comes out is UTF-8 without zero bytes, and every quotation mark is closed on its line: a value that
    went over several lines would swallow the rows between.

    Args:
        path: the file.
        start: the byte to begin at.
        line: how many lines stand before it.
    """
    with path.open("rb") as file:
        file.seek(start)
        rest, more = b"", True
        while more:
            check_table_block(path, min(BLOCK_BYTES, path.stat().st_size))
            piece = file.read(BLOCK_BYTES)
            more = bool(piece)
            piece = rest + piece
            # a carriage return at the very end may be half of a line end
            cut = 1 + max(piece.rfind(b"\n"), piece.rfind(b"\r", 0, -1)) if more else len(piece)
            lines, rest = piece[:cut], piece[cut:]
            if lines:
                _check_text(path, lines, line)
                yield line, lines
                line += line_ends(lines)


def first_rows(path: Path, count: int) -> tuple[list[str], int, int, int]:
    """Return some rows of a text file, and where the first begins, after remarks and blank lines.

    Returns:
        The rows, the number of lines before the first, the byte at which it begins, and the byte after it.
    """
    with path.open("rb") as file:
        mark = file.read(4)
    if mark == b"\x00\x00\xfe\xff" or mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise GraphError(f"{path} is written in UTF-16 or UTF-32; save it as UTF-8")
    begin = after = len(mark) - len(mark.removeprefix(b"\xef\xbb\xbf"))
    blocks = text_blocks(path, begin)
    lines = (one[0] for _, lines in blocks for one in re.finditer(rb"[^\r\n]*(\r\n|\r|\n)|[^\r\n]+$", lines))
    rows: list[str] = []
    before = 0
    for line in lines:
        text = line.decode().rstrip("\r\n")
        if not rows and text[:2] in ("# ", "#\t", "#", ""):
            before, begin = before + 1, begin + len(line)
        elif text:
            after = after if rows else begin + len(line)
            rows.append(text)
        if len(rows) == count:
            break
    if not rows:
        raise GraphError(f"{path} has no row")
    return rows, before, begin, after


def line_ends(content: bytes) -> int:
    """Return how many lines end in a text."""
    ends = content.count(b"\n")
    return ends + content.count(b"\r") - content.count(b"\r\n") if b"\r" in content else ends


def _check_text(path: Path, content: bytes, before: int) -> None:
    try:
        if not content.isascii():
            content.decode()
    except UnicodeDecodeError as error:
        line = before + 1 + line_ends(content[: error.start])
        raise GraphError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    if b"\0" in content:
        line = before + 1 + line_ends(content[: content.index(b"\0")])
        raise GraphError(f"{path}, line {line}: a zero byte, so this is not a text file")
    if b'"' in content:
        codes = np.frombuffer(content + b"\n", dtype=np.uint8)
        ends = np.flatnonzero((codes == ord("\n")) | (codes == ord("\r")))
        open_there = np.flatnonzero(np.searchsorted(np.flatnonzero(codes == ord('"')), ends) % 2)
        if open_there.size:
            line = before + 1 + line_ends(content[: ends[open_there[0]]])
            raise GraphError(
                f"{path}, line {line}: a quotation mark is not closed on its line; "
                "texts with line breaks in them can be read from Parquet"
            )


def split_line(line: str, delimiter: str) -> list[str]:
    """Split one line into its cells, quotation marks removed."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error as error:  # a cell beyond the limit of Python's reader
        raise GraphError(f"a row of {len(line):,} characters cannot be split into cells ({error})") from None


def find_delimiter(path: Path, row: str) -> str:
    """Return a tab in `.tsv`, otherwise the first of tab, comma, semicolon in the row, otherwise a blank."""
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t"
    return next((mark for mark in "\t,;" if mark in row), " ")


TABLE_ROOM = 100 * 10**6
"""What pyarrow takes for its threads; with less its threads die or wait for ever."""
TABLE_COPIES = 8
"""Bytes in memory that a byte of a table may become, with the copies made on the way."""
ROWS = 1 << 16
"""Rows whose texts are measured at a time."""


def check_table_block(path: Path, size: int) -> None:
    """Refuse to read so many bytes of a table where there is no room for what they become."""
    check_memory(TABLE_ROOM + TABLE_COPIES * size, f"reading {path}", GraphError)


def check_parquet(path: Path, file: Any, columns: Sequence[int]) -> None:
    """Refuse a Parquet file that becomes more than there is memory for.

    Rows may share the texts of a dictionary, and each has one of its own once it is read: where that could
    be too much, the texts are measured, which takes their lengths and no more.

    Args:
        path: the file.
        file: opened by pyarrow.
        columns: which columns are wanted.
    """
    told = file.metadata
    # never the metadata of a column: where they are damaged, pyarrow ends the process (`group.column(at)`)
    groups = (told.row_group(number) for number in range(told.num_row_groups))
    largest = max((0, *(group.total_byte_size for group in groups)))
    check_table_block(path, largest)
    if largest * told.num_rows > available_memory():
        for at in columns:
            size = _texts_size(path, file.schema_arrow.field(at))
            check_memory(2 * size, f"reading {path}, whose column {at + 1} holds long texts,", GraphError)


def _texts_size(path: Path, field: Any) -> int:
    """Return how many bytes the texts of a column are, each counted in every row; 0 where it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_text(kind) for is_text in texts):
        return 0
    size = 0
    with pq.ParquetFile(path, read_dictionary=[field.name]) as coded:
        for batch in coded.iter_batches(batch_size=ROWS, columns=[field.name]):
            column = batch.column(0)
            if pa.types.is_dictionary(column.type):
                lengths = pc.binary_length(column.dictionary)
                size += pc.sum(pc.cast(lengths.take(column.indices), pa.int64())).as_py() or 0
            else:
                size += column.nbytes
    return size


TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".edges", ".edgelist")
PARQUET_SUFFIXES = (".parquet", ".pq")
BLOCK_ROWS = 1 << 16
"""Rows of a Parquet file or an array that are read at a time."""

SAMPLE_ROWS = 1000
"""The header is told from the rows by looking at this many of them."""

FIX_CELLS = "mend the line; a text that holds the character between cells needs quotation marks around it"
FIX_NUMBER = "only numbers can be read here; `h3gnn fit` with --edges and --features encodes other columns"
FIX_ID = "fill the cell or remove the line"

Progress = Callable[[float], None]
"""Called with the share that has been read, 0 to 1."""


@dataclass(frozen=True)
class Reached:
    """How far a table has been read: rows, and of a text file the byte and the lines before it."""

    rows: int = 0
    byte: int = 0
    line: int = 0


@dataclass(frozen=True)
class TableBlock:
    """Some rows of a table.

    Attributes:
        first: how many rows stand before them.
        ids: columns of node ids, int64 or text in object arrays, without gaps.
        numbers: columns of numbers side by side `[rows, values]`, NaN where a value is missing; a column of
            lists gives several.
        words: columns like ids, "" where a value is missing.
        reached: where the next rows begin.
    """

    first: int
    ids: list[npt.NDArray[Any]]
    numbers: npt.NDArray[np.float64]
    words: list[npt.NDArray[Any]]
    reached: Reached = Reached()


@dataclass(frozen=True)
class Table:
    """A file whose columns are known; its rows are read when they are asked for.

    Attributes:
        path: the file.
        names: one name per column; `column 1`, `column 2`, … without header.
        header: whether the file itself names its columns.
        guessed: whether that was found out, not told.
        delimiter: the character between the cells of a text file; None for Parquet.
        start, line: the byte at which the rows of a text file begin, and how many lines stand before.
    """

    path: Path
    names: tuple[str, ...]
    header: bool = True
    guessed: bool = False
    delimiter: str | None = None
    start: int = 0
    line: int = 0

    def blocks(
        self,
        ids: Sequence[int],
        numbers: Sequence[int] = (),
        words: Sequence[int] = (),
        progress: Progress = lambda share: None,
        begin: Reached | None = None,
    ) -> Iterator[TableBlock]:
        """Yield the rows of some columns, a block at a time, from the first on or from where one `begin`s."""
        done, widths = 0 if begin is None else begin.rows, dict[int, int]()
        read = self._parquet_columns if self.delimiter is None else self._text_columns
        for columns, share, byte, line in read((*ids, *words), numbers, begin):
            reached = Reached(done + len(columns[0]), byte, line)
            yield replace(self._block(done, columns, ids, words, numbers, widths), reached=reached)
            done = reached.rows
            progress(share)
        if not done:
            raise GraphError(f"{self.path} has {'a header and ' if self.delimiter else ''}no row")
        progress(1.0)

    def _block(
        self,
        first: int,
        columns: list[Any],
        ids: Sequence[int],
        words: Sequence[int],
        numbers: Sequence[int],
        widths: dict[int, int],
    ) -> TableBlock:
        """Return Arrow columns as arrays; `widths` notes how long the lists of a column are."""
        texts = (*ids, *words)
        with reading(self.path, "a table"):
            listed = [
                words_of(column, f"{self.path}{self.title(at)}")
                for column, at in zip(columns, texts, strict=False)
            ]
        for at, (_, gap) in zip(ids, listed, strict=False):
            if gap >= 0:
                raise GraphError(f"{self.place(first + gap, at)}: the node id is missing")
        arrays = [array for array, _ in listed]
        values = [np.empty((len(columns[0]), 0))]
        for column, at in zip(columns[len(texts) :], numbers, strict=True):
            if (odd := odd_list(column, widths.get(at))) is not None:
                place = self.place(first + odd, at)
                raise GraphError(f"{place}: the list has another length than the first")
            with reading(self.path, "a table"):
                values.append(numbers_of(column, f"{self.path}{self.title(at)}"))
            widths[at] = values[-1].shape[1]
        return TableBlock(first, arrays[: len(ids)], np.concatenate(values, axis=1), arrays[len(ids) :])

    def read(self, ids: Sequence[int], numbers: Sequence[int] = (), words: Sequence[int] = ()) -> TableBlock:
        """Return all rows of some columns."""
        return joined(self.blocks(ids, numbers, words))

    def frame(self, columns: Sequence[int]) -> pd.DataFrame:
        """Return all rows of some columns as they are: text of a text file, the types of a Parquet file."""
        import pandas as pd
        import pyarrow as pa

        read = self._parquet_columns if self.delimiter is None else self._text_columns
        blocks = [block for block, *_ in read(columns, ())]
        if not blocks:
            raise GraphError(f"{self.path} has {'a header and ' if self.delimiter else ''}no row")
        wholes = [pa.chunked_array([block[at] for block in blocks]) for at in range(len(columns))]
        check_table_block(self.path, sum(whole.nbytes for whole in wholes))
        with reading(self.path, "a table"):
            return pd.DataFrame(
                {
                    name: pd.Series(_as_pandas(whole), dtype=None)
                    for name, whole in zip(self.unique_names(columns), wholes, strict=True)
                }
            )

    def unique_names(self, columns: Sequence[int]) -> list[str]:
        """Return the names of some columns; one that stands twice is told by its position."""
        return [
            name if self.names.count(name) == 1 else f"{name} (column {column + 1})"
            for column in columns
            for name in (self.names[column],)
        ]

    def place(self, row: int, column: int | None = None) -> str:
        """Name a row (and a column) as a person sees it: by its line in a text file, else by its number."""
        if self.delimiter is None:
            return f"{self.path}, row {row + 1}{self.title(column)}"
        blocks = text_blocks(self.path, self.start, self.line)
        lines = (line for before, content in blocks for line, _ in _rows(before, content))
        return f"{self.path}, line {next(itertools.islice(lines, row, None), 0)}{self.title(column)}"

    def title(self, column: int | None) -> str:
        """Name a column behind the name of a row."""
        if column is None:
            return ""
        return f", column {column + 1}" + (f" ({self.names[column]})" if self.header else "")

    def _text_columns(
        self, texts: Sequence[int], numbers: Sequence[int], begin: Reached | None = None
    ) -> Iterator[tuple[list[Any], float, int, int]]:
        done, line = (self.start, self.line) if begin is None else (begin.byte, begin.line)
        size = self.path.stat().st_size
        apart = set(texts) & set(numbers)  # a column that is asked for as both is read twice
        for before, content in text_blocks(self.path, done, line):
            done += len(content)
            if not content.strip(b"\r\n"):
                continue
            columns = self._parse(before, content, texts, () if apart else numbers)
            columns += self._parse(before, content, (), numbers) if apart else []
            yield columns, done / size, done, before + line_ends(content)

    def _parse(self, before: int, content: bytes, texts: Sequence[int], numbers: Sequence[int]) -> list[Any]:
        import pyarrow as pa
        from pyarrow import csv as arrow

        labels = [str(position) for position in range(len(self.names))]
        wanted = [labels[column] for column in (*texts, *numbers)]
        kinds = [pa.string()] * len(texts) + [pa.float64()] * len(numbers)
        at_once = max(1 << 20, 4096 * len(labels))  # pieces that threads share; a row must fit into one
        try:
            table = arrow.read_csv(
                pa.BufferReader(content),
                arrow.ReadOptions(column_names=labels, block_size=at_once),
                arrow.ParseOptions(delimiter=self.delimiter),
                arrow.ConvertOptions(
                    include_columns=wanted, column_types=dict(zip(wanted, kinds, strict=True))
                ),
            )
        except pa.ArrowException as error:
            self._name_the_fault(before, content, numbers, str(error))
        return [column.combine_chunks() for column in table.columns]

    def _name_the_fault(self, before: int, content: bytes, numbers: Sequence[int], reason: str) -> NoReturn:
        assert self.delimiter is not None
        problems = Problems(self.path)
        for line, cells in self._split_rows(before, content):
            place = f"{self.path}, line {line}"
            if len(cells) != len(self.names):
                problems.add(place, f"{len(cells)} cell(s), the first row has {len(self.names)}")
                continue
            for column in numbers:
                if cells[column].strip() and not is_number(cells[column]):
                    problems.add(place + self.title(column), f"{cells[column]!r} is not a number", FIX_NUMBER)
        problems.check()
        raise GraphError(f"{self.path} cannot be read as a table ({' '.join(reason.split())[:200]})")

    def walk(self, columns: Sequence[int]) -> Iterator[tuple[str, int, list[str] | None]]:
        """Yield the place of every row, how many cells it has, and those of some columns as text.

        This is for finding what is wrong: slow, and a row with too few or too many cells is no error (None).
        """
        if self.delimiter is None:
            frame = self.frame(columns)
            texts = [texts_of(cells_of(frame.iloc[:, at])) for at in range(len(columns))]
            for row in range(len(frame)):
                yield f"{self.path}, row {row + 1}", len(self.names), [text[row] or "" for text in texts]
            return
        for before, content in text_blocks(self.path, self.start, self.line):
            for line, cells in self._split_rows(before, content):
                whole = len(cells) == len(self.names)
                some = [cells[column].strip() for column in columns] if whole else None
                yield f"{self.path}, line {line}", len(cells), some

    def _split_rows(self, before: int, content: bytes) -> list[tuple[int, list[str]]]:
        """Return the cells of every row of a block, and its line; one that cannot be split is named."""
        assert self.delimiter is not None
        with reading(self.path, "a table"):
            return [
                (line, split_line(text.decode(), self.delimiter)) for line, text in _rows(before, content)
            ]

    def _parquet_columns(
        self, texts: Sequence[int], numbers: Sequence[int], begin: Reached | None = None
    ) -> Iterator[tuple[list[Any], float, int, int]]:
        import pyarrow.parquet as pq

        wanted, skipped = (*texts, *numbers), 0 if begin is None else begin.rows
        unique = len(set(self.names)) == len(self.names)
        names = [self.names[column] for column in wanted] if unique else None
        with reading(self.path, "Parquet"):
            file = pq.ParquetFile(self.path, page_checksum_verification=True, pre_buffer=False)
            check_parquet(self.path, file, wanted)
            groups, done = _groups_from(file.metadata, skipped)
            batches = file.iter_batches(batch_size=BLOCK_ROWS, row_groups=groups, columns=names)
        with file:
            while True:
                with reading(self.path, "Parquet"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    batch.validate(full=True)
                check_table_block(self.path, batch.nbytes)
                known = min(batch.num_rows, max(0, skipped - done))  # rows of the first group, read before
                done += batch.num_rows
                if known < batch.num_rows:
                    batch = batch.slice(known)
                    columns = [batch.column(one) for one in names or wanted]
                    yield columns, done / file.metadata.num_rows, 0, 0


def _groups_from(about: Any, rows: int) -> tuple[list[int], int]:
    """Return the groups of a Parquet file that hold what follows so many rows, and the rows before them."""
    ends = np.cumsum([about.row_group(group).num_rows for group in range(about.num_row_groups)])
    first = int(np.searchsorted(ends, rows, side="right"))
    return list(range(first, len(ends))), int(ends[first - 1]) if first else 0


def _as_pandas(column: Any) -> Any:
    """Return an Arrow column for pandas; whole numbers with gaps become floats, text stays objects."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        listed = np.empty(len(column), dtype=object)
        listed[:] = column.to_pylist()
        return listed
    return column.to_pandas()


def joined(blocks: Iterable[TableBlock]) -> TableBlock:
    """Return all blocks of a table as one; the ids of several columns share one kind."""
    every = list(blocks)
    ids = [one_kind(parts) for parts in zip(*(block.ids for block in every), strict=True)]
    if len({one.dtype.kind for one in ids}) > 1:
        ids = [as_text(one) for one in ids]
    words = [one_kind(parts) for parts in zip(*(block.words for block in every), strict=True)]
    return TableBlock(0, ids, np.concatenate([block.numbers for block in every]), words)


def _rows(before: int, content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) of every row; blank lines are no rows."""
    return ((number, line) for number, line in enumerate(content.splitlines(), before + 1) if line)


def open_table(
    path: str | Path,
    *,
    role: str,
    header: bool | None = None,
    delimiter: str | None = None,
    expected: Sequence[Any] = (),
) -> Table:
    """Open a CSV, TSV or Parquet file and find out how it is written from its first rows.

    Args:
        path: the file; its suffix says what it is.
        role: "edges", "features" or "labels", which decides by what a header is known.
        header: whether text files start with a row of names; None to find out, by `row_is_header`.
        delimiter: the character between the cells of text files; None to find out, by `find_delimiter`.
        expected: names that the caller asks for; a row that holds one of them is a header.
    """
    file = check_file(path, (*TEXT_SUFFIXES, *PARQUET_SUFFIXES), role=f"table of {role}")
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f"{path}: reading tables needs pyarrow; install it with `pip install pyarrow`"
        ) from None
    if file.suffix.lower() in PARQUET_SUFFIXES:
        with reading(file, "Parquet"):
            return Table(file, tuple(pq.read_schema(file).names))
    rows, line, begin, after = first_rows(file, SAMPLE_ROWS)
    chosen = delimiter or find_delimiter(file, rows[0])
    if len(chosen) != 1 or not (chosen.isprintable() or chosen == "\t"):
        raise GraphError(f"the delimiter {chosen!r} is not one character")
    with reading(file, "a table"):
        cells = [[cell.strip() for cell in split_line(row, chosen)] for row in rows]
    names = [name for name in expected if isinstance(name, str)]
    known = row_is_header(cells, role, names, file) if header is None else header
    columns = cells[0] if known else [f"column {position + 1}" for position in range(len(cells[0]))]
    return Table(file, tuple(columns), known, header is None, chosen, after if known else begin, line + known)


def check_once(ids: npt.NDArray[Any], place: Callable[[int], str], what: object = "the ids") -> None:
    """Raise where a table speaks of a node twice; `place` names its rows."""
    import pandas as pd

    problems = Problems(what)
    for row in np.flatnonzero(pd.Index(ids).duplicated()).tolist():
        first = int(np.flatnonzero(ids == ids[row])[0])
        told = f"node {quoted(ids[row])} stands already in {place(first)}" if problems.count < SHOWN else ""
        remedy = "keep one row for each node; if another column holds the ids, name it (--id-column)"
        problems.add(partial(place, row), told, remedy)
    problems.check()
