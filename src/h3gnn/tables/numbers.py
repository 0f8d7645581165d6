"""How the numbers of a column are written: the decimal separator, digits in groups, and a unit.

The notation is decided once for a column, from all of its cells. Where two readings fit, the user is asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

CURRENCIES = (
    *("USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "RUB"),
    *("BRL", "CAD", "AUD", "NZD", "ZAR", "TRY", "MXN", "KRW"),
)
SUFFIXES = [
    *("%", "‰", "bp", "kg", "g", "mg", "t", "lb", "lbs", "oz", "km", "m", "cm", "mm", "mi", "ft", "l", "ml"),
    *("h", "min", "s", "ms", "days", "°C", "°F", "W", "kW", "MW", "kWh", "MWh", "B", "KB", "MB", "GB", "TB"),
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
