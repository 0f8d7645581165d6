"""Read a graph from tables: edges, and optionally features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import SPLIT_NAMES, split_masks
from h3gnn.graphs.graph import Graph, with_hash
from h3gnn.graphs.ids import NodeIndex, one_kind, quoted
from h3gnn.graphs.link_columns import LinkColumns, LinkPlan
from h3gnn.graphs.provenance import EdgeRules, Repair
from h3gnn.graphs.structural import build_graph
from h3gnn.graphs.targets import AUTO, LabelColumn, read_labels
from h3gnn.tables.edges import (
    EdgeRows,
    EdgeTable,
    ids_of_table,
    join_edges,
    open_edges,
    read_rows,
    type_names,
    types_of_nodes,
    types_repair,
    unknown_ids,
)
from h3gnn.tables.features import FeatureFile, FeatureOptions, id_columns, read_features
from h3gnn.tables.infer import NULL_WORDS
from h3gnn.tables.leaks import Target
from h3gnn.tables.links import link_mode, names_of_edges, read_link_columns
from h3gnn.tables.plan import TablePlan
from h3gnn.tables.reader import LoadedTable, Table, add_duplicates, open_table
from h3gnn.tables.roles import SPLIT_PREFIX, Column, infer_class_column, pick_column, pick_id_column

Paths = Any
"""The path of a table, a data frame, or a list of them."""
Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class Labels:
    """The labels and splits of some nodes."""

    ids: Ids  # the nodes of the rows
    column: LabelColumn
    name: str | None  # of the column
    masks: list[npt.NDArray[np.bool_]]  # train, validation and test [rows, splits], or nothing
    table: LabelTable | None = None  # None for a column of the features

    def for_nodes(self, rows: npt.NDArray[np.int64], nodes: int) -> dict[str, Any]:
        """Return labels or targets and masks of all nodes; `rows` is the node of each row, -1 for none."""

        def spread(values: npt.NDArray[Any] | None, empty: float) -> Any:
            if values is None:
                return None
            every = np.full((nodes, *values.shape[1:]), empty, dtype=values.dtype)
            every[rows[rows >= 0]] = values[rows >= 0]
            return every

        masks = tuple(spread(mask, 0) for mask in self.masks) or None
        known = {"labels": spread(self.column.classes, -1), "class_names": self.column.class_names}
        if self.column.targets is not None:
            known |= {"targets": spread(self.column.targets, np.nan), "target_name": self.name or ""}
        return {"masks": masks, **known}

    def target(self, nodes: Ids) -> Target:
        """Return what is to be predicted for each of some nodes; of numbers, their quantiles."""
        name = self.name if self.table is None else self.table.target_name
        known = self.for_nodes(NodeIndex(nodes).find(self.ids), len(nodes))
        if known["labels"] is None and "targets" not in known:
            return Target(None, np.full(len(nodes), -1))
        if known["labels"] is None:
            return Target.of_numbers(name, known["targets"])
        return Target(name, known["labels"])


@dataclass(frozen=True)
class LabelTable:
    """A table of labels and the roles of its columns."""

    table: Table
    key: int  # the column of the ids
    label: int | None  # the column of the classes
    splits: list[int]  # the columns of train, val, test
    loaded: LoadedTable

    @property
    def class_name(self) -> str | None:
        """The name of the column of the classes."""
        return None if self.label is None else self.table.names[self.label]

    @property
    def target_name(self) -> str | None:
        """The name of the column of the labels as the file gives it; None without header."""
        return self.class_name if self.table.header else None

    def read(
        self, columns: Mapping[str, str] | None = None, task: str = AUTO, types: Sequence[str] = ()
    ) -> Labels:
        """Return nodes, classes and splits; an empty cell is an unknown class or in no part of a split."""
        loaded = self.loaded
        ids = ids_of_table(loaded, self.key, types)
        add_duplicates(loaded.problems, ids, loaded.place)
        parts = [loaded.cells(at).words() for at in self.splits]
        for at, words in zip(self.splits, parts, strict=True):
            for row, word in enumerate(words):
                if word.lower() not in {*SPLIT_NAMES, "", "none"}:
                    loaded.add(row, at, f"{word!r} is not one of train, val, test", "", "split-unknown")
        loaded.problems.check()
        classes = None if self.label is None else loaded.cells(self.label).words()
        return replace(_labels(ids, classes, parts, self.class_name, columns, task), table=self)

    def check_known(self, ids: Ids, known: Ids, known_by: Path | None) -> None:
        """Raise if a label is of an unknown node."""
        self.loaded.check_known([ids], known, known_by)
        self.loaded.problems.check()

    def left_out(self, rows: npt.NDArray[np.int64]) -> tuple[Repair, ...]:
        """Return the repair for labels of unknown nodes; `rows` is the node of each row, -1 for none."""
        unknown = int((rows < 0).sum())
        message = f"{self.table.path.name}: {unknown:,} label(s) of unknown nodes left out"
        return (Repair("labels-of-unknown-nodes", message, unknown),) if unknown else ()


def _labels(
    ids: Ids,
    words: Ids | None,
    splits: Sequence[Any],
    name: str | None,
    columns: Mapping[str, str] | None,
    task: str,
) -> Labels:
    """Return labels and splits from the words of their columns; `columns` are the declared types."""
    parts = [split_masks(column, str) for column in splits]
    masks = [np.stack(part, axis=1) for part in zip(*parts, strict=True)]
    column = LabelColumn()
    if words is not None:
        declared = (columns or {}).get(str(name), "")
        column = read_labels(words.tolist(), str(name), task=task, declared=declared)
    return Labels(ids, column, name, masks)


def labels_of_features(
    nodes: FeatureFile, columns: Mapping[str, str] | None = None, task: str = AUTO
) -> Labels | None:
    """Return the classes and splits in a table of features, if it has a column of classes."""
    if nodes.classes is None:
        return None
    return _labels(nodes.ids, nodes.classes, nodes.splits, nodes.class_name, columns, task)


def open_labels(
    path: Any,
    id_column: Column | None,
    label_column: Column | None,
    split_columns: Sequence[Column] | None,
    style: dict[str, Any],
) -> LabelTable:
    """Read a table of labels, and find the columns of ids, classes and splits."""
    expected = (id_column, label_column, *(split_columns or ()))
    table = open_table(path, role="labels", expected=expected, **style)
    loaded = table.load(range(len(table.names)))
    key = pick_id_column(table, id_column, loaded.is_unique)
    others = [column for column in range(len(table.names)) if column != key]
    if split_columns is None:
        splits = [column for column in others if table.names[column].lower().startswith(SPLIT_PREFIX)]
    else:
        splits = [pick_column(table, one, "split", default=0) for one in split_columns]
    rest = [column for column in others if column not in splits]
    label = infer_class_column(table.names, rest)
    label = pick_column(table, label_column, "labels", default=label)
    if label is None and not splits:
        raise GraphError(f"{table.path} has no column of labels besides the node ids", code="column-missing")
    return LabelTable(table, key, label, splits, loaded)


def labels_of_nodes(
    path: str | Path,
    node_ids: Ids,
    known_by: Path,
    id_column: Column | None,
    label_column: Column | None,
    style: dict[str, Any],
    *,
    task: str = AUTO,
    drop: bool = False,
    types: Sequence[str] = (),
) -> tuple[dict[str, Any], tuple[Repair, ...]]:
    """Read labels of known nodes: `labels` and `class_names`, or `targets` and `target_name`, as of a graph.

    Labels of other nodes are an error, or are left out (`drop`) and reported. `types` are those of ids such
    as `user:1`; see `ids_of_table`.
    """
    table = open_labels(path, id_column, label_column, None, style)
    if table.label is None:
        raise GraphError(f"{table.table.path} has splits and no labels", code="column-missing")
    found = table.read(task=task, types=types)
    rows = NodeIndex(node_ids).find(found.ids)
    if not drop:
        table.check_known(found.ids, node_ids, known_by)
    known = found.for_nodes(rows, len(node_ids))
    del known["masks"]
    known["label_name"] = table.target_name
    return known, (*found.column.repairs, *table.left_out(rows))


def read_graph(
    edges: Paths,
    *,
    features: Paths = None,
    labels: Any = None,
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
    task: str = AUTO,
    unknown_nodes: str = "error",
    weights: str = "error",
    repeated: str = "sum",
    header: bool | None = None,
    delimiter: str | None = None,
    undirected: bool = False,
    bipartite: bool | None = None,
    link_columns: str | bool | LinkPlan = "auto",
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
        columns: the kinds of some columns of features or edges, `{"zip": "category", "opened": "date:dmy"}`;
            those of the others are inferred.
        text_model: a folder with a sentence model for columns of text.
        label_id_column: ids in the labels; the usual names, else column 1.
        label_column: classes or numbers; the usual names, else the first column that is neither id nor split.
            Without `labels` it is a column of the features.
        split_columns: words train, val, test; else all columns whose name starts with split.
        task: "classification" reads labels as classes, "regression" as numbers; "auto" decides by their
            values, see `h3gnn.graphs.targets.choose_task`.
        unknown_nodes, weights, repeated: how such edges are handled; see `EdgeRules`.
        header, delimiter: of text files; inferred if not given.
        undirected: add the opposite of every edge.
        bipartite: True if the ends of edges are two types of nodes whose ids may be the same numbers; False
            if both columns hold the same nodes. By default the user is asked where the names of the columns
            differ (`userId`, `movieId`) and their ids overlap.
        link_columns: whether the edges of each node are summarized as columns of the node: their number, and
            their further columns, such as amounts or dates. "auto" does so if a table has further columns or
            duplicate edges. The plan of a fitted graph, `graph.link_columns.plan`, is applied again.
        plan: of a fitted graph, `graph.plan`, by which the features are encoded.

    Raises:
        GraphError: with file, line and column; several problems of a file are listed together.
    """
    style: dict[str, Any] = {"header": header, "delimiter": delimiter}
    rules = EdgeRules(unknown_nodes, weights, repeated, undirected, bipartite)
    tables = [open_edges(one, source_column, target_column, weight_column, style) for one in _listed(edges)]
    types = type_names([one.columns.ends for one in tables]) if bipartite else ()
    found, hidden, target = None, None, None
    if labels is not None:
        label_table = open_labels(labels, label_id_column, label_column, split_columns, style)
        found, hidden = label_table.read(columns, task, types), label_table.class_name
        target = None if label_table.label is None else found.target
    edges_first = features is None or unknown_nodes == "add"
    rows, with_links = list[EdgeRows](), link_mode(link_columns) != "no"
    if edges_first:
        tables, rows = _read_edges(tables, None, None, rules, links=with_links)
    if features is None:
        nodes = FeatureFile(None, _nodes_of_edges(tables, rows, found, rules), named=True)
    else:
        label = label_column if labels is None else None
        of_labels = ("label", "number", "number:plain", "number:grouped", "number:comma")
        kinds = {one: kind for one, kind in (columns or {}).items() if one != hidden or kind not in of_labels}
        others = frozenset(names_of_edges(tables) if with_links else ())
        options = FeatureOptions(id_column, feature_columns, style, kinds, label, target, text_model, plan)
        options = replace(options, types=types, elsewhere=others)
        added = partial(unknown_ids, _all_ids(rows, found)) if edges_first else None
        nodes = read_features(_listed(features), options, added)
        found = labels_of_features(nodes, columns, task) if found is None else found
    if not edges_first:
        known = nodes.ids if unknown_nodes == "error" else None
        try:
            tables, rows = _read_edges(tables, known, nodes.path, rules, links=with_links)
        except GraphError as error:
            if error.code == "node-unknown" and nodes.named:
                _name_id_column(tables, rules, _listed(features), options)
            raise
    links = partial(read_link_columns, declared=columns or {}, wanted=link_columns)
    return _join(tables, rows, nodes, found, rules, links)


