"""The plan of a table: what each column holds and how it becomes numbers.

A plan is made once, from the table that a model is fitted on; it is kept with the graph and with the model,
and new tables are read by it, their columns found by name. A table of numbers without gaps stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.provenance import Repair
from h3gnn.resources import check_memory
from h3gnn.tables import encoders
from h3gnn.tables.encoders import Learned
from h3gnn.tables.infer import (
    LEFT_OUT,
    Recognised,
    cells_of,
    date_form,
    is_label,
    list_form,
    number_form,
    parse_kinds,
    read_values,
    recognise,
    texts_of,
)
from h3gnn.tables.reader import Problems

Place = Callable[[int, str], str]
"""Names a row and a column for a person."""

ENCODERS = {
    **encoders.ENCODERS,
    "text": (encoders.learn_text, encoders.encode_text),
    "sentences": (encoders.learn_sentences, encoders.encode_sentences),
}
STARTED = "plan."
"""How the names of a plan's tensors begin in a file."""

ENCODED = 8 * 2
"""Bytes of a feature while a table is encoded: that of its column, and that of all of them side by side."""

MANY = 24
"""Columns of one kind beyond this many stand in one line of a plan."""


@dataclass(frozen=True)
class ColumnPlan:
    """One column: what it holds, why that is thought, and what was learned to encode it.

    Attributes:
        name: of the column.
        kind: one of `h3gnn.tables.infer.KINDS`.
        form: how its cells are written.
        why: what told the kind.
        encoder: which encoder; "" where the column is left out, "plain" where numbers stay as they are.
        learned: what the encoder learned.
        said: whether the person said the kind; cells that are something else are then missing.
    """

    name: str
    kind: str
    form: str
    why: str
    encoder: str
    learned: Learned
    said: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; arrays are not among them."""
        told = {"name": self.name, "kind": self.kind, "form": self.form, "why": self.why}
        how = {"how": self.learned.how, "names": [*self.learned.names], "said": self.said}
        return {**told, "encoder": self.encoder, **how}


@dataclass(frozen=True)
class TablePlan:
    """How a table of features becomes numbers, column by column.

    Attributes:
        columns: one plan for each, also for those that are left out.
    """

    columns: tuple[ColumnPlan, ...]

    @property
    def as_is(self) -> bool:
        """Whether the numbers of the table are the features, unchanged."""
        return all(column.encoder in ("", "plain") for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each number that comes out."""
        return tuple(name for column in self.columns for name in column.learned.names)

    @property
    def used(self) -> tuple[ColumnPlan, ...]:
        """The columns that become numbers."""
        return tuple(column for column in self.columns if column.encoder)

    @property
    def label(self) -> str | None:
        """The column that holds the class, if the table has one."""
        return next((column.name for column in self.columns if column.kind == "label"), None)

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (column, kind and why, encoding) for a person; many numbers in a row are one line."""
        told: list[tuple[str, str, str]] = []
        plain = [column for column in self.columns if column.encoder == "plain"]
        if len(plain) > MANY:
            named = f"{plain[0].name} … {plain[-1].name}"
            told.append((named, f"{len(plain):,} columns of numbers", "as they are"))
            plain_names = {column.name for column in plain}
        else:
            plain_names = set()
        for column in self.columns:
            if column.name not in plain_names:
                how = column.learned.how if column.encoder else "left out"
                told.append((column.name, f"{column.kind}: {column.why}" if column.why else column.kind, how))
        return told

    def repairs(self) -> tuple[Repair, ...]:
        """Return how many columns were encoded, and those that are no features."""
        repairs = []
        if not self.as_is:
            message = f"{len(self.used)} columns became {len(self.names)} features (h3gnn inspect shows how)"
            repairs.append(Repair("columns-encoded", message, len(self.used)))
        for column in self.columns:
            if column.kind == "label":
                message = f"the column {column.name} is the class and no feature: {column.why}"
                repairs.append(Repair("column-is-label", message, fields=(column.name,), warn=True))
            elif not column.encoder:
                message = f"the column {column.name} is left out ({column.kind}: {column.why})"
                repairs.append(Repair("column-unused", message, fields=(column.name,), warn=True))
        return tuple(repairs)

    def encode(self, frame: Any, place: Place) -> tuple[npt.NDArray[np.float64], tuple[Repair, ...]]:
        """Return the features of new rows, and the repairs.

        Args:
            frame: a DataFrame with the columns of the plan, in any order.
            place: names a cell for the error message.
        """
        missing = [column.name for column in self.used if column.name not in frame.columns]
        if missing:
            raise GraphError(
                f"the features have no column {missing[0]!r}, which the model was fitted with"
                + (f" (and {len(missing) - 1} more are missing)" if missing[1:] else "")
                + f"; there are {', '.join(map(str, list(frame.columns)[:12]))}"
            )
        width = len(self.names)
        check_memory(ENCODED * len(frame) * width, f"{width:,} features of {len(frame):,} rows", GraphError)
        problems, parts, repairs = Problems("the features"), [], list[Repair]()
        for column in self.used:
            values, lost = read_values(frame[column.name], column.kind, column.form)
            lost = lost[:0] if column.said else lost
            list_lost(
                problems,
                place,
                frame[column.name],
                column.name,
                lost,
                f"is not a {column.kind}",
                "mend the cell",
            )
            if not lost.size:
                parts.append(_encoded(column, values, problems, place))
                repairs += _new_to(column, values)
        problems.check()
        return np.column_stack(parts) if parts else np.empty((len(frame), 0)), tuple(repairs)

    def as_dict(self) -> dict[str, Any]:
        """Return all but the arrays, for JSON."""
        return {"columns": [{**column.as_dict(), "plain": column.learned.plain} for column in self.columns]}

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned arrays under names that tell their column."""
        return {
            f"{STARTED}{at}.{name}": torch.from_numpy(np.ascontiguousarray(array))
            for at, column in enumerate(self.columns)
            for name, array in column.learned.arrays.items()
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any], tensors: Mapping[str, Tensor]) -> TablePlan:
        """Read what `as_dict` and `tensors` returned."""
        columns = []
        for at, one in enumerate(told["columns"]):
            start = f"{STARTED}{at}."
            arrays = {
                name.removeprefix(start): value.numpy()
                for name, value in tensors.items()
                if name.startswith(start)
            }
            learned = Learned(one["how"], tuple(one["names"]), one["plain"], arrays)
            told_of = {part: one[part] for part in ("name", "kind", "form", "why", "encoder", "said")}
            columns.append(ColumnPlan(**told_of, learned=learned))
        return cls(tuple(columns))


