"""Nodes that join a fitted graph: features and edges are checked, and the grown graph is put together."""

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
from h3gnn.graphs.graph import Graph, csr_features
from h3gnn.graphs.ids import as_ids, find_ids, one_kind, quoted
from h3gnn.tables.edges import EdgeRules, merge_repeated, open_edges, read_rows, settle
from h3gnn.tables.features import Encoding, read_features
from h3gnn.tables.roles import ends_of

Ids = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Grown:
    """A fitted graph with new nodes after its own.

    Attributes:
        graph: all nodes and edges; what the fitted nodes were is the same.
        known: how many of them the fitted graph has.
        edge_index, edge_weight: the new edges alone.
        notes: what should be said about them.
    """

    graph: Graph
    known: int
    edge_index: Tensor
    edge_weight: Tensor | None
    notes: tuple[str, ...] = ()

    @property
    def new(self) -> int:
        """How many nodes are new."""
        return self.graph.num_nodes - self.known


@dataclass(frozen=True, eq=False)
class Extension:
    """Embeddings after nodes have joined a graph.

    Attributes:
        embedding: float32 `[rows, D]`: the new nodes alone, or all nodes, the fitted ones first.
        node_ids: of the rows.
        graph: the grown graph, to fit anew or to go on from.
        refreshed: whether the fitted nodes are among the rows.
        new: how many nodes are new; theirs are the last rows.
        notes: what should be said, in sentences.
    """

    embedding: Floats
    node_ids: Ids
    graph: Graph
    refreshed: bool
    new: int
    notes: tuple[str, ...] = ()


def read_new_nodes(
    graph: Graph, features: Path, edges: Path | None, reading: dict[str, Any]
) -> tuple[Graph, Any]:
    """Return the features and edges of new nodes from files, as `H3GNN.extend` takes them.

    Args:
        graph: the fitted one, by whose plan the columns become numbers.
        features: CSV, TSV or Parquet with ids; or an array, whose rows are positions after the fitted nodes.
        edges: CSV, TSV or Parquet, or None where a table's new rows find their own.
        reading: how to read the files: columns, header and delimiter, as `read_graph` takes them.
    """
    style = {name: reading.get(name) for name in ("header", "delimiter")}
    columns, chosen = reading.get("columns") or {}, reading.get("feature_columns")
    how = Encoding(columns, plan=graph.plan)
    file = read_features([features], reading.get("id_column"), chosen, style, how)
    ids, none = file.ids if file.named else None, np.empty((2, 0), dtype=np.int64)
    table = check_graph(file.values, none, node_ids=ids, feature_names=file.names, repairs=file.repairs)
    table = replace(table, plan=file.plan)
    return table, None if edges is None else _read_edges(edges, reading, style)


def _read_edges(path: Path, reading: dict[str, Any], style: dict[str, Any]) -> pd.DataFrame:
    """Read edges by the ids of their ends; repeated ones become one, as in the fitted graph's table."""
    source, target, weight = (reading.get(f"{name}_column") for name in ("source", "target", "weight"))
    rules = EdgeRules(
        weights=reading.get("weights") or "error", repeated=reading.get("repeated") or EdgeRules.repeated
    )
    opened = open_edges(path, source, target, weight, style)
    block = read_rows(opened, None, None, rules)
    ends, names = pd.factorize(one_kind([np.concatenate(block.ids)]))
    heavy = block.numbers[:, 0] if opened.weight else None
    index, heavy, *_ = settle(ends.reshape(2, -1).astype(np.int64), heavy, rules, path.name)
    index, heavy, *_ = merge_repeated(index, heavy, rules, path.name)
    joined = pd.DataFrame({"source": names[index[0]], "target": names[index[1]]})
    return joined if heavy is None else joined.assign(weight=heavy)


def add_nodes(graph: Graph, table: Graph, edges: Any, *, between_known: bool = False) -> Grown:
    """Check new nodes and join them to a graph.

    Args:
        graph: the fitted one.
        table: the new nodes alone, without edges, with the fitted graph's columns; where they have no names,
            they are called by their positions after the fitted nodes.
        edges: DataFrame of source, target and perhaps weight, by ids; or `[2, edges]` positions in the grown
            graph. Every edge has a new end, unless `between_known`.
        between_known: also take edges between two fitted nodes.

    Raises:
        GraphError: in one sentence, for what does not fit the fitted graph.
    """
    _refuse_structural(graph)
    ids = _ids_after(graph, table)
    ends, weight = _edges(edges, ids, graph)
    _check_ends(ends, ids, graph.num_nodes, between_known)
    ends, weight = _both_ways(graph, ends, weight)
    grown = _join(graph, table.features, ids, ends, weight)
    alone = table.num_nodes - np.unique(ends[ends >= graph.num_nodes]).size
    notes = tuple(repair.message for repair in table.provenance.repairs)
    if alone:
        notes = (*notes, f"{alone:,} new node(s) have no edge: their features alone speak for them")
    return Grown(
        grown,
        graph.num_nodes,
        torch.from_numpy(ends),
        None if weight is None else torch.from_numpy(weight.astype(np.float32)),
        notes,
    )


def rows_below(upper: Tensor, lower: Tensor) -> Tensor:
    """Return two tables of features as one, stored as the first is."""
    if upper.layout != torch.sparse_csr:
        return torch.cat([upper, lower.to_dense()])
    below = lower if lower.layout == torch.sparse_csr else lower.to_sparse_csr()
    crow = torch.cat([upper.crow_indices(), upper.values().numel() + below.crow_indices()[1:]])
    cols = torch.cat([upper.col_indices(), below.col_indices()])
    shape = (upper.shape[0] + lower.shape[0], upper.shape[1])
    return csr_features(crow, cols, torch.cat([upper.values(), below.values()]), shape)


