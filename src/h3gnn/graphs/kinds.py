"""What a column of a table holds: recognised from its name and values, with the reason."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from numbers import Integral, Number
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError
from h3gnn.graphs.lists import is_list, list_form, read_lists, read_vectors
from h3gnn.graphs.names import INDEX_NAMES, is_id_name, words_in
from h3gnn.graphs.values import (
    FALSE,
    NOTHING,
    TRUE,
    cells_of,
    date_form,
    number_form,
    read_booleans,
    read_dates,
    read_numbers,
    texts_of,
)

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