def check_same_plan(fitted: TablePlan | None, other: TablePlan | None) -> None:
    """Refuse features that were made otherwise than those of the fit: their columns mean something else."""
    encoded = [plan for plan in (fitted, other) if plan is not None and not plan.as_is]
    if not encoded or fitted is None or other is None or fitted.as_dict() == other.as_dict():
        return
    strange = [name for name in fitted.names if name not in other.names]
    if strange:
        what = f"the feature {strange[0]!r} of the fit is not among the features"
    else:
        what = "the features were encoded by another plan than those of the fit"
    raise GraphError(f"{what}: read the new table with plan=model.graph_.plan (`h3gnn embed` does)")


def check_as_is(plan: TablePlan | None) -> None:
    """Refuse encoded columns beside those of a graph in files, which are numbers as they are."""
    if plan is not None and not plan.as_is:
        raise GraphError(
            "the columns of one graph were encoded, and those of a graph in files are numbers as they are: "
            "fit and embed both in memory, or prepare both (`h3gnn prepare`)"
        )


def plain_plan(names: Sequence[str], widths: Sequence[int]) -> TablePlan:
    """Return the plan of a table of numbers that stay as they are."""
    return TablePlan(tuple(plain_column(name, width) for name, width in zip(names, widths, strict=True)))


def plain_column(name: str, width: int) -> ColumnPlan:
    """Return the plan of a column of numbers, or of vectors, that stays as it is."""
    names = (name,) if width == 1 else tuple(f"{name}[{at}]" for at in range(width))
    return ColumnPlan(name, "number" if width == 1 else "list", "", "", "plain", Learned("as it is", names))


def gaps_of(values: Any) -> npt.NDArray[np.bool_]:
    """Tell which rows have no value."""
    if values.dtype == object:
        return np.array([one is None for one in values], dtype=bool)
    return np.asarray(np.isnan(values).reshape(len(values), -1).any(axis=1))


def _encoded(column: ColumnPlan, values: Any, problems: Problems, place: Place) -> npt.NDArray[np.float64]:
    if column.encoder != "plain":
        return ENCODERS[column.encoder][1](column.learned, values)
    table = values.reshape(len(values), -1)
    for row in np.flatnonzero(np.isnan(table).any(axis=1)):
        where = partial(place, int(row), column.name)
        problems.add(where, "the value is empty or NaN", "fill the gap: there was none in the fit")
    return np.asarray(table, dtype=np.float64)


