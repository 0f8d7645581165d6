"""Tables in Parquet files, with the same questions answered as for text files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.opening import check_file, reading

PARQUET_SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file in memory; rows are counted from 1 in what a person reads."""

    path: Path
    table: Any
    names: tuple[str, ...]
    header: bool = True
    guessed: bool = False

    def texts(self, columns: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Return columns of whole numbers as int64 and columns of text as objects; nothing else is an id."""
        return [self._text_column(column) for column in columns]

    def numbers(self, columns: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return `[rows, values]`; a column of lists of equal length gives one value per entry."""
        if not columns:
            return np.empty((self.table.num_rows, 0))
        return np.concatenate([self._number_column(column) for column in columns], axis=1)

    def place(self, row: int, column: int | None = None) -> str:
        """Name a row (and a column) of the table."""
        cell = "" if column is None else f", column {column + 1} ({self.names[column]})"
        return f"{self.path}, row {row + 1}{cell}"

    def _text_column(self, column: int) -> npt.NDArray[Any]:
        import pyarrow as pa

        values = self.table.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        kind = values.type
        if pa.types.is_null(kind):
            return np.full(len(values), "", dtype=object)
        if pa.types.is_integer(kind) and not values.null_count:
            with reading(self.path, "a column of 64-bit whole numbers"):
                return np.asarray(values.cast(pa.int64()).to_numpy())
        if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            with reading(self.path, "a column of text"):
                listed = ["" if one is None else str(one).strip() for one in values.to_pylist()]
            texts = np.empty(len(listed), dtype=object)
            texts[:] = listed
            return texts
        raise GraphError(f"{self.path}, column {column + 1} ({self.names[column]}): {kind} is no kind of id")

    def _number_column(self, column: int) -> npt.NDArray[np.float64]:
        import pyarrow as pa

        values = self.table.column(column).combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        width, kind = 1, values.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            width = self._list_width(values, column)
            values, kind = values.flatten(), kind.value_type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise GraphError(
                f"{self.path}, column {column + 1} ({self.names[column]}): {kind} is not a column of numbers"
            )
        with reading(self.path, "numbers"):
            numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(numbers, dtype=np.float64).reshape(self.table.num_rows, width)

    def _list_width(self, values: Any, column: int) -> int:
        lengths = [None if one is None else len(one) for one in values.to_pylist()]
        odd = next(
            (row for row, length in enumerate(lengths) if length is None or length != lengths[0]), None
        )
        if odd is not None:
            raise GraphError(f"{self.place(odd, column)}: the list has another length than the first")
        return lengths[0] or 0 if lengths else 0


def open_parquet_table(path: str | Path, *, role: str) -> ParquetTable:
    """Read a Parquet file; its own header and types are trusted, its values are not."""
    file = check_file(path, PARQUET_SUFFIXES, role=f"table of {role}")
    with reading(file, "Parquet"):
        import pyarrow.parquet as pq

        table = pq.read_table(file, page_checksum_verification=True)
        table.validate(full=True)
    if table.num_rows == 0:
        raise GraphError(f"{file} has no row")
    return ParquetTable(file, table, tuple(table.column_names))