def _read_edges(
    tables: Sequence[EdgeTable], known: Ids | None, known_by: Path | None, rules: EdgeRules, *, links: bool
) -> tuple[list[EdgeTable], list[EdgeRows]]:
    """Return the tables with their final roles, and their rows."""
    read = [read_rows(one, known, known_by, rules, links=links) for one in tables]
    return [table for table, _ in read], [rows for _, rows in read]


def _name_id_column(
    tables: Sequence[EdgeTable], rules: EdgeRules, features: Sequence[Any], options: FeatureOptions
) -> None:
    """Raise with the columns of the features that match all ends of the edges, if there are any."""
    ends = one_kind([end for one in tables for end in read_rows(one, None, None, rules)[1].ids])
    wanted = np.asarray(pd.unique(ends))
    if found := id_columns(features, options, wanted):
        names = " and ".join(f"column {name} of {path}" for path, name in found)
        raise GraphError(
            f"{tables[0].table.path}: not all {wanted.size:,} nodes of the edges are in the column "
            f"of the ids of the features; {names} matches all ends: --id-column {found[0][1]}",
            code="node-unknown",
        )


def _listed(paths: Paths) -> list[Any]:
    listed = list(paths) if isinstance(paths, list | tuple) else [paths]
    if not listed:
        raise GraphError("no file is given", code="file-missing")
    return listed


