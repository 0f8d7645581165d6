"""A table and a later version of it, which people exported from another program, or another year.

What the later cells mean is known. An analyst who reads them by the rules of the first table reads the same
values, notices what is new, or asks.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from h3gnn.answers.extend import add_nodes, read_new_nodes
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.preprocessing import align_columns
from h3gnn.tables.plan import ColumnPlan
from h3gnn.tables.read import read_graph
from tests.fuzz.made_tables import (
    BODIES,
    DATE_FORMS,
    EPOCH,
    GAPS,
    Chance,
    Made,
    MadeTable,
    styles,
    tables,
    write,
    write_all,
    write_dates,
    write_text,
)
from tests.fuzz.readings import numbers_of, wrong_reading

PLAIN = {
    "header": True,
    "delimiter": ",",
    "encoding": "utf-8",
    "end": "\n",
    "comment": "",
    "quoting": 0,
    "padded": False,
}


def gaps(made: Made, chance: Chance) -> Made:
    """Empty half of the cells, or all."""
    empty = chance.random(len(made.cells)) < chance.choice([0.5, 1.1])
    meant = [one for one in GAPS if one not in ("-", "?") or made.kind not in ("words", "codes")]
    word = str(chance.choice(meant))  # among words, "-" and "?" are words
    return replace(
        made,
        values=[None if gap else one for gap, one in zip(empty, made.values, strict=True)],
        cells=[word if gap else one for gap, one in zip(empty, made.cells, strict=True)],
        native=[None if gap else one for gap, one in zip(empty, made.native, strict=True)],
    )


def other_words(made: Made, chance: Chance) -> Made:
    """Write other words, or words in capitals, in some cells."""
    new = str(chance.choice(["Berne", "ROME", "rome", "violet", "12", "true", "2020-01-01"]))
    cells = [new if chance.random() < 0.4 else one for one in made.cells]
    return replace(made, values=cells, cells=cells, native=cells)


def other_notation(made: Made, chance: Chance) -> Made:
    """Write numbers in another notation or unit; in another unit they are other amounts."""
    form, _, unit = made.form.partition("|")
    form = str(chance.choice([*BODIES]))
    new = str(chance.choice([unit, unit, "", "€", "$", " kg", " g", "%"]))
    if any(isinstance(one, str) for one in made.values):
        return made
    digits = int(chance.integers(0, 4))
    cells, values = [], []
    for one in made.values:
        body = "" if one is None else BODIES[form](abs(one), digits, chance)
        exact = (
            None
            if one is None
            else float(f"{abs(one):.3e}" if form == "exponent" else f"{abs(one):.{digits}f}")
        )
        sign = "-" if one is not None and one < 0 and exact else ""
        cells.append(body and sign + (new + body if new in ("€", "$") else body + new))
        values.append(exact if not sign or exact is None else -exact)
    meant = values if new.strip() == unit.strip() else ["another unit" if one else one for one in values]
    return replace(made, values=meant, cells=cells, native=cells, form=f"{form}|{new}")


def other_dates(made: Made, chance: Chance) -> Made:
    """Write dates in another form."""
    form = str(chance.choice(DATE_FORMS))
    days = [None if one is None else EPOCH + datetime.timedelta(one) for one in made.values]
    cells = ["" if one is None else write_dates([one], form)[0] for one in days]
    return replace(made, cells=cells, native=cells, form=form)


def other_range(made: Made, chance: Chance) -> Made:
    """Multiply numbers by a thousand without a word about it."""
    if made.form not in ("plain|", "shortest|") or any(isinstance(one, str) for one in made.values):
        return made
    values = [None if one is None else one * 1000 for one in made.values]
    return replace(
        made, values=values, cells=["" if one is None else repr(one) for one in values], native=values
    )


def other_kind(made: Made, chance: Chance) -> Made:
    """Write something else into the column."""
    words = [str(one) for one in chance.choice(["high", "low", "5", "2021-02-03", "a|b"], len(made.cells))]
    words[0] = "high"  # 5 alone would be a number
    return replace(made, kind="other", values=words, cells=words, native=words)


CHANGES: dict[str, tuple[Callable[[Made, Chance], Made], tuple[str, ...]]] = {
    "same": (lambda made, _: made, ("number", "date", "yes", "words", "codes")),
    "gaps": (gaps, ("number", "date", "yes", "words", "codes")),
    "words": (other_words, ("words",)),
    "notation": (other_notation, ("number",)),
    "dates": (other_dates, ("date",)),
    "range": (other_range, ("number",)),
    "kind": (other_kind, ("number", "date", "yes")),
}


@dataclass(frozen=True)
class Pair:
    """A table, a later version with further nodes, and what happened to its columns."""

    first: MadeTable
    later: MadeTable
    changes: dict[str, str]

    @property
    def columns(self) -> list[Made]:
        """The columns of both; so that pairs are counted like tables."""
        return [*self.first.columns, *self.later.columns]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    made = draw(tables(certain=True))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    split = len(made.ids) // 2 + 4
    first_rows, later_rows = [*range(split)], [*range(split, len(made.ids))]
    first = [one.take(first_rows) for one in made.columns]
    later, changes = [], dict[str, str]()
    for one in made.columns:
        fitting = [name for name, (_, kinds) in CHANGES.items() if one.kind in kinds]
        name = draw(st.sampled_from(["same", *fitting]))
        later.append(CHANGES[name][0](one.take(later_rows), chance))
        changes[one.name] = name
    event = draw(st.sampled_from(["", "", "", "", "order", "extra", "rename", "drop"]))
    if event == "order":
        later = later[::-1]
    elif event == "rename":
        later[0] = replace(later[0], name=later[0].name + "_2")
    elif event == "drop" and len(later) > 1:
        later = later[1:]
    elif event == "extra":
        words = [f"more {row % 3}" for row in later_rows]
        later.append(Made("more", "words", words, words, words))
    changes["table"] = event
    encodings = {"encoding": "utf-8", "header": True}
    style = draw(styles()) | encodings
    style["suffix"] = style["suffix"].replace("frame", ".parquet")  # files only
    ids = made.ids[:split]
    ends = [*zip(ids, [*ids[1:], ids[0]], strict=True)]
    new = made.ids[split:]
    bare = replace(made, weights=None, classes=None)
    return Pair(
        replace(bare, ids=ids, columns=first, ends=ends, style=made.style | encodings),
        replace(
            bare,
            ids=new,
            columns=later,
            ends=[*zip(new, ids, strict=False)],
            style=style,
            key_at=min(made.key_at, len(later)),
        ),
        changes,
    )


def read_pair(pair: Pair) -> str:
    """Fit nothing: read a table, and its later version by the plan of the first; return what was misread."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            graph = read_graph(**write_all(folder, pair.first))
        except InputError as error:
            raise InputError(str(error), code="first-table") from None
        if wrong_reading(graph, pair.first):
            raise InputError("the first table is counted elsewhere", code="first-table")
        features = write(folder, pair.later, "later")
        edges = write_text(folder / "more.csv", ["source", "target"], pair.later.ends, PLAIN)
        table, new_edges = read_new_nodes(graph, features, [(None, edges)], {})
        added, _, _, repairs = add_nodes(graph, align_columns(graph, table), new_edges)
        return wrong_later(graph, added, pair, {one for repair in repairs for one in repair.fields})


