"""The user's own graph: a file of edges, and beside it perhaps features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.columns import Column
from h3gnn.graphs.edgefile import (
    EdgeRules,
    EdgeTable,
    merge_repeated,
    open_edges,
    read_rows,
    settle,
    strangers,
)
from h3gnn.graphs.featurefile import Encoding, FeatureFile, read_features
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.labelfile import LabelFile, labels_of, open_labels
from h3gnn.graphs.names import (
    NodeIndex,
    one_kind,
    quoted,
)
from h3gnn.graphs.plan import TablePlan
from h3gnn.graphs.structural import build_graph
from h3gnn.graphs.tables import Table, TableBlock

Paths = str | Path | Sequence[str | Path]


def read_graph(
    edges: Paths,
    *,
    features: Paths | None = None,
    labels: str | Path | None = None,
    source_column: Column | None = None,
    target_column: Column | None = None,
    weight_column: Column | None = None,
    id_column: Column | None = None,
    feature_columns: Sequence[Column] | None = None,
    columns: Mapping[str, str] | None = None,
    text_model: str | None = None,
    label_id_column: Column | None = None,
    label_column: Column | None = None,
    split_columns: Sequence[Column] | None = None,
    unknown_nodes: str = "error",
    weights: str = "error",
    repeated: str = "sum",
    header: bool | None = None,
    delimiter: str | None = None,
    undirected: bool = False,
    plan: TablePlan | None = None,
) -> Graph:
    """Read a graph from one file per part.

    Columns are given by name, or by position counted from 1. Where there are features, they say which nodes
    there are and in which order, and an edge or label of any other node is an error. Without them the nodes
    are those of the edges and labels, sorted, and structural features are built.

    Args:
        edges: CSV, TSV or Parquet: one edge per row. Several tables are several kinds of edges: the weights
            of each are brought to a mean of 1, and those between the same two nodes are added.
        features: CSV, TSV or Parquet with an id column; or NPY, NPZ, whose row numbers are the ids. Several
            tables are several kinds of nodes, whose ids must differ.
        labels: CSV, TSV or Parquet: one node per row, with its class and perhaps its splits.
        source_column, target_column: where an edge starts and ends; names that tell, else columns 1 and 2.
        weight_column: positive weights; else a column called weight, else none.
        id_column: ids in the features; the usual names, else column 1.
        feature_columns: the columns to use; else all but the id.
        columns: what some of these columns hold, by name: `{"zip": "category", "opened": "date:dmy"}`; the
            others are recognised. See `h3gnn.graphs.encoding`.
        text_model: a folder with a sentence model for columns of text.
        label_id_column: ids in the labels; the usual names, else column 1.
        label_column: classes; the usual names, else the first column that is neither id nor split. Without
            `labels` it is a column of the features.
        split_columns: words train, val, test; else all columns whose name starts with split.
        unknown_nodes, weights, repeated: what becomes of such edges; see `EdgeRules`.
        header: whether text files start with a row of names; else found out.
        delimiter: the character between cells of text files; else found out.
        undirected: add the opposite of every edge.
        plan: of a fitted graph, `graph.plan`: the features are then encoded as there.

    Raises:
        GraphError: with file, line and column; several problems of a file are listed together.
    """
    style: dict[str, Any] = {"header": header, "delimiter": delimiter}
    rules = EdgeRules(unknown_nodes, weights, repeated)
    tables = [open_edges(one, source_column, target_column, weight_column, style) for one in _listed(edges)]
    label_file, hidden = None, None
    if labels is not None:
        label_table = open_labels(labels, label_id_column, label_column, split_columns, style)
        label_file = label_table.read()
        hidden = None if label_table.label is None else label_table.table.names[label_table.label]
    if features is None:
        rows = [read_rows(one, None, None, rules) for one in tables]
        return _join(tables, rows, None, label_file, rules, undirected=undirected)
    how = Encoding(columns or {}, label_column if labels is None else None, hidden, text_model, plan)
    added = partial(_unknown, tables, label_file, rules) if unknown_nodes == "add" else None
    read = partial(read_features, _listed(features), id_column, feature_columns, style, how)
    feature_file = read() if added is None else read(added)
    strict = unknown_nodes == "error"
    rows = [read_rows(one, feature_file.ids if strict else None, feature_file.path, rules) for one in tables]
    label_file = label_file or labels_of(feature_file)
    return _join(tables, rows, feature_file, label_file, rules, undirected=undirected)


def _listed(paths: Paths) -> list[str | Path]:
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise GraphError("no file is given")
    return listed


def _unknown(
    tables: Sequence[EdgeTable], labels: LabelFile | None, rules: EdgeRules, known: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Return the nodes of edges and labels that have no features."""
    ends = [end for one in tables for end in read_rows(one, None, None, rules).ids]
    return strangers([*ends, *([] if labels is None else [labels.ids])], known)


