"""Add nodes to a fitted graph: read their features and edges by its plans, and build the extended graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_graph, is_table, stored_weights
from h3gnn.graphs.graph import Graph, with_hash
from h3gnn.graphs.ids import find_ids, one_kind, quoted
from h3gnn.graphs.link_columns import LinkColumns, LinkPlan
from h3gnn.graphs.provenance import EdgeColumns, EdgePlan, EdgeRules, Repair
from h3gnn.graphs.scaling import csr_features
from h3gnn.tables.drift import features_out_of_range
from h3gnn.tables.edges import (
    EdgeRows,
    EdgeTable,
    apply_rules,
    open_edges,
    read_rows,
    types_by_ids,
    types_in_ids,
    usable_rows,
)
from h3gnn.tables.features import FeatureOptions, read_features
from h3gnn.tables.links import read_again
from h3gnn.tables.reader import open_table
from h3gnn.tables.roles import WEIGHT_NAMES

Ids = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Style = dict[str, Any]
MEANING = ("repeated", "undirected", "bipartite")
"""Rules that decide what a weight or an id means, which therefore are those of the fit."""


@dataclass(frozen=True, eq=False)
class Extension:
    """Embeddings after nodes were added to a graph.

    Attributes:
        embedding: float32 `[rows, D]`: the new nodes alone, or all nodes, the fitted ones first.
        node_ids: of the rows.
        graph: the extended graph.
        refreshed: whether the rows include the fitted nodes.
        new: the number of new nodes, which are the last rows.
        repairs: changes made to the new tables, and how they differ from the fitted ones.
    """

    embedding: npt.NDArray[np.float32]
    node_ids: Ids
    graph: Graph
    refreshed: bool
    new: int
    repairs: tuple[Repair, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The repairs as text."""
        return tuple(repair.message for repair in self.repairs)


def read_new_nodes(
    graph: Graph, features: Path, edges: Sequence[tuple[str | None, Path]], reading: dict[str, Any]
) -> tuple[Graph, Any]:
    """Read new nodes from files by the plans of the fitted graph.

    Args:
        graph: the fitted graph.
        features: the file of the new nodes.
        edges: files of their edges, and the fitted table that each continues, if the user names it.
        reading: options of `read_graph`.
    """
    style = {name: reading.get(name) for name in ("header", "delimiter")}
    kinds, chosen = reading.get("columns") or {}, reading.get("feature_columns")
    of_links = () if graph.link_columns is None else graph.link_columns.plan.tables
    elsewhere = frozenset(column.name for one in of_links for column in one.columns)
    options = FeatureOptions(
        reading.get("id_column"), chosen, style, kinds, plan=graph.plan, elsewhere=elsewhere
    )
    options = replace(options, types=types_in_ids(graph))
    file = read_features([features], options)
    ids, none = file.ids if file.named else None, np.empty((2, 0), dtype=np.int64)
    table = check_graph(
        file.values, none, node_ids=ids, feature_names=file.names, kind="files", repairs=file.repairs
    )
    tables = [read_new_edges(graph, path, name, reading, style) for name, path in edges]
    kind = graph.type_names.index(features.stem) if features.stem in graph.type_names else -1
    found = types_by_ids(table.node_ids, types_in_ids(graph))
    types = torch.from_numpy(np.where(found < 0, kind, found).astype(np.int16))
    return replace(table, plan=file.plan, node_types=types), tables or None


