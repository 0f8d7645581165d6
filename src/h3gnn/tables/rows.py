"""Names and times of rows: the texts by which people know a key, and dates as nanoseconds since 1970."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, InputError, shortened
from h3gnn.graphs.ids import find_ids
from h3gnn.graphs.relational import UNKNOWN_TIME, NodeTable, Relation
from h3gnn.tables.infer import Cells, infer_column
from h3gnn.tables.schema import Profile, Schema, TableSchema
from h3gnn.tables.sources import Source

Integers = npt.NDArray[np.int64]
DAY = 86_400 * 10**9
"""Nanoseconds of a day."""
YEARS = (1678, 2261)
"""Years whose nanoseconds since 1970 fit into 64 bits; earlier and later dates count as the first or last."""
MOST_SECONDS = 1e11
"""Larger numbers of a column are milliseconds, microseconds or nanoseconds since 1970."""
WRITTEN = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?")


def parse_time(text: Any, *, end: bool = True) -> int:
    """Return a date as nanoseconds since 1970; of a day without a time of day, its end or its beginning."""
    moment: Any = pd.NaT
    if isinstance(text, datetime.date | np.datetime64) or WRITTEN.fullmatch(str(text).strip()):
        with suppress(ValueError):
            moment = pd.Timestamp(text).as_unit("ns")
    if pd.isna(moment):
        raise InputError(f"{text!r} is not a date; write it as 2024-12-31", code="date-invalid")
    if moment.tz is not None:
        moment = moment.tz_convert(None)
    is_day = not isinstance(text, datetime.datetime | np.datetime64) and ":" not in str(text)
    return int(moment.value) + (DAY - 1 if is_day and end else 0)


def decode_times(frame: pd.DataFrame, column: str, table: str) -> Integers:
    """Return the times in a column, `UNKNOWN_TIME` where missing: dates, years, or seconds since 1970."""
    cells = Cells(frame[column])
    kind = infer_column(column, cells, None, list(map(str, frame.columns)))
    if kind.kind == "date":
        days, unreadable = cells.decode("date", kind.form)
    else:
        numbers, unreadable = cells.decode("number")
        days = _days_of_numbers(numbers)
    if unreadable.size:
        first = cells.texts[int(unreadable[0])]
        message = f"{table}.{column}, row {unreadable[0] + 1}: {first!r} is not a date"
        raise GraphError(f"{message}; correct it, or set another time in the schema", code="time-unreadable")
    return as_times(days)


def as_times(days: npt.NDArray[np.float64]) -> Integers:
    """Return days since 1970 as nanoseconds, `UNKNOWN_TIME` for NaN."""
    known = ~np.isnan(days)
    least, most = ((pd.Timestamp(year, 1, 1) - pd.Timestamp(0)).days for year in YEARS)
    return np.where(
        known, np.round(np.clip(np.where(known, days, 0), least, most) * DAY), UNKNOWN_TIME
    ).astype(np.int64)


def _days_of_numbers(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return years, or seconds since 1970 or their fractions, as days since 1970."""
    known = numbers[~np.isnan(numbers)]
    if known.size and YEARS[0] <= known.min() and known.max() <= YEARS[1]:
        years = np.where(np.isnan(numbers), 1970, np.floor(numbers))
        first = (years - 1970).astype("datetime64[Y]").astype("datetime64[D]").astype(np.float64)
        return np.asarray(first + (numbers - years) * 365.2425)
    while known.size and np.abs(known).max() > MOST_SECONDS:
        numbers, known = numbers / 1000, known / 1000
    return numbers / 86_400


def inherited_times(own: Mapping[str, Integers], relations: Sequence[Relation]) -> dict[str, Integers]:
    """Return the time of each row: its own, else the latest of the rows that it references.

    Args:
        own: of every table, the time of each row, `UNKNOWN_TIME` where it has none.
        relations: the links, each from the table that holds it.
    """
    times, changed = dict(own), True
    while changed:  # once per link of the longest chain of rows without times of their own
        changed = False
        for one in relations:
            sources, targets = one.ends
            latest = times[one.source].copy()
            np.maximum.at(latest, sources, times[one.target][targets])
            latest = np.where(own[one.source] == UNKNOWN_TIME, latest, own[one.source])
            if not np.array_equal(latest, times[one.source]):
                times[one.source], changed = latest, True
    return times


