"""One way to open a table, whatever the file, and the questions that the reader asks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.ids import as_text, quoted, whole_numbers
from h3gnn.graphs.parquet import PARQUET_SUFFIXES, open_parquet_table
from h3gnn.graphs.textfile import TEXT_SUFFIXES, open_text_table

Column = str | int
"""A column by name, or by position counted from 1."""


class Table(Protocol):
    """Columns of a file, and the words for a place in it."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def names(self) -> tuple[str, ...]:
        """One name per column."""

    @property
    def header(self) -> bool:
        """Whether the file itself names its columns."""

    @property
    def guessed(self) -> bool:
        """Whether `header` was found out, not told."""

    def texts(self, columns: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Columns of ids or words: int64, or text in object arrays, "" where a value is missing."""

    def numbers(self, columns: Sequence[int]) -> npt.NDArray[np.float64]:
        """Columns of numbers side by side, NaN where a value is missing."""

    def place(self, row: int, column: int | None = None) -> str:
        """Words for a row and a column."""


def open_table(
    path: str | Path,
    *,
    role: str,
    header: bool | None = None,
    delimiter: str | None = None,
    expected: Sequence[Any] = (),
) -> Table:
    """Open a CSV, TSV or Parquet file.

    Args:
        path: the file; its suffix says what it is.
        role: "edges", "features" or "labels".
        header: whether text files start with a row of names; None to find out.
        delimiter: the character between the cells of text files; None to find out.
        expected: column names that the caller will ask for.
    """
    suffix = Path(path).suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        need_pyarrow(path)
        return open_parquet_table(path, role=role)
    if suffix not in TEXT_SUFFIXES and not Path(path).is_dir():
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))
        raise GraphError(f"{path}: a table of {role} ends in one of {known}")
    need_pyarrow(path)
    names = [name for name in expected if isinstance(name, str)]
    return open_text_table(path, header=header, delimiter=delimiter, role=role, expected=names)


def need_pyarrow(path: str | Path) -> None:
    """Say what to install where pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise InputError(
            f"{path}: reading tables needs pyarrow; install it with `pip install pyarrow`"
        ) from None


def read_ids(table: Table, columns: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Read columns of node ids, which share one kind: whole numbers if all are, text otherwise."""
    arrays = table.texts(columns)
    for column, array in zip(columns, arrays, strict=True):
        if array.dtype.kind == "O" and (gaps := np.flatnonzero(array == "")).size:
            raise GraphError(f"{table.place(int(gaps[0]), column)}: the node id is missing")
    numbers = [array if array.dtype.kind == "i" else whole_numbers(array) for array in arrays]
    if all(array is not None for array in numbers):
        return [array for array in numbers if array is not None]
    return [as_text(array) for array in arrays]


def check_once(ids: npt.NDArray[Any], table: Table) -> None:
    """Raise where a table speaks of a node twice."""
    import pandas as pd

    again = np.flatnonzero(pd.Index(ids).duplicated())
    if again.size:
        row = int(again[0])
        first = int(np.flatnonzero(ids == ids[row])[0])
        raise GraphError(
            f"{table.place(row)}: node {quoted(ids[row])} stands already in {table.place(first)}"
        )
