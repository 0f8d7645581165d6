"""Add nodes to a fitted graph: validate their features and edges, and build the extended graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_ids, find_ids, one_kind, quoted
from h3gnn.graphs.scaling import csr_features
from h3gnn.tables.edges import EdgeRules, apply_rules, open_edges, read_rows
from h3gnn.tables.features import FeatureOptions, read_features
from h3gnn.tables.roles import infer_ends

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
        notes: warnings.
    """

    embedding: npt.NDArray[np.float32]
    node_ids: Ids
    graph: Graph
    refreshed: bool
    new: int
    notes: tuple[str, ...] = ()


def read_new_nodes(
    graph: Graph, features: Path, edges: Path | None, reading: dict[str, Any]
) -> tuple[Graph, Any]:
    """Read new nodes from files by the plan of the fitted graph; `reading` are options of `read_graph`."""
    style = {name: reading.get(name) for name in ("header", "delimiter")}
    kinds, chosen = reading.get("columns") or {}, reading.get("feature_columns")
    options = FeatureOptions(reading.get("id_column"), chosen, style, kinds, plan=graph.plan)
    file = read_features([features], options)
    ids, none = file.ids if file.named else None, np.empty((2, 0), dtype=np.int64)
    table = check_graph(file.values, none, node_ids=ids, feature_names=file.names, repairs=file.repairs)
    return replace(table, plan=file.plan), None if edges is None else _read_edges(edges, reading, style)


def _read_edges(path: Path, reading: dict[str, Any], style: dict[str, Any]) -> pd.DataFrame:
    """Read edges by node ids, and merge duplicates as in the fitted graph."""
    source, target, weight = (reading.get(f"{name}_column") for name in ("source", "target", "weight"))
    rules = EdgeRules(
        weights=reading.get("weights") or "error", repeated=reading.get("repeated") or EdgeRules.repeated
    )
    opened = open_edges(path, source, target, weight, style)
    block = read_rows(opened, None, None, rules)
    ends, names = pd.factorize(one_kind([np.concatenate(block.ids)]))
    merged = apply_rules(ends.reshape(2, -1).astype(np.int64), block.weight, rules, opened.table)
    joined = pd.DataFrame({"source": names[merged.index[0]], "target": names[merged.index[1]]})
    return joined if merged.weight is None else joined.assign(weight=merged.weight)


def add_nodes(
    graph: Graph, table: Graph, edges: Any, *, between_known: bool = False
) -> tuple[Graph, Tensor, Tensor | None, tuple[str, ...]]:
    """Return a graph with new nodes after its own, the new edges, their weights, and warnings.

    Args:
        graph: the fitted graph.
        table: the new nodes without edges; without ids, they are numbered after the fitted nodes.
        edges: DataFrame of source, target and optionally weight, by ids; or `[2, edges]` positions.
        between_known: also accept edges between two fitted nodes.
    """
    if graph.provenance.structural:
        raise GraphError(
            "the features of this graph are computed from its edges, which new nodes change; fit the "
            "extended graph, or fit a graph with features",
            code="extend-structural",
        )
    ids = _ids_after(graph, table)
    ends, weight = _edges(edges, ids, graph)
    if not between_known:
        _check_ends(ends, ids, graph.num_nodes)
    ends, weight = _both_ways(graph, ends, weight)
    isolated = table.num_nodes - np.unique(ends[ends >= graph.num_nodes]).size
    notes = tuple(repair.message for repair in table.provenance.repairs)
    if isolated:
        notes = (*notes, f"{isolated:,} new node(s) have no edges: only their features are used")
    weights = None if weight is None else torch.from_numpy(weight.astype(np.float32))
    return _join(graph, table.features, ids, ends, weight), torch.from_numpy(ends), weights, notes


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


