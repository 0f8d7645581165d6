"""Infer the type of a table's column, and decode its cells: numbers, dates, booleans, lists, words.

A decoder returns one value per row, missing where the cell is empty, and the rows whose cell it cannot read:
those are never silently treated as missing.
"""

from __future__ import annotations

import ast
import datetime
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Number
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, as_option, clipped
from h3gnn.graphs.ids import is_missing
from h3gnn.resources import check_memory
from h3gnn.tables import notations
from h3gnn.tables.notations import Notation
from h3gnn.tables.roles import INDEX_NAMES, is_class_name, is_code_name, is_id_name, is_question, words_in

KINDS = ("number", "boolean", "category", "date", "list", "text", "identifier", "constant", "label")
FORMS = {
    "number": ("plain", "grouped", "comma"),
    "date": ("iso", "dmy", "mdy", "named", "compact"),
    "text": ("words", "characters"),
}
"""Notations that can follow a kind and a colon: `opened=date:dmy`."""
LEAK = "leak"
"""Kind of a column that is left out since it contains the class; it cannot be declared."""
NOT_ENCODED = ("identifier", "constant", "label", LEAK)
NULL_WORDS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "nat", "\\n"})
"""Words that programs write for a missing value, in lower case."""
MISSING_WORDS = NULL_WORDS | {"-", "--", "?", "unknown", "missing"}
"""Words for a missing number, date or boolean. In a column of words only those of programs are missing."""
TRUE = frozenset({"true", "yes", "t", "y", "1", "1.0"})
FALSE = frozenset({"false", "no", "f", "n", "0", "0.0"})
CODE = re.compile(r"0\d[\d ]*|\+\d[\d ]{8,}")
"""Digits that are no number."""
FEW_DATES = 5  # fewer distinct numbers may look like yyyymmdd by chance
MOST_CATEGORIES = 100  # A column of long values with more distinct ones than this is text
MOST_CLASSES = 50  # A column with more distinct values is not the class, whatever its name
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1780-\u17ff]")
"""Scripts without spaces between words: Japanese and Chinese, Thai and Lao, Khmer."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


def is_number(cell: str) -> bool:
    """Whether a cell holds one number as files write them: no inner spaces, no underscores; or NaN."""
    text = cell.strip()
    return notations.POINT.fullmatch(text) is not None or text.lower().lstrip("+-") == "nan"


def is_measurement(cell: str) -> bool:
    """Whether a cell holds a number or an ISO date."""
    return is_number(cell) or notations.ISO_DATE.fullmatch(cell.strip()) is not None


def is_missing_word(text: str) -> bool:
    """Whether a text is a word for a missing number, date or boolean."""
    return text.lower() in MISSING_WORDS


def _cell_text(cell: Any) -> str:
    """Return a cell as text; a float with an integer value is written without a point."""
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)


def _objects(values: Iterable[Any]) -> Array:
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


class Cells:
    """The cells of one column, a pandas Series, decoded at most once for each kind and form."""

    def __init__(self, column: Any) -> None:
        self.column = column
        self.is_categorical = isinstance(column.dtype, pd.CategoricalDtype)
        self.is_numeric = not self.is_categorical and pd.api.types.is_numeric_dtype(column.dtype)
        self._decoded: dict[tuple[str, str], tuple[Array, Rows]] = {}

    def __len__(self) -> int:
        return len(self.column)

    @cached_property
    def values(self) -> Array:
        """The cells: text stripped, None where missing, other values unchanged."""
        listed = (self.column.astype(object) if self.is_categorical else self.column).tolist()
        stripped = (one.strip() if isinstance(one, str) else one for one in listed)
        return _objects(None if is_missing(one) else one for one in stripped)

    @cached_property
    def texts(self) -> Array:
        """The cells as text, None where missing, empty, or a word that programs write for that."""
        texts = (None if one is None else _cell_text(one) for one in self.values)
        return _objects(None if one is None or one.lower() in NULL_WORDS else one for one in texts)

    @cached_property
    def known(self) -> list[str]:
        """The texts that are not missing."""
        return [one for one in self.texts if one is not None]

    @cached_property
    def distinct(self) -> set[str]:
        """The distinct texts."""
        return {*self.known}

    @cached_property
    def distinct_values(self) -> set[str]:
        """The distinct texts that are not words for a missing value."""
        return {one for one in self.distinct if not is_missing_word(one)}

    def words(self) -> Array:
        """Return the cells as text, "" where missing."""
        return _objects("" if one is None else one for one in self.texts)

    def decode(self, kind: str, form: str = "") -> tuple[Array, Rows]:
        """Return the values of a kind, and the rows whose cell cannot be read as one.

        Numbers, dates (in days), booleans and vectors are floats, NaN if missing; lists and texts None.
        """
        found = self._decoded.get((kind, form))
        if found is None:
            if kind == "list":
                found = _decode_vectors(self.values) if form == "vector" else _decode_lists(self.values, form)
            elif kind == "number":
                found = self._numbers(form or "plain")
            elif kind == "date":
                found = self._dates(form or "iso")
            elif kind == "boolean":
                found = _decode_texts(self.texts, _parse_boolean)
            else:
                found = self.texts, NO_ROWS
            self._decoded[kind, form] = found
        return found

    def _numbers(self, form: str) -> tuple[Floats, Rows]:
        """Return numbers, NaN where missing; infinity counts as unreadable."""
        if self.is_numeric:
            values = self.column.to_numpy(dtype=np.float64, na_value=np.nan)
            unreadable = np.isinf(values)
            if " " in form:  # the fitted table has a unit, and these numbers have none
                unreadable |= ~np.isnan(values) & (values != 0)
            return np.where(unreadable, np.nan, values), np.flatnonzero(unreadable)
        if pd.api.types.is_timedelta64_dtype(self.column.dtype):
            seconds = self.column.dt.total_seconds()
            return seconds.to_numpy(dtype=np.float64, na_value=np.nan), NO_ROWS
        return _decode_texts(self.texts, lambda text: notations.parse_number(text, form))

    def _dates(self, form: str) -> tuple[Floats, Rows]:
        """Return days since 1970 in UTC, NaN where missing."""
        if pd.api.types.is_datetime64_any_dtype(self.column.dtype):
            moments = self.column
            if moments.dt.tz is not None:
                moments = moments.dt.tz_convert("UTC").dt.tz_localize(None)
            since = (moments - pd.Timestamp("1970-01-01")).dt.total_seconds()
            return since.to_numpy(dtype=np.float64, na_value=np.nan) / notations.SECONDS_PER_DAY, NO_ROWS
        texts = self.texts.copy()
        for row, cell in enumerate(self.values):
            if isinstance(cell, datetime.date):
                texts[row] = cell.isoformat()
        return _decode_texts(texts, lambda text: notations.parse_days(text, form))


def _decode_texts(texts: Array, parse: Callable[[str], float | None]) -> tuple[Floats, Rows]:
    """Parse each distinct text that is not missing once; `parse` returns None for one it cannot read."""
    codes, distinct = pd.factorize(texts)
    parsed = [np.nan if is_missing_word(one) else parse(one) for one in distinct.tolist()]
    unreadable = np.array([one is None for one in parsed] + [False], dtype=bool)
    values = np.array([np.nan if one is None else one for one in parsed] + [np.nan], dtype=np.float64)
    return values[codes], np.flatnonzero(unreadable[codes])


def decode_plain_numbers(texts: Array) -> tuple[Floats, Rows]:
    """Return numbers without units, NaN where missing, and the rows that hold something else."""
    return _decode_texts(texts, lambda one: float(one) if is_number(one) else None)


def _parse_boolean(text: str) -> float | None:
    word = text.lower()
    return 1.0 if word in TRUE else 0.0 if word in FALSE else None


def _is_list(cell: Any) -> bool:
    return isinstance(cell, list | tuple | set | frozenset | np.ndarray)


def list_form(known: list[str]) -> str | None:
    """Return how lists are written in text: "brackets", or the separator of items; None for no lists."""
    if not known:
        return None
    if all(one[0] in "[({" and one[-1] in "])}" and _parse_brackets(one) is not None for one in {*known}):
        return "brackets"
    for separator in "|;":
        several = sum(separator in one for one in known)
        items = [item.strip() for one in known for item in one.split(separator)]
        few_items = len({*items}) <= 0.5 * len(items)
        if several > 0.2 * len(known) and few_items and max(map(len, items)) <= 40:
            return separator
    return None


def _decode_lists(cells: Array, form: str) -> tuple[Array, Rows]:
    """Return one list of texts per row, None where missing; an empty list is not missing."""
    lists = np.empty(len(cells), dtype=object)
    unreadable = []
    for row, cell in enumerate(cells):
        if cell is None or (isinstance(cell, str) and not cell):
            continue
        if _is_list(cell):
            items = cell
        elif form == "brackets":
            items = _parse_brackets(cell)
        else:
            items = list(filter(None, map(str.strip, str(cell).split(form) if form else [str(cell)])))
        if items is None:
            unreadable.append(row)
        else:
            lists[row] = [_cell_text(item) for item in items if not is_missing(item)]
    return lists, np.array(unreadable, dtype=np.int64)


def _parse_brackets(text: Any) -> list[Any] | None:
    """Return the items of `["a", "b"]`, `('a',)` or `{1, 2}`; nothing is executed."""
    for parse in (json.loads, ast.literal_eval):
        try:
            items = parse(text)
            "".join(map(str, items)).encode()  # a lone surrogate could not be stored
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(items, list | tuple | set):
            return sorted(items, key=str) if isinstance(items, set) else list(items)
    bare = str(text)[1:-1]
    if str(text)[:1] not in "[({" or str(text)[-1:] not in "])}" or '"' in bare or "'" in bare or "[" in bare:
        return None
    return [item.strip() for item in bare.split(",") if item.strip()]


def _decode_vectors(cells: Array) -> tuple[Array, Rows]:
    """Return `[rows, values]` of lists as long as the first; a missing one is all NaN."""
    width = next((len(one) for one in cells if one is not None), 0)
    check_memory(2 * 8 * width * len(cells), f"lists of {width:,} numbers in {len(cells):,} rows", GraphError)
    vectors = np.full((len(cells), width), np.nan)
    odd = []
    for row, cell in enumerate(cells):
        if cell is not None and len(cell) == width:
            vectors[row] = np.asarray(cell, float)
        elif cell is not None:
            odd.append(row)
    return vectors, np.array(odd, dtype=np.int64)


@dataclass(frozen=True)
class InferredType:
    """The type of a column."""

    kind: str  # one of KINDS
    reason: str  # what the decision is based on
    form: str = ""  # how the cells are written; see FORMS
    doubt: str = ""  # why the decision would be a guess, so that the user is asked; "" if it is not
    remedy: str = ""  # how the user resolves the doubt
    declared: bool = False  # whether the user declared the kind; cells of another kind are then missing
    code: str = "column-ambiguous"  # of the error that asks
    numeric: bool = False  # whether the cells of a boolean column are the numbers 0 and 1


def declaration(name: str, kind: str) -> str:
    """Return the option that declares a column, as it can be pasted into a shell."""
    return as_option("--columns", f"{name}={kind}")


def notation_options(name: str, texts: Collection[str]) -> str:
    """Return what to do about numbers that can be read in several ways: the options that read all of them."""
    shown = {"plain": "1200.5", "grouped": "1,200.5", "comma": "1.200,5"}
    options = [
        f"{declaration(name, f'number:{form}')} ({shown[form]})" for form in notations.fitting_forms(texts)
    ]
    return " or ".join(["write the numbers in one way", *options])


def parse_types(declared: Mapping[str, str]) -> dict[str, InferredType]:
    """Parse the types that the user declares: `{"opened": "date:dmy"}`."""
    found = {}
    for name, word in declared.items():
        kind, _, form = word.strip().lower().partition(":")
        if kind not in KINDS or (form and form not in FORMS.get(kind, ())):
            choices = [*KINDS, *(f"{one}:{form}" for one, forms in FORMS.items() for form in forms)]
            message = (
                f"the column {name!r} cannot be of the kind {word!r}; choose one of {', '.join(choices)}"
            )
            raise GraphError(message, code="column-kind-unknown")
        found[name] = InferredType(kind, "as you declared", form, declared=True)
    return found


def infer_column(name: str, cells: Cells, declared: InferredType | None, names: list[str]) -> InferredType:
    """Return the declared type of a column, else the inferred one; `names` are those of all columns."""
    if declared is not None:
        return _with_form(declared, name, cells)
    found = infer_type(name, cells)
    if reason := _class_reason(name, cells, found, names):
        return InferredType("label", f"{reason}; {declaration(name, 'category')} makes it a feature")
    return found


def _class_reason(name: str, cells: Cells, found: InferredType, names: list[str]) -> str:
    """Return why a column of features is the class, which is not to be trained on; "" if it is not."""
    if is_class_name(name, names) and found.kind not in ("constant", "text", "date", "list"):
        measured = found.kind == "number" and any("." in one for one in cells.distinct)
        if name.lower() != "y" or (len(cells.distinct) <= MOST_CLASSES and not measured):
            return "its name says that it is the class"
    if is_question(name) and found.kind == "boolean" and (known := len(cells.known) / len(cells)) < 0.5:
        return f"a yes or no that is known for {100 * known:.0f} % of the rows"
    return ""


def infer_type(name: str, cells: Cells) -> InferredType:
    """Infer what a column holds from its name and cells; the caller asks the user about a doubt."""
    if not cells.column.notna().any():
        return InferredType("constant", "it is empty")
    if cells.is_categorical:
        return _infer_words(name, cells, categorical=True)
    if (by_dtype := _infer_dtype(cells.column)) is not None:
        return by_dtype
    if cells.is_numeric:
        values = cells.column.to_numpy(dtype=np.float64, na_value=np.nan)
        compact = _infer_compact(name, cells) if notations.may_be_compact(values) else None
        return compact or _infer_numbers(name, values)
    return _infer_cells(name, cells)


def _with_form(declared: InferredType, name: str, cells: Cells) -> InferredType:
    """Return a declared type with the form that its cells have, where the user left that open."""
    kind, form = declared.kind, None
    defaults = {"number": "plain", "date": "iso", "list": "", "text": "words"}
    written = str(cells.column.dtype) in ("object", "str", "string", "category")
    if declared.form and kind == "number" and written:
        return replace(declared, form=notations.with_unit(declared.form, cells.distinct_values))
    if declared.form or kind not in defaults:
        return declared
    if written:
        if kind == "list":
            form = list_form(cells.known)
        elif kind == "number":
            notation = notations.find_notation(notations.readable(cells.distinct_values))
            if notation is not None and notation.doubt:
                return _ambiguous_numbers(name, cells, notation, declared=True)
            form = None if notation is None else notation.form
        elif kind == "date":
            form = notations.date_form(cells.distinct_values)
    if form == "either":
        return _ambiguous_dates(name, declared.reason, declared=True)
    return replace(declared, form=form or defaults[kind])


def _ambiguous_numbers(
    name: str, cells: Cells, notation: Notation, *, declared: bool = False
) -> InferredType:
    remedy = notation_options(name, cells.distinct_values)
    if notation.code == "units-mixed":
        remedy = f"write the column in one unit, or give {declaration(name, 'category')}"
    return InferredType("number", "", notation.form, notation.doubt, remedy, declared, code=notation.code)


def _ambiguous_dates(name: str, reason: str = "dates", *, declared: bool = False) -> InferredType:
    remedy = f"give {declaration(name, 'date:dmy')} or {declaration(name, 'date:mdy')}"
    return InferredType("date", reason, "dmy", "days and months could be swapped", remedy, declared)


def _infer_dtype(column: Any) -> InferredType | None:
    """Return the type that follows from the column's dtype alone."""
    types, remedy = pd.api.types, "leave the column out"
    if types.is_bool_dtype(column.dtype):
        found = InferredType("boolean", "true and false")
    elif types.is_datetime64_any_dtype(column.dtype):
        found = InferredType("date", "timestamps")
    elif types.is_timedelta64_dtype(column.dtype):
        found = InferredType("number", "durations, in seconds")
    elif types.is_complex_dtype(column.dtype):
        found = InferredType("category", "", doubt="complex numbers cannot be used", remedy=remedy)
    else:
        return None
    if column.nunique() == 1 and bool(column.notna().all()):
        return InferredType("constant", f"it is {column.iloc[0]} everywhere")
    return found


