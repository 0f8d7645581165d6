"""Open a user's files: existence, encoding, delimiter, memory, and the report of all their problems."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from h3gnn.errors import GraphError, InputError
from h3gnn.resources import available_memory, check_memory
from h3gnn.storage.atomic import local

BLOCK_BYTES = 16 << 20  # A text file is read this many bytes at a time, cut at the end of a line
BLOCK_ROWS = 1 << 16  # rows of a Parquet file or an array that are read at a time
ARROW_BYTES = 100 * 10**6  # memory that pyarrow needs for its threads; with less they die or wait forever
TABLE_COPIES = 8  # bytes of memory per byte of a table, with the copies made on the way
MOST_SHOWN = 20  # this many problems of a file are described; the others are counted


class Problems:
    """Collects the problems of a table; `check` raises one error that describes all of them."""

    def __init__(self, what: object) -> None:
        self.what = what
        self.count = 0
        self._shown: list[tuple[str, str]] = []
        self._codes: set[str] = set()

    def add(self, place: str | Callable[[], str], what: str, remedy: str, code: str) -> None:
        """Add a problem; a place that takes time to find is a function."""
        self.count += 1
        self._codes.add(code)
        if self.count <= MOST_SHOWN:
            self._shown.append((f"{place if isinstance(place, str) else place()}: {what}", remedy))

    @property
    def example(self) -> str:
        """The first problem, with its place."""
        return self._shown[0][0]

    def check(self) -> None:
        """Raise if there are problems; the code is that of the problems, if they share one."""
        if not self.count:
            return
        code = self._codes.pop() if len(self._codes) == 1 else "several-problems"
        if self.count == 1:
            raise GraphError("; ".join(filter(None, self._shown[0])), code=code)
        first = f", the first {MOST_SHOWN} of which are" if self.count > MOST_SHOWN else ""
        lines = [f"{self.what}: {self.count:,} problems{first}:"]
        for at, (problem, remedy) in enumerate(self._shown):
            lines.append(f"  {problem}")
            last = at + 1 == len(self._shown) or self._shown[at + 1][1] != remedy
            if remedy and last:
                lines.append(f"    what to do: {remedy}")
        raise GraphError("\n".join(lines), code=code)


def check_file(path: str | Path, suffixes: tuple[str, ...] = (), role: str = "file") -> Path:
    """Return the path of a file that exists, is not empty, can be read and has one of the suffixes.

    Of a remote file it is the path of a local copy.
    """
    path = local(path)
    try:
        if path.is_dir():
            raise GraphError(f"{path} is a directory; a {role} is needed", code="file-is-directory")
        if suffixes and path.suffix.lower() not in suffixes:
            message = f"{path}: a {role} ends in one of {', '.join(suffixes)}"
            raise GraphError(message, code="file-suffix-unknown")
        if not path.exists():
            raise GraphError(f"{path} does not exist; a {role} is needed", code="file-missing")
        with path.open("rb") as file:
            if not file.read(1):
                raise GraphError(f"{path} is empty: it has 0 bytes", code="file-empty")
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GraphError(f"{path} cannot be opened: {reason}", code="file-unreadable") from None
    return path


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any exception that another library raises over a damaged file into an error that names the file.

    Parsers of other formats fail in any way (`KeyError`, `struct.error`, `MemoryError`, ...), so every
    exception is caught. Their warnings are suppressed: the checks that follow decide.
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
        message = f"{path} cannot be read as {kind}: there is not enough memory for it"
        raise GraphError(message, code="not-enough-memory") from None
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        reason = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
        raise GraphError(f"{path} cannot be read as {kind} ({reason})", code="file-damaged") from None


def text_blocks(path: Path, start: int = 0, line: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text file from byte `start`, in large blocks, with the number of lines before.

    They are UTF-8 without zero bytes, and every quotation mark is closed on its line: a value that spans
    several lines would swallow the rows between.
    """
    with path.open("rb") as file:
        file.seek(start)
        rest, more = b"", True
        while more:
            check_table_memory(path, min(BLOCK_BYTES, path.stat().st_size))
            piece = file.read(BLOCK_BYTES)
            more = bool(piece)
            piece = rest + piece
            # a carriage return at the very end may be half of a line end
            cut = 1 + max(piece.rfind(b"\n"), piece.rfind(b"\r", 0, -1)) if more else len(piece)
            lines, rest = piece[:cut], piece[cut:]
            if lines:
                _check_text(path, lines, line)
                yield line, lines
                line += count_line_ends(lines)