def _refuse_structural(graph: Graph) -> None:
    if graph.provenance.structural:
        raise GraphError(
            "this graph's features were built from its edges, and those of new nodes would be in other "
            "terms: fit the grown graph anew, or fit a graph with features of its own"
        )


def _ids_after(graph: Graph, table: Graph) -> Ids:
    """Return the ids of the new nodes and of the fitted ones before them, all different."""
    if not table.has_ids:
        if graph.has_ids:
            raise GraphError(
                "the fitted nodes have names, and the new ones have none: give a table with their ids "
                "(in Python, a DataFrame whose index names them)"
            )
        return np.arange(graph.num_nodes + table.num_nodes, dtype=np.int64)
    again = np.flatnonzero(find_ids(table.node_ids, graph.node_ids) >= 0)
    if again.size:
        raise GraphError(
            f"node {quoted(table.node_ids[again[0]])} is in the fitted graph already ({again.size} of "
            f"{table.num_nodes} new nodes are): give new nodes only"
        )
    return one_kind([graph.node_ids, table.node_ids])


def _edges(
    edges: Any, ids: Ids, graph: Graph
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None]:
    """Return the ends of the new edges as positions, and their weights where the fitted edges have some."""
    if edges is None:
        raise GraphError("the new nodes need edges to the graph: give them, by the nodes' ids")
    weight: Any = None
    if hasattr(edges, "columns"):
        if edges.shape[1] not in (2, 3):
            raise GraphError("new edges need two columns (source, target), or three with the weight")
        *sides, _ = ends_of([str(name) for name in edges.columns], "the new edges")
        ends = np.stack([_positions(edges.iloc[:, side], ids, edges.columns[side]) for side in sides])
        if edges.shape[1] == 3:
            weight = edges.iloc[:, 3 - sum(sides)].to_numpy(dtype=np.float64)  # the column that is left
    else:
        ends = np.asarray(edges)
        if ends.ndim != 2 or ends.shape[0] != 2 or (ends.size and ends.dtype.kind not in "iu"):
            raise GraphError(f"new edges must be whole numbers of shape [2, edges], not {list(ends.shape)}")
        ends = ends.astype(np.int64)
        if ends.size and not (ends.min() >= 0 and ends.max() < ids.size):
            raise GraphError(f"a new edge names a position outside 0 to {ids.size - 1}, the grown graph's")
    if (weight is None) != (graph.edge_weight is None):
        has, lack = ("have none", "have weights") if weight is not None else ("have weights", "have none")
        raise GraphError(
            f"the fitted edges {has} and the new ones {lack}: give both, or neither, weights "
            "(with --weight-column or --repeated count as in the fit)"
        )
    if weight is not None and not (np.isfinite(weight) & (weight > 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))[0])
        raise GraphError(f"new edges, row {row}: the weight {weight[row]:g} is not a positive number")
    return ends, weight


def _positions(column: Any, ids: Ids, name: Any) -> npt.NDArray[np.int64]:
    wanted = as_ids(column, f"the column {name!r} of the new edges")
    found = find_ids(wanted, ids)
    strangers = np.flatnonzero(found < 0)
    if strangers.size:
        raise GraphError(
            f"new edges, row {int(strangers[0])}: node {quoted(wanted[strangers[0]])} is neither in the "
            f"fitted graph nor among the new nodes ({strangers.size} such in this column)"
        )
    return found


def _check_ends(ends: npt.NDArray[np.int64], ids: Ids, known: int, between_known: bool) -> None:
    old = np.flatnonzero((ends < known).all(axis=0))
    if old.size and not between_known:
        source, target = (quoted(ids[one]) for one in ends[:, old[0]])
        raise GraphError(
            f"new edges, row {int(old[0])}: {source} and {target} are both fitted nodes ({old.size} such "
            "edges), and fitted nodes keep their embeddings: leave these edges out, or refresh (--refresh)"
        )


def _both_ways(
    graph: Graph, ends: npt.NDArray[np.int64], weight: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None]:
    """Add the opposite of each new edge where the fitted graph has every edge both ways."""
    size = int(ends.max(initial=0)) + graph.num_nodes + 1
    fitted = graph.edge_index.numpy()
    keys = fitted[0] * size + fitted[1]
    if not np.isin(fitted[1] * size + fitted[0], keys).all():
        return ends, weight
    there = ends[0] * size + ends[1]
    missing = ~np.isin(ends[1] * size + ends[0], there)
    both = np.concatenate([ends, ends[::-1, missing]], axis=1)
    return both, None if weight is None else np.concatenate([weight, weight[missing]])


def _join(
    graph: Graph,
    features: Tensor,
    ids: Ids,
    ends: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64] | None,
) -> Graph:
    new = features.shape[0]

    def longer(values: Tensor | None, fill: int) -> Any:
        if values is None:
            return None
        return torch.cat([values, values.new_full((new, *values.shape[1:]), fill)]).numpy()

    masks = tuple(longer(one, 0) for one in (graph.train_mask, graph.val_mask, graph.test_mask))
    weights = None
    if graph.edge_weight is not None and weight is not None:
        weights = np.concatenate([graph.edge_weight.numpy(), weight])
    grown = check_graph(
        rows_below(graph.features, features),
        np.concatenate([graph.edge_index.numpy(), ends], axis=1),
        edge_weight=weights,
        labels=longer(graph.labels, -1),
        class_names=graph.class_names,
        masks=None if masks[0] is None else masks,
        node_ids=ids if graph.has_ids or not np.array_equal(ids, np.arange(ids.size)) else None,
        feature_names=graph.feature_names,
        source=f"{graph.provenance.source} with {new:,} new nodes",
        repairs=graph.provenance.repairs,
    )
    return replace(grown, plan=graph.plan)