def add_nodes(
    graph: Graph, table: Graph, edges: Any, *, between_known: bool = False
) -> tuple[Graph, Tensor, Tensor | None, tuple[Repair, ...]]:
    """Return a graph with new nodes after its own, the new edges, their weights, and notes.

    Args:
        graph: the fitted graph.
        table: the new nodes without edges; without ids, they are numbered after the fitted nodes.
        edges: DataFrame of source, target and optionally weight, by ids, or several by the name of the fitted
            table that they continue; or `[2, edges]` positions.
        between_known: also accept edges between two fitted nodes.
    """
    if graph.provenance.structural:
        raise GraphError(
            "the features of this graph are computed from its edges, which new nodes change; fit the "
            "extended graph, or fit a graph with features",
            code="extend-structural",
        )
    ids = _ids_after(graph, table)
    tables = _tables(graph, ids, edges)
    by_position = not all(one.columns.table for one in tables)
    plan = None if by_position else graph.edge_plan
    ends, weight, repairs = join_new_edges(replace(graph, edge_plan=plan), ids, tables)
    if not between_known:
        _check_ends(ends, ids, graph.num_nodes)
    isolated = table.num_nodes - np.unique(ends[ends >= graph.num_nodes]).size
    repairs = (*table.provenance.repairs, *drift_of_numbers(graph, table), *repairs)
    if isolated:
        message = f"{isolated:,} new node(s) have no edges: only their features are used"
        repairs = (*repairs, Repair("new-nodes-without-edges", message, isolated))
    if graph.edge_plan is None and graph.provenance.kind == "files" and table.provenance.kind == "files":
        message = "the model does not record how its edges were read: duplicate edges are merged by their sum"
        repairs = (*repairs, Repair("edge-plan-missing", message))
    weights = None if weight is None else torch.from_numpy(weight.astype(np.float32))
    extended = _join(graph, table.features, ids, ends, weight)
    links = links_of_new(graph, ids, tables)
    extended = extended if links is None else with_hash(replace(extended, link_columns=links))
    if graph.node_types is not None:
        extended = replace(extended, node_types=_types_after(graph, table, ends), type_names=graph.type_names)
    return extended, torch.from_numpy(ends), weights, repairs


def drift_of_numbers(fitted: Graph, other: Graph) -> tuple[Repair, ...]:
    """Return the columns in which other features, in the same order, are outside of the fitted range.

    Of encoded columns, the plan reports that.
    """
    if fitted.provenance.structural or not (fitted.plan is None or fitted.plan.as_is):
        return ()
    return features_out_of_range(fitted.features, other.features, fitted.feature_names)


def _types_after(graph: Graph, table: Graph, ends: Integers) -> Tensor:
    """Return the types of all nodes: those of new ones by their table, else as their edges require."""
    assert graph.node_types is not None
    new = (
        torch.full((table.num_nodes,), -1, dtype=torch.int16)
        if table.node_types is None
        else table.node_types
    )
    types = torch.cat([graph.node_types, new]).numpy()
    pairs = np.unique(types[graph.edge_index.numpy()], axis=1)
    for end in (0, 1):
        for other in np.unique(types[ends[1 - end]]).tolist():
            possible = pairs[end, pairs[1 - end] == other]
            rows = ends[end, types[ends[1 - end]] == other]
            if other >= 0 and len(possible) == 1:
                types[rows[types[rows] < 0]] = possible[0]
    return torch.from_numpy(types)


def rows_below(upper: Tensor, lower: Tensor) -> Tensor:
    """Stack two feature matrices, in the layout of the first."""
    if upper.layout != torch.sparse_csr:
        return torch.cat([upper, lower.to_dense()])
    below = lower if lower.layout == torch.sparse_csr else lower.to_sparse_csr()
    crow = torch.cat([upper.crow_indices(), upper.values().numel() + below.crow_indices()[1:]])
    cols = torch.cat([upper.col_indices(), below.col_indices()])
    shape = (upper.shape[0] + lower.shape[0], upper.shape[1])
    return csr_features(crow, cols, torch.cat([upper.values(), below.values()]), shape)


def _ids_after(graph: Graph, table: Graph) -> Ids:
    """Return the ids of the fitted and then of the new nodes, all different."""
    if not table.has_ids:
        if graph.has_ids:
            raise GraphError(
                "the fitted nodes have ids and the new ones have none; give a table with ids "
                "(in Python, a DataFrame indexed by id)",
                code="new-nodes-without-ids",
            )
        return np.arange(graph.num_nodes + table.num_nodes, dtype=np.int64)
    again = np.flatnonzero(find_ids(table.node_ids, graph.node_ids) >= 0)
    if again.size:
        raise GraphError(
            f"node {quoted(table.node_ids[again[0]])} is already in the fitted graph ({again.size} of "
            f"{table.num_nodes} new nodes are); give new nodes only",
            code="node-already-fitted",
        )
    return one_kind([graph.node_ids, table.node_ids])