def _all_ids(rows: Sequence[EdgeRows], labels: Labels | None) -> list[Ids]:
    return [end for block in rows for end in block.ids] + ([] if labels is None else [labels.ids])


def _join(
    tables: Sequence[EdgeTable],
    rows: Sequence[EdgeRows],
    features: FeatureFile,
    labels: Labels | None,
    rules: EdgeRules,
    read_links: Callable[..., tuple[LinkColumns | None, list[Repair]]],
) -> Graph:
    """Find every id among the nodes, and build the graph."""
    nodes = NodeIndex(features.ids)
    edges = join_edges(tables, rows, nodes, rules)
    known: dict[str, Any] = {}
    target, repairs, label_table = None, list[Repair](), None if labels is None else labels.table
    if labels is not None:
        target = labels.target(features.ids)
        found = nodes.find(labels.ids)
        known = labels.for_nodes(found, features.ids.size)
        repairs += labels.column.repairs
        if label_table is not None:
            if rules.unknown_nodes == "error":
                label_table.check_known(labels.ids, features.ids, features.path)
            repairs += label_table.left_out(found)
    links, of_links = read_links(tables, rows, edges, features.ids.size, target=target)
    types, names = features.types, features.type_names
    if rules.bipartite or features.values is None:
        ends = [(one.columns.ends, block.ids) for one, block in zip(tables, rows, strict=True)]
        types, names = types_of_nodes(features.ids, ends, bipartite=rules.bipartite)
        repairs += [] if types is None else [types_repair(types, names)]
    repairs = [*edges.repairs, *of_links, *features.repairs, *repairs]

    def locate(part: str, index: int) -> str:
        if part == "features":
            return features.place(index)
        return edges.place(index) if part == "edges" else f"{part}, position {index}"

    label_path = None if label_table is None else label_table.table.path
    files = [*(one.table.path for one in tables), features.path, label_path]
    graph = build_graph(
        features.values,
        edges.index,
        nodes=features.ids.size,
        edge_weight=edges.weight,
        node_ids=features.ids if features.named else None,
        feature_names=features.names,
        source=", ".join(path.name for path in files if path is not None),
        kind="files",
        repairs=tuple(repairs),
        locate=locate,
        **known,
    )
    read_by = replace(edges.plan, rules=replace(rules, bipartite=bool(rules.bipartite)))
    graph = replace(graph, plan=features.plan, edge_plan=read_by)
    if types is not None:
        graph = replace(graph, node_types=torch.from_numpy(types), type_names=names)
    return graph if links is None else with_hash(replace(graph, link_columns=links))


