"""Add nodes to a fitted graph: validate their features and edges, and build the extended graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.answers.new_edges import NewEdgeTable, join_new_edges, links_of_new, read_new_edges, tables_of
from h3gnn.errors import GraphError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.edge_plan import EdgeColumns, EdgeRules
from h3gnn.graphs.graph import Graph, with_hash
from h3gnn.graphs.ids import find_ids, one_kind, quoted
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.scaling import csr_features
from h3gnn.tables.drift import features_out_of_range
from h3gnn.tables.edges import EdgeRows
from h3gnn.tables.features import FeatureOptions, read_features
from h3gnn.tables.frames import is_table
from h3gnn.tables.node_types import types_by_ids, types_in_ids

Ids = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


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
        raise GraphError(
            f"new edges must be integers of shape [2, edges], not {list(ends.shape)}", code="edge-shape"
        )
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