def _infer_numbers(name: str, values: Array) -> InferredType:
    """Numbers are numbers, except for ids and codes written in digits."""
    known = values[np.isfinite(values)]
    distinct = np.unique(known)
    if known.size == values.size and distinct.size == 1 and values.size > 1:
        return InferredType("constant", f"it is {distinct[0]:g} everywhere")
    integers, unique = bool((known == np.floor(known)).all()), distinct.size == values.size
    if integers and str(name).lower() in INDEX_NAMES and unique:
        return InferredType("identifier", "the row numbers of a data frame")
    if integers and (is_id_name(name) or is_code_name(name)):
        what = "id" if is_id_name(name) else "code"
        if unique:
            return InferredType("identifier", f"its name says {what}, and its values are distinct")
        return InferredType("category", f"its name says {what}: codes, not measurements")
    if set(distinct.tolist()) <= {0.0, 1.0}:
        return InferredType("boolean", "0 and 1", numeric=True)
    return InferredType("number", "numbers")


def _infer_cells(name: str, cells: Cells) -> InferredType:
    """Cells of any type: text, lists, dates, or a mixture."""
    known = [one for one in cells.values if one is not None and not (isinstance(one, str) and not one)]
    if not known:
        return InferredType("constant", "it is empty")
    if all(_is_list(one) for one in known):
        return _infer_lists(name, known)
    if any(isinstance(one, dict) or _is_list(one) for one in known):
        doubt = "holds records, or lists among other values"
        return InferredType("identifier", "", doubt=doubt, remedy="leave the column out")
    if all(isinstance(one, datetime.date) for one in known):
        return InferredType("date", "dates", "iso")
    if not cells.distinct_values:
        return InferredType("constant", "no row has a value")
    return _infer_texts(name, cells)


