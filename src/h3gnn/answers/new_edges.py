"""Edges of nodes that join a fitted graph, read and merged by its edge plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import stored_weights
from h3gnn.graphs.edge_plan import EdgeColumns, EdgePlan, EdgeRules
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import find_ids, quoted
from h3gnn.graphs.link_columns import LinkColumns, LinkPlan
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.edges import EdgeRows, EdgeTable, apply_rules, open_edges, read_rows, usable_rows
from h3gnn.tables.links import read_again
from h3gnn.tables.reader import open_table
from h3gnn.tables.roles import WEIGHT_NAMES

Ids = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Style = dict[str, Any]
MEANING = ("repeated", "undirected", "bipartite")
"""Rules that decide what a weight or an id means, which therefore are those of the fit."""


@dataclass(frozen=True)
class NewEdgeTable:
    """One table of new edges, and how it is read: as the fitted table that it continues."""

    rows: EdgeRows
    rules: EdgeRules
    columns: EdgeColumns  # of the fitted table; of the table itself if there is none
    name: str
    place: Callable[[int], str]
    repairs: tuple[Repair, ...] = ()


def read_new_edges(
    graph: Graph, given: Any, wanted: str | None, reading: Mapping[str, Any], style: Style
) -> NewEdgeTable:
    """Read a file or a data frame of new edges as the plan of the fitted graph says.

    Args:
        graph: the fitted graph.
        given: the file, or the data frame.
        wanted: the name of the fitted table that the edges continue, if the user gave it.
        reading: options of `read_graph`.
        style: header and delimiter.
    """
    plan, links = graph.edge_plan, graph.link_columns
    rules, fitted = _rules(plan, reading), None
    if reading.get("link_columns", "auto") not in ("auto", "no" if links is None else "yes"):
        made = "without" if links is None else "with"
        message = f"the model was fitted {made} link columns: omit --link-columns, or fit again"
        raise InputError(message, code="plan-differs")
    source, target, weight = (reading.get(f"{name}_column") for name in ("source", "target", "weight"))
    if plan is not None and plan.tables:
        chosen = [name for name in (source, target, weight) if name is not None]
        usual = [name for one in plan.tables for name in (one.source, one.target)]
        names = open_table(given, role="edges", expected=chosen or usual, **style).names
        fitted = plan.table_of(names, given.stem if isinstance(given, Path) else "", wanted)
        if source is None and target is None and {fitted.source, fitted.target} <= {*names}:
            source, target = fitted.source, fitted.target
        weight = weight or (fitted.weight if fitted.weight in names else None)
    known = [] if links is None or fitted is None else links.plan.table(fitted.table).columns
    of_links = [one.name for one in known]
    opened = _with_roles_of(of_links, fitted, open_edges(given, source, target, weight, style))
    opened, rows = read_rows(opened, None, None, rules, links=links is not None)
    repairs = (*opened.repairs, *opened.unused(of_links), *_renamed(fitted, opened.columns))
    name = opened.table.path.name if isinstance(given, Path) else "new edges"
    return NewEdgeTable(rows, rules, fitted or opened.columns, name, opened.table.place, repairs)


def _with_roles_of(names: Sequence[str], fitted: EdgeColumns | None, opened: EdgeTable) -> EdgeTable:
    """Return the table without a weight that was a link column in the fit."""
    weight = [opened.table.names[at] for at in opened.weight]
    other = fitted is not None and fitted.weight is None and {*weight} <= {*names}
    return replace(opened, weight=()) if other else opened


def _rules(plan: EdgePlan | None, reading: Mapping[str, Any]) -> EdgeRules:
    """Return the rules of the fit; what happens to unusable rows can be changed for new edges."""
    names = ("unknown_nodes", "weights", *MEANING)
    given = {name: reading[name] for name in names if reading.get(name) is not None}
    if plan is None:
        return EdgeRules(**{"bipartite": False, **given})
    for name in (
        name for name in MEANING if given.get(name, getattr(plan.rules, name)) != getattr(plan.rules, name)
    ):
        value = getattr(plan.rules, name)
        message = (
            f"the model was fitted with {name}={value!r}, not {given[name]!r}: omit the option, or fit again"
        )
        raise InputError(message, code="plan-differs")
    return replace(plan.rules, **given)


def _renamed(fitted: EdgeColumns | None, found: EdgeColumns) -> tuple[Repair, ...]:
    """Return a note if the ends of new edges have other names than those of the fit."""
    if fitted is None or (fitted.source, fitted.target) == (found.source, found.target):
        return ()
    message = f"new edges run from {found.source} to {found.target}, and those of the fit "
    message += f"from {fitted.source} to {fitted.target}"
    return (Repair("edge-columns-inferred", message, fields=(found.source, found.target)),)


def tables_of(edges: Any, graph: Graph) -> list[NewEdgeTable]:
    """Return the tables that a user gives: one data frame, or several by the fitted table they continue."""
    if isinstance(edges, list) and all(isinstance(one, NewEdgeTable) for one in edges):
        return edges
    named = edges.items() if isinstance(edges, Mapping) else [(None, edges)]
    return [read_new_edges(graph, frame, name, {}, {}) for name, frame in named]


def join_new_edges(
    graph: Graph, ids: Ids, tables: Sequence[NewEdgeTable]
) -> tuple[Integers, Weights | None, tuple[Repair, ...]]:
    """Return the edges of all tables by position, their merged weights, and the repairs."""
    parts = [_apply(graph, ids, table) for table in tables]
    index = np.concatenate([part[0] for part in parts], axis=1)
    heavy = [part[1] for part in parts if part[1] is not None]
    repairs = [repair for part in parts for repair in part[2]]
    if graph.edge_plan is None:
        index, heavy, more = _both_ways(graph, index, heavy)
        repairs += more
    pairs, group = np.unique(index, axis=1, return_inverse=True)
    if not heavy:
        return pairs, None, tuple(repairs)
    summed = np.zeros(pairs.shape[1])
    np.add.at(summed, group.ravel(), np.concatenate(heavy))
    return pairs, stored_weights(summed).astype(np.float64), tuple(repairs)


def _apply(graph: Graph, ids: Ids, table: NewEdgeTable) -> tuple[Integers, Weights | None, list[Repair]]:
    """Apply the rules and the scale of the fitted table to one table."""
    index = np.stack([find_ids(one, ids) for one in table.rows.ids])
    if table.rules.unknown_nodes != "drop":
        _check_known(index, table)
    _check_weights(graph, table)
    found = apply_rules(index, table.rows.weight, table.rules, table.name, table.place)
    weight = found.weight
    if weight is None and graph.edge_weight is not None:  # one of several tables, which has no weights
        weight = np.ones(found.index.shape[1])
    _check_again(graph, found.index, table)
    scaled = None if weight is None else weight / table.columns.scale
    return found.index, scaled, [*table.repairs, *found.repairs]


def links_of_new(graph: Graph, ids: Ids, tables: Sequence[NewEdgeTable]) -> LinkColumns | None:
    """Return the link columns of all nodes: fitted ones keep theirs, new ones have those of the new edges."""
    if graph.link_columns is None:
        return None
    plan, summaries = graph.link_columns.plan, []
    for fitted in plan.tables:
        ends = [np.empty((2, 0), dtype=np.int64)]
        values: dict[str, list[npt.NDArray[Any]]] = {one.name: [] for one in fitted.used}
        for table in tables:
            if (table.columns.table or _only_table(plan, table)) != fitted.table:
                continue
            index = np.stack([find_ids(one, ids) for one in table.rows.ids])
            used = usable_rows(index, table.rows.weight, table.rules)
            ends.append(index[:, used])
            for name, cells in read_again(fitted, table.rows.loaded, table.name).values.items():
                values[name].append(cells[used])
        joined = {name: np.concatenate([[], *parts]) for name, parts in values.items()}
        summaries.append(fitted.summarize(np.concatenate(ends, axis=1), joined, ids.size))
    return graph.link_columns.with_rows(np.concatenate(summaries, axis=1)[graph.num_nodes :])


def _only_table(plan: LinkPlan, table: NewEdgeTable) -> str:
    """Return the fitted table that edges without a table continue."""
    if len(plan.tables) > 1:
        names = ", ".join(one.table for one in plan.tables)
        message = (
            f"{table.name} could continue any of the fitted tables {names}: give tables of edges by name"
        )
        raise GraphError(message, code="edge-table-ambiguous")
    return plan.tables[0].table


def _check_known(index: Integers, table: NewEdgeTable) -> None:
    unknown = np.argwhere((index < 0).T)
    if unknown.size:
        row, end = unknown[0].tolist()
        raise GraphError(
            f"{table.place(row)}: node {quoted(table.rows.ids[end][row])} is neither in the fitted graph nor "
            f"among the new nodes ({len(unknown)} such ends); give it a row of features, or leave such edges "
            "out (--unknown-nodes drop)",
            code="unknown-node",
        )


def _check_weights(graph: Graph, table: NewEdgeTable) -> None:
    """Reject new edges with weights where the fitted ones have none, and the reverse."""
    if table.rules.repeated == "count":
        return
    fitted = graph.edge_weight is not None if graph.edge_plan is None else table.columns.weight is not None
    if (table.rows.weight is not None) == fitted:
        return
    wanted = table.columns.weight or f"called {WEIGHT_NAMES[0]}"
    raise GraphError(
        f"the fitted edges have weights and {table.name} has no column {wanted}; name it (--weight-column)"
        if fitted
        else f"{table.name} has weights and the fitted edges have none; leave the column out",
        code="new-edge-weights",
    )


def _check_again(graph: Graph, index: Integers, table: NewEdgeTable) -> None:
    """Reject a fitted edge that occurs again if its weight is no sum: the rows of the fit are not stored."""
    how, known = table.rules.repeated, index[:, (index < graph.num_nodes).all(axis=0)]
    if how in ("sum", "count") or graph.edge_weight is None or not known.size:
        return
    keys = [ends[0] * graph.num_nodes + ends[1] for ends in (graph.edge_index.numpy(), known)]
    if again := int(np.isin(keys[1], keys[0]).sum()):
        raise GraphError(
            f"{table.name}: {again:,} edge(s) are in the fitted graph already, whose duplicate edges have "
            f"their {how} as weight: fit all rows again",
            code="edge-already-fitted",
        )


def _both_ways(
    graph: Graph, ends: Integers, weights: list[Weights]
) -> tuple[Integers, list[Weights], list[Repair]]:
    """Add the reverse of each new edge if the fitted graph, whose tables are not known, is symmetric."""
    size = int(ends.max(initial=0)) + graph.num_nodes + 1
    fitted = graph.edge_index.numpy()
    keys = fitted[0] * size + fitted[1]
    missing = ~np.isin(ends[1] * size + ends[0], ends[0] * size + ends[1])
    if not missing.any() or not np.isin(fitted[1] * size + fitted[0], keys).all():
        return ends, weights, []
    count = int(missing.sum())
    message = f"{count:,} new edges are added in both directions, as all edges of the fitted graph are"
    both = np.concatenate([ends, ends[::-1, missing]], axis=1)
    return (
        both,
        [*weights, *(heavy[missing] for heavy in weights)],
        [Repair("reverse-edges-added", message, count)],
    )
