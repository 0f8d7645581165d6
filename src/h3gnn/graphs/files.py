"""The user's own graph: a file of edges, and beside it perhaps features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.columns import (
    ID_NAMES,
    LABEL_NAMES,
    SOURCE_NAMES,
    SPLIT_PREFIX,
    TARGET_NAMES,
    WEIGHT_NAMES,
    Column,
    pick_column,
)
from h3gnn.graphs.featurefile import FeatureFile, read_features
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.names import NodeIndex, as_classes, one_kind, quoted, split_masks, whole_beside_gaps
from h3gnn.graphs.structural import build_graph
from h3gnn.graphs.tables import Table, TableBlock, check_once, open_table


def read_graph(
    edges: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    source_column: Column | None = None,
    target_column: Column | None = None,
    weight_column: Column | None = None,
    id_column: Column | None = None,
    feature_columns: Sequence[Column] | None = None,
    label_id_column: Column | None = None,
    label_column: Column | None = None,
    split_columns: Sequence[Column] | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    undirected: bool = False,
) -> Graph:
    """Read a graph from one file per part.

    Columns are given by name, or by position counted from 1. Where there are features, they say which nodes
    there are and in which order, and an edge or label of any other node is an error. Without them the nodes
    are those of the edges and labels, sorted, and structural features are built.

    Args:
        edges: CSV, TSV or Parquet: one edge per row.
        features: CSV, TSV or Parquet with an id column; or NPY, NPZ, whose row numbers are the ids.
        labels: CSV, TSV or Parquet: one node per row, with its class and perhaps its splits.
        source_column, target_column: where an edge starts and ends; the usual names, else columns 1 and 2.
        weight_column: positive weights; else a column called weight, else none.
        id_column: ids in the features; the usual names, else column 1.
        feature_columns: the numbers to use; else all but the id.
        label_id_column: ids in the labels; the usual names, else column 1.
        label_column: classes; the usual names, else the first column that is neither id nor split.
        split_columns: words train, val, test; else all columns whose name starts with split.
        header: whether text files start with a row of names; else found out.
        delimiter: the character between cells of text files; else found out.
        undirected: add the opposite of every edge.

    Raises:
        GraphError: in one sentence with file, line and column.
    """
    style: dict[str, Any] = {"header": header, "delimiter": delimiter}
    edge_table = open_edges(edges, source_column, target_column, weight_column, style)
    edge_file = edge_table.table.read(edge_table.ends, edge_table.weight)
    feature_file = None if features is None else read_features(features, id_column, feature_columns, style)
    label_file = (
        None if labels is None else read_labels(labels, label_id_column, label_column, split_columns, style)
    )
    return _join(edge_table, edge_file, feature_file, label_file, undirected=undirected)


@dataclass(frozen=True)
class EdgeTable:
    """A table of edges and its columns that are meant.

    Attributes:
        table: the file.
        ends: source and target.
        weight: the column of the weights, or none.
        notes: which columns are not used.
    """

    table: Table
    ends: tuple[int, int]
    weight: tuple[int, ...]
    notes: tuple[str, ...]


def open_edges(
    path: str | Path,
    source: Column | None,
    target: Column | None,
    weight: Column | None,
    style: dict[str, Any],
) -> EdgeTable:
    """Find the columns that are meant: the given ones, else those of the usual names, else the first two."""
    table = open_table(path, role="edges", expected=(source, target, weight), **style)
    if len(table.names) < 2:
        raise GraphError(
            f"{table.path}: an edge needs two columns, but the file has one; is the delimiter right?"
        )
    lowered = {name.lower() for name in table.names}
    usual = bool(lowered & {*SOURCE_NAMES} and lowered & {*TARGET_NAMES})
    start = pick_column(table, source, "source", known=SOURCE_NAMES if usual else (), default=0)
    end = pick_column(table, target, "target", known=TARGET_NAMES if usual else (), default=1)
    heavy = pick_column(table, weight, "weight", known=WEIGHT_NAMES, default=None)
    if len({start, end, heavy}) < 3:
        raise GraphError(
            f"{table.path}: source, target and weight must be different columns; name each of them"
        )
    unused = [name for column, name in enumerate(table.names) if column not in (start, end, heavy)]
    notes = (f"{table.path.name}: not used: {', '.join(unused[:8])}",) if unused else ()
    return EdgeTable(table, (start, end), () if heavy is None else (heavy,), notes)


@dataclass(frozen=True)
class LabelFile:
    """What a table says of its rows.

    Attributes:
        ids: the nodes that the rows speak of.
        classes: int64 `[rows]`, or None.
        class_names: the class that each number stands for.
        masks: train, validation and test `[rows, splits]`, or nothing.
        table: the file.
    """

    ids: npt.NDArray[Any]
    classes: npt.NDArray[np.int64] | None
    class_names: tuple[str, ...]
    masks: list[npt.NDArray[np.bool_]]
    table: Table

    def for_nodes(self, rows: npt.NDArray[np.int64], nodes: int) -> dict[str, Any]:
        """Return labels and masks of all nodes, where `rows` says which node each row speaks of."""

        def spread(values: npt.NDArray[Any], empty: int) -> npt.NDArray[Any]:
            every = np.full((nodes, *values.shape[1:]), empty, dtype=values.dtype)
            every[rows] = values
            return every

        masks = tuple(spread(mask, 0) for mask in self.masks) or None
        labels = None if self.classes is None else spread(self.classes, -1)
        return {"masks": masks, "labels": labels, "class_names": self.class_names}


def read_labels(
    path: str | Path,
    id_column: Column | None,
    label_column: Column | None,
    split_columns: Sequence[Column] | None,
    style: dict[str, Any],
) -> LabelFile:
    """Read a table of node, class and splits; an empty cell is an unknown class or no part of a split."""
    expected = (id_column, label_column, *(split_columns or ()))
    table = open_table(path, role="labels", expected=expected, **style)
    key = pick_column(table, id_column, "node ids", known=ID_NAMES, default=0)
    others = [column for column in range(len(table.names)) if column != key]
    if split_columns is None:
        splits = [column for column in others if table.names[column].lower().startswith(SPLIT_PREFIX)]
    else:
        splits = [pick_column(table, one, "split", default=0) for one in split_columns]
    label = pick_column(table, label_column, "labels", known=LABEL_NAMES, default=None)
    if label is None:
        label = next((column for column in others if column not in splits), None)
    if label is None and not splits:
        raise GraphError(f"{table.path} has no column of labels beside the node ids")
    block = table.read([key], words=[*splits, *(() if label is None else (label,))])
    classes, class_names = (None, ()) if label is None else as_classes(whole_beside_gaps(block.words[-1]))
    parts = [
        split_masks(words.tolist(), partial(table.place, column=column))
        for column, words in zip(splits, block.words, strict=False)
    ]
    masks = [np.stack(part, axis=1) for part in zip(*parts, strict=True)]
    return LabelFile(block.ids[0], classes, class_names, masks, table)


def labels_of_nodes(
    path: str | Path,
    node_ids: npt.NDArray[Any],
    known_by: Path,
    id_column: Column | None,
    label_column: Column | None,
    style: dict[str, Any],
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Read the classes of nodes that are known already, `[nodes]`, -1 where unknown, and their names."""
    read = read_labels(path, id_column, label_column, None, style)
    check_once(read.ids, read.table.place)
    rows = find_nodes(read.ids, NodeIndex(node_ids), known_by, read.table)
    found = read.for_nodes(rows, len(node_ids))
    if found["labels"] is None:
        raise GraphError(f"{read.table.path} has splits and no classes")
    return found["labels"], read.class_names