def _infer_lists(name: str, known: list[Any]) -> InferredType:
    """Lists of numbers of equal length are vectors; all others hold items."""
    items = [item for one in known for item in one]
    numbers = all(isinstance(item, Number) and not isinstance(item, bool) for item in items)
    if not numbers or not items:
        return InferredType("list", "lists of values")
    if len({len(one) for one in known}) == 1:
        return InferredType("list", f"{len(known[0]):,} numbers in each row", "vector")
    if all(isinstance(item, Integral) for item in items):
        return InferredType("list", "lists of integers")
    remedy = f"correct it, or give {declaration(name, 'list')} for items instead of numbers"
    return InferredType("list", "", "vector", "has another length than the first", remedy)


def _infer_texts(name: str, cells: Cells) -> InferredType:
    """Texts can be written numbers, dates or lists: the first type that fits all cells."""
    words = {one.lower() for one in cells.distinct_values}
    if len(words) == 2 and words & TRUE and words & FALSE and not words <= {"0", "1"}:
        return InferredType("boolean", "two words for yes and no")
    codes = are_codes(cells.distinct)
    if (compact := _infer_compact(name, cells)) is not None:
        return compact
    notation = None if codes else notations.find_notation(cells.distinct_values)
    if notation is not None:
        if notation.doubt:
            return _ambiguous_numbers(name, cells, notation)
        found = _infer_numbers(name, cells.decode("number", notation.form)[0])
        separators, _, unit = notation.form.partition(" ")
        written = {"plain": "", "grouped": ", written 1,200.5", "comma": ", written 3,14"}[separators]
        reason = found.reason + written + (f", in {unit}" if unit else "")
        return replace(found, reason=reason, form=notation.form if found.kind == "number" else "")
    if (form := notations.date_form(cells.distinct_values)) is not None:
        order = {"iso": "dates", "dmy": "dates, day first", "mdy": "dates, month first", "named": "dates"}
        order["compact"] = "dates, written yymmdd or yyyymmdd"
        return _ambiguous_dates(name) if form == "either" else InferredType("date", order[form], form)
    mostly = None if codes else _infer_mostly(name, cells)
    return mostly or _infer_written_lists(cells) or _infer_words(name, cells)