def _join(
    tables: Sequence[EdgeTable],
    rows: Sequence[TableBlock],
    features: FeatureFile | None,
    labels: LabelFile | None,
    rules: EdgeRules,
    *,
    undirected: bool,
) -> Graph:
    """Find every id among the nodes, and hand the parts to the checks."""
    ids = _ids_of_parts(tables, rows, labels) if features is None else features.ids
    nodes = NodeIndex(ids)
    edges = _pooled(tables, rows, nodes, rules, undirected=undirected)
    notes = [*edges.notes, *(() if features is None else features.notes)]
    known: dict[str, Any] = {}
    if labels is not None:
        known = _known_labels(labels, nodes, ids, features, rules, notes)
    files = [*(one.table.path for one in tables), *(() if features is None else (features.path,))]
    files += [] if labels is None or labels.table is None else [labels.table.table.path]
    graph = build_graph(
        None if features is None else features.values,
        edges.index,
        nodes=ids.size,
        edge_weight=edges.weight,
        node_ids=ids if features is None or features.named else None,
        feature_names=() if features is None else features.names,
        source=", ".join(path.name for path in files),
        notes=tuple(notes),
        locate=_locator(edges, features),
        **known,
    )
    return graph if features is None else replace(graph, plan=features.plan)


@dataclass(frozen=True)
class _Edges:
    """The edges of all tables by position, their weights, the place of each, and what was done."""

    index: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64] | None
    place: Callable[[int], str]
    notes: list[str]


def _pooled(
    tables: Sequence[EdgeTable],
    rows: Sequence[TableBlock],
    nodes: NodeIndex,
    rules: EdgeRules,
    *,
    undirected: bool,
) -> _Edges:
    """Apply the rules to each table; of several, each has a mean weight of 1."""
    parts = [
        _settled(one, block, nodes, rules, undirected=undirected)
        for one, block in zip(tables, rows, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    notes = [note for part in parts for note in part.notes]
    weights = []
    for part in parts:
        heavy = np.ones(part.index.shape[1]) if part.weight is None else part.weight
        weights.append(heavy / heavy.mean() if heavy.size else heavy)
    names = " and ".join(one.table.path.name for one in tables)
    notes.append(f"the edges of {names} are one graph: each table's weights have a mean of 1, and are added")
    ends = np.cumsum([part.index.shape[1] for part in parts])

    def place(at: int) -> str:
        which = int(np.searchsorted(ends, at, side="right"))
        return parts[which].place(at - (int(ends[which - 1]) if which else 0))

    return _Edges(
        np.concatenate([part.index for part in parts], axis=1), np.concatenate(weights), place, notes
    )


def _settled(
    edges: EdgeTable, block: TableBlock, nodes: NodeIndex, rules: EdgeRules, *, undirected: bool
) -> _Edges:
    name = edges.table.path.name
    index = np.stack([nodes.find(end) for end in block.ids])
    weight = block.numbers[:, 0] if edges.weight else None
    index, weight, origin, done = settle(index, weight, rules, name)
    if undirected:
        between = index[0] != index[1]  # a self-loop is its own opposite
        index = np.concatenate([index, index[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
        origin = np.concatenate([origin, origin[between]])
    index, weight, first, merged = merge_repeated(index, weight, rules, name)
    origin = origin if first is None else origin[first]
    return _Edges(
        index, weight, lambda at: edges.table.place(int(origin[at])), [*edges.notes, *done, *merged]
    )


def _known_labels(
    labels: LabelFile,
    nodes: NodeIndex,
    ids: npt.NDArray[Any],
    features: FeatureFile | None,
    rules: EdgeRules,
    notes: list[str],
) -> dict[str, Any]:
    found = nodes.find(labels.ids)
    strange = found < 0
    if strange.any() and labels.table is not None:
        if rules.unknown_nodes == "error":
            labels.table.list_problems(ids, None if features is None else features.path)
        notes.append(
            f"{labels.table.table.path.name}: {int(strange.sum()):,} label(s) of unknown nodes left out"
        )
    return labels.for_nodes(found, ids.size)


def _ids_of_parts(
    tables: Sequence[EdgeTable], rows: Sequence[TableBlock], labels: LabelFile | None
) -> npt.NDArray[Any]:
    """Return all ids of edges and labels, sorted."""
    import pandas as pd

    ends = [end for block in rows for end in block.ids]
    everything = one_kind([*ends, *([] if labels is None else [labels.ids])])
    for one, block in zip(tables, rows, strict=True):
        _check_not_a_header([end[0] for end in block.ids], everything, one.table)
    if labels is not None and labels.table is not None:
        _check_not_a_header([labels.ids[0]], everything, labels.table.table)
    return np.sort(np.asarray(pd.unique(everything)))


def _check_not_a_header(first: list[Any], everything: npt.NDArray[Any], table: Table) -> None:
    """Ask where names might have been taken for nodes: text, and met nowhere but in the first row."""
    if table.header or not table.guessed or everything.dtype.kind != "O":
        return
    if all(int((everything == one).sum()) == 1 for one in first):
        words = " and ".join(quoted(one) for one in first)
        raise GraphError(
            f"{table.place(0)}: {words} may name a column or a node, standing nowhere else; "
            "say whether this row is a header (--header, --no-header)"
        )


def _locator(edges: _Edges, features: FeatureFile | None) -> Callable[[str, int], str]:
    def locate(part: str, index: int) -> str:
        if part == "edges":
            return edges.place(index)
        if part == "features" and features is not None:
            return features.place(index)
        return f"{part}, position {index}"

    return locate
