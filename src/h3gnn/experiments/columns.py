"""The user's own columns on a page: what nodes can be coloured and filtered by, and what can be searched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import InputError
from h3gnn.graphs.opening import check_file, reading
from h3gnn.graphs.room import check_parquet, check_table_block
from h3gnn.report.findings import Category, Measure
from h3gnn.strangers import check_ids

MARKS = "\t,;|"
"""What may stand between cells: the first that the first line holds, never a letter, as by guessing."""
MOST_COLUMNS = 10_000
MOST_VALUES = 16
"""A page has so many colours; of more values the most frequent are shown, and the rest are "other"."""
SAMPLE = 2_000
"""So many nodes decide which column of a table holds their ids."""
DAY = re.compile(r"\d{4}-\d\d(-\d\d.*)?")
PERIODS = ("D", "M", "Y")
"""Dates become days, months or years: the finest of which there are few enough."""


@dataclass(frozen=True)
class OwnColumns:
    """A table about the nodes, one row for each, in their order.

    Attributes:
        categories, measures: columns with few values, and with numbers.
        texts: the other columns as they are, "" where there is nothing.
        notes: what a person has to know about how they were read.
    """

    categories: tuple[Category, ...] = ()
    measures: tuple[Measure, ...] = ()
    texts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()


def read_columns(path: Path, ids: npt.NDArray[Any], id_column: str | None = None) -> OwnColumns:
    """Read a table about nodes: CSV, TSV or Parquet, rows in any order, matched by id.

    Args:
        path: the file, with the names of its columns.
        ids: of the nodes.
        id_column: which column holds the ids; by default the one that knows the most nodes.
    """
    check_ids(ids)
    table = _read(path)
    known = np.array([str(one) for one in ids.tolist()], dtype=object)
    name = _find_ids(path, table, known, id_column)
    own = table.drop_duplicates(name).set_index(table.drop_duplicates(name)[name].map(_plain_id))
    notes = []
    if len(own) < len(table):
        notes.append(f"{path}: {len(table) - len(own):,} rows have an id that came before; the first counts")
    missing = int((~pd.Index(known).isin(own.index)).sum())
    if missing:
        notes.append(f"{path} has no row for {missing:,} of {len(known):,} nodes; they are grey")
    return arrange_columns(own.drop(columns=[name]).reindex(known), notes)


def arrange_columns(table: pd.DataFrame, notes: list[str] | None = None) -> OwnColumns:
    """Make of each column of a table, one row per node, what a page can show.

    Numbers are measures. Truth values, categories, dates and repeated words are categories. Words that hardly
    repeat are texts.
    """
    categories: list[Category] = []
    measures: list[Measure] = []
    texts: list[tuple[str, tuple[str, ...]]] = []
    for name in map(str, table.columns):
        column, key = table[name], f"own_{name}"
        values = column.dropna()
        if not len(values):
            continue
        dates = _as_dates(values)
        if dates is not None:
            categories.append(_category(key, name, dates.reindex(column.index), ordered=True))
        elif pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
            measures.append(Measure(key, name, np.where(np.isfinite(numbers), numbers, np.nan)))
        elif values.astype(str).nunique() <= max(MOST_VALUES, len(values) // 10):
            categories.append(_category(key, name, column.map(str, na_action="ignore")))
        else:
            texts.append((name, tuple("" if pd.isna(one) else str(one) for one in column)))
    return OwnColumns(tuple(categories), tuple(measures), tuple(texts), tuple(notes or ()))


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise InputError(f"there is no file {path}")
    with reading(check_file(path, role="table"), "a table of CSV, TSV or Parquet with names"):
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                _check_width(path, len(file.schema_arrow.names))
                check_parquet(path, file, range(len(file.schema_arrow.names)))
                columns = file.read()
            columns.validate(full=True)  # texts that are none would be found late, and by whoever reads them
            table: pd.DataFrame = columns.to_pandas().reset_index()
            return table.drop(columns=[name for name in ("index",) if name in table])
        check_table_block(path, path.stat().st_size)
        with path.open("rb") as text:
            names = text.readline().decode(errors="replace")
        mark = "\t" if path.suffix.lower() == ".tsv" else next((one for one in MARKS if one in names), ",")
        _check_width(path, names.count(mark) + 1)
        return pd.read_csv(path, sep=mark, engine="python")


def _check_width(path: Path, columns: int) -> None:
    """Refuse a table that is no table of things to know about nodes: each column is looked at for ids."""
    if columns > MOST_COLUMNS:
        raise InputError(f"{path} has {columns:,} columns, and a page shows at most {MOST_COLUMNS:,} of them")


def _find_ids(path: Path, table: pd.DataFrame, known: npt.NDArray[Any], asked: str | None) -> str:
    """Return the column that holds the nodes' ids."""
    if asked is not None and asked not in table:
        raise InputError(f"{path} has no column {asked!r}; it has {', '.join(map(repr, table.columns))}")
    nodes = set(known[:SAMPLE])
    hits = {name: len(nodes & set(table[name].map(_plain_id))) for name in ([asked] if asked else table)}
    best = max(hits, key=lambda name: hits[name], default=None)
    if best is None or not hits[best]:
        where = f"column {asked!r}" if asked else "any column"
        raise InputError(
            f"{path}: no node of the run, such as {known[0]!r}, is in {where}; name the column of ids with "
            "--id-column"
        )
    return str(best)


def _plain_id(value: Any) -> str:
    """Return an id as text; a whole number that the table holds as 3.0, for lack of others, is 3."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _as_dates(values: pd.Series) -> pd.Series | None:
    """Return dates as the names of their periods, None where the values are no dates."""
    if not pd.api.types.is_datetime64_any_dtype(values):
        words = values.astype(str)
        if pd.api.types.is_numeric_dtype(values) or not words.map(DAY.fullmatch).notna().all():
            return None
        values = pd.to_datetime(words, errors="coerce", format="ISO8601", utc=True)
        if values.isna().any():
            return None
    moments = values.dt.tz_localize(None) if values.dt.tz is not None else values
    periods = [moments.dt.to_period(one).astype(str) for one in PERIODS]
    found: pd.Series = next((one for one in periods if one.nunique() <= MOST_VALUES), periods[-1])
    return found


def _category(key: str, title: str, column: pd.Series, *, ordered: bool = False) -> Category:
    """Return a column of words as a category, the most frequent first, or in their own order."""
    counts = column.value_counts()
    names = list(counts.index[: MOST_VALUES if len(counts) <= MOST_VALUES else MOST_VALUES - 1])
    if ordered:
        names.sort()
    place = {name: at for at, name in enumerate(names)}
    other = len(names)
    values = column.map(lambda one: place.get(one, other), na_action="ignore").fillna(-1)
    if len(counts) > len(names):
        names.append(f"other ({len(counts) - len(names)})")
    return Category(key, title, tuple(map(str, names)), values.to_numpy(dtype=np.int64))
