"""The classes or numbers in a column of labels: missing words, spellings, and which of the two it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, check_choice
from h3gnn.graphs.checks import as_classes
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.targets import AUTO, CLASSIFICATION, MANY_ROWS, REGRESSION, TASKS, choose_task
from h3gnn.tables.infer import MOST_CLASSES, NULL_WORDS, are_codes, is_missing_word, notations
from h3gnn.tables.numbers import Notation, find_notation, parse_number, readable, with_unit

NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d*)?")
"""Numbers; 007 is a code."""
SENTINELS = {-1.0, -9.0, -99.0, -999.0, -9999.0}
"""Negative numbers that programs write for a missing value."""
TASK_OF_KIND = {"label": CLASSIFICATION, "number": REGRESSION}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelColumn:
    """What is known of the rows: classes (-1 where missing) and their names, or numbers (NaN)."""

    classes: npt.NDArray[np.int64] | None = None
    class_names: tuple[str, ...] = ()
    targets: Floats | None = None
    repairs: tuple[Repair, ...] = ()


def read_labels(words: Sequence[str], name: str, *, task: str = AUTO, declared: str = "") -> LabelColumn:
    """Read a column of labels as classes or as numbers.

    Cells that could mean something else raise a question, which `task` answers: spellings that differ in
    case, a negative number that may mean "unknown", a class for almost every row.

    Args:
        words: the cells as text, "" where empty.
        name: name of the column, for messages.
        task: "classification", "regression", or "auto": words are classes, of numbers `choose_task` decides.
        declared: the type that the user declared for the column, such as "label" or "number:comma".
    """
    check_choice("task", task, TASKS)
    kind, _, form = declared.partition(":")
    task = TASK_OF_KIND.get(kind, task) if task == AUTO else task
    texts = [None if word.strip().lower() in NULL_WORDS else word.strip() for word in words]
    numbers = None if task == CLASSIFICATION else _numbers(texts, name, form, task)
    chosen, report = task, None
    if task == AUTO and numbers is not None:
        chosen, report = choose_task(numbers[~np.isnan(numbers)], name)
    repairs = () if report is None else (report,)
    if numbers is not None and chosen == REGRESSION:
        if task == AUTO:
            _check_sentinel(numbers, name)
        return LabelColumn(targets=numbers, repairs=repairs)
    values = _class_values(texts, name, declared=task == CLASSIFICATION)
    return LabelColumn(*as_classes(values), repairs=repairs)


def _numbers(texts: Sequence[str | None], name: str, form: str, task: str) -> Floats | None:
    """Return the numbers of a column, NaN where missing; None if `task` is open and they are none."""
    known = [text for text in texts if text is not None and not is_missing_word(text)]
    distinct = {*known}
    if not known or (task == AUTO and not form and are_codes(distinct)):
        return None if task == AUTO else np.full(len(texts), np.nan)
    notation = Notation(with_unit(form, distinct)) if form else find_notation(distinct)
    numeric = distinct if notation is not None else readable(distinct)
    looks_numeric = len(numeric) > max(MOST_CLASSES, 0.5 * len(distinct))
    if task == AUTO and not looks_numeric and (notation is None or notation.doubt):
        return None
    if notation is not None and notation.doubt:
        raise GraphError(
            f"{name}: {notation.doubt}; {notations(name, distinct)}",
            code=notation.code,
        )
    form = "plain" if notation is None else notation.form
    values = [np.nan if text is None or is_missing_word(text) else parse_number(text, form) for text in texts]
    for row, value in enumerate(values):
        if value is None:
            raise GraphError(
                f"{name}, row {row + 1} of the table: {texts[row]!r} is not a number that can be predicted; "
                "correct the cell or empty it, or read the column as classes with --task classification",
                code="label-not-numeric",
            )
    return np.array(values, dtype=np.float64)


def _check_sentinel(numbers: Floats, name: str) -> None:
    """Ask whether the only negative number, such as -1, means that the number is unknown."""
    negative = {*numbers[numbers < 0].tolist()}
    if len(negative) == 1 and negative <= SENTINELS:
        raise GraphError(
            f"{name} contains {negative.pop():g} and no other negative number, which may mean that it is "
            "unknown; empty these cells if it does, or confirm that it is a number with --task regression",
            code="label-negative",
        )


def _class_values(
    texts: Sequence[str | None], name: str, *, declared: bool
) -> list[int | float | str | None]:
    """Return the class of each row, integers and fractions as numbers, None where it is missing."""
    known = [text for text in texts if text is not None]
    if not declared and (words := sorted({text for text in known if is_missing_word(text)})):
        raise GraphError(
            f"{name} contains {words[0]!r}, which may be a class or mean that the class is unknown; empty "
            "these cells if it is unknown, or read it as a class with --task classification",
            code="label-missing-word",
        )
    if known and all(NUMBER.fullmatch(text) for text in known):
        numbers = {float(text) for text in known}
        if not declared and min(numbers) < 0 and 0 in numbers:
            raise GraphError(
                f"{name} contains {min(numbers):g}, which may be a class or mean that the class is unknown; "
                "empty these cells if it is unknown, or read it as a class with --task classification",
                code="label-negative",
            )
        return [None if text is None else _number(text) for text in texts]
    _check_words({*known}, len(known), name, declared=declared)
    return [*texts]


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _check_words(distinct: set[str], count: int, name: str, *, declared: bool) -> None:
    """Ask about spellings of one class that differ in case, and about a class for almost every row."""
    spellings: dict[str, str] = {}
    for word in sorted(distinct):
        other = spellings.setdefault(word.casefold(), word)
        if other != word:
            raise GraphError(
                f"{name} contains the classes {other!r} and {word!r}, which differ in case only; write them "
                "alike if they are one class, or rename one of them",
                code="classes-differ-in-case",
            )
    if not declared and count >= MANY_ROWS and len(distinct) > 0.5 * count:
        raise GraphError(
            f"{name} has {len(distinct):,} distinct values in {count:,} rows, too many for classes; name "
            "another column (--label-column), or read them as classes with --task classification",
            code="label-almost-unique",
        )
