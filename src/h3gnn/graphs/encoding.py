"""Making the plan of a table: every column recognised, or taken at the person's word, and learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.encoders import Learned
from h3gnn.graphs.kinds import LEFT_OUT, Recognised, is_label, parse_kinds, read_values, recognise
from h3gnn.graphs.lists import list_form
from h3gnn.graphs.plan import ENCODERS, ColumnPlan, Place, TablePlan, gaps_of, list_lost, plain_column
from h3gnn.graphs.problems import Problems
from h3gnn.graphs.values import cells_of, date_form, number_form, texts_of

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
) -> tuple[npt.NDArray[np.float64], TablePlan, tuple[str, ...]]:
    """Return a table's features, the plan by which they were made, and what there is to say.

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
        return plan.encode(frame, where)[0], plan, plan.notes()
    for name, told in parse_kinds(dict(columns or {})).items():
        fitted = next((column.kind for column in plan.columns if column.name == name), None)
        if fitted != told.kind:
            raise InputError(
                f"the model was fitted with {name!r} as {fitted}, not {told.kind}; fit it again for that"
            )
    values, notes = plan.encode(frame, where)
    return values, plan, notes


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
