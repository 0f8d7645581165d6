"""Small generated databases with what goes wrong in real ones, and an independent reading of their links."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from h3gnn.tables.schema import Link, Schema, TableSchema

NAMES = ("client", "Straße", "заказ", "Order Line", "注文", "film", "account")
MISSING = (None, np.nan, "", "NULL", "\\N")
DANGLING = ("999", 777, "zzz")


@dataclass
class Damaged:
    """Tables, the schema that their owner would write, and the code of the error that they deserve."""

    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    schema: Schema = field(default_factory=lambda: Schema({}))
    code: str | None = None

    def write(self, folder: Path) -> Path:
        """Write one CSV file per table."""
        for name, frame in self.frames.items():
            frame.to_csv(folder / f"{name}.csv", index=False)
        return folder


def damaged(seed: int) -> Damaged:
    """Return tables of at most nine rows: without keys, with keys of two columns, repeated or missing ones,
    ids written in several ways, links to nothing, to the table itself and in cycles, gaps, and empty tables.
    """
    draw = np.random.default_rng(seed)
    made, tables = Damaged(), dict[str, TableSchema]()
    names = [str(one) for one in draw.permutation(NAMES)[: draw.integers(2, 5)]]
    for name in names:
        rows = int(draw.choice([0, 1, 2, 5, 9], p=[0.1, 0.1, 0.1, 0.3, 0.4]))
        key = _key(draw, name, rows)
        notes = {"note": [f"row {at % 4}" for at in range(rows)]}
        made.frames[name] = pd.DataFrame(key | notes, dtype=object)
        tables[name] = TableSchema(name, tuple(key))
    for name in names:
        frame, links = made.frames[name], []
        for other in names:
            wanted = tables[other].key
            if wanted and draw.random() < 0.45:
                columns = tuple(f"{'parent ' if name == other else ''}{one}" for one in wanted)
                if not set(columns) & set(frame.columns):
                    _add_links(draw, frame, columns, made.frames[other][[*wanted]])
                    links.append(Link(columns, other))
        time = _add_columns(draw, frame) if draw.random() < 0.5 else None
        tables[name] = TableSchema(name, tables[name].key, tuple(links), time)
    if draw.random() < 0.15:
        _break_key(draw, made, tables)
    made.schema = Schema(tables)
    made.code = made.code or _links_nowhere(made)
    return made


def _key(draw: np.random.Generator, name: str, rows: int) -> dict[str, list[Any]]:
    """Return the columns of a key: one with ids of a kind, two, or none."""
    kind = draw.choice(["number", "text", "mixed", "padded", "two", "none"])
    ids: list[Any] = [*range(1, rows + 1)]
    if kind == "none":
        return {}
    if kind == "two":
        return {
            f"{name}_id": [1 + at // 3 for at in range(rows)],
            f"{name} line": [at % 3 for at in range(rows)],
        }
    if kind == "text":
        ids = [f"{name[0]}{one}" for one in ids]
    if kind == "padded":
        ids = [f"{one:03d}" for one in ids]
    return {f"{name}_id": [_written(draw, one) for one in ids] if kind == "mixed" else ids}


def _written(draw: np.random.Generator, value: Any) -> Any:
    """Return a number as programs write it: 1, 1.0 or "1"."""
    if not isinstance(value, int):
        return value
    return (value, float(value), str(value))[draw.integers(3)]


def _add_links(
    draw: np.random.Generator, frame: pd.DataFrame, columns: tuple[str, ...], keys: pd.DataFrame
) -> None:
    """Add columns with keys of a table, some of them missing or of no row."""
    gaps, wrong = draw.choice([0, 0.3, 1], p=[0.6, 0.3, 0.1]), draw.choice([0, 0.2, 1], p=[0.6, 0.3, 0.1])
    cells: list[list[Any]] = [[] for _ in columns]
    for _ in range(len(frame)):
        row = [*keys.iloc[draw.integers(len(keys))]] if len(keys) else [DANGLING[0]] * len(columns)
        row = [_written(draw, one) for one in row]
        if draw.random() < wrong:
            row = [DANGLING[draw.integers(3)]] * len(columns)
        if draw.random() < gaps:
            row[int(draw.integers(len(row)))] = MISSING[draw.integers(len(MISSING))]
        for column, cell in zip(cells, row, strict=True):
            column.append(cell)
    for name, column in zip(columns, cells, strict=True):
        frame[name] = pd.Series(column, dtype=object)


def _add_columns(draw: np.random.Generator, frame: pd.DataFrame) -> str:
    """Add measurements, and dates of which some are missing; return the column of the dates."""
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, len(frame)), unit="D")
    frame["amount"] = draw.normal(100, 20, len(frame)).round(2)
    frame["happened"] = pd.Series(days.strftime("%Y-%m-%d"), dtype=object)
    frame.loc[draw.random(len(frame)) < 0.2, "happened"] = None
    return "happened"


def _break_key(draw: np.random.Generator, made: Damaged, tables: dict[str, TableSchema]) -> None:
    """Repeat or omit a key of some table with several rows."""
    several = [name for name, one in tables.items() if one.key and len(made.frames[name]) > 1]
    if several:
        name = several[draw.integers(len(several))]
        frame, key = made.frames[name], tables[name].key
        first = None if draw.random() < 0.5 else frame.loc[1, key[0]]
        frame.loc[0, [*key]] = [first, *frame.loc[1, [*key[1:]]]]
        made.code = "key-not-unique"


def normal(cell: Any) -> str | None:
    """Return a cell as text in one notation, None if it is missing."""
    if cell is None or (isinstance(cell, float) and np.isnan(cell)) or cell in MISSING:
        return None
    return re.sub(r"^(-?\d+)\.0$", r"\1", str(cell))


def rows_of(frame: pd.DataFrame, columns: tuple[str, ...]) -> list[tuple[str, ...] | None]:
    """Return the cells of some columns of each row, None where one is missing."""
    found = [[normal(cell) for cell in row] for row in frame[[*columns]].itertuples(index=False)]
    return [None if None in row else tuple(map(str, row)) for row in found]


def joined(frames: dict[str, pd.DataFrame], schema: Schema) -> dict[str, set[tuple[int, int]]]:
    """Return the row numbers at both ends of each link, by `table.columns`."""
    found = {}
    for name, table in schema.tables.items():
        for link in table.links:
            key = rows_of(frames[link.to], schema.tables[link.to].key)
            place = {one: at for at, one in enumerate(key)}
            values = enumerate(rows_of(frames[name], link.columns))
            ends = {(at, place[one]) for at, one in values if one is not None and one in place}
            found[f"{name}.{'+'.join(link.columns)}"] = ends
    return found


def _links_nowhere(made: Damaged) -> str | None:
    """Return the code of the error if all values of a link are of no row."""
    found = joined(made.frames, made.schema)
    for name, table in made.schema.tables.items():
        for link in table.links:
            values = [one for one in rows_of(made.frames[name], link.columns) if one is not None]
            if values and not found[f"{name}.{'+'.join(link.columns)}"]:
                return "link-without-match"
    return None
