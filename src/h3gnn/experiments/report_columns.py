"""Columns of a user's table about the nodes, as categories, measures and texts of a report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import InputError, clipped
from h3gnn.graphs.ids import NodeIndex, check_ids, quoted
from h3gnn.report.findings import Category, Measure
from h3gnn.tables.infer import Cells, are_codes, infer_type
from h3gnn.tables.notations import find_notation
from h3gnn.tables.reader import LoadedTable, open_table
from h3gnn.tables.roles import INDEX_NAMES
from h3gnn.tables.rows import naming_columns, row_keys, row_names
from h3gnn.tables.schema import Profile, Schema
from h3gnn.tables.sources import Source

MOST_COLUMNS = 10_000
MOST_VALUES = 16
"""Number of colours of a page; of more values the most frequent are shown, and the rest are "other"."""
DAY = re.compile(r"\d{4}-\d\d(-\d\d.*)?")
PERIODS = ("D", "M", "Y")
"""Dates become days, months or years: the finest unit with at most `MOST_VALUES` values."""


@dataclass(frozen=True)
class OwnColumns:
    """Columns of a table about the nodes: those with few values, with numbers, and texts ("" if missing).

    `notes` tell the user about duplicate and missing rows.
    """

    categories: tuple[Category, ...] = ()
    measures: tuple[Measure, ...] = ()
    texts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()


def read_columns(path: Path, ids: npt.NDArray[Any], id_column: str | None = None) -> OwnColumns:
    """Read a table about nodes: CSV, TSV or Parquet, rows in any order, matched by id.

    By default the column of ids is the one that matches the most nodes.
    """
    check_ids(ids)
    table = open_table(path, role="features", header=True)
    if len(table.names) > MOST_COLUMNS:
        raise InputError(
            f"{path} has {len(table.names):,} columns, and a page shows at most {MOST_COLUMNS:,} of them",
            code="too-many-columns",
        )
    loaded, nodes = table.load(range(len(table.names))), NodeIndex(ids)
    loaded.problems.check()
    key = _find_ids(loaded, nodes, ids, id_column)
    found, notes = loaded.find(key, nodes), []
    known = np.flatnonzero(found >= 0)
    if again := int(pd.Index(found[known]).duplicated().sum()):
        notes.append(f"{path}: {again:,} rows have a duplicate id; the first row counts")
    rows = np.full(len(ids), -1)
    rows[found[known][::-1]] = known[::-1]  # of several rows of a node, the first is written last
    if missing := int((rows < 0).sum()):
        notes.append(f"{path} has no row for {missing:,} of {len(ids):,} nodes; they are grey")
    others = [at for at, name in enumerate(table.names) if at != key and name.lower() not in INDEX_NAMES]
    frame = _decode(loaded.frame(others))
    return arrange_columns(frame.reindex(np.where(rows < 0, len(found), rows)), notes)


def table_columns(
    source: Source, schema: Schema, node_type: str, ids: npt.NDArray[Any], without: str | None = None
) -> OwnColumns:
    """Describe the rows of one of several tables by its columns; keys of others become names.

    Without a key there are no columns; the column `without` is left out.
    """
    table = schema.tables.get(node_type)
    if table is None or not table.key:
        return OwnColumns()
    frame = source.frame(node_type).reset_index(drop=True)
    profile, columns = Profile(node_type, frame), [*map(str, frame.columns)]
    linked = {one.columns[0]: one.to for one in table.links if len(one.columns) == 1}
    known = {without, *table.key, *naming_columns(table, columns)}
    shown: dict[str, Any] = {}
    for name in columns:
        if name in linked:
            names = row_names(source, schema, linked[name])
            shown[name] = profile.texts(name).map(lambda one, names=names: names.get(one, one))
        elif name not in known:
            shown[name] = _values(name, Cells(frame[name]))
    place = {key: at for at, key in enumerate(row_keys(profile, table.key))}
    rows = [place.get(str(one), len(frame)) for one in ids]
    return arrange_columns(pd.DataFrame(shown, index=frame.index).reindex(rows))


def _values(name: str, cells: Cells) -> Any:
    """Return the numbers or dates of a column as such, and other cells as texts."""
    found = infer_type(name, cells)
    if found.kind in ("number", "date") and not found.doubt:
        values = cells.decode(found.kind, found.form)[0]
        return values if found.kind == "number" else pd.to_datetime(values, unit="D")
    return pd.Series(cells.texts, dtype=object).map(clipped, na_action="ignore")


def arrange_columns(table: pd.DataFrame, notes: list[str] | None = None) -> OwnColumns:
    """Describe each column of a table with one row per node.

    Numbers are measures. Booleans, categories, dates and repeated strings are categories. Strings with more
    values than a category shows are texts, too.
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
        else:
            if (distinct := values.astype(str).nunique()) <= max(MOST_VALUES, len(values) // 10):
                categories.append(_category(key, name, column.map(str, na_action="ignore")))
            if distinct > MOST_VALUES:
                texts.append((name, tuple("" if pd.isna(one) else str(one) for one in column)))
    return OwnColumns(tuple(categories), tuple(measures), tuple(texts), tuple(notes or ()))


def _decode(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which numbers written as text are numbers, and other texts are stripped."""
    for name in frame:
        cells = Cells(frame[name])
        if str(frame[name].dtype) in ("object", "str", "string"):
            notation = None if are_codes(cells.distinct) else find_notation(cells.distinct_values)
            if notation is None or notation.doubt:
                frame[name] = cells.texts
            else:
                frame[name] = cells.decode("number", notation.form)[0]
    return frame


def _find_ids(loaded: LoadedTable, nodes: NodeIndex, ids: npt.NDArray[Any], wanted: str | None) -> int:
    """Return the column that holds the nodes' ids: the given one, else the one with the most nodes."""
    table = loaded.table
    if wanted is not None and wanted not in table.names:
        message = f"{table.path} has no column {wanted!r}; it has {', '.join(map(repr, table.names))}"
        raise InputError(message, code="unknown-column")
    columns = range(len(table.names)) if wanted is None else [table.names.index(wanted)]
    found = {at: loaded.find(at, nodes) for at in columns}
    hits = {at: np.unique(rows[rows >= 0]).size for at, rows in found.items()}
    best = max(hits, key=lambda at: hits[at], default=None)
    if best is None or not hits[best]:
        where = f"column {wanted!r}" if wanted else "any column"
        raise InputError(
            f"{table.path}: no node of the run, such as {quoted(ids[0])}, is in {where}; name the column of "
            "ids with --id-column",
            code="no-id-column",
        )
    return best


def _as_dates(values: pd.Series) -> pd.Series | None:
    """Return dates as the names of their periods, or None for other values."""
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
    """Return a column of strings as a category, by frequency or sorted."""
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
