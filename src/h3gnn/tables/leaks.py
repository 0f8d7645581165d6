"""Label leakage: features that contain the class under another name or in other words.

Names are compared without case and without words such as `is` and `label`. Values are compared by the best
rule that uses one column only, whatever the encoding of the class: a copy, a code, a threshold, a gap.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import GraphError, as_list, as_option, shortened
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.graphs.link_columns import OF_NUMBERS, OF_VALUES, JoinedColumn, LinkTable
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.scaling import scipy_features
from h3gnn.tables.roles import words_in

MIN_ROWS, MIN_OTHERS = 30, 5
"""Labelled rows, and rows outside the largest class, that are needed to conclude anything from values."""
MOST_ERRORS, MOST_KEPT = 0.01, 0.1
"""A column determines the class if a rule errs in at most this share of the rows, and at most this share of
the rows outside the largest class."""
INTERVALS = 5  # of numbers to predict, which a column determines like classes
NEARLY, NEARLY_ROWS, BINS = 0.6, 100, 16
"""A column nearly determines the class if its values, in at most BINS bins, avoid this share of the errors of
the largest class, among at least NEARLY_ROWS labelled rows."""
MOST_VALUES = 10**7  # of larger tables, evenly spaced rows of each class are compared
ROLE_WORDS = frozenset({"is", "has", "was", "y", "label", "labels", "class", "target", "flag"})
"""Words of a name that do not say what is predicted."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Target:
    """What is to be predicted: the name of its column, if it has one, and each row's class, -1 unknown."""

    name: str | None
    classes: Integers

    @classmethod
    def of_numbers(cls, name: str | None, numbers: npt.NDArray[np.float64]) -> Target:
        """Return intervals of numbers to predict as classes; NaN is unknown."""
        known = ~np.isnan(numbers)
        if not known.any():
            return cls(name, np.full(len(numbers), -1))
        limits = np.unique(np.quantile(numbers[known], np.linspace(0, 1, INTERVALS + 1)[1:-1]))
        return cls(name, np.where(known, np.searchsorted(limits, numbers, side="right"), -1))


def is_same_target(name: str, target: str | None) -> bool:
    """Whether two names of columns say the same: isFraud, is_fraud, fraud_label, Fraud."""
    words, others = words_in(name), words_in(target or "")
    cores = [[one for one in some if one not in ROLE_WORDS] for some in (words, others)]
    return "".join(words) == "".join(others) != "" or cores[0] == cores[1] != []


def find_leaks(values: Any, columns: Sequence[str], classes: Integers) -> dict[str, float]:
    """Return the columns that determine the class, with the share of the labelled rows in which they do.

    Args:
        values: `[rows, features]`, dense or scipy sparse.
        columns: the column that each feature comes from; the features of a column are consecutive.
        classes: of each row, -1 where unknown.
    """
    rows, truth, others = _labelled(classes, len(columns))
    if len(truth) < MIN_ROWS or others < MIN_OTHERS:
        return {}
    most = min(MOST_ERRORS * len(truth), MOST_KEPT * others)
    found, indicated = dict[str, float](), dict[int, str]()
    for name, part in _by_column(values, columns, rows):
        singles = [*part.T, *([_as_codes(part)] if part.shape[1] > 1 else [])]
        errors = min(_errors(one, truth) for one in singles)
        if errors <= most:
            found[name] = 1 - errors / len(truth)
        for one in singles:
            indicated |= dict.fromkeys(_indicated(one, truth), name)
    if 2 < truth.max() + 1 <= len({*indicated.values()}) + 1:  # a column for each class
        found |= dict.fromkeys(indicated.values(), 1.0)
    return found


def column_leaks(values: Any, columns: Sequence[str], target: Target) -> dict[str, str]:
    """Return the columns that contain what is to be predicted, by value or name, and why that is assumed.

    The arguments are those of `find_leaks`.
    """
    shares = find_leaks(values, columns, target.classes)
    found = {one: describe(share) for one, share in shares.items()}
    return found | {one: NAMED for one in dict.fromkeys(columns) if is_same_target(one, target.name)}


