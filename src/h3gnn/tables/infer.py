"""Cells of a table as values: numbers, dates and lists as people write them.

Each reader takes a column and returns one value per row, missing where there is none, and the rows whose cell
it cannot read: those are never taken for missing without a word.
"""

from __future__ import annotations

import ast
import datetime
import json
import re
from dataclasses import dataclass
from numbers import Integral, Number
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError
from h3gnn.graphs.ids import INDEX_NAMES, is_id_name, is_missing, words_in
from h3gnn.resources import check_memory

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


def is_list(one: Any) -> bool:
    """Tell whether a cell holds several values."""
    return isinstance(one, list | tuple | set | frozenset | np.ndarray)


def list_form(texts: Values) -> str | None:
    """Say how lists are written in text: "brackets", or the mark between their items; None for no lists."""
    known = [one for one in texts.tolist() if one is not None]
    if not known:
        return None
    if all(one[0] in "[({" and one[-1] in "])}" and _bracketed(one) is not None for one in {*known}):
        return "brackets"
    for mark in "|;":
        several = [one for one in known if mark in one]
        items = [item.strip() for one in known for item in one.split(mark)]
        if (
            len(several) > 0.2 * len(known)
            and len({*items}) <= 0.5 * len(items)
            and max(map(len, items)) <= 40
        ):
            return mark
    return None


def read_lists(column: Any, form: str = "") -> tuple[Values, Rows]:
    """Return one list of texts per row, None where missing; an empty list is not missing."""
    cells = cells_of(column)
    lists = np.empty(len(cells), dtype=object)
    lost = []
    for row, one in enumerate(cells):
        if one is None or (isinstance(one, str) and not one):
            continue
        found = one if is_list(one) else _bracketed(one) if form == "brackets" else _parted(str(one), form)
        if found is None:
            lost.append(row)
        else:
            lists[row] = [cell_text(item) for item in found if not is_missing(item)]
    return lists, np.array(lost, dtype=np.int64)


def _parted(text: str, mark: str) -> list[str]:
    return [item.strip() for item in (text.split(mark) if mark else [text]) if item.strip()]


def _bracketed(text: Any) -> list[Any] | None:
    """Return the items of `["a", "b"]`, `('a',)` or `{1, 2}`; nothing is executed."""
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
            "".join(map(str, found)).encode()  # half a character could not be stored
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(found, list | tuple | set):
            return sorted(found, key=str) if isinstance(found, set) else list(found)
    bare = str(text)[1:-1]
    return (
        None
        if '"' in bare or "'" in bare or "[" in bare
        else [one.strip() for one in bare.split(",") if one.strip()]
    )


def read_vectors(column: Any) -> tuple[Values, Rows]:
    """Return `[rows, values]` of lists that are as long as the first; a missing one is all NaN."""
    cells = cells_of(column)
    width = next((len(one) for one in cells if one is not None), 0)
    check_memory(2 * 8 * width * len(cells), f"lists of {width:,} numbers in {len(cells):,} rows", GraphError)
    odd = [row for row, one in enumerate(cells) if one is not None and len(one) != width]
    fits = [
        np.full(width, np.nan) if one is None or len(one) != width else np.asarray(one, float)
        for one in cells
    ]
    return np.array(fits, dtype=np.float64).reshape(len(cells), width), np.array(odd, dtype=np.int64)


KINDS = ("number", "boolean", "category", "date", "list", "text", "identifier", "constant", "label")
FORMS = {
    "number": ("plain", "grouped", "comma"),
    "date": ("iso", "dmy", "mdy"),
    "text": ("words", "characters"),
}
"""What may stand behind a kind and a colon: `opened=date:dmy`."""

LEFT_OUT = ("identifier", "constant", "label")
LABEL_WORDS = frozenset({"label", "labels", "class", "target", "y", "is_fraud"})
MOST_CATEGORIES = 100
"""Words of more kinds than this are text where they are long."""

MOST_CLASSES = 50
"""A column that holds more different values is no class, whatever its name."""

