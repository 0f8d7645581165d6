"""Cells of a table as values: numbers, dates and lists as people write them.

Each reader takes a column and returns one value per row, missing where there is none, and the rows whose cell
it cannot read: those are never taken for missing without a word.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.graphs.names import is_missing

NOTHING = frozenset(
    {"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "nat", "-", "--", "?", "unknown", "missing"}
)
"""Words that say of a number, a date or a yes that it is not known. In a column of words they are words."""

TRUE, FALSE = (
    frozenset({"true", "yes", "t", "y", "1", "1.0"}),
    frozenset({"false", "no", "f", "n", "0", "0.0"}),
)
ISO = re.compile(
    r"(\d{4})[-/](\d{1,2})(?:[-/](\d{1,2}))?"
    r"(?:[T ]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(Z|UTC|[+-]\d{2}:?\d{2})?)?"
)
PARTED = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:[T ]+(\d{1,2}:\d{2}(?::\d{2})?))?")
PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.IGNORECASE)
GROUPED_NUMBER = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
COMMA_NUMBER = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")
UNITS = re.compile(r"^[$€£¥]\s*|\s*[$€£¥%]$|^(?:USD|EUR|GBP|CHF)\s+|\s+(?:USD|EUR|GBP|CHF)$")
SECONDS_OF_A_DAY = 86_400.0

Values = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


def cells_of(column: Any) -> Values:
    """Return the cells of a pandas column: text stripped, None where missing, else as they are."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    cells = np.empty(len(column), dtype=object)
    listed = column.tolist()
    cells[:] = [None if is_missing(one) else one.strip() if isinstance(one, str) else one for one in listed]
    return cells


def texts_of(cells: Values) -> Values:
    """Return cells as text, None where missing or empty."""
    texts = np.empty(len(cells), dtype=object)
    texts[:] = [None if one is None else cell_text(one) or None for one in cells]
    return texts


def cell_text(one: Any) -> str:
    """Return a cell as text; a whole number is written without a point."""
    if isinstance(one, float) and one.is_integer():
        return str(int(one))
    return one if isinstance(one, str) else str(one)


def number_form(texts: Values) -> str | None:
    """Say how numbers are written: "plain", "grouped" (1,200.5) or "comma" (3,14); None for no numbers."""
    known = [_bare(one) for one in {*texts.tolist()} - {None} if one.lower() not in NOTHING]
    if not known:
        return None
    for form, pattern in (("plain", PLAIN_NUMBER), ("grouped", GROUPED_NUMBER), ("comma", COMMA_NUMBER)):
        if all(pattern.fullmatch(one) or PLAIN_NUMBER.fullmatch(one) for one in known):
            return form
    return None


def _bare(text: str) -> str:
    """Return a number without its currency or percent sign."""
    return UNITS.sub("", text)


def read_numbers(column: Any, form: str = "plain") -> tuple[npt.NDArray[np.float64], Rows]:
    """Return numbers, NaN where missing; an infinity cannot be read, for nothing can be made of it."""
    if pd.api.types.is_numeric_dtype(column.dtype) and not isinstance(column.dtype, pd.CategoricalDtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.where(np.isinf(values), np.nan, values), np.flatnonzero(np.isinf(values))
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        return column.dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan), _none()
    return _by_text(cells_of(column), lambda text: _number(text, form))


def _number(text: str, form: str) -> float | None:
    """Return a number, NaN for none, None for what is something else."""
    if text.lower() in NOTHING:
        return np.nan
    bare = _bare(text)
    if form == "grouped":
        bare = bare.replace(",", "") if GROUPED_NUMBER.fullmatch(bare) else bare
    elif form == "comma":
        bare = bare.replace(".", "").replace(",", ".") if COMMA_NUMBER.fullmatch(bare) else bare
    if not PLAIN_NUMBER.fullmatch(bare):
        return None
    value = float(bare)
    return value if np.isfinite(value) else None


def read_booleans(column: Any) -> tuple[npt.NDArray[np.float64], Rows]:
    """Return 1 and 0, NaN where missing."""

    def read(text: str) -> float | None:
        word = text.lower()
        return 1.0 if word in TRUE else 0.0 if word in FALSE else np.nan if word in NOTHING else None

    return _by_text(cells_of(column), read)


def _by_text(cells: Values, read: Any) -> tuple[npt.NDArray[np.float64], Rows]:
    """Read every different text once."""
    texts = texts_of(cells)
    codes, different = pd.factorize(texts)
    found = [read(one) for one in different.tolist()]
    lost = np.array([one is None for one in found] + [False], dtype=bool)
    values = np.array([np.nan if one is None else one for one in found] + [np.nan], dtype=np.float64)
    return values[codes], np.flatnonzero(lost[codes])


def date_form(texts: Values) -> str | None:
    """Say how dates are written: "iso", "dmy", "mdy", "either" where none tells; None for no dates."""
    known = [one for one in {*texts.tolist()} - {None} if one.lower() not in NOTHING]
    if not known:
        return None
    if all(_iso(one) is not None for one in known):
        return "iso"
    parts = [PARTED.fullmatch(one) for one in known]
    if not all(parts):
        return None
    firsts = max(int(part[1]) for part in parts if part)
    seconds = max(int(part[3]) for part in parts if part)
    if any(part[2] == "." for part in parts if part):
        return "dmy" if seconds <= 12 else None  # nobody writes the month first with dots
    if firsts > 12:
        return "dmy" if seconds <= 12 else None
    return "mdy" if seconds > 12 else "either"


def read_dates(column: Any, form: str = "iso") -> tuple[npt.NDArray[np.float64], Rows]:
    """Return days since 1970 in UTC, NaN where missing."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        moments = column.dt.tz_convert("UTC").dt.tz_localize(None) if column.dt.tz is not None else column
        since = (moments - pd.Timestamp("1970-01-01")).dt.total_seconds()
        return since.to_numpy(dtype=np.float64, na_value=np.nan) / SECONDS_OF_A_DAY, _none()
    cells = cells_of(column)
    texts = np.empty(len(cells), dtype=object)
    texts[:] = [one.isoformat() if isinstance(one, datetime.date) else one for one in cells]
    return _by_text(texts, lambda text: _days(text, form))


def _days(text: str, form: str) -> float | None:
    if text.lower() in NOTHING:
        return np.nan
    parted = None if form == "iso" else PARTED.fullmatch(text)
    if parted:
        day, month = (parted[1], parted[3]) if form == "dmy" else (parted[3], parted[1])
        text = f"{parted[4]}-{month}-{day}" + (f" {parted[5]}" if parted[5] else "")
    moment = _iso(text)
    return None if moment is None else moment.timestamp() / SECONDS_OF_A_DAY


def _iso(text: str) -> datetime.datetime | None:
    parts = ISO.fullmatch(text)
    if parts is None:
        return None
    year, month, day, clock, zone = parts.groups()
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    clock = clock or "00:00"
    clock = clock if clock.index(":") == 2 else f"0{clock}"
    try:
        return datetime.datetime.fromisoformat(f"{year}-{int(month):02d}-{int(day or 1):02d}T{clock}{zone}")
    except ValueError:
        return None


def _none() -> Rows:
    return np.empty(0, dtype=np.int64)