NAMES = ("name", "title", "label", "username")
PARTS = (("forename", "surname"), ("firstname", "lastname"), ("givenname", "familyname"))

MOST_ENDS = 3
"""Rows to which a row refers that its name has at most."""
TITLES = {"node": "name", "similar": "similar_name", "user": "user_name", "item": "item_name"}
"""Columns of keys in tables of answers, and the columns with their names."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Keys, names and times of the rows of a type.

    Attributes:
        type: the name of the type.
        table: columns `node` (the key as text), `name` (None where unknown) and `time`.
    """

    type: str
    table: pd.DataFrame

    @cached_property
    def names(self) -> dict[str, str]:
        """Names by keys, "" where unknown; {} if no row has a name."""
        known = dict(zip(self.table["node"], self.table["name"].fillna(""), strict=True))
        return known if any(known.values()) else {}

    def find(self, ids: npt.NDArray[Any], wanted: Sequence[Any]) -> list[Any]:
        """Return the keys, among `ids`, of rows that are given by their keys or names."""
        known = find_ids(np.array([str(one) for one in wanted], dtype=object), ids)
        named = list(zip(wanted, known.tolist(), strict=True))
        keys = {str(one): one for one in ids} if (known < 0).any() else {}
        return [ids[at] if at >= 0 else keys[self._named(str(one))] for one, at in named]

    def _named(self, wanted: str) -> str:
        """Return the key of the row with a name."""
        keys, names = self.table["node"], self.table["name"].fillna("").tolist()
        found = find_name(wanted, names)
        if len(found) == 1:
            return str(keys.iloc[int(found[0])])
        if len(found):
            message = f"{len(found)} rows of {self.type} are called {wanted!r}: choose one of the keys "
            raise InputError(message + shortened(keys.iloc[found], 8), code="name-ambiguous")
        some = [one for one in names if one] or keys.tolist()
        near = get_close_matches(wanted, some, 1, cutoff=0.6)
        message = f"{self.type} has no row with the key or name {wanted!r}; there are {shortened(some, 3)}"
        raise InputError(message + (f"; did you mean {near[0]!r}?" if near else ""), code="unknown-node")

    def from_date(self, date: Any, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which of the known rows are of a date or later."""
        time = self.table["time"].to_numpy()
        if (time == UNKNOWN_TIME).all():
            message = f"the rows of {self.type} have no times: name the column in a schema file (time = …)"
            raise InputError(message, code="time-missing")
        test = (time >= parse_time(date, end=False)) & known
        if not test.any() or test.sum() == known.sum():
            first, last = (pd.Timestamp(one).date() for one in (time[known].min(), time[known].max()))
            message = f"no labelled row of {self.type} is {'later' if not test.any() else 'earlier'}"
            raise InputError(f"{message}: their times are {first} to {last}", code="date-splits-nothing")
        return np.asarray(test)

    def with_names(self, table: pd.DataFrame, columns: Sequence[str] = ("similar", "node")) -> pd.DataFrame:
        """Return a table of answers with the names of the keys in some columns beside them."""
        found = table.copy()
        for column in columns:
            if column in found and self.names:
                texts = [self.names.get(str(one), "") for one in found[column]]
                found.insert(list(found).index(column) + 1, TITLES[column], texts)
        return found


def rows_of(source: Source, schema: Schema, table: NodeTable) -> Rows:
    """Return keys, names and times of the nodes of a type."""
    ids = [str(one) for one in table.ids.tolist()]
    names = row_names(source, schema, table.name) if table.has_ids else {}
    named = pd.Series([names.get(one) for one in ids], dtype=object)
    time = np.full(len(ids), UNKNOWN_TIME) if table.time is None else table.time
    return Rows(table.name, pd.DataFrame({"node": pd.Series(ids, dtype=object), "name": named, "time": time}))


def listed(given: Any) -> list[Any]:
    """Return keys or names as a list; a single one may be given alone."""
    return [given] if isinstance(given, str) or np.ndim(given) == 0 else list(given)


def name_columns(table: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a table that name its rows: name, forename and surname, film_title, or status."""
    words = {re.sub(r"[^a-z]", "", one.lower()): one for one in reversed(columns)}
    stem = re.sub(r"[^a-z]", "", table.lower()).removesuffix("s")
    alternatives = [
        ("name",),
        *PARTS,
        *((f"{stem}{one}",) for one in NAMES),
        *((one,) for one in NAMES),
        (stem,),
        (f"{stem}s",),
    ]
    for parts in alternatives:
        if all(one in words for one in parts):
            return tuple(words[one] for one in parts)
    others = [one for word, one in words.items() if word.endswith("name")]
    return tuple(others[-1:])


def row_names(source: Source, schema: Schema, node_type: str, *, by_ends: bool = True) -> dict[str, str]:
    """Return the name of each node of a type by its id as text; of a table, it needs a key.

    The values of a column such as `bank_id` are named by the column `bank`, or `bank_name`. Rows of a table
    without names are named by the rows to which they refer, such as `Barclays – ING`, if two have names.
    """
    table = schema.tables.get(node_type)
    if table is None:
        return _value_names(source, schema, node_type)
    if not table.key:
        return {}
    profile = Profile(node_type, source.frame(node_type).reset_index(drop=True))
    texts = [profile.texts(one) for one in naming_columns(table, profile.names)]
    between = " " if texts else " – "
    if not texts and by_ends:
        ends = {column: kind for kind, columns in table.nodes.items() for column in columns}
        ends |= {one.columns[0]: one.to for one in table.links if len(one.columns) == 1}
        named = {kind: row_names(source, schema, kind, by_ends=False) for kind in {*ends.values()}}
        shown = [one for one in profile.names if named.get(ends.get(one, ""))][:MOST_ENDS]
        texts = [profile.texts(one).map(named[ends[one]]) for one in shown if len(shown) > 1]
    if not texts:
        return {}
    return _without_empty(dict(zip(row_keys(profile, table.key), _joined(texts, between), strict=True)))


def naming_columns(table: TableSchema, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that name the rows of a table, and not the nodes or rows to which they refer."""
    refers = {one for kinds in table.nodes.values() for one in kinds} | {
        one for link in table.links for one in link.columns
    }
    others = {*table.key, *refers, *(beside for one in refers for beside in _beside(one))}
    return name_columns(table.name, [one for one in columns if one not in others])


def _beside(column: str) -> tuple[str, str, str]:
    """Return the columns that may name the values of a column such as `bank_id`."""
    stem = re.sub(r"[_ ]?(id|key|no|number)$", "", column, flags=re.IGNORECASE)
    return stem, f"{stem}_name", f"{stem}Name"


def row_keys(profile: Profile, key: Sequence[str]) -> list[str]:
    """Return the id of each row of a table as text."""
    parts = [profile.texts(one) for one in key]
    return _joined(parts if len(parts) == 1 else [one.str.replace("/", "%2F") for one in parts], "/")


def _value_names(source: Source, schema: Schema, node_type: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, table in schema.tables.items():
        for column in table.nodes.get(node_type, ()):
            frame = source.frame(name).reset_index(drop=True)
            beside = [one for one in _beside(column) if one in frame.columns]
            if not beside or beside[0] == column:
                continue
            profile = Profile(name, frame)
            pairs = zip(profile.texts(column), profile.texts(beside[0]), strict=True)
            found |= {key: text for key, text in pairs if key is not None and key not in found}
    return _without_empty(found)


def _joined(columns: Sequence[Any], between: str) -> list[str]:
    texts = [["" if pd.isna(one) else str(one) for one in column] for column in columns]
    return [between.join(filter(None, one)) for one in zip(*texts, strict=True)]


def _without_empty(names: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(name) for key, name in names.items() if isinstance(name, str) and name}


def find_name(wanted: str, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the positions of a name, by its case or, if that finds none, without it."""
    texts = np.array(names, dtype=object)
    found = np.flatnonzero(texts == wanted)
    if not found.size:
        found = np.flatnonzero([one.casefold() == wanted.casefold() for one in names])
    return found
