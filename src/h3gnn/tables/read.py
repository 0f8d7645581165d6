"""Read a graph from tables: edges, and optionally features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import (
    NodeIndex,
    as_text,
    is_plain,
    one_kind,
    quoted,
)
from h3gnn.graphs.labels import SPLIT_NAMES, as_classes, known_labels, split_masks
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.structural import build_graph
from h3gnn.tables.edges import (
    FIX_UNKNOWN,
    EdgeRows,
    EdgeRules,
    EdgeTable,
    apply_rules,
    merge_repeated,
    open_edges,
    read_rows,
    unknown_ids,
)
from h3gnn.tables.features import Encoding, FeatureFile, pick_id_column, read_features
from h3gnn.tables.files import Problems
from h3gnn.tables.plan import TablePlan
from h3gnn.tables.reader import LoadedTable, Table, check_once, joined_place, open_table
from h3gnn.tables.roles import SPLIT_PREFIX, Column, infer_class_column, pick_column

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class LabelFile:
    """The labels and splits of some nodes."""

    ids: npt.NDArray[Any]  # the nodes of the rows
    classes: npt.NDArray[np.int64] | None  # [rows]
    class_names: tuple[str, ...]
    masks: list[npt.NDArray[np.bool_]]  # train, validation and test [rows, splits], or nothing
    table: LabelTable | None  # None for a column of the features

    def for_nodes(self, rows: npt.NDArray[np.int64], nodes: int) -> dict[str, Any]:
        """Return labels and masks of all nodes; `rows` is the node of each row, -1 for none."""

        def spread(values: npt.NDArray[Any], empty: int) -> npt.NDArray[Any]:
            every = np.full((nodes, *values.shape[1:]), empty, dtype=values.dtype)
            every[rows[rows >= 0]] = values[rows >= 0]
            return every

        masks = tuple(spread(mask, 0) for mask in self.masks) or None
        labels = None if self.classes is None else spread(self.classes, -1)
        return {"masks": masks, "labels": labels, "class_names": self.class_names}


@dataclass(frozen=True)
class LabelTable:
    """A table of labels and the roles of its columns."""

    table: Table
    key: int  # the column of the ids
    label: int | None  # the column of the classes
    splits: list[int]  # the columns of train, val, test
    loaded: LoadedTable | None  # None if the rows cannot be read

    def read(self) -> LabelFile:
        """Return nodes, classes and splits; an empty cell is an unknown class or in no part of a split."""
        table, loaded = self.table, self.loaded
        assert loaded is not None
        try:
            ids = loaded.ids(self.key)
            check_once(ids, table.place, table.path)
            parts = [
                split_masks(loaded.cells(at).words().tolist(), partial(table.place, column=at))
                for at in self.splits
            ]
        except GraphError:
            self.report_problems(None, None)
            raise
        classes, names = None, tuple[str, ...]()
        if self.label is not None:
            classes, names = as_classes(known_labels(loaded.cells(self.label).words()))
        masks = [np.stack(part, axis=1) for part in zip(*parts, strict=True)]
        return LabelFile(ids, classes, names, masks, self)

    def report_problems(self, known: npt.NDArray[Any] | None, known_by: Path | None) -> None:
        """Walk the file row by row, and raise with all its problems; return if there is none."""
        table, places = self.table, dict[str, str]()
        names = None if known is None else {*as_text(known).tolist()}

        def check(problems: Problems, row: int, place: str, cells: list[str]) -> None:
            node = cells[0] if is_plain(cells[0]) else quoted(cells[0])
            if cells[0] in places:
                what = f"node {node} is already in {places[cells[0]]}"
                problems.add(place, what, "keep one row per node", "id-duplicate")
            elif cells[0] and names is not None and cells[0] not in names:
                what = f"node {node} is unknown; it is not in {known_by}"
                problems.add(place, what, FIX_UNKNOWN, "node-unknown")
            if cells[0]:
                places.setdefault(cells[0], place)
            for column, word in zip(self.splits, cells[1:], strict=True):
                if word.lower() not in {*SPLIT_NAMES, "", "none"}:
                    what = f"{word!r} is not one of train, val, test"
                    problems.add(place + table.title(column), what, "", "split-unknown")

        table.find_problems([self.key], self.splits, check).check()


def open_labels(
    path: str | Path,
    id_column: Column | None,
    label_column: Column | None,
    split_columns: Sequence[Column] | None,
    style: dict[str, Any],
) -> LabelTable:
    """Read a table of labels, and find the columns of ids, classes and splits."""
    expected = (id_column, label_column, *(split_columns or ()))
    table = open_table(path, role="labels", expected=expected, **style)
    loaded, error = None, None
    try:
        loaded = table.load(range(len(table.names)))
    except GraphError as fault:
        error = fault
    key = pick_id_column(table, id_column, (lambda at: False) if loaded is None else loaded.is_unique)
    others = [column for column in range(len(table.names)) if column != key]
    if split_columns is None:
        splits = [column for column in others if table.names[column].lower().startswith(SPLIT_PREFIX)]
    else:
        splits = [pick_column(table, one, "split", default=0) for one in split_columns]
    rest = [column for column in others if column not in splits]
    label = infer_class_column(table.names, rest)
    if label_column is not None:
        label = pick_column(table, label_column, "labels", default=0)
    if label is None and not splits:
        raise GraphError(f"{table.path} has no column of labels besides the node ids", code="column-missing")
    labels = LabelTable(table, key, label, splits, loaded)
    if error is not None:
        labels.report_problems(None, None)
        raise error
    return labels


def labels_of_nodes(
    path: str | Path,
    node_ids: npt.NDArray[Any],
    known_by: Path,
    id_column: Column | None,
    label_column: Column | None,
    style: dict[str, Any],
    *,
    drop: bool = False,
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], int]:
    """Read the classes of known nodes, `[nodes]`, -1 where unknown, and their names.

    Labels of other nodes are an error, or are left out (`drop`); the last value is their number.
    """
    table = open_labels(path, id_column, label_column, None, style)
    found = table.read()
    if found.classes is None:
        raise GraphError(f"{table.table.path} has splits and no classes", code="column-missing")
    rows = NodeIndex(node_ids).find(found.ids)
    unknown = int((rows < 0).sum())
    if unknown and not drop:
        table.report_problems(node_ids, known_by)
    labels: npt.NDArray[np.int64] = found.for_nodes(rows, len(node_ids))["labels"]
    return labels, found.class_names, unknown


def _labels_of_features(features: FeatureFile) -> LabelFile | None:
    """Return the labels that a column of the features holds."""
    if features.classes is None:
        return None
    classes, names = as_classes(known_labels(features.classes))
    parts = [split_masks(words, features.place) for words in features.splits]
    masks = [np.stack(part, axis=1) for part in zip(*parts, strict=True)]
    return LabelFile(features.ids, classes, names, masks, None)


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

    Columns are given by name, or by position counted from 1. The features define the nodes and their order,
    and an edge or label of any other node is an error. Without features the nodes are those of the edges and
    labels, sorted, and structural features are built.

    Args:
        edges: CSV, TSV or Parquet, one edge per row. Of several tables, the weights of each are scaled to a
            mean of 1, and those between the same two nodes are added.
        features: CSV, TSV or Parquet with an id column; or NPY, NPZ, whose row numbers are the ids. Several
            tables are several kinds of nodes, whose ids must differ.
        labels: CSV, TSV or Parquet, one node per row, with its class and optionally its splits.
        source_column, target_column: ends of an edge; columns with telling names, else columns 1 and 2.
        weight_column: positive weights; else a column called weight, else none.
        id_column: ids in the features; the usual names, else column 1.
        feature_columns: the columns to use; else all but the id.
        columns: the kinds of some of these columns, `{"zip": "category", "opened": "date:dmy"}`; those of the
            others are inferred.
        text_model: a folder with a sentence model for columns of text.
        label_id_column: ids in the labels; the usual names, else column 1.
        label_column: classes; the usual names, else the first column that is neither id nor split. Without
            `labels` it is a column of the features.
        split_columns: words train, val, test; else all columns whose name starts with split.
        unknown_nodes, weights, repeated: how such edges are handled; see `EdgeRules`.
        header, delimiter: of text files; inferred if not given.
        undirected: add the opposite of every edge.
        plan: of a fitted graph, `graph.plan`, by which the features are encoded.

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
    rows = None
    if features is None or unknown_nodes == "add":
        rows = [read_rows(one, None, None, rules) for one in tables]
    if features is None:
        return _join(tables, rows or [], None, label_file, rules, undirected=undirected)
    encoding = Encoding(columns or {}, label_column if labels is None else None, hidden, text_model, plan)
    read = partial(read_features, _listed(features), id_column, feature_columns, style, encoding)
    if rows is None:
        feature_file = read()
        known = feature_file.ids if unknown_nodes == "error" else None
        rows = [read_rows(one, known, feature_file.path, rules) for one in tables]
    else:
        ends = [end for block in rows for end in block.ids]
        feature_file = read(partial(unknown_ids, [*ends, *([] if label_file is None else [label_file.ids])]))
    label_file = label_file or _labels_of_features(feature_file)
    return _join(tables, rows, feature_file, label_file, rules, undirected=undirected)


def _listed(paths: Paths) -> list[str | Path]:
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    if not listed:
        raise GraphError("no file is given", code="file-missing")
    return listed


def _join(
    tables: Sequence[EdgeTable],
    rows: Sequence[EdgeRows],
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
    repairs = [*edges.repairs, *(() if features is None else features.repairs)]
    known: dict[str, Any] = {}
    if labels is not None:
        rows_of_labels = nodes.find(labels.ids)
        unknown = int((rows_of_labels < 0).sum())
        if unknown and labels.table is not None:
            if rules.unknown_nodes == "error":
                labels.table.report_problems(ids, None if features is None else features.path)
            message = f"{labels.table.table.path.name}: {unknown:,} label(s) of unknown nodes left out"
            repairs.append(Repair("labels-of-unknown-nodes", message, unknown))
        known = labels.for_nodes(rows_of_labels, ids.size)

    def locate(part: str, index: int) -> str:
        if part == "features" and features is not None:
            return features.place(index)
        return edges.place(index) if part == "edges" else f"{part}, position {index}"

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
        kind="files",
        repairs=tuple(repairs),
        locate=locate,
        **known,
    )
    return graph if features is None else replace(graph, plan=features.plan)


@dataclass(frozen=True)
class _Edges:
    """The edges of all tables by position, their weights, the place of each, and the repairs."""

    index: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64] | None
    place: Callable[[int], str]
    repairs: list[Repair]


def _pooled(
    tables: Sequence[EdgeTable],
    rows: Sequence[EdgeRows],
    nodes: NodeIndex,
    rules: EdgeRules,
    *,
    undirected: bool,
) -> _Edges:
    """Apply the rules to each table; of several, each has a mean weight of 1."""
    parts = [
        _edges_of(one, block, nodes, rules, undirected=undirected)
        for one, block in zip(tables, rows, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    repairs = [repair for part in parts for repair in part.repairs]
    weights = []
    for part in parts:
        heavy = np.ones(part.index.shape[1]) if part.weight is None else part.weight
        weights.append(heavy / heavy.mean() if heavy.size else heavy)
    names = " and ".join(one.table.path.name for one in tables)
    message = f"the edges of {names} are one graph: each table's weights have a mean of 1, and are added"
    repairs.append(Repair("edge-tables-joined", message, len(tables)))
    place = joined_place([part.place for part in parts], [part.index.shape[1] for part in parts])
    index = np.concatenate([part.index for part in parts], axis=1)
    return _Edges(index, np.concatenate(weights), place, repairs)


def _edges_of(
    edges: EdgeTable, block: EdgeRows, nodes: NodeIndex, rules: EdgeRules, *, undirected: bool
) -> _Edges:
    name = edges.table.path.name
    index = np.stack([nodes.find(end) for end in block.ids])
    index, weight, origin, done = apply_rules(index, block.weight, rules, name)
    if undirected:
        between = index[0] != index[1]  # a self-loop is its own opposite
        index = np.concatenate([index, index[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
        origin = np.concatenate([origin, origin[between]])
    index, weight, first, merged = merge_repeated(index, weight, rules, name)
    origin = origin if first is None else origin[first]
    return _Edges(
        index, weight, lambda at: edges.table.place(int(origin[at])), [*edges.repairs, *done, *merged]
    )


def _ids_of_parts(
    tables: Sequence[EdgeTable], rows: Sequence[EdgeRows], labels: LabelFile | None
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
    """Ask whether the first row is a header if its texts could be names: no other row contains them."""
    if table.header or not table.guessed or everything.dtype.kind != "O":
        return
    if all(int((everything == one).sum()) == 1 for one in first):
        words = " and ".join(quoted(one) for one in first)
        raise GraphError(
            f"{table.place(0)}: {words} may name a column or a node: no other row has it; "
            "say whether this row is a header (--header, --no-header)",
            code="header-ambiguous",
        )
