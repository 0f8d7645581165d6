"""Sizes that files declare, looked at before memory is asked for: what they hold, and what it becomes.

A file may say anything about itself: an array of 10¹² rows in a hundred bytes, a megabyte that unpacks to a
gigabyte, a million rows that share one text of a megabyte. Each reader asks here before it reads.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from h3gnn.errors import GraphError
from h3gnn.resources import available_memory, check_memory, format_bytes

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


def check_npy(stream: BinaryIO, size: int, path: Path, name: str = "") -> None:
    """Refuse an array whose header declares more than the file holds, or than there is memory for.

    Args:
        stream: at its beginning, to which it does not return.
        size: bytes of the file, or of the file in an archive.
        path: the file.
        name: of the array in an archive.
    """
    form = np.lib.format
    version = form.read_magic(stream)
    read: Any = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    if version not in ((1, 0), (2, 0)):  # 3.0 differs in the encoding of field names, which features lack
        return
    shape, _, dtype = read(stream)
    declared = math.prod(shape) * dtype.itemsize
    what = f"the array {name}" if name else "the array"
    if declared > size:
        raise GraphError(
            f"{path}: {what} says that it holds {format_bytes(declared)}, but has {size:,} bytes"
        )
    check_memory(3 * declared, f"reading {what} of {path}", GraphError)


def check_npz(path: Path) -> None:
    """Refuse an archive that unpacks to more than there is memory for, or whose arrays say so."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_memory(3 * sum(one.file_size for one in members), f"unpacking {path}", GraphError)
        for one in members:
            if one.filename.endswith(".npy"):
                with archive.open(one) as stream:
                    check_npy(stream, one.file_size, path, one.filename.removesuffix(".npy"))  # type: ignore[arg-type]


def check_archive(path: Path) -> None:
    """Refuse a `.pt` file that unpacks to more than there is memory for; an old one is no archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(one.file_size for one in archive.infolist())
            check_memory(3 * size, f"unpacking {path}", GraphError)


def check_matrix(rows: int, columns: int, stored: int, what: str) -> None:
    """Refuse a sparse matrix whose rows, of which each costs a number, are more than there is memory for."""
    if columns >= 2**62 or rows >= 2**62:
        raise GraphError(f"{what} of {rows:,} x {columns:,} are more than can be numbered")
    check_memory(24 * (rows + stored), f"{what} of {rows:,} rows", GraphError)
