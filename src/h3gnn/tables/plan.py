"""The plan of a table: what each column holds, and how it becomes features.

A plan is fitted with the model, stored with it, and encodes new tables, whose columns it finds by name. A
table of numbers without gaps stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from h3gnn.errors import GraphError, InputError, as_option, shortened
from h3gnn.graphs.provenance import Repair
from h3gnn.resources import check_memory
from h3gnn.tables import infer, leaks
from h3gnn.tables.drift import Seen, describe_unreadable, find_drift, unreadable_cells
from h3gnn.tables.encoders import ENCODERS, VALUE, Encoder, SentenceEncoder, fit_encoder, missing_rows
from h3gnn.tables.files import Problems
from h3gnn.tables.infer import Array, Cells, Floats, InferredType
from h3gnn.tables.leaks import Target

Mask = npt.NDArray[np.bool_]
Place = Callable[[int, str], str]  # names a row and a column for an error message
TENSOR_PREFIX, SEEN = "plan.", "seen"
UNCHANGED = "plain"  # stored name of the encoder that leaves numbers unchanged
ENCODED_BYTES = 8 * 2  # per feature while a table is encoded: once in its column, once in the joined table
MOST_LINES = 24  # more unchanged columns than this are shown as one line
STORED = {
    **{"name": "name", "kind": "kind", "form": "form", "why": "reason", "encoder": "encoder"},
    **{"how": "description", "names": "names", "said": "declared"},
}
"""Keys of a column in a stored plan, and the attributes of `ColumnPlan`."""


@dataclass(frozen=True)
class ColumnPlan:
    """One column: what it holds, why, and how it is encoded.

    Attributes:
        name, kind, form, reason, declared: of the column; see `h3gnn.tables.infer.InferredType`.
        encoder: the name of the encoder; "" for a column that is left out, "plain" for unchanged numbers.
        names, description: of its features.
        fitted: the fitted encoder; None for a column that is left out or unchanged.
        seen: what the fit saw in an encoded column; None in plans of earlier versions.
    """

    name: str
    kind: str
    form: str
    reason: str
    encoder: str = ""
    names: tuple[str, ...] = ()
    description: str = ""
    declared: bool = False
    fitted: Encoder | None = None
    seen: Seen | None = None

    @property
    def is_mostly_missing(self) -> bool:
        """Whether more than half of the rows have no value, as of a class that is to be predicted."""
        return self.seen is not None and self.seen.missing > 0.5 * self.seen.rows

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the state of the encoder."""
        return {key: getattr(self, attribute) for key, attribute in STORED.items()} | {"names": [*self.names]}

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the plain values and the arrays of the encoder's state."""
        return ({}, {}) if self.fitted is None else self.fitted.state()

    def stored(self) -> dict[str, Any]:
        """Return everything except the arrays, for JSON."""
        seen = {} if self.seen is None else {SEEN: self.seen.as_dict()}
        return {**self.as_dict(), "plain": self.state()[0], **seen}

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to store: those of the encoder, and what the fit saw."""
        known = None if self.seen is None else self.seen.known
        return self.state()[1] | ({} if known is None else {SEEN: known})

    def decode(self, cells: Cells, place: Place, problems: Problems) -> tuple[Array, list[Repair]]:
        """Return the values of new cells and how they differ from those of the fit; add unreadable ones."""
        values, unreadable = cells.decode(self.kind, self.form)
        repairs, missing = [], missing_rows(values)
        every = bool(unreadable.size and missing.all())
        if unreadable.size and (
            why := describe_unreadable(self.kind, self.form, cells, unreadable, every=every)
        ):
            remedy = "write the column as in the fitted table, or fit again"
            problems.add(f"the column {self.name!r}", why, remedy, "column-unreadable")
        elif unreadable.size and self.declared:
            repairs.append(unreadable_cells(self.name, self.kind, unreadable.size))
        else:
            what = f"is not a {self.kind}"
            _add_cells(problems, place, cells.column, unreadable, what, "correct the cell")
        if self.encoder == UNCHANGED:
            for row in np.setdiff1d(np.flatnonzero(missing), unreadable).tolist():
                what, remedy = "the value is empty or NaN", "fill the gap: the fitted table has none"
                problems.add(partial(place, row, self.name), what, remedy, "feature-not-finite")
        if self.fitted is not None:
            repairs += find_drift(self.name, self.fitted, self.seen, values)
        return values, repairs

    def transform(self, values: Array) -> Floats:
        """Return the features of decoded values, `[rows, features]`."""
        if self.fitted is None:
            return np.asarray(values.reshape(len(values), -1), dtype=np.float64)
        return self.fitted.transform(values)


@dataclass(frozen=True)
class Feature:
    """One feature: its name, the column that it comes from, and its role there (see `encoders`)."""

    name: str
    column: ColumnPlan
    role: str


@dataclass(frozen=True)
class TablePlan:
    """How a table becomes features, column by column; `columns` includes those that are left out."""

    columns: tuple[ColumnPlan, ...]

    @property
    def as_is(self) -> bool:
        """Whether the numbers of the table are the features, unchanged."""
        return all(column.fitted is None for column in self.columns)

    @property
    def takes_all(self) -> bool:
        """Whether all columns of the table are features, unchanged, so that a new table needs no plan."""
        return self.as_is and all(column.encoder for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each feature."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def features(self) -> tuple[Feature, ...]:
        """Each feature with its column and role."""
        found = []
        for column in self.columns:
            unchanged = [(name, VALUE) for name in column.names]
            named = unchanged if column.fitted is None else column.fitted.features(column.name)
            found += [Feature(name, column, role) for name, role in named]
        return tuple(found)

    @property
    def used(self) -> tuple[ColumnPlan, ...]:
        """The columns that become features."""
        return tuple(column for column in self.columns if column.encoder)

    @property
    def label(self) -> str | None:
        """The column that holds the class, if the table has one."""
        return next((column.name for column in self.columns if column.kind == "label"), None)

    def leaks(self, values: Any, target: Target) -> dict[str, str]:
        """Return the used columns that contain what is to be predicted, and why that is assumed."""
        return leaks.column_leaks(values, [feature.column.name for feature in self.features], target)

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (column, kind and reason, encoding) for display; many unchanged columns share a line."""
        unchanged = [column for column in self.columns if column.encoder == UNCHANGED]
        grouped = {column.name for column in unchanged} if len(unchanged) > MOST_LINES else set()
        lines = []
        if grouped:
            names = f"{unchanged[0].name} … {unchanged[-1].name}"
            lines.append((names, f"{len(unchanged):,} columns of numbers", "unchanged"))
        for column in self.columns:
            if column.name not in grouped:
                kind = f"{column.kind}: {column.reason}" if column.reason else column.kind
                lines.append((column.name, kind, column.description if column.encoder else "left out"))
        return lines

    def repairs(self) -> tuple[Repair, ...]:
        """Return how many columns were encoded, and those that are no features."""
        repairs = []
        if not self.as_is:
            message = f"{len(self.used)} columns became {len(self.names)} features (h3gnn inspect shows how)"
            repairs.append(Repair("columns-encoded", message, len(self.used)))
        for column in self.columns:
            if column.kind == "label":
                message = f"the column {column.name} is the label and no feature: {column.reason}"
                repairs.append(Repair("column-is-label", message, fields=(column.name,), warn=True))
            elif column.kind == infer.LEAK:
                message = f"the column {column.name} is left out, since it {column.reason}"
                repairs.append(Repair("label-leak", message, fields=(column.name,), warn=True))
            elif not column.encoder:
                message = f"the column {column.name} is left out ({column.kind}: {column.reason})"
                repairs.append(Repair("column-unused", message, fields=(column.name,), warn=True))
            elif column.seen is not None and column.seen.unreadable:
                repairs.append(unreadable_cells(column.name, column.kind, column.seen.unreadable))
        return tuple(repairs)

    def encode(self, frame: Any, place: Place) -> tuple[Floats, tuple[Repair, ...]]:
        """Return the features of new rows, and the repairs; the columns of the frame are found by name."""
        missing = [column.name for column in self.used if column.name not in frame.columns]
        if missing:
            more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
            message = f"the features have no column {missing[0]!r}{more}, which the model was fitted with"
            there = shortened(frame.columns, 12)
            empty = "add the column, with empty cells where it is unknown"
            raise GraphError(f"{message}; there are {there}; {empty}", code="column-missing")
        problems, repairs, decoded = Problems("the features"), list[Repair](), list[Array]()
        known = {column.name for column in self.columns}
        if others := [name for name in map(str, frame.columns) if name not in known]:
            message = f"not used, since the fitted table has no such columns: {shortened(others)}"
            repairs.append(Repair("columns-unknown", message, len(others), tuple(others)))
        for column in self.used:
            values, differences = column.decode(Cells(frame[column.name]), place, problems)
            repairs += differences
            decoded.append(values)
        problems.check()
        return self._transform(decoded, len(frame)), tuple(repairs)

    def _transform(self, decoded: Sequence[Array], rows: int) -> Floats:
        width = len(self.names)
        check_memory(ENCODED_BYTES * rows * width, f"{width:,} features of {rows:,} rows", GraphError)
        parts = [column.transform(values) for column, values in zip(self.used, decoded, strict=True)]
        return np.column_stack(parts) if parts else np.empty((rows, 0))

    def as_dict(self) -> dict[str, Any]:
        """Return everything except the arrays, for JSON."""
        return {"columns": [column.stored() for column in self.columns]}

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays of the encoders; their names contain the position of the column."""
        return {
            f"{TENSOR_PREFIX}{at}.{name}": torch.from_numpy(np.ascontiguousarray(array))
            for at, column in enumerate(self.columns)
            for name, array in column.arrays().items()
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore a plan from `as_dict` and `tensors`."""
        columns = []
        for at, one in enumerate(stored["columns"]):
            prefix = f"{TENSOR_PREFIX}{at}."
            own = [name for name in tensors if name.startswith(prefix)]
            arrays = {name.removeprefix(prefix): tensors[name].numpy() for name in own}
            encoder, known = ENCODERS.get(one["encoder"]), arrays.pop(SEEN, None)
            fitted = None if encoder is None else encoder(**one["plain"], **arrays)
            values = {attribute: one[key] for key, attribute in STORED.items()}
            seen = Seen(**one[SEEN], known=known) if SEEN in one else None
            columns.append(ColumnPlan(**{**values, "names": tuple(one["names"])}, fitted=fitted, seen=seen))
        return cls(tuple(columns))


