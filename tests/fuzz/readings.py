"""What was read from a table: values, groups of rows, ids, edges and classes, taken back from a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.graphs.graph import Graph
from h3gnn.tables.plan import ColumnPlan
from tests.fuzz.made_tables import Classes, Made, MadeTable

NOT_USED = ("identifier", "constant", "label", "leak")
WORDS = ("category", "identifier", "text", "constant", "list")
KINDS = {
    "number": ("number", "boolean", "constant"),
    "date": ("date", "constant"),
    "yes": ("boolean", "number", "constant"),
    "words": (*WORDS, "boolean"),
    "codes": WORDS,
    "open": (),
}
"""The kinds as which a column may be read."""


def numbers_of(graph: Graph, column: ColumnPlan) -> npt.NDArray[np.float64]:
    """Return the numbers of a column before they were scaled, NaN where missing."""
    assert graph.plan is not None
    values = graph.dense_features().double().numpy()
    at = [graph.plan.names.index(name) for name in column.names]
    found, encoder = values[:, at[0]].copy(), column.fitted
    if isinstance(getattr(encoder, "scale", None), float):
        found = found * encoder.scale + encoder.mean  # type: ignore[union-attr]
        if encoder.log:  # type: ignore[union-attr]
            found = np.sign(found) * np.expm1(np.abs(found))
    if column.names[-1].endswith("is missing"):
        found[values[:, at[-1]] > 0] = np.nan
    return np.asarray(found)


def same_numbers(found: npt.NDArray[np.float64], meant: list[Any]) -> bool:
    """Whether numbers are equal up to the rounding of float32 of standardized values."""
    wanted = np.array([np.nan if one is None else float(one) for one in meant])
    spread = np.nanstd(wanted) + 1e-6 * np.nanmax(np.abs(wanted))
    return bool(np.allclose(found, wanted, rtol=1e-4, atol=1e-4 * spread, equal_nan=True))


def same_groups(graph: Graph, column: ColumnPlan, meant: list[Any]) -> bool:
    """Whether rows have equal features exactly if they have the same word; rare words share theirs."""
    assert graph.plan is not None
    at = [graph.plan.names.index(name) for name in column.names]
    block = graph.dense_features().numpy()[:, at]
    rare = [place for place, name in enumerate(column.names) if name.endswith("is rare")]
    groups: dict[Any, bytes] = {}
    for row, word in enumerate(meant):
        if groups.setdefault(word, block[row].tobytes()) != block[row].tobytes():
            return False
    kept = [one for word, one in groups.items() if not (rare and block[meant.index(word), rare[0]])]
    return len(kept) == len({*kept})


def wrong_column(graph: Graph, column: ColumnPlan, made: Made) -> str:
    """Return how a column was read otherwise than it is meant, without a report; "" if it was not."""
    known = [one for one in made.values if one is not None]
    if column.kind not in (*KINDS[made.kind], "leak") and known:
        return f"{made.kind} {made.form} read as {column.kind}:{column.form}"
    if not column.encoder:
        reported = any(column.name in one.fields for one in graph.provenance.repairs)
        changes = column.kind == "constant" and len({*made.values}) > 1
        return f"{column.kind}: {column.reason}" if changes or not reported else ""
    if not known:
        return f"read as {column.kind} without a value"
    if column.kind in ("number", "date") or made.kind in ("number", "yes"):
        found = numbers_of(graph, column)
        same = same_numbers(found, made.values)
        return "" if same else f"{made.form}: {made.values[:4]} read as {found[:4].tolist()}"
    if column.encoder in ("category", "boolean") and not same_groups(graph, column, made.values):
        return f"{made.form}: other groups of rows"
    return ""


def wrong_classes(graph: Graph, classes: Classes, ids: list[str]) -> str:
    """Return how classes or targets were read otherwise than they are meant; "" if they were not."""
    if classes.kind == "open":
        return "classes with two readings were read"
    if graph.targets is not None:
        if classes.kind in ("words", "yes", "codes", "floats"):
            return f"classes ({classes.kind}) read as numbers"
        return "" if same_numbers(graph.targets.double().numpy(), classes.values) else "other targets"
    if graph.labels is None:
        return "no class was read"
    if classes.kind == "numbers":
        return "numbers read as classes"
    names = [None if one < 0 else graph.class_names[one] for one in graph.labels.tolist()]
    wrong = [
        (node, one, name) for node, one, name in zip(ids, classes.values, names, strict=True) if one != name
    ]
    return f"classes {wrong[:3]}" if wrong else ""


def wrong_reading(graph: Graph, made: MadeTable) -> str:
    """Return how a table was read otherwise than it is meant; "" if it was not."""
    ids = [str(one) for one in graph.node_ids.tolist()]
    if ids != made.ids:
        return f"ids {[pair for pair in zip(ids, made.ids, strict=False) if pair[0] != pair[1]][:3]}"
    ends = graph.edge_index.T.tolist()
    edges = {(ids[start], ids[end]): row for row, (start, end) in enumerate(ends)}
    if edges.keys() != {*made.ends}:
        return f"edges {[*(edges.keys() ^ {*made.ends})][:3]}"
    if made.weights is not None:
        if graph.edge_weight is None:
            return "no weights"
        heavy = graph.edge_weight.double().numpy()[[edges[one] for one in made.ends]]
        if not same_numbers(heavy, made.weights.values):
            return f"weights {made.weights.form} {made.weights.cells[:3]} read as {heavy[:3]}"
    if made.classes is not None and (wrong := wrong_classes(graph, made.classes, ids)):
        return wrong
    return wrong_columns(graph, made)


def wrong_columns(graph: Graph, made: MadeTable) -> str:
    """Return the first column that was read otherwise than it is meant."""
    if graph.plan is None:
        return "no plan"
    plans = {one.name: one for one in graph.plan.columns}
    for name, column in zip(made.names(), made.columns, strict=True):
        if name not in plans:
            return f"no column {name!r} among {[*plans]}"
        if wrong := wrong_column(graph, plans[name], column):
            return f"column {name!r}: {wrong}; cells {column.cells[:4]}"
    return ""