def _edges(edges: Any, ids: Ids, graph: Graph) -> tuple[Integers, Weights | None]:
    """Return the endpoints of the new edges as positions, and their weights."""
    if edges is None:
        raise GraphError("new nodes need edges to the graph, by node ids", code="new-edges-missing")
    ends, weight = (_named_edges if hasattr(edges, "columns") else _numbered_edges)(edges, ids)
    if (weight is None) != (graph.edge_weight is None):
        fitted, new = ("no weights", "weights") if weight is not None else ("weights", "no weights")
        raise GraphError(
            f"the fitted edges have {fitted} and the new ones have {new}; give both or neither weights "
            "(with --weight-column or --repeated count as in the fit)",
            code="new-edge-weights",
        )
    if weight is not None and not (valid := np.isfinite(weight) & (weight > 0)).all():
        row = int(np.flatnonzero(~valid)[0])
        raise GraphError(
            f"new edges, row {row}: the weight {weight[row]:g} is not positive",
            code="edge-weight-not-positive",
        )
    return ends, weight


def _named_edges(edges: pd.DataFrame, ids: Ids) -> tuple[Integers, Weights | None]:
    if edges.shape[1] not in (2, 3):
        raise GraphError(
            "new edges need two columns (source, target), or three with the weight", code="edge-columns"
        )
    *sides, _ = infer_ends([str(name) for name in edges.columns], "the new edges")
    ends = np.stack([_positions(edges.iloc[:, side], ids, edges.columns[side]) for side in sides])
    if edges.shape[1] == 2:
        return ends, None
    return ends, edges.iloc[:, 3 - sum(sides)].to_numpy(dtype=np.float64)  # the third column


def _numbered_edges(edges: Any, ids: Ids) -> tuple[Integers, None]:
    ends = np.asarray(edges)
    if ends.ndim != 2 or ends.shape[0] != 2 or (ends.size and ends.dtype.kind not in "iu"):
        raise GraphError(
            f"new edges must be integers of shape [2, edges], not {list(ends.shape)}", code="edge-shape"
        )
    if ends.size and not (ends.min() >= 0 and ends.max() < ids.size):
        raise GraphError(f"a new edge has an endpoint outside 0 to {ids.size - 1}", code="edge-out-of-range")
    return ends.astype(np.int64), None


def _positions(column: Any, ids: Ids, name: Any) -> Integers:
    wanted = as_ids(column, f"the column {name!r} of the new edges")
    found = find_ids(wanted, ids)
    unknown = np.flatnonzero(found < 0)
    if unknown.size:
        raise GraphError(
            f"new edges, row {int(unknown[0])}: node {quoted(wanted[unknown[0]])} is neither in the fitted "
            f"graph nor among the new nodes ({unknown.size} such in this column)",
            code="unknown-node",
        )
    return found


def _check_ends(ends: Integers, ids: Ids, known: int) -> None:
    old = np.flatnonzero((ends < known).all(axis=0))
    if old.size:
        source, target = (quoted(ids[one]) for one in ends[:, old[0]])
        raise GraphError(
            f"new edges, row {int(old[0])}: {source} and {target} are both fitted nodes ({old.size} such "
            "edges), which keep their embeddings; remove these edges, or refresh (--refresh)",
            code="edge-between-fitted",
        )


def _both_ways(graph: Graph, ends: Integers, weight: Weights | None) -> tuple[Integers, Weights | None]:
    """Add the reverse of each new edge if the fitted graph is symmetric."""
    size = int(ends.max(initial=0)) + graph.num_nodes + 1
    fitted = graph.edge_index.numpy()
    keys = fitted[0] * size + fitted[1]
    if not np.isin(fitted[1] * size + fitted[0], keys).all():
        return ends, weight
    missing = ~np.isin(ends[1] * size + ends[0], ends[0] * size + ends[1])
    both = np.concatenate([ends, ends[::-1, missing]], axis=1)
    return both, None if weight is None else np.concatenate([weight, weight[missing]])


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
    return replace(extended, plan=graph.plan)
