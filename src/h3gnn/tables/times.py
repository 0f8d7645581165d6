"""Times of rows: dates and numbers as nanoseconds since 1970; rows without a time inherit one."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.relational import UNKNOWN_TIME, Relation
from h3gnn.tables.infer import Cells, infer_column

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
