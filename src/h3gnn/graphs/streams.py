"""Tables that are read a block at a time: CSV, TSV and Parquet of any size, and arrays in NPY files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.headers import row_is_header
from h3gnn.graphs.opening import check_file, reading
from h3gnn.graphs.parquet import PARQUET_SUFFIXES
from h3gnn.graphs.tables import need_pyarrow
from h3gnn.graphs.textfile import TEXT_SUFFIXES, split_line

BLOCK_BYTES = 16 << 20
BLOCK_ROWS = 1 << 16
HEAD_BYTES = 1 << 20
HEAD_ROWS = 1000

Progress = Callable[[float], None]
"""Called with the share that has been read, 0 to 1."""


@dataclass(frozen=True)
class Stream:
    """A table on disk whose columns are known and whose rows come in blocks.

    Attributes:
        path: the file.
        names: one name per column.
        delimiter: between the cells of a text file; None for Parquet.
        skipped: lines before the first row of data, for text files.
    """

    path: Path
    names: tuple[str, ...]
    delimiter: str | None
    skipped: int

    def blocks(self, ids: Sequence[int], numbers: Sequence[int], progress: Progress) -> Iterator[Any]:
        """Yield Arrow record batches: the id columns (text in text files), then the numbers as float64."""
        with reading(self.path, "a table"):
            source = self._parquet(ids, numbers) if self.delimiter is None else self._text(ids, numbers)
            for batch, share in source:
                progress(share)
                yield batch

    def place(self, row: int) -> str:
        """Name a row; in a text file without blank lines this is its line."""
        if self.delimiter is None:
            return f"{self.path}, row {row + 1}"
        return f"{self.path}, line {row + 1 + self.skipped}"

    def _text(self, ids: Sequence[int], numbers: Sequence[int]) -> Iterator[tuple[Any, float]]:
        import pyarrow as pa
        from pyarrow import csv as arrow

        labels = [str(position) for position in range(len(self.names))]
        kinds = {labels[i]: pa.string() for i in ids} | {labels[i]: pa.float64() for i in numbers}
        size = max(1, self.path.stat().st_size)
        with self.path.open("rb") as raw:
            reader = arrow.open_csv(
                raw,
                arrow.ReadOptions(column_names=labels, skip_rows=self.skipped, block_size=BLOCK_BYTES),
                arrow.ParseOptions(delimiter=self.delimiter),
                arrow.ConvertOptions(
                    include_columns=[labels[i] for i in (*ids, *numbers)], column_types=kinds
                ),
            )
            for batch in reader:
                yield batch, min(1.0, raw.tell() / size)

    def _parquet(self, ids: Sequence[int], numbers: Sequence[int]) -> Iterator[tuple[Any, float]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
            total, done = max(1, file.metadata.num_rows), 0
            wanted = [self.names[i] for i in (*ids, *numbers)]
            for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=wanted):
                done += batch.num_rows
                columns = [batch.column(name) for name in wanted]
                cast = [column.cast(pa.float64(), safe=False) for column in columns[len(ids) :]]
                yield pa.record_batch([*columns[: len(ids)], *cast], names=wanted), done / total


def open_stream(
    path: str | Path, *, role: str, header: bool | None, delimiter: str | None, expected: Sequence[Any]
) -> Stream:
    """Find out how a table is written from its first lines; the rest is not looked at."""
    need_pyarrow(path)
    if Path(path).suffix.lower() in PARQUET_SUFFIXES:
        file = check_file(path, PARQUET_SUFFIXES, role=f"table of {role}")
        with reading(file, "Parquet"):
            import pyarrow.parquet as pq

            return Stream(file, tuple(pq.read_schema(file).names), None, 0)
    file = check_file(path, (*TEXT_SUFFIXES, *PARQUET_SUFFIXES), role=f"table of {role}")
    with reading(file, "text"), file.open("rb") as raw:
        head = raw.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    lines = head.splitlines()
    comments = sum(1 for _ in itertools.takewhile(lambda line: line[:2] in ("# ", "#\t", "#", ""), lines))
    rows = [line for line in lines[comments : comments + HEAD_ROWS] if line]
    if not rows:
        raise GraphError(f"{file} has no row")
    mark = delimiter or _delimiter_of(file, rows[0])
    cells = [[cell.strip() for cell in split_line(row, mark)] for row in rows]
    named = [name for name in expected if isinstance(name, str)]
    known = row_is_header(cells, role, named, file) if header is None else header
    names = tuple(cells[0]) if known else tuple(f"column {i + 1}" for i in range(len(cells[0])))
    return Stream(file, names, mark, comments + int(known))


def _delimiter_of(path: Path, row: str) -> str:
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t"
    return next((mark for mark in "\t,;" if mark in row), " ")


def id_column(column: Any) -> npt.NDArray[Any]:
    """Return an Arrow column of ids as int64 where it holds plain whole numbers, else as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    plain = pc.match_substring_regex(texts, r"^(0|-?[1-9][0-9]{0,17})$")
    if not column.null_count and pc.all(plain).as_py() is not False:
        return np.asarray(texts.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return np.asarray(pc.fill_null(texts, "").to_numpy(zero_copy_only=False), dtype=object)
