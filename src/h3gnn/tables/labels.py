"""The classes in a column of a table: missing words, spellings, and numbers that are not classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from h3gnn.errors import GraphError
from h3gnn.tables.infer import MOST_CLASSES, NULL_WORDS

MOST_FRACTIONS = 20
MANY_ROWS = 20  # with fewer labelled rows nothing is concluded from distinct values
NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d*)?")
"""Numbers; 007 is a code."""


def class_values(
    words: Sequence[str], name: str, *, declared: bool = False
) -> list[int | float | str | None]:
    """Return the class of each row, integers and fractions as numbers, None where it is missing.

    Cells that could mean something else raise a question: spellings that differ in case, a negative number
    that may mean "unknown", and numbers that look like a regression target.

    Args:
        words: the cells as text, "" where empty.
        name: name of the column, for messages.
        declared: whether the user declared the column as label, so that numbers are classes.
    """
    texts = [None if word.strip().lower() in NULL_WORDS else word.strip() for word in words]
    known = [text for text in texts if text is not None]
    if known and all(NUMBER.fullmatch(text) for text in known):
        numbers = {float(text) for text in known}
        if not declared:
            _check_numbers(numbers, len(known), name)
        return [None if text is None else _number(text) for text in texts]
    _check_words({*known}, len(known), name, declared=declared)
    return [*texts]


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _check_numbers(distinct: set[float], count: int, name: str) -> None:
    """Ask about numbers that look like a regression target, or whose -1 may be an unknown class."""
    fractions = any(not number.is_integer() for number in distinct)
    mostly_distinct = count >= MANY_ROWS and len(distinct) > 0.5 * count
    if len(distinct) > MOST_CLASSES or mostly_distinct or (fractions and len(distinct) > MOST_FRACTIONS):
        raise GraphError(
            f"{name} has {len(distinct):,} distinct numbers in {count:,} rows, which looks like a regression "
            "target and not like classes; group the numbers into classes, or declare them as classes with "
            f"--columns {name}=label",
            code="label-looks-numeric",
        )
    if min(distinct, default=0) < 0 and 0 in distinct:
        raise GraphError(
            f"{name} contains {min(distinct):g}, which may be a class or mean that the class is unknown; "
            f"empty these cells if it is unknown, or declare it as a class with --columns {name}=label",
            code="label-negative",
        )


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
    if not declared and count >= MANY_ROWS and len(distinct) > max(MOST_CLASSES, 0.5 * count):
        raise GraphError(
            f"{name} has {len(distinct):,} distinct values in {count:,} rows, too many for classes; name "
            f"another column (--label-column), or declare it with --columns {name}=label",
            code="label-almost-unique",
        )