def _sample(classes: Integers, width: int) -> Integers:
    """Return labelled rows; of a large table evenly spaced ones of each class."""
    rows = np.flatnonzero(classes >= 0)
    most = max(1000, MOST_VALUES // max(width, 1))
    if len(rows) <= most:
        return rows
    ordered = rows[np.argsort(classes[rows], kind="stable")]
    return ordered[np.linspace(0, len(ordered) - 1, most).astype(np.int64)]


def _labelled(classes: Integers, width: int) -> tuple[Integers, Integers, int]:
    """Return rows to compare, their classes from 0, and how many rows are outside the largest class."""
    rows = _sample(classes, width)
    truth = np.unique(classes[rows], return_inverse=True)[1]
    return rows, truth, len(truth) - int(np.bincount(truth).max(initial=0))


def _by_column(values: Any, columns: Sequence[str], rows: Integers) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield each column, and its features in some rows."""
    read = values[rows]
    read = read.tocsc() if hasattr(read, "tocsc") else np.asarray(read)
    for name, group in groupby(range(len(columns)), columns.__getitem__):
        at = [*group]
        part = read[:, at[0] : at[-1] + 1]
        yield name, part.toarray() if hasattr(part, "toarray") else part


def _as_codes(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one number per row, equal for equal rows."""
    weights = np.random.default_rng(0).standard_normal(part.shape[1])
    return np.asarray((part.astype(np.float64) @ weights).round(9))


def _counts(column: npt.NDArray[Any], truth: Integers) -> Integers:
    """Return the number of rows of each class for each value, in the order of the values."""
    values, value = np.unique(column, return_inverse=True)
    classes = int(truth.max()) + 1
    counted = np.bincount(value * classes + truth, minlength=len(values) * classes)
    return counted.reshape(-1, classes)


def _errors(column: npt.NDArray[Any], truth: Integers) -> float:
    """Return the errors of the better of two rules: the largest class of each value, or of each interval.

    A value that only one row has predicts nothing. Beyond one interval per class, two more intervals count as
    an error, so that a column of noise, which needs an interval for almost every row, is no rule.
    """
    counts = _counts(column, truth)
    wrong = len(truth) - int(counts.max(axis=1).sum())
    alone = int((counts.sum(axis=1) == 1).sum())
    intervals = 1 + int((np.diff(counts.argmax(axis=1)) != 0).sum())
    excess: float = max(0.0, (intervals - counts.shape[1]) / 2)
    return wrong + min(alone, excess)


def _indicated(column: npt.NDArray[Any], truth: Integers) -> list[int]:
    """Return the class that a column of two values separates from all others, if it does."""
    counts = _counts(column, truth)
    if len(counts) != 2:
        return []
    sizes = counts.sum(axis=0)
    errors = np.minimum(*(counts[v].sum() - counts[v] + counts[1 - v] for v in (0, 1)))
    return [int(one) for one in np.flatnonzero((errors <= MOST_ERRORS * sizes) & (sizes >= MIN_OTHERS))]


def nearly_determined(values: Any, columns: Sequence[str], classes: Integers) -> dict[str, float]:
    """Return the columns that nearly determine the class, with the share of the labelled rows where they do.

    The arguments are those of `find_leaks`.
    """
    rows, truth, others = _labelled(classes, len(columns))
    if len(truth) < NEARLY_ROWS or others < NEARLY_ROWS / BINS:
        return {}
    found = dict[str, float]()
    for name, part in _by_column(values, columns, rows):
        wide, wrong = part.astype(np.float64), len(truth)
        for one in [*wide.T, *([_as_codes(wide)] if 1 < wide.shape[1] <= BINS else [])]:
            wrong = min(wrong, len(truth) - int(_counts(_binned(one), truth).max(axis=1).sum()))
        if wide.shape[1] > BINS:  # categories and texts with many values
            wrong = min(wrong, _left_out_errors(_as_codes(wide), truth))
        if wrong <= (1 - NEARLY) * others:
            found[name] = 1 - wrong / len(truth)
    return found


def _left_out_errors(column: npt.NDArray[Any], truth: Integers) -> int:
    """Return the errors of the largest class among the other rows with the same value, or else among all."""
    counts, value = _counts(column, truth), np.unique(column, return_inverse=True)[1]
    others = counts[value]
    others[np.arange(len(truth)), truth] -= 1
    found = np.where(others.any(axis=1), others.argmax(axis=1), counts.sum(axis=0).argmax())
    return int((found != truth).sum())


def _binned(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column, or the intervals between its quantiles if it has many values."""
    if len(np.unique(column)) <= BINS:
        return column
    limits = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.searchsorted(limits, column)


def doubts(
    graph: GraphLike, labels: Integers, table: str = "", name: str | None = None
) -> tuple[Repair, ...]:
    """Return a note on columns that nearly determine the class: they may be known only after it.

    Of columns of linked rows, those of single rows count, which a row has from its beginning. The arguments
    are those of `check_leaks`.
    """
    found = dict[str, float]()
    if not graph.provenance.structural and graph.num_features:
        nodes = _sample(labels, graph.num_features)
        columns = _columns_of(graph)
        found = nearly_determined(_values_of(graph, nodes), columns, labels[nodes])
        found = {_named(graph, one, table): share for one, share in found.items()}
    if graph.link_columns is not None:
        joined = graph.link_columns.plan.joined
        first = graph.link_columns.values.shape[1] - len(joined)
        single = [at for at, one in enumerate(joined) if one.what in ("value", "category")]
        values = graph.link_columns.values[:, [first + at for at in single]]
        found |= nearly_determined(values, [joined[at].source for at in single], labels)
    if not found:
        return ()
    largest = np.bincount(labels[labels >= 0]).max() / (labels >= 0).sum()
    names = shortened(sorted(found, key=lambda one: -found[str(one)]), 8)
    best = f"{100 * max(found.values()):.0f} % of the labelled rows (largest class: {100 * largest:.0f} %)"
    message = f"one column alone predicts the class for up to {best}: {names}. Where it is known only after "
    message += f"the class, {again_without([*found], graph, table, name)}"
    return (Repair("label-doubtful", message, fields=tuple(found)),)


def again_without(found: Sequence[str], graph: GraphLike, table: str = "", name: str | None = None) -> str:
    """Return how to fit again without some columns; the last two arguments are those of `check_leaks`."""
    options, others = dict[str, None](), list[str]()
    joined = () if graph.link_columns is None else graph.link_columns.plan.joined
    for one in found:
        end = one.rpartition(" > ")[2].partition(" (")[0].partition(" via ")[0]
        if one in _path_titles(graph):
            columns = dict.fromkeys(of.source for of in joined if of.source.startswith(f"{end}."))
            others += [end] * (not columns)
        else:
            is_type = any(of.path.rpartition(" > ")[2].partition(" by ")[0] == one for of in joined)
            columns, others = dict.fromkeys([one] * (not is_type)), [*others, *([one] * is_type)]
        options |= {as_option("--columns", f"{column}=identifier"): None for column in columns}
    if not table:
        return f"fit again without them ({' '.join(options)})"
    source = "--tables SOURCE"
    message = "predict again without them, in a new folder: "
    if others:
        links = shortened(dict.fromkeys(others), 4)
        message += (
            f"write a schema file (`h3gnn inspect SOURCE --write graph.toml`), remove its links to {links} "
        )
        message += 'and declare their columns there (columns = { NAME = "identifier" }), then '
        source = "--tables graph.toml"
    target = shlex.quote(f"{table}.{name}" if name else f"{table}.COLUMN")
    command = " ".join(["h3gnn predict NEW_FOLDER", target, source, *options])
    return f"{message}`{command}` and the other options of this fit"


def _path_titles(graph: GraphLike) -> list[str]:
    """Return the path of each feature that is a mean along one; [] if the features are columns."""
    along = graph.path_columns
    if along is None or not along.are_features:
        return []
    return [one for one, width in zip(along.titles, along.widths, strict=True) for _ in range(width)]


def _named(graph: GraphLike, column: str, table: str) -> str:
    """Return a column of the nodes with its table; paths lead to other tables."""
    return f"{table}.{column}" if table and column not in _path_titles(graph) else column


def check_leaks(graph: GraphLike, labels: Integers, name: str | None = None, table: str = "") -> None:
    """Raise if a feature that a model was fitted on contains the class that it is to predict.

    Columns that were declared when these labels were known are the user's decision.

    Args:
        graph: the fitted graph.
        labels: the class of each node, -1 where unknown.
        name: the name of the column of the labels.
        table: that of the nodes, if there are several.
    """
    target, found, others, declared = Target(name, labels), dict[str, str](), list[str](), set[str]()
    prefix = f"{table}." if table else ""
    if not graph.provenance.structural and graph.num_features:
        found, others = _feature_leaks(graph, target)
        found = {_named(graph, one, table): why for one, why in found.items()}
        others = [] if table else others
        used = () if graph.plan is None else graph.plan.used
        declared |= {f"{prefix}{one.name}" for one in used if one.declared}
    if graph.link_columns is not None:
        first = 0
        for one in graph.link_columns.plan.tables:
            last = first + len([*one.entries])
            values = graph.link_columns.values[:, first:last]  # an undefined one is the mean, 0
            found |= link_leaks(one, np.where(values == 0, np.nan, values), target)
            declared |= {column.name for column in one.used if column.declared}
            first = last
        joined = graph.link_columns.values[:, first:]
        of_values = [
            at for at, one in enumerate(graph.link_columns.plan.joined) if one.what not in OF_NUMBERS
        ]
        columns = [graph.link_columns.plan.joined[at] for at in of_values]
        shares = joined_leaks(columns, np.where(joined == 0, np.nan, joined)[:, of_values], target)
        found |= {one.source: describe(share) for one, share in shares.items()}
    known = graph.labels is not None and np.array_equal(graph.labels.numpy(), labels)
    found = {one: why for one, why in found.items() if not (known and one in declared)}
    raise_leaks(found, others, again_without([*found], graph, table, name))


def _feature_leaks(graph: GraphLike, target: Target) -> tuple[dict[str, str], list[str]]:
    """Return the features that contain the class, and why; and, without a plan, the other features."""
    nodes = _sample(target.classes, graph.num_features)
    values, columns = _values_of(graph, nodes), _columns_of(graph)
    found = column_leaks(values, columns, Target(target.name, target.classes[nodes]))
    return found, [one for one in columns if one not in found] if graph.plan is None else []


def _values_of(graph: GraphLike, nodes: Integers) -> Any:
    """Return the features of some nodes, dense or scipy sparse."""
    if isinstance(graph, Graph):
        dense = graph.features.layout == torch.strided
        return graph.features.numpy()[nodes] if dense else scipy_features(graph.features)[nodes]
    read = graph.features[nodes]
    return scipy_features(read) if isinstance(read, torch.Tensor) else np.asarray(read)


def link_leaks(table: LinkTable, values: npt.NDArray[Any], target: Target) -> dict[str, str]:
    """Return the columns of an edge table that contain the class of its nodes, and why that is assumed.

    Of the link columns `[nodes, columns]`, NaN where undefined, only those count that repeat values: sums and
    numbers of links also depend on how many links a node has.
    """
    found = dict[str, str]()
    rows = _sample(target.classes, values.shape[1])
    entries = enumerate(table.entries)
    for name, group in groupby(entries, lambda entry: None if entry[1][1] is None else entry[1][1].name):
        at = [at for at, (_, _, what) in group if what in OF_VALUES]
        if name is None or not at:
            continue
        repeated = values[rows[:, None], at]
        known = ~np.isnan(repeated).all(axis=1)
        labelled = Target(target.name, target.classes[rows[known]])
        found |= column_leaks(np.nan_to_num(repeated[known]), [name] * len(at), labelled)
    return found


def joined_leaks(
    columns: Sequence[JoinedColumn], values: npt.NDArray[Any], target: Target
) -> dict[JoinedColumn, float]:
    """Return the joined columns that determine the class where they are known, and in which share of rows."""
    found = dict[JoinedColumn, float]()
    for one, column in zip(columns, values.T, strict=True):
        known = ~np.isnan(column)
        shares = find_leaks(column[known, None], [one.name], target.classes[known])
        found |= dict.fromkeys([one] * len(shares), shares.get(one.name, 0.0))
    return found


def _columns_of(graph: GraphLike) -> list[str]:
    """Return the column of the table that each feature comes from; without a table, its own name."""
    if graph.plan is not None and len(graph.plan.names) == graph.num_features:
        return [feature.column.name for feature in graph.plan.features]
    if titles := _path_titles(graph):
        return [*titles, *graph.feature_names[len(titles) :]]
    return [*graph.feature_names] or [f"feature {at + 1}" for at in range(graph.num_features)]


NAMED = "has the name of the class"


def describe(share: float) -> str:
    """Return what a share of rows in which a column determines the class means for the column."""
    return f"determines the class in {100 * share:.4g} % of the labelled rows"


def leak_reason(name: str, kind: str, why: str) -> str:
    """Return why a column is left out, and the option that keeps it."""
    return f"{why}; {as_option('--columns', f'{name}={kind}')} makes it a feature"


def kept_leak(name: str, why: str) -> Repair:
    """Return the repair for a declared column that contains the class."""
    message = f"the column {name} {why}; it is a feature, since you declared it"
    return Repair("label-leak-kept", message, fields=(name,), warn=True)


def raise_leaks(found: dict[str, str], others: Sequence[str] = (), again: str = "") -> None:
    """Raise if a model was fitted on features that contain the class.

    Args:
        found: the features, and why each is assumed to contain the class.
        others: the other features, if they are no columns of a table, which could be declared.
        again: how to fit again without them.
    """
    if not found:
        return
    listed = shortened((f"{one!r} {why}" for one, why in found.items()), 4)
    left_out = " ".join(as_option("--columns", f"{one}=identifier") for one in found)
    if others:
        left_out = as_option("--feature-columns", as_list(others))
    if others or not again:
        again = f"fit it again without them ({left_out})"
    raise GraphError(
        f"the model was fitted on features that contain the class: {listed}; {again}. If they are known "
        "wherever classes are predicted, give --allow-leaks (allow_leaks=True in Python)",
        code="label-leak",
    )