def _new_to(column: ColumnPlan, values: Any) -> list[Repair]:
    """Return the unknown categories and missing values of a column that the fitted table does not have."""
    of = column.learned.plain
    repairs = []
    if values.dtype == object and isinstance(of.get("kept"), list) and column.kind == "category":
        known = {*of["kept"], None}
        strange = sum(one not in known for one in values)
        if strange and not of["rare"]:
            message = f"{column.name}: {strange:,} rows hold a category that the fitted table does not have"
            repairs.append(Repair("unknown-categories", message, strange, (column.name,)))
    gaps = int(gaps_of(values).sum())
    if gaps and of.get("gaps") is False:
        message = f"{column.name}: {gaps:,} missing values are imputed; the fitted table has none"
        repairs.append(Repair("missing-values-imputed", message, gaps, (column.name,)))
    return repairs


def list_lost(
    problems: Problems, place: Place, column: Any, name: str, rows: Any, what: str, remedy: str
) -> None:
    """Add the cells of some rows to the problems: what is wrong with them, and the remedy."""
    for at in rows.tolist():
        cell, where = column.iloc[at], partial(place, at, name)
        if isinstance(cell, list | np.ndarray):
            problems.add(where, f"the list {what}", remedy)
        elif str(cell).lower().strip("+- ") in ("inf", "infinity"):
            problems.add(where, "the value is infinity", "mend the cell or leave the column out")
        else:
            problems.add(where, f"{str(cell)!r} {what}", remedy)


FORM_OF: dict[str, Callable[[Any], str | None]] = {
    **{"number": number_form, "date": date_form, "list": list_form, "text": lambda texts: None},
}
USUAL_FORM = {"number": "plain", "date": "iso", "list": "", "text": "words"}
"""How a column is written of which a person said the kind only: found out, else this."""


def encode_table(
    frame: Any,
    plan: TablePlan | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    label: str | None = None,
    text_model: str | None = None,
    place: Place | None = None,
) -> tuple[npt.NDArray[np.float64], TablePlan, tuple[Repair, ...]]:
    """Return a table's features, the plan by which they were made, and the repairs.

    Args:
        frame: a DataFrame, one row per node, without its ids.
        plan: of the table that a model was fitted on; None makes one.
        columns: what the person says of columns: `{"opened": "date:dmy", "zip": "category"}`.
        label: the column that holds the class, if the table has one.
        text_model: a folder with a sentence model for the columns of text.
        place: names a cell for the error messages.
    """
    where = place or (lambda row, name: f"the features, row {row}, column {name!r}")
    if plan is None:
        plan = learn_plan(frame, columns or {}, label, text_model, where)
        return plan.encode(frame, where)[0], plan, plan.repairs()
    for name, told in parse_kinds(dict(columns or {})).items():
        fitted = next((column.kind for column in plan.columns if column.name == name), None)
        if fitted != told.kind:
            raise InputError(
                f"the model was fitted with {name!r} as {fitted}, not {told.kind}; fit it again for that"
            )
    values, repairs = plan.encode(frame, where)
    return values, plan, repairs


def learn_plan(
    frame: Any,
    said: Mapping[str, str],
    label: str | None,
    text_model: str | None,
    place: Place,
    problems: Problems | None = None,
) -> TablePlan:
    """Recognise every column, or take the person's word, and learn how to encode it."""
    told = parse_kinds({**said, **({} if label is None else {label: "label"})})
    names = [str(name) for name in frame.columns]
    strangers = [name for name in told if name not in names]
    if strangers:
        raise InputError(
            f"there is no column {strangers[0]!r} in the features; there are {', '.join(names[:12])}"
        )
    problems = Problems("the features") if problems is None else problems
    found = find_doubts(frame, told, place, problems)
    problems.check()
    learned = [_learn(name, values, one, lost, text_model) for name, (one, values, lost) in found.items()]
    if not any(column.encoder for column in learned):
        why = "; ".join(f"{column.name} ({column.kind}: {column.why})" for column in learned[:6])
        raise GraphError(
            f"no column of the features can be used: {why}; say what a column holds with "
            "--columns NAME=KIND, or leave the features out to have structural ones built"
        )
    plan = TablePlan(tuple(learned))
    return _as_it_is(plan, frame) or plan


