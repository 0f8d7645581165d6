"""How the dates of a column are written, and their value in days."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

ISO_DATE = re.compile(
    r"(\d{4})[-/](\d{1,2})(?:[-/](\d{1,2}))?"
    r"(?:[T ]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(Z|UTC|[+-]\d{2}:?\d{2})?)?"
)
DAY_MONTH_YEAR = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:[T ]+(\d{1,2}:\d{2}(?::\d{2})?))?")
COMPACT = re.compile(r"(\d{2}|\d{4})(\d{2})(\d{2})(?: +(\d{1,2}:\d{2}(?::\d{2})?))?")
SEASON = re.compile(r"\d{2}(\d{2})[-/](\d{2})")  # 2009/10: two years, no month
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = r"([A-Za-z]{3})[A-Za-z]*\.?"
CLOCK = r"(?:,? +(\d{1,2}:\d{2}(?::\d{2})?))?"
MONTH_DAY_YEAR = re.compile(rf"{MONTH} +(\d{{1,2}}),? +(\d{{4}}){CLOCK}")
DAY_NAMED_MONTH = re.compile(rf"(\d{{1,2}})[ -]+{MONTH}[ -]+(\d{{4}}){CLOCK}")
CENTURY = 69
"""Years of two digits below this one are those of 2000, the others those of 1900, as in POSIX."""
SECONDS_PER_DAY = 86_400.0


def date_form(texts: Collection[str]) -> str | None:
    """Return how dates are written: "iso", "dmy", "mdy", "either" if ambiguous; None for no dates.

    "named" is Mar 25, 2015 or 25 Mar 2015, and "compact" 930705 or 20150325 with a time of day.
    """
    if not texts or _are_seasons(texts):
        return None
    for form in ("iso", "named"):
        if all(parse_days(one, form) is not None for one in texts):
            return form
    if are_compact(texts) and all(":" in one for one in texts):
        return "compact"
    parts = [DAY_MONTH_YEAR.fullmatch(one) for one in texts]
    if not all(parts):
        return None
    first = max(int(part[1]) for part in parts if part)
    second = max(int(part[3]) for part in parts if part)
    if first > 12 or any(part[2] == "." for part in parts if part):  # with dots the day is always first
        return "dmy" if second <= 12 else None
    return "mdy" if second > 12 else "either"


def _are_seasons(texts: Collection[str]) -> bool:
    """Whether all texts are two consecutive years, as 2009/10."""
    seasons = [SEASON.fullmatch(one) for one in texts]
    return all(one is not None and int(one[2]) == (int(one[1]) + 1) % 100 for one in seasons)


def may_be_compact(values: npt.NDArray[np.float64]) -> bool:
    """Whether all known numbers have the digits of year, month and day: 930705 or 20150325."""
    if not _have_dates(values[:64]):  # most columns are ruled out by their first rows
        return False
    return _have_dates(values)


def _have_dates(values: npt.NDArray[np.float64]) -> bool:
    known = values[~np.isnan(values)]
    long, short = (known >= 10_000_000) & (known < 1e8), (known >= 10_000) & (known < 1e6)
    if not (long | short).all() or (known != np.floor(known)).any():
        return False
    months, days = known // 100 % 100, known % 100
    return bool(((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def are_compact(texts: Collection[str]) -> bool:
    """Whether all texts are digits of year, month and day, with equally many for the year."""
    if len({len(one.split(" ")[0]) for one in texts}) != 1 or not all(map(COMPACT.fullmatch, texts)):
        return False
    return all(parse_days(one, "compact") is not None for one in texts)


def parse_days(text: str, form: str) -> float | None:
    """Return the days from 1970 to a date, in UTC; None if the text is no date."""
    moment = _parse_iso(_as_iso(text, form) or text)
    return None if moment is None else moment.timestamp() / SECONDS_PER_DAY


def _as_iso(text: str, form: str) -> str | None:
    """Return a date of another form in ISO form; None if it does not have the form."""
    if form == "compact" and (parts := COMPACT.fullmatch(text)):
        year, month, day, clock = parts.groups()
        if len(year) == 2:
            year = ("20" if int(year) < CENTURY else "19") + year
    elif form == "named" and (parts := MONTH_DAY_YEAR.fullmatch(text)):
        month, day, year, clock = parts.groups()
    elif form == "named" and (parts := DAY_NAMED_MONTH.fullmatch(text)):
        day, month, year, clock = parts.groups()
    elif form in ("dmy", "mdy") and (parts := DAY_MONTH_YEAR.fullmatch(text)):
        first, _, second, year, clock = parts.groups()
        day, month = (first, second) if form == "dmy" else (second, first)
    else:
        return None
    if not month.isdecimal():
        month = str(MONTHS.index(month.lower()) + 1) if month.lower() in MONTHS else "0"
    return f"{year}-{month}-{day}" + (f" {clock}" if clock else "")


def _parse_iso(text: str) -> datetime.datetime | None:
    parts = ISO_DATE.fullmatch(text)
    if parts is None:
        return None
    year, month, day, clock, zone = parts.groups()
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    clock = "00:00" if clock is None else clock if clock[2] == ":" else f"0{clock}"
    try:
        return datetime.datetime.fromisoformat(f"{year}-{int(month):02d}-{int(day or 1):02d}T{clock}{zone}")
    except ValueError:
        return None