def check_same_plan(fitted: TablePlan | None, other: TablePlan | None) -> None:
    """Reject features that were encoded differently from those of the fit."""
    if fitted is None or other is None or (fitted.as_is and other.as_is):
        return
    own, others = (
        [(one.name, one.kind, one.form, one.encoder, one.names, one.state()[0]) for one in plan.columns]
        for plan in (fitted, other)
    )
    if own == others:
        return
    what = "the features were encoded by another plan than those of the fit"
    if unknown := [name for name in fitted.names if name not in other.names]:
        what = f"the feature {unknown[0]!r} of the fit is not among the features"
    message = f"{what}: read the new table with plan=model.graph_.plan (`h3gnn embed` does)"
    raise GraphError(message, code="plan-differs")


def check_as_is(plan: TablePlan | None) -> None:
    """Reject encoded columns for a graph on disk, whose columns are unchanged numbers."""
    if plan is not None and not plan.as_is:
        raise GraphError(
            "the columns of one graph were encoded, and those of a graph on disk are unchanged numbers: "
            "fit and embed both in memory, or prepare both (`h3gnn prepare`)",
            code="plan-differs",
        )


def plain_plan(names: Sequence[str], width: int) -> TablePlan:
    """Return the plan of columns of numbers, or of one column of vectors, that stay unchanged."""
    return TablePlan(tuple(_plain_column(name, width if len(names) == 1 else 1) for name in names))