def find_doubts(
    frame: Any, told: Mapping[str, Recognised], place: Place, problems: Problems
) -> dict[str, tuple[Recognised, Any, int]]:
    """Return the kind and the values of every column, and how many cells are no such values.

    Where a kind would be a guess, or a cell is something else and nobody said the kind, the cells are added
    to the problems.
    """
    names = [str(name) for name in frame.columns]
    found = {name: _settle(name, frame[name], told.get(name), names) for name in names}
    classes = [name for name, one in found.items() if one.kind == "label"]
    classes.sort(key=lambda name: not found[name].said)
    for name in classes[1:]:
        found[name] = replace(found[name], kind="identifier", why=f"a class beside {classes[0]}")
    read = {}
    for name, one in found.items():
        values, lost = read_values(frame[name], one.kind, one.form)
        if one.doubt or (lost.size and not one.said):
            _list_doubt(problems, place, frame[name], name, one, lost)
        read[name] = (one, values, int(lost.size))
    return read


def _settle(name: str, column: Any, told: Recognised | None, names: list[str]) -> Recognised:
    """Return what a column holds, and how it is written: recognised, or as the person said."""
    if told is None:
        found = recognise(name, column)
        why = is_label(name, column, found, names)
        feature = f"{name}=category with --columns makes it a feature"
        return Recognised("label", f"{why}; {feature}") if why else found
    if told.form or told.kind not in FORM_OF:
        return told
    texts = texts_of(cells_of(column))
    written = str(column.dtype) in ("object", "str", "string", "category")
    form = (FORM_OF[told.kind](texts) if written else None) or USUAL_FORM[told.kind]
    if form == "either":
        doubt = f"days and months could be exchanged; say {name}=date:dmy or {name}=date:mdy"
        return replace(told, form="dmy", doubt=doubt)
    return replace(told, form=form)


def _learn(name: str, values: Any, found: Recognised, lost: int, text_model: str | None) -> ColumnPlan:
    """Return the plan of one column; one that tells nothing after all is left out."""
    if found.kind in LEFT_OUT:
        return ColumnPlan(name, found.kind, "", found.why, "", Learned("", ()), found.said)
    gaps = gaps_of(values)
    if gaps.all():
        return ColumnPlan(name, "constant", "", f"no cell is a {found.kind}", "", Learned("", ()), found.said)
    encoder, form = ("vector" if found.form == "vector" else found.kind), found.form
    if found.kind == "text" and text_model is not None:
        encoder, form = "sentences", text_model
    learned = ENCODERS[encoder][0](name, values, form)
    why = found.why + (f"; {lost:,} cells that are none count as missing" if lost else "")
    if gaps.mean() > 0.5 and found.kind in ("category", "boolean") and not found.said:
        why += (
            f"; known for {100 * (1 - gaps.mean()):.0f} % only: if it is what you want to find out, "
            f"--label-column {name}"
        )
    return ColumnPlan(
        name, found.kind, found.form, why, encoder if learned.names else "", learned, found.said
    )


def _as_it_is(plan: TablePlan, frame: Any) -> TablePlan | None:
    """Return the plan that leaves numbers without gaps alone, where there is nothing else."""
    columns = []
    for column in plan.columns:
        if not column.encoder:
            columns.append(column)
            continue
        spans = frame[column.name].dtype.kind == "m"  # seconds are a choice of ours, and not the table's
        plain = column.form in ("", "plain", "vector") and not column.learned.plain.get("gaps") and not spans
        if column.kind not in ("number", "boolean") and column.encoder != "vector":
            return None
        words = column.kind == "boolean" and not column.why.startswith("0 and 1")
        if not plain or (words and frame[column.name].dtype.kind not in "biuf"):
            return None
        columns.append(
            replace(
                plain_column(column.name, len(column.learned.names)),
                kind=column.kind,
                why=column.why,
                form=column.form,
            )
        )
    return TablePlan(tuple(columns))


def _list_doubt(
    problems: Problems, place: Place, column: Any, name: str, found: Recognised, lost: npt.NDArray[np.int64]
) -> None:
    """Name the cells that make a column doubtful; or the column, where it is the whole."""
    if not lost.size:
        problems.add(f"the column {name!r}", found.doubt)
        return
    what, _, remedy = (found.doubt or f"is not a {found.kind}; mend the cell").partition("; ")
    list_lost(problems, place, column, name, lost, what, remedy)