def _infer_compact(name: str, cells: Cells) -> InferredType | None:
    """Digits of year, month and day are dates if the name says so, or if all have a year of four digits."""
    texts = cells.distinct_values
    if not notations.are_compact(texts):
        return None
    if all(":" in one for one in texts):
        return InferredType("date", "dates, written yymmdd or yyyymmdd", "compact")
    if "date" in words_in(name):
        return InferredType("date", "its name says date: year, month and day in digits", "compact")
    if is_id_name(name) or is_code_name(name) or len(texts) < FEW_DATES:
        return None
    if all(re.match(r"(18|19|20)\d{6}", one) for one in texts):
        return InferredType("date", "dates, written yyyymmdd", "compact")
    doubt = "its digits may be dates, written yymmdd, or numbers"
    remedy = f"give {declaration(name, 'date:compact')} or {declaration(name, 'number')}"
    return InferredType("number", "", "plain", doubt, remedy)


def _infer_written_lists(cells: Cells) -> InferredType | None:
    form = list_form(cells.known)
    if form is None:
        return None
    separated = "in brackets" if form == "brackets" else f"separated by {form}"
    return InferredType("list", f"several words, {separated}", form)


def are_codes(texts: Collection[str]) -> bool:
    """Whether some digits are no number: 007, 030 123 456, +49 30 123 456."""
    return any(CODE.fullmatch(one) for one in texts)