def _tables(graph: Graph, ids: Ids, edges: Any) -> list[NewEdgeTable]:
    """Return the tables of new edges; those given by position are one without further columns."""
    if edges is None:
        raise GraphError("new nodes need edges to the graph, by node ids", code="new-edges-missing")
    if is_table(edges) or isinstance(edges, Mapping | list):
        return tables_of(edges, graph)
    ends = [ids[one] for one in _numbered_edges(edges, ids)]
    return [NewEdgeTable(EdgeRows(ends, None), EdgeRules(), EdgeColumns("", "", ""), "new edges", str)]


def _numbered_edges(edges: Any, ids: Ids) -> Integers:
    ends = np.asarray(edges)
    if ends.ndim != 2 or ends.shape[0] != 2 or (ends.size and ends.dtype.kind not in "iu"):
        message = f"new edges must be integers of shape [2, edges], not {list(ends.shape)}"
        raise GraphError(message, code="edge-shape")
    if ends.size and not (ends.min() >= 0 and ends.max() < ids.size):
        raise GraphError(f"a new edge has an endpoint outside 0 to {ids.size - 1}", code="edge-out-of-range")
    return ends.astype(np.int64)


def _check_ends(ends: Integers, ids: Ids, known: int) -> None:
    old = np.flatnonzero((ends < known).all(axis=0))
    if old.size:
        source, target = (quoted(ids[one]) for one in ends[:, old[0]])
        raise GraphError(
            f"new edges, row {int(old[0])}: {source} and {target} are both fitted nodes ({old.size} such "
            "edges), which keep their embeddings; remove these edges, or refresh (--refresh)",
            code="edge-between-fitted",
        )


def _join(graph: Graph, features: Tensor, ids: Ids, ends: Integers, weight: Weights | None) -> Graph:
    new = features.shape[0]

    def padded(values: Tensor | None, fill: float) -> Any:
        if values is None:
            return None
        return torch.cat([values, values.new_full((new, *values.shape[1:]), fill)]).numpy()

    masks = tuple(padded(one, 0) for one in (graph.train_mask, graph.val_mask, graph.test_mask))
    weights = None
    if graph.edge_weight is not None and weight is not None:
        weights = np.concatenate([graph.edge_weight.numpy(), weight])
    extended = check_graph(
        rows_below(graph.features, features),
        np.concatenate([graph.edge_index.numpy(), ends], axis=1),
        edge_weight=weights,
        labels=padded(graph.labels, -1),
        class_names=graph.class_names,
        targets=padded(graph.targets, np.nan),
        target_name=graph.target_name,
        masks=None if masks[0] is None else masks,
        node_ids=ids if graph.has_ids or not np.array_equal(ids, np.arange(ids.size)) else None,
        feature_names=graph.feature_names,
        source=f"{graph.provenance.source} with {new:,} new nodes",
        repairs=graph.provenance.repairs,
    )
    return replace(extended, plan=graph.plan, edge_plan=graph.edge_plan)


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
    for name, value in ((name, getattr(plan.rules, name)) for name in MEANING):
        if given.get(name, value) != value:
            message = f"the model was fitted with {name}={value!r}, not {given[name]!r}"
            raise InputError(f"{message}: omit the option, or fit again", code="plan-differs")
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
        message = f"{table.name} could continue any of the fitted tables {names}"
        raise GraphError(f"{message}: give tables of edges by name", code="edge-table-ambiguous")
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
    added = [heavy[missing] for heavy in weights]
    return both, [*weights, *added], [Repair("reverse-edges-added", message, count)]