def _plain_column(name: str, width: int) -> ColumnPlan:
    names = (name,) if width == 1 else tuple(f"{name}[{at}]" for at in range(width))
    return ColumnPlan(name, "number" if width == 1 else "list", "", "", UNCHANGED, names, "unchanged")


def encode_table(
    frame: Any,
    plan: TablePlan | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    text_model: str | None = None,
    place: Place | None = None,
    target: Target | None = None,
    own: Mapping[str, Mask] | None = None,
) -> tuple[Floats, TablePlan, tuple[Repair, ...]]:
    """Return a table's features, the plan by which they were made, and the repairs.

    Args:
        frame: a DataFrame, one row per node, without its ids.
        plan: of the table that a model was fitted on; None fits one.
        columns: the kinds of some columns, `{"opened": "date:dmy", "zip": "category"}`.
        text_model: a folder with a sentence model for the columns of text.
        place: names a cell for the error messages.
        target: what is to be predicted, if no column of the table holds it; columns that contain it are left
            out, unless they are declared.
        own: of several tables, the rows that have a column, by its name; the others do not count in its fit.
    """
    where = place or (lambda row, name: f"the features, row {row}, column {name!r}")
    if plan is None:
        return _fit_plan(frame, columns or {}, text_model, where, target, own or {})
    kinds = {column.name: column.kind for column in plan.columns}
    for name, one in infer.parse_types(columns or {}).items():
        if kinds.get(name) != one.kind:
            message = f"the model was fitted with {name!r} as {kinds.get(name)}, not {one.kind}; fit it again"
            raise InputError(message, code="plan-differs")
    values, repairs = plan.encode(frame, where)
    if target is not None:
        leaks.raise_leaks(plan.leaks(values, target))
    return values, plan, repairs