def wrong_later(graph: Graph, added: Graph, pair: Pair, reported: set[str]) -> str:
    """Return what was read otherwise than it is meant, and is not reported."""
    ids = [str(one) for one in added.node_ids.tolist()]
    if ids != [*pair.first.ids, *pair.later.ids]:
        return "other ids"
    later = {one.name: one for one in pair.later.columns}
    first = {one.name: one for one in pair.first.columns}
    assert graph.plan is not None
    for column in graph.plan.used:
        if column.name not in later:
            return f"{column.name!r} is not there, and nothing says so"
        wrong = wrong_values(added, column, first[column.name], later[column.name])
        if wrong and column.name not in reported:
            return f"{pair.changes[column.name]} of {column.name!r} ({column.kind}:{column.form}): {wrong}"
    return ""


def wrong_values(added: Graph, column: ColumnPlan, first: Made, later: Made) -> str:
    """Return how the later cells of a column were read otherwise than they are meant, or are unusual."""
    count, shown = len(first.values), f"{later.form} {later.cells[:4]}"
    if later.kind == "other" or "another unit" in later.values:
        return f"cells of another kind or unit: {shown}"
    if column.kind in ("number", "date") or first.kind in ("number", "yes"):
        known = [one for one in first.values if one is not None]
        new = [one for one in later.values if one is not None]
        found = numbers_of(added, column)[count:]
        if not same_numbers_in(known, found, later.values):
            return f"{shown} read as {found[:4].tolist()}"
        margin = 1e-5 * (max(known) - min(known))
        outside = new and (max(new) > max(known) + margin or min(new) < min(known) - margin)
        return f"out of range: {shown}" if outside and first.kind != "yes" else ""
    if column.encoder not in ("category", "boolean"):
        return ""
    assert added.plan is not None
    at = [added.plan.names.index(name) for name in column.names]
    block = added.dense_features().numpy()[:, at]
    seen = {word: block[row].tobytes() for row, word in enumerate(first.values)}
    for row, word in enumerate(later.values):
        if seen.get(word) != block[count + row].tobytes():
            return f"{word!r} is new, or read as something else"
    return ""


def same_numbers_in(known: list[Any], found: Any, meant: list[Any]) -> bool:
    """Whether numbers are equal up to the rounding of float32, relative to the spread of the first table."""
    wanted = np.array([np.nan if one is None else float(one) for one in meant])
    margin = 1e-4 * float(np.std(known)) + 1e-6 * float(np.max(np.abs(known)))
    return bool(np.allclose(found, wanted, rtol=3e-4, atol=margin, equal_nan=True))
