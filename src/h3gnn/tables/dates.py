"""How the dates of a column are written, and their value in days."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection

ISO_DATE = re.compile(
    r"(\d{4})[-/](\d{1,2})(?:[-/](\d{1,2}))?"
    r"(?:[T ]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(Z|UTC|[+-]\d{2}:?\d{2})?)?"
)
DAY_MONTH_YEAR = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:[T ]+(\d{1,2}:\d{2}(?::\d{2})?))?")
SECONDS_PER_DAY = 86_400.0


def date_form(texts: Collection[str]) -> str | None:
    """Return how dates are written: "iso", "dmy", "mdy", "either" if ambiguous; None for no dates."""
    if not texts:
        return None
    if all(_parse_iso(one) is not None for one in texts):
        return "iso"
    parts = [DAY_MONTH_YEAR.fullmatch(one) for one in texts]
    if not all(parts):
        return None
    first = max(int(part[1]) for part in parts if part)
    second = max(int(part[3]) for part in parts if part)
    if first > 12 or any(part[2] == "." for part in parts if part):  # with dots the day is always first
        return "dmy" if second <= 12 else None
    return "mdy" if second > 12 else "either"


def parse_days(text: str, form: str) -> float | None:
    """Return the days from 1970 to a date, in UTC; None if the text is no date."""
    parts = None if form == "iso" else DAY_MONTH_YEAR.fullmatch(text)
    if parts:
        day, month = (parts[1], parts[3]) if form == "dmy" else (parts[3], parts[1])
        text = f"{parts[4]}-{month}-{day}" + (f" {parts[5]}" if parts[5] else "")
    moment = _parse_iso(text)
    return None if moment is None else moment.timestamp() / SECONDS_PER_DAY


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