def _fit_plan(
    frame: Any,
    declared: Mapping[str, str],
    text_model: str | None,
    place: Place,
    target: Target | None,
    own: Mapping[str, Mask],
) -> tuple[Floats, TablePlan, tuple[Repair, ...]]:
    """Infer the type of every column that the user did not declare, and fit its encoder."""
    names = [str(name) for name in frame.columns]
    types = infer.parse_types(declared)
    if unknown := [name for name in types if name not in names]:
        there = shortened(names, 12)
        message = f"there is no column {unknown[0]!r} in the features; there are {there}"
        raise InputError(message, code="column-missing")
    problems = Problems("the features")
    inferred = infer_columns(frame, types, place, problems, own)
    problems.check()
    target = target or _own_target(inferred)
    plans = {
        name: _fit_column(name, kind, cells, text_model, own.get(name))
        for name, (kind, cells) in inferred.items()
    }
    values, plan = _join_columns(plans, inferred)
    found = {} if target is None else plan.leaks(values, target)
    if left_out := {name: why for name, why in found.items() if not plans[name].declared}:
        for name, why in left_out.items():
            plans[name] = ColumnPlan(name, infer.LEAK, "", leaks.leak_reason(name, plans[name].kind, why))
        values, plan = _join_columns(plans, inferred)
    kept = tuple(leaks.kept_leak(name, why) for name, why in found.items() if name not in left_out)
    return values, plan, (*plan.repairs(), *kept)


def _join_columns(
    plans: dict[str, ColumnPlan], inferred: Mapping[str, tuple[InferredType, Cells]]
) -> tuple[Floats, TablePlan]:
    """Return the features of all columns, and the plan; if all are numbers without gaps, they stay."""
    used = {name for name, plan in plans.items() if plan.encoder}
    if not used:
        reasons = shortened((f"{one.name} ({one.kind}: {one.reason})" for one in plans.values()), 6, "; ")
        raise GraphError(
            f"no column of the features can be used: {reasons}; declare what a column holds with "
            "--columns NAME=KIND, or omit the features to have structural ones built",
            code="no-usable-column",
        )
    if all(_is_plain(plans[name], *inferred[name]) for name in used):
        plans = {name: _unchanged(plan) if name in used else plan for name, plan in plans.items()}
    plan = TablePlan(tuple(plans.values()))
    decoded = [inferred[one.name][1].decode(one.kind, one.form)[0] for one in plan.used]
    return plan._transform(decoded, len(next(iter(inferred.values()))[1])), plan


def _own_target(inferred: Mapping[str, tuple[InferredType, Cells]]) -> Target | None:
    """Return the class that a column of the table holds."""
    for name, (found, cells) in inferred.items():
        if found.kind == "label":
            known = [None if one is None or one.lower() in infer.NULL_WORDS else one for one in cells.texts]
            codes, classes = pd.factorize(pd.Series(known))
            if len(classes) <= infer.MOST_CLASSES:
                return Target(name, codes)
            numbers, unreadable = cells.decode("number", "plain")
            return Target.of_numbers(name, np.full(len(cells), np.nan) if unreadable.size else numbers)
    return None