def _nodes_of_edges(
    tables: Sequence[EdgeTable], rows: Sequence[EdgeRows], labels: Labels | None, rules: EdgeRules
) -> Ids:
    """Return all ids of edges and labels, sorted."""
    everything = one_kind(_all_ids(rows, labels))
    _check_words(everything, rules)
    for one, block in zip(tables, rows, strict=True):
        _check_no_header([end[0] for end in block.ids], everything, one.table)
    if labels is not None and labels.table is not None:
        _check_no_header([labels.ids[0]], everything, labels.table.table)
    nodes = np.sort(np.asarray(pd.unique(everything)))
    if rules.unknown_nodes != "drop" or nodes.dtype.kind != "O":
        return nodes
    return nodes[[one.lower() not in NULL_WORDS for one in nodes]]


def _check_words(ids: Ids, rules: EdgeRules) -> None:
    """Ask about ids that are words for a missing value, and about 1 beside 1.0."""
    known = {*ids.tolist()} if ids.dtype.kind == "O" else set[str]()
    word = next((one for one in sorted(known) if one.lower() in NULL_WORDS), None)
    if word is not None and rules.unknown_nodes == "error":
        raise GraphError(
            f"the id {word!r} of {int((ids == word).sum()):,} rows is a word for a missing value; leave the "
            "edges out (--unknown-nodes drop), or make it a node (--unknown-nodes add)",
            code="id-missing-word",
        )
    both = next((one for one in sorted(known) if one.endswith(".0") and one[:-2] in known), None)
    if both is not None:
        message = f"the ids {both[:-2]} and {both} may be one node: write them alike"
        raise GraphError(message, code="id-ambiguous")


def _check_no_header(first: list[Any], everything: Ids, table: Table) -> None:
    """Ask whether the first row is a header if its texts could be names: no other row contains them."""
    if table.header or not table.guessed or everything.dtype.kind != "O":
        return
    if all(int((everything == one).sum()) == 1 for one in first):
        words = " and ".join(quoted(one) for one in first)
        message = f"{words} may name a column or a node: no other row has it; choose --header or --no-header"
        raise GraphError(f"{table.place(0)}: {message}", code="header-ambiguous")
