"""How the numbers and dates of a column are written.

Numbers have a decimal separator, digits in groups, and a unit; dates become days. The notation is decided
once for a column, from all of its cells. Where two readings fit, the user is asked.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CURRENCIES = (
    *("USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "RUB"),
    *("BRL", "CAD", "AUD", "NZD", "ZAR", "TRY", "MXN", "KRW"),
)
SUFFIXES = [
    *("%", "‰", "bp", "kg", "g", "mg", "t", "lb", "lbs", "oz", "km", "m", "cm", "mm", "mi", "ft", "l", "ml"),
    *("h", "min", "s", "ms", "days", "°C", "°F", "W", "kW", "MW", "kWh", "MWh", "B", "KB", "MB", "GB", "TB"),
    *("m²", "m2", "m³", "m3", "km²", "km2", "cm²", "cm2", "cm³", "cm3", "ft²", "ft2", "sqm", "sqft", "qm"),
    *("ha", "km/h", "kmh", "mph", "m/s", "µm", "nm", "yd", "dl", "cl", "gal"),
    *("Hz", "kHz", "MHz", "GHz", "mA"),
    *("kJ", "kcal", "Pa", "hPa", "bar", "ppm", "px", "pcs", "hours", "years", "months", "weeks"),
    *("k", "K", "M", "bn", "mn", "Mio", "Mrd", *CURRENCIES),
]
SYMBOLS = {"€": "EUR", "£": "GBP", "$": "$", "¥": "¥", "₹": "INR", "₽": "RUB", "₩": "KRW", "₺": "TRY"}
PREFIX = re.compile(rf"([{''.join(SYMBOLS)}]|(?:{'|'.join(CURRENCIES)})(?=[\s\d+-]))\s*")
_UNITS = "|".join(map(re.escape, sorted(SUFFIXES, key=len, reverse=True)))
SUFFIX = re.compile(rf"(?<=[\d.,])\s*({_UNITS}|[{''.join(SYMBOLS)}])$")
SPACED_GROUPS = re.compile(r"(?<=\d)[ '’\u00a0\u2009\u202f](?=\d{3}(?!\d))")
POINT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.IGNORECASE)
POINT_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
COMMA = re.compile(r"[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d+)?")
COMMA_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?")
ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")  # 192.168.100.101
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
"""One separator before three digits, which separates thousands or decimals."""


@dataclass(frozen=True)
class Notation:
    """How the numbers of a column are written.

    Attributes:
        form: "plain" (1200.5), "grouped" (1,200.5) or "comma" (1.200,5), then a space and the unit if any.
        doubt: why this reading is a guess; "" if it is not.
        code: of the error that asks the user.
    """

    form: str
    doubt: str = ""
    code: str = ""


def find_notation(texts: Collection[str]) -> Notation | None:
    """Return how some cells, none of them missing, are written; None if some are not numbers."""
    split = [_split_unit(text) for text in texts]
    bare = [number for number, _ in split]
    if not bare or not all(_is_number(number) for number in bare) or all(map(ADDRESS.fullmatch, bare)):
        return None
    units = {unit for number, unit in split if unit or _value(number) != 0}
    if len(units) > 1:
        named = " and ".join(sorted(unit or "no unit" for unit in units))
        return Notation("plain", f"the cells have several units ({named})", "units-mixed")
    unit = next(iter(units), "")
    form, doubt = _find_separator(bare)
    return Notation(f"{form} {unit}".strip(), doubt, "number-ambiguous" if doubt else "")


def parse_number(text: str, form: str) -> float | None:
    """Return the number that a cell holds in a notation; None if it is none, infinite, or of another unit."""
    form, _, unit = form.partition(" ")
    number, own = _split_unit(text)
    if form == "grouped" and POINT_GROUPED.fullmatch(number):
        number = number.replace(",", "")
    elif form == "comma" and COMMA_GROUPED.fullmatch(number):
        number = number.replace(".", "").replace(",", ".")
    elif form == "comma" and COMMA.fullmatch(number):
        number = number.replace(",", ".")
    elif form == "comma":
        return None
    if not POINT.fullmatch(number):
        return None
    value = float(number)
    return value if math.isfinite(value) and (own == unit or (value == 0 and not own)) else None


def readable(texts: Collection[str]) -> set[str]:
    """Return the cells that are numbers in some notation."""
    return {text for text in texts if find_notation([text]) is not None}


def with_unit(form: str, texts: Collection[str]) -> str:
    """Return the form that the user declared, with the unit that the cells have."""
    notation = find_notation(readable(texts))
    unit = "" if notation is None else notation.form.partition(" ")[2]
    return f"{form} {unit}".strip()


def fitting_forms(texts: Collection[str]) -> list[str]:
    """Return the forms in which all cells that are numbers can be read."""
    numbers = readable(texts)
    forms = {form: with_unit(form, numbers) for form in ("plain", "grouped", "comma")}
    return [
        one for one, form in forms.items() if all(parse_number(text, form) is not None for text in numbers)
    ]


def may_be_thousands(texts: Collection[str]) -> bool:
    """Whether plain numbers may be integers with points between thousands: 1.200 beside 950."""
    return bool(_find_separator(texts)[1])


def _split_unit(text: str) -> tuple[str, str]:
    """Return a number without its unit, spaces between digits and typographic signs; and its unit."""
    number, unit = text.strip().replace("\u2212", "-"), ""
    negative = number.startswith("(") and number.endswith(")")
    number = number[1:-1].strip() if negative else number
    sign = "-" if number.startswith("-") else ""
    if found := PREFIX.match(number, len(sign)):
        unit, number = found[1], sign + number[found.end() :]
    elif (found := SUFFIX.search(number)) is not None:
        unit, number = found[1], number[: found.start()]
    number = SPACED_GROUPS.sub("", number)
    return ("-" + number if negative else number), SYMBOLS.get(unit, unit)


def _is_number(number: str) -> bool:
    return any(pattern.fullmatch(number) for pattern in (POINT, POINT_GROUPED, COMMA, COMMA_GROUPED))


def _value(number: str) -> float:
    return float(re.sub(r"[.,]", "", number))


def _find_separator(numbers: Collection[str]) -> tuple[str, str]:
    """Return the form of some numbers, and why it is a guess.

    Cells such as 3,14 and 1.200,5 decide; 1,200 and 2.000 do not, and need a cell that decides or that has
    digits in groups.
    """
    other = {",": ".", ".": ","}
    decimals, grouped, open_cells = set[str](), set[str](), set[str]()
    for number in numbers:
        marks = [mark for mark in number if mark in ".,"]
        if not marks:
            continue
        if len(marks) > 1:
            grouped.add(marks[0])
            decimals.add(other[marks[0]])
        elif THOUSANDS.fullmatch(number) or re.fullmatch(r"[+-]?0,\d{3}", number):
            open_cells.add(marks[0])
        else:
            decimals.add(marks[0])
    if len(decimals) > 1:
        return "plain", "both . and , separate decimals"
    if not decimals:
        small = any(re.fullmatch(r"[+-]?\d{1,3}", number) and number.strip("+-") != "0" for number in numbers)
        if open_cells and (open_cells != {"."} or small):
            return "plain", "a separator before three digits may separate thousands or decimals"
        return "plain", ""
    decimal = decimals.pop()
    if other[decimal] in open_cells - grouped:
        return "plain", f"{other[decimal]} before three digits may separate thousands or decimals"
    if decimal == ",":
        return "comma", ""
    return ("grouped" if "," in grouped | open_cells else "plain"), ""


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