def _infer_mostly(name: str, cells: Cells) -> InferredType | None:
    """A column of mostly numbers or dates is meant as such, so the other cells may be mistakes."""
    for kind, form_of in (("number", notations.find_notation), ("date", notations.date_form)):
        odd = {one for one in cells.distinct_values if form_of([one]) is None}
        if odd and sum(one in odd for one in cells.known) < 0.5 * len(cells.known):
            words, missing = declaration(name, "category"), declaration(name, kind)
            remedy = f"correct the cell, or give {words}, or {missing} to treat such cells as missing"
            form = "plain" if kind == "number" else "iso"
            return InferredType(kind, f"mostly {kind}s", form, f"is not a {kind}", remedy)
    return None


def _infer_words(name: str, cells: Cells, *, categorical: bool = False) -> InferredType:
    known, distinct = cells.known, len(cells.distinct)
    if distinct == 1 and len(known) == len(cells) > 1:
        return InferredType("constant", f"it is {clipped(known[0])!r} everywhere")
    if not categorical:
        words = sum(len(one.split()) for one in known) / len(known)
        letters = sum(len(one) for one in known) / len(known)
        sample = "".join(known[:200])
        unspaced = len(UNSPACED.findall(sample)) > 0.3 * len(sample)
        long = words >= 3 or letters >= 40 or (letters >= 12 and unspaced)
        mostly_distinct = distinct > 0.5 * len(known)
        if long and (distinct > MOST_CATEGORIES or mostly_distinct):
            form = "characters" if unspaced or words < 2 else "words"
            return InferredType("text", f"{words:.0f} words per row, mostly distinct", form)
        if mostly_distinct and distinct == len(known) > 1:
            return InferredType("identifier", "every value is different")
        if mostly_distinct and is_id_name(name):
            return InferredType("identifier", "codes")
        if mostly_distinct and distinct > MOST_CATEGORIES:
            reason = f"{distinct:,} distinct words, too many for categories"
            return InferredType("text", reason, "characters")
    return InferredType("category", f"{distinct:,} distinct words")