UNSPACED = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0x0E00, 0x0EFF), (0x1780, 0x17FF))
"""Scripts that put no blanks between words: Japanese and Chinese, Thai and Lao, Khmer."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Recognised:
    """The kind of a column, how its cells are written, and the words for a person.

    Attributes:
        kind: one of `KINDS`.
        form: how the cells are written, where there are several ways; see `FORMS`.
        why: what tells.
        doubt: what makes it a guess that must not be made silently, with the remedy; "" where there is none.
        said: whether a person said so; cells that are something else are then missing.
    """

    kind: str
    why: str
    form: str = ""
    doubt: str = ""
    said: bool = False


def parse_kinds(said: dict[str, str]) -> dict[str, Recognised]:
    """Return what a person said of columns: `{"opened": "date:dmy"}`."""
    return {name: _parse(name, word) for name, word in said.items()}


def _parse(name: str, word: str) -> Recognised:
    kind, _, form = word.strip().lower().partition(":")
    if kind not in KINDS or (form and form not in FORMS.get(kind, ())):
        forms = [f"{one}:{form}" for one, forms in FORMS.items() for form in forms]
        raise GraphError(
            f"the column {name!r} cannot be of the kind {word!r}; there are {', '.join(KINDS)}, "
            f"and more closely {', '.join(forms)}"
        )
    return Recognised(kind, "as you said", form, said=True)


def recognise(name: str, column: Any) -> Recognised:
    """Say what a column holds; a doubt is for the caller to raise."""
    if not column.notna().any():
        return Recognised("constant", "it is empty")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _of_words(name, texts_of(cells_of(column)), declared=True)
    declared = _of_type(column)
    if declared is not None:
        return _unless_constant(column, declared)
    if pd.api.types.is_numeric_dtype(column.dtype):
        return _of_numbers(name, column.to_numpy(dtype=np.float64, na_value=np.nan))
    return _of_cells(name, cells_of(column))


def _of_type(column: Any) -> Recognised | None:
    """Return what the type of a column says, where it says all."""
    if pd.api.types.is_bool_dtype(column.dtype):
        return Recognised("boolean", "true and false")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return Recognised("date", "moments in time")
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        return Recognised("number", "spans of time, in seconds")
    if pd.api.types.is_complex_dtype(column.dtype):
        return Recognised("category", "", doubt="complex numbers cannot be used; leave the column out")
    return None


def _unless_constant(column: Any, otherwise: Recognised) -> Recognised:
    if column.nunique() == 1 and bool(column.notna().all()):
        return Recognised("constant", f"it is {column.iloc[0]} everywhere")
    return otherwise


def _of_numbers(name: str, values: Array) -> Recognised:
    """Numbers are numbers, but for ids and codes that happen to be written in digits."""
    known = values[np.isfinite(values)]
    different = np.unique(known)
    if known.size == values.size and different.size == 1 and values.size > 1:
        return Recognised("constant", f"it is {different[0]:g} everywhere")
    whole = bool((known == np.floor(known)).all())
    if whole and str(name).lower() in INDEX_NAMES and different.size == values.size:
        return Recognised("identifier", "the row numbers of a data frame")
    if whole and is_id_name(name):
        if different.size == values.size:
            return Recognised("identifier", "its name says id, and every row has another")
        return Recognised("category", "its name says id: codes, not measures")
    if set(different.tolist()) <= {0.0, 1.0}:
        return Recognised("boolean", "0 and 1")
    return Recognised("number", "numbers")


def _of_cells(name: str, cells: Array) -> Recognised:
    """Cells of any kind: text, lists, dates, or a mixture."""
    known = [one for one in cells if one is not None and not (isinstance(one, str) and not one)]
    if not known:
        return Recognised("constant", "it is empty")
    if all(is_list(one) for one in known):
        return _of_lists(name, known)
    if any(isinstance(one, dict) or (is_list(one)) for one in known):
        return Recognised(
            "identifier", "", doubt="holds records or lists beside other values; leave the column out"
        )
    if all(isinstance(one, datetime.date) for one in known):
        return Recognised("date", "dates", "iso")
    return _of_texts(name, texts_of(cells))


def _of_lists(name: str, known: list[Any]) -> Recognised:
    """Lists of numbers that are equally long are vectors; all others hold items."""
    numbers = all(isinstance(item, Number) and not isinstance(item, bool) for one in known for item in one)
    if not numbers or not any(len(one) for one in known):
        return Recognised("list", "lists of values")
    if len({len(one) for one in known}) == 1:
        return Recognised("list", f"{len(known[0]):,} numbers in each row", "vector")
    if all(isinstance(item, Integral) for one in known for item in one):
        return Recognised("list", "lists of whole numbers")
    remedy = f"mend it, or say {name}=list with --columns for items instead of numbers"
    return Recognised("list", "", "vector", f"has another length than the first; {remedy}")


def _of_texts(name: str, texts: Array) -> Recognised:
    """Text that may be written numbers, dates or lists: the first that all cells can be."""
    known = [one for one in texts if one is not None]
    if {one.lower() for one in known} <= NOTHING:
        return Recognised("constant", "no row knows it")
    for test in (_as_boolean, _as_numbers, _as_dates, _nearly, _as_list):
        found = test(name, texts, known)
        if found is not None:
            return found
    return _of_words(name, texts)


def _as_boolean(name: str, texts: Array, known: list[str]) -> Recognised | None:
    told = {one.lower() for one in known} - NOTHING
    if len(told) == 2 and told & TRUE and told & FALSE and not told <= {"0", "1"}:
        return Recognised("boolean", "two words for yes and no")
    return None


def _as_numbers(name: str, texts: Array, known: list[str]) -> Recognised | None:
    form = None if _are_codes(known) else number_form(texts)
    if form is None:
        return None
    found = _of_numbers(name, read_numbers(pd.Series(texts, dtype=object), form)[0])
    how = {"plain": "", "grouped": ", written 1,200.5", "comma": ", written 3,14"}[form]
    return Recognised(found.kind, found.why + how, form if found.kind == "number" else "")


def _are_codes(known: list[str]) -> bool:
    """Tell digits that are no number: 007."""
    return any(re.fullmatch(r"0\d+", one) for one in {*known})


def _as_dates(name: str, texts: Array, known: list[str]) -> Recognised | None:
    form = date_form(texts)
    if form == "either":
        remedy = f"say {name}=date:dmy or {name}=date:mdy with --columns"
        return Recognised("date", "dates", "dmy", f"days and months could be exchanged; {remedy}")
    order = {"iso": "dates", "dmy": "dates, day first", "mdy": "dates, month first"}
    return None if form is None else Recognised("date", order[form], form)


def _as_list(name: str, texts: Array, known: list[str]) -> Recognised | None:
    form = list_form(texts)
    if form is None:
        return None
    written = "in brackets" if form == "brackets" else f"with {form} between"
    return Recognised("list", f"several words, {written}", form)


def _nearly(name: str, texts: Array, known: list[str]) -> Recognised | None:
    """A column most of whose cells are numbers or dates is meant as such, so the rest may be mistakes."""
    if _are_codes(known):
        return None
    told = {one for one in known if one.lower() not in NOTHING}
    for kind, form_of in (("number", number_form), ("date", date_form)):
        odd = {one for one in told if form_of(np.array([one], dtype=object)) is None}
        if odd and sum(one in odd for one in known) < 0.5 * len(known):
            remedy = f"say with --columns {name}=category, or {name}={kind} to count such cells as missing"
            form = "plain" if kind == "number" else "iso"
            return Recognised(kind, f"mostly {kind}s", form, f"is not a {kind}; mend the cell, or {remedy}")
    return None


def _of_words(name: str, texts: Array, *, declared: bool = False) -> Recognised:
    known = [one for one in texts if one is not None]
    different = len({*known})
    if different == 1 and len(known) == len(texts) and len(texts) > 1:
        return Recognised("constant", f"it is {known[0]!r} everywhere")
    words = sum(len(one.split()) for one in known) / len(known)
    letters = sum(len(one) for one in known) / len(known)
    unspaced = _unspaced(known)
    long = words >= 3 or letters >= 40 or (letters >= 12 and unspaced)
    most = different > 0.5 * len(known)
    if long and (different > MOST_CATEGORIES or most) and not declared:
        form = "characters" if unspaced or words < 2 else "words"
        return Recognised("text", f"{words:.0f} words a row, mostly different", form)
    if most and (different == len(known) > 1 or is_id_name(name)) and not declared:
        return Recognised("identifier", "every row has another word" if different == len(known) else "codes")
    if most and different > MOST_CATEGORIES and not declared:
        return Recognised("text", f"{different:,} different words, too many for categories", "characters")
    return Recognised("category", f"{different:,} different words")


def _unspaced(known: list[str]) -> bool:
    """Tell whether much of some texts is in such a script."""
    sample = "".join(known[:200])
    return sum(_is_unspaced(ord(one)) for one in sample) > 0.3 * len(sample)


def _is_unspaced(code: int) -> bool:
    return any(first <= code <= last for first, last in UNSPACED)


def is_label(name: str, column: Any, found: Recognised, names: list[str]) -> str:
    """Say why a column is what should be found out, and not what it is found out from; "" where it is not.

    A class among the features would be known in training and tell itself, so the usual names of classes are
    left out, and so is a yes or no that is known for few rows only.
    """
    lowered, asked = str(name).lower(), words_in(name)[:1] in (["is"], ["has"])
    if lowered not in LABEL_WORDS and not asked:
        return ""
    texts = pd.Series(texts_of(cells_of(column)), dtype=object)
    measured = found.kind == "number" and any("." in one for one in texts.dropna())
    few = found.kind not in ("constant", "text", "date", "list") and texts.nunique() <= MOST_CLASSES
    few = few and not measured
    if lowered in LABEL_WORDS and few and not (lowered == "y" and "x" in [one.lower() for one in names]):
        return "its name says that it is the class"
    missing = float(texts.isna().mean()) if found.kind == "boolean" else 0.0
    if asked and missing > 0.5:
        return f"a yes or no that is known for {100 * (1 - missing):.0f} % of the rows"
    return ""


def read_values(column: Any, kind: str, form: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return the values of a column of a known kind, and the rows whose cell cannot be read as one.

    Numbers, dates (in days) and booleans are floats with NaN for missing; a list is a list of texts or a
    vector; all else is text, None for missing.
    """
    if kind == "list" and form == "vector":
        return read_vectors(column)
    if kind == "list":
        return read_lists(column, form)
    if kind == "number":
        return read_numbers(column, form or "plain")
    if kind == "date":
        return read_dates(column, form or "iso")
    if kind == "boolean":
        return read_booleans(column)
    return texts_of(cells_of(column)), np.empty(0, dtype=np.int64)