def infer_columns(
    frame: Any,
    declared: Mapping[str, InferredType],
    place: Place,
    problems: Problems,
    own: Mapping[str, Mask] | None = None,
) -> dict[str, tuple[InferredType, Cells]]:
    """Return the type and the cells of every column; guesses and unreadable cells are problems."""
    names, own = [str(name) for name in frame.columns], own or {}
    cells = {name: Cells(frame[name]) for name in names}
    inside = {name: Cells(frame.loc[own[name], name]) if name in own else cells[name] for name in names}
    types = {name: infer.infer_column(name, inside[name], declared.get(name), names) for name in names}
    for name in own:  # one value in a table is another than none in the others
        if types[name].kind == "constant":
            types[name] = infer.infer_column(name, cells[name], declared.get(name), names)
    classes = [name for name, one in types.items() if one.kind == "label"]
    classes.sort(key=lambda name: not types[name].declared)
    for name in classes[1:]:
        types[name] = replace(types[name], kind="identifier", reason=f"a class besides {classes[0]}")
    for name, one in types.items():
        if one.code != "column-ambiguous":
            problems.add(f"the column {name!r}", one.doubt, one.remedy, one.code)
            continue
        unreadable = cells[name].decode(one.kind, one.form)[1]
        if unreadable.size and (one.doubt or not one.declared):
            doubt, remedy = one.doubt or f"is not a {one.kind}", one.remedy or "correct the cell"
            _add_cells(problems, place, cells[name].column, unreadable, doubt, remedy)
        elif one.doubt:
            problems.add(f"the column {name!r}", one.doubt, one.remedy, "column-ambiguous")
    return {name: (types[name], cells[name]) for name in names}


def _fit_column(
    name: str, found: InferredType, cells: Cells, text_model: str | None, own: Mask | None
) -> ColumnPlan:
    """Return the plan of one column, fitted to the rows that have it; one without information is left out."""
    plan = ColumnPlan(name, found.kind, found.form, found.reason, declared=found.declared)
    if found.kind in infer.NOT_ENCODED:
        return replace(plan, form="")
    values, unreadable = cells.decode(found.kind, found.form)
    values = values if own is None else values[own]
    missing = missing_rows(values)
    if missing.all() and unreadable.size:
        message = f"no cell of the column {name!r} is a {found.kind}: {cells.words()[unreadable[0]]!r}"
        if found.kind == "number":
            message += ", which has an unknown unit or is none; write numbers without the unit"
        correct = f"or correct {infer.declaration(name, found.kind)}"
        raise InputError(f"{message}; {correct}", code="column-unreadable")
    if missing.all():
        return replace(plan, kind="constant", form="", reason=f"no cell is a {found.kind}")
    reason = found.reason
    if unreadable.size:
        reason += f"; {unreadable.size:,} cells of another kind are treated as missing"
    if missing.mean() > 0.5 and found.kind in ("category", "boolean") and not found.declared:
        known = f"{100 * (1 - missing.mean()):.0f} %"
        label = as_option("--label-column", name)
        reason += f"; known for {known} of the rows only: if you want to predict it, {label}"
    fitted = fit_encoder(found.kind, found.form, values, text_model)
    if found.kind == "category" and fitted.kind == "text":
        reason += "; most of them are rare, so that their characters are encoded"
    if own is not None and fitted.names(name) and not isinstance(fitted, SentenceEncoder):
        fitted = replace(fitted, gaps=True)  # type: ignore[type-var]
    names = tuple(feature for feature, _ in fitted.features(name))
    return replace(
        plan,
        reason=reason,
        encoder=fitted.kind if names else "",
        names=names,
        description=fitted.describe(values),
        fitted=fitted if names else None,
        seen=Seen.of(fitted, values, unreadable.size) if names else None,
    )


def _is_plain(plan: ColumnPlan, found: InferredType, cells: Cells) -> bool:
    """Whether a column is numbers without gaps, which can be features unchanged."""
    dtype = getattr(cells.column.dtype, "kind", "O")
    if plan.fitted is None or plan.fitted.gaps or plan.form not in ("", "plain", "vector") or dtype == "m":
        return False  # the unit of a duration is arbitrary
    if found.kind == "boolean":
        return found.numeric or dtype in "biuf"
    return found.kind == "number" or plan.encoder == "vector"


def _unchanged(plan: ColumnPlan) -> ColumnPlan:
    plain = _plain_column(plan.name, len(plan.names))
    return replace(plain, kind=plan.kind, reason=plan.reason, form=plan.form)


def _add_cells(problems: Problems, place: Place, column: Any, rows: Array, what: str, remedy: str) -> None:
    """Add the cells of some rows to the problems."""
    for row in rows.tolist():
        cell, where = column.iloc[row], partial(place, row, str(column.name))
        shown = "the list" if isinstance(cell, list | np.ndarray) else repr(str(cell))
        if str(cell).lower().strip("+- ") in ("inf", "infinity"):
            correct = "correct the cell or leave the column out"
            problems.add(where, "the value is infinity", correct, "feature-not-finite")
        else:
            problems.add(where, f"{shown} {what}", remedy, "cell-unreadable")