def _join(
    edges: EdgeTable,
    rows: TableBlock,
    features: FeatureFile | None,
    labels: LabelFile | None,
    *,
    undirected: bool,
) -> Graph:
    """Find every id among the nodes, and hand the parts to the checks."""
    ids = _ids_of_parts(edges.table, rows.ids, labels) if features is None else features.ids
    known_by = None if features is None else features.path
    nodes = NodeIndex(ids)
    edge_index = np.stack([find_nodes(end, nodes, known_by, edges.table) for end in rows.ids])
    weight = rows.numbers[:, 0] if edges.weight else None
    if undirected:
        between = edge_index[0] != edge_index[1]  # a self-loop is its own opposite
        edge_index = np.concatenate([edge_index, edge_index[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
    known: dict[str, Any] = {}
    if labels is not None:
        check_once(labels.ids, labels.table.place)
        known = labels.for_nodes(find_nodes(labels.ids, nodes, known_by, labels.table), ids.size)
    files = (edges.table.path, known_by, None if labels is None else labels.table.path)
    return build_graph(
        None if features is None else features.values,
        edge_index,
        nodes=ids.size,
        edge_weight=weight,
        node_ids=ids if features is None or features.named else None,
        source=", ".join(path.name for path in files if path is not None),
        notes=edges.notes,
        locate=_locator(edges.table, len(rows.numbers), features),
        **known,
    )


def _ids_of_parts(edges: Table, ends: list[npt.NDArray[Any]], labels: LabelFile | None) -> npt.NDArray[Any]:
    """Return all ids of edges and labels, sorted."""
    import pandas as pd

    everything = one_kind([*ends, *([] if labels is None else [labels.ids])])
    _check_not_a_header([end[0] for end in ends], everything, edges)
    if labels is not None:
        _check_not_a_header([labels.ids[0]], everything, labels.table)
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


def find_nodes(
    wanted: npt.NDArray[Any], nodes: NodeIndex, known_by: Path | None, table: Table, before: int = 0
) -> npt.NDArray[np.int64]:
    """Return the position of each id of some rows of a table; one that is unknown is named.

    Args:
        wanted: the ids.
        nodes: the nodes that there are.
        known_by: the file that names them, for the message.
        table: where the ids come from.
        before: how many of its rows stand before them.
    """
    found = nodes.find(wanted)
    strangers = np.flatnonzero(found < 0)
    if strangers.size:
        row = int(strangers[0])
        place, first = table.place(before + row), before + row == 0
        hint = "; if this row is a header, say so (--header)" if first and not table.header else ""
        raise GraphError(f"{place}: node {quoted(wanted[row])} is unknown; it is not in {known_by}{hint}")
    return found


def _locator(edges: Table, rows: int, features: FeatureFile | None) -> Callable[[str, int], str]:
    def locate(part: str, index: int) -> str:
        if part == "edges":
            return edges.place(index % rows)  # an added opposite stands in the row of its edge
        if part == "features" and features is not None:
            return features.place(index)
        return f"{part}, position {index}"

    return locate
