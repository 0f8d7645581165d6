"""Opening a user's file: that it is there, that its text is text, and how it is written.

What can go wrong is said in one sentence that names the file, and the line where there is one.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.room import check_table_block

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