def count_line_ends(content: bytes) -> int:
    """Return the number of line ends in a text."""
    ends = content.count(b"\n")
    return ends + content.count(b"\r") - content.count(b"\r\n") if b"\r" in content else ends


def _check_text(path: Path, content: bytes, before: int) -> None:
    def fail(position: int, what: str) -> NoReturn:
        line = before + 1 + count_line_ends(content[:position])
        raise GraphError(f"{path}, line {line}: {what}", code="text-invalid") from None

    try:
        if not content.isascii():
            content.decode()
    except UnicodeDecodeError as error:
        fail(error.start, "not UTF-8 text; save the file as UTF-8")
    if b"\0" in content:
        fail(content.index(b"\0"), "a zero byte, so this is not a text file")
    if b'"' in content:
        codes = np.frombuffer(content + b"\n", dtype=np.uint8)
        ends = np.flatnonzero((codes == ord("\n")) | (codes == ord("\r")))
        unclosed = np.flatnonzero(np.searchsorted(np.flatnonzero(codes == ord('"')), ends) % 2)
        if unclosed.size:
            remedy = "texts with line breaks can be read from Parquet"
            fail(ends[unclosed[0]], f"a quotation mark is not closed on its line; {remedy}")


def first_rows(path: Path, count: int) -> tuple[list[str], int, int, int]:
    """Return some rows after comments and blank lines; lines before the first; its first and end byte."""
    with path.open("rb") as file:
        mark = file.read(4)
    if mark == b"\x00\x00\xfe\xff" or mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise GraphError(f"{path} is written in UTF-16 or UTF-32; save it as UTF-8", code="text-invalid")
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
        raise GraphError(f"{path} has no row", code="table-empty")
    return rows, before, begin, after


def split_line(line: str, delimiter: str, *, whole: bool = False) -> list[str]:
    """Split one line into its cells, without quotation marks; with `whole`, each must end on the line."""
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=whole), [])
    except csv.Error as error:  # an open quotation mark, or a cell beyond the limit of Python's reader
        message = f"a row of {len(line):,} characters cannot be split into cells ({error})"
        raise GraphError(message, code="file-damaged") from None


def rows_of(before: int, content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) of every row; blank lines are no rows."""
    return ((number, line) for number, line in enumerate(content.splitlines(), before + 1) if line)


def check_table_memory(path: Path, size: int) -> None:
    """Check that there is memory for this many bytes of a table."""
    check_memory(ARROW_BYTES + TABLE_COPIES * size, f"reading {path}", GraphError)


def check_parquet(path: Path, file: Any, columns: Sequence[int]) -> None:
    """Check that there is memory for some columns of a Parquet file that pyarrow opened.

    Rows can share the texts of a dictionary, and each has its own copy once it is read: where that could be
    too much, the texts are measured.
    """
    # never the metadata of a column: if they are damaged, pyarrow ends the process (`group.column(at)`)
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    largest = max((0, *(group.total_byte_size for group in groups)))
    check_table_memory(path, largest)
    if largest * file.metadata.num_rows > available_memory():
        for at in columns:
            size = _texts_size(path, file.schema_arrow.field(at))
            check_memory(2 * size, f"reading {path}, whose column {at + 1} holds long texts,", GraphError)


def _texts_size(path: Path, field: Any) -> int:
    """Return the bytes of a column's texts, each counted in every row; 0 for a column without texts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_text(kind) for is_text in texts):
        return 0
    size = 0
    with pq.ParquetFile(path, read_dictionary=[field.name]) as coded:
        for batch in coded.iter_batches(batch_size=BLOCK_ROWS, columns=[field.name]):
            column = batch.column(0)
            if pa.types.is_dictionary(column.type):
                lengths = pc.binary_length(column.dictionary)
                size += pc.sum(pc.cast(lengths.take(column.indices), pa.int64())).as_py() or 0
            else:
                size += column.nbytes
    return size
