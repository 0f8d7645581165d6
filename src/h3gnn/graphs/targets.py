"""What is to be predicted, classes or numbers: which a column holds, and how one becomes the other.

Missing words, and spellings that differ in case, are questions to the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import GraphError, check_choice, shortened
from h3gnn.graphs.checks import as_classes, as_labels, as_numpy
from h3gnn.graphs.graph import Graph, GraphLike, with_hash
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.infer import MOST_CLASSES, NULL_WORDS, are_codes, is_missing_word, notation_options
from h3gnn.tables.notations import Notation, find_notation, parse_number, readable, with_unit

AUTO, CLASSIFICATION, REGRESSION = TASKS = ("auto", "classification", "regression")
MOST_FRACTIONS = 20
MANY_ROWS = 20  # with fewer labelled rows nothing is concluded from distinct integers
NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d*)?")
"""Numbers; 007 is a code."""
SENTINELS = {-1.0, -9.0, -99.0, -999.0, -9999.0}
"""Negative numbers that programs write for a missing value."""
TASK_OF_KIND = {"label": CLASSIFICATION, "number": REGRESSION}

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def choose_task(numbers: Floats, name: str) -> tuple[str, Repair | None]:
    """Return whether numbers, none of them missing, are classes or a regression target, and the report.

    Up to two distinct numbers are classes. They are a target if there are more than 50 of them, or more than
    20 with fractions; and if more than half of the rows are distinct, of integers only in 20 rows or more.
    All others are classes. Integers from 0 without gaps are codes of classes, which are not reported; more
    than 50 of these are a question.
    """
    distinct, name = np.unique(numbers), name or "the label"
    count, integers = len(distinct), bool((distinct == np.floor(distinct)).all())
    mostly_distinct = count > 0.5 * len(numbers) and (not integers or len(numbers) >= MANY_ROWS)
    codes = integers and count > 0 and distinct[0] == 0 and distinct[-1] == count - 1
    found = f"{name} has {count:,} distinct numbers in {len(numbers):,} rows"
    if count > 2 and (count > (MOST_CLASSES if integers else MOST_FRACTIONS) or mostly_distinct):
        if codes:
            message = "without gaps, which may be codes of classes, or a number to predict: choose"
            message = f"{found} {message} --task classification or --task regression"
            raise GraphError(message, code="label-looks-numeric")
        message = f"{found} and is read as a number; --task classification reads classes"
        return REGRESSION, Repair("label-is-number", message, count, (name,))
    if count <= 2 or codes:
        return CLASSIFICATION, None
    message = f"the {count} distinct numbers of {name} are classes; --task regression predicts numbers"
    return CLASSIFICATION, Repair("label-is-class", message, count, (name,))


def split_known(values: Any) -> dict[str, Any]:
    """Return one value per node of an object as `targets` if some have fractions, else as `labels`.

    None has neither.
    """
    if values is None:
        return {}
    given = as_numpy(values, "the labels")
    given = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    numbers = given.dtype.kind == "f" and has_fractions(given)
    return {"targets": given} if numbers else {"labels": as_labels(given)}


def unknown_labels(values: Any) -> tuple[Repair, ...]:
    """Return what is remarkable about labels in an array: how many are unknown, and whether they are numbers.

    Negative labels and NaN are unknown; if one other class is left, -1 may be a class, and is a question.
    """
    if values is None:
        return ()
    given = as_numpy(values, "the labels").ravel()
    if given.dtype.kind not in "if" or (given.dtype.kind == "f" and has_fractions(given)):
        return ()
    negative = given < 0
    if negative.any() and len({*given[given >= 0].tolist()}) == 1:
        message = "only one class is left beside the label -1, which means unknown: number the classes from 0"
        raise GraphError(message, code="label-negative")
    count = int((negative | np.isnan(given)).sum())
    message = f"{count:,} of {given.size:,} labels are negative or NaN, which means unknown"
    repairs = [Repair("labels-unknown", message, count)] if count else []
    distinct = np.unique(given[given >= 0])
    size = len(distinct)
    if size > MOST_CLASSES and distinct[-1] >= size:  # codes of classes have no gaps
        message = f"the labels are {size:,} distinct numbers, which look like a number to predict"
        repairs.append(Repair("label-looks-numeric", f"{message}: --task regression", size, warn=True))
    return tuple(repairs)


def may_have_label(graph: GraphLike, labelled: npt.NDArray[np.bool_]) -> tuple[Mask, tuple[Repair, ...]]:
    """Return the nodes that can have a label, and a report of the others.

    Where the nodes are of several types, such as accounts and clients, these are the nodes of a type of which
    some are labelled.
    """
    if graph.node_types is None or not labelled.any():
        return np.ones(graph.num_nodes, dtype=bool), ()
    types = graph.node_types.numpy()
    can = np.isin(types, types[labelled])
    names, found = (*graph.type_names, "nodes of no type"), np.unique(types[~can], return_counts=True)
    left = {names[at]: int(count) for at, count in zip(*found, strict=True)}
    if not left:
        return can, ()
    named = shortened(f"{name} ({count:,})" for name, count in left.items())
    message = f"no node of these types has a label, so that none gets a prediction: {named}"
    return can, (Repair("types-without-labels", message, sum(left.values()), tuple(left)),)


def has_fractions(values: Any) -> bool:
    """Return whether some finite numbers are no integers."""
    numbers = np.asarray(values, dtype=np.float64)
    return bool((np.isfinite(numbers) & (numbers != np.floor(numbers))).any())


def with_task(graph: Graph, task: str) -> Graph:
    """Return the graph with its labels as classes or as numbers; `auto` leaves them as they are."""
    check_choice("task", task, TASKS)
    if task == REGRESSION and graph.targets is None and graph.labels is not None:
        return with_targets(graph, numbers_of_classes(graph.labels.numpy(), graph.class_names))
    if task == CLASSIFICATION and graph.targets is not None:
        labels, names = as_classes([None if np.isnan(one) else one for one in graph.targets.tolist()])
        return with_classes(graph, labels, names)
    return graph


def with_classes(graph: Graph, labels: npt.NDArray[np.int64], names: tuple[str, ...]) -> Graph:
    """Return the graph with other classes, -1 where unknown; its splits are kept."""
    return with_hash(replace(graph, labels=torch.from_numpy(labels), class_names=names, targets=None))


def with_targets(graph: Graph, targets: Floats, name: str = "") -> Graph:
    """Return the graph with numbers to predict in place of classes; its splits are kept."""
    numbers = torch.from_numpy(targets)
    return with_hash(replace(graph, labels=None, class_names=(), targets=numbers, target_name=name))


def numbers_of_classes(labels: npt.NDArray[np.int64], names: tuple[str, ...]) -> Floats:
    """Return classes whose names are numbers as numbers, NaN where unknown."""
    try:
        numbers = np.array([*map(float, names), np.nan])
    except ValueError:
        numbers = np.array([np.inf])
    if np.isinf(numbers).any():
        message = f"--task regression needs numbers, but the labels are the classes {shortened(names, 5)}"
        raise GraphError(message, code="label-not-numeric")
    return np.asarray(numbers[labels])


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
        message = f"{name}: {notation.doubt}; {notation_options(name, distinct)}"
        raise GraphError(message, code=notation.code)
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
            f"{name} has {len(distinct):,} distinct values in {count:,} rows, too many for classes; choose "
            "another column, or read them as classes with --task classification",
            code="label-almost-unique",
        )
