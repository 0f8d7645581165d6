"""The user's own graph: a file of edges, and beside it perhaps features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.arrayfiles import ARRAY_SUFFIXES, read_array_features
from h3gnn.graphs.convert import build_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.headers import ID_NAMES, SOURCE_NAMES, TARGET_NAMES, WEIGHT_NAMES, pick_column
from h3gnn.graphs.ids import as_text, find_ids
from h3gnn.graphs.labelfile import LabelFile, read_labels
from h3gnn.graphs.tables import Table, open_table, read_ids

Column = str | int
Place = Callable[[int], str]


@dataclass(frozen=True)
class EdgeFile:
    """Edges as the file names them."""

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    weight: npt.NDArray[np.float64] | None
    table: Table
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureFile:
    """Features, and the ids of their rows; `named` tells whether the file gives them."""

    values: Any
    ids: npt.NDArray[Any]
    named: bool
    place: Place
    path: Path
    columns: tuple[int, ...] = field(default=())


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
    edge_file = _read_edges(edges, source_column, target_column, weight_column, style)
    feature_file = None if features is None else read_features(features, id_column, feature_columns, style)
    label_file = (
        None if labels is None else read_labels(labels, label_id_column, label_column, split_columns, style)
    )
    ids = _all_ids(edge_file, feature_file, label_file)
    known_by = None if feature_file is None else feature_file.path
    ends = [
        _positions(end, ids, known_by, edge_file.table.place, edge_file.table)
        for end in (edge_file.source, edge_file.target)
    ]
    edge_index, weight = np.stack(ends), edge_file.weight
    if undirected:
        between = edge_index[0] != edge_index[1]
        edge_index = np.concatenate([edge_index, edge_index[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
    rows = None
    if label_file is not None:
        rows = _positions(label_file.ids, ids, known_by, label_file.table.place, label_file.table)
        _check_once(label_file.ids, label_file.table)
    return build_graph(
        None if feature_file is None else feature_file.values,
        edge_index,
        nodes=ids.size,
        edge_weight=weight,
        node_ids=None if feature_file is not None and not feature_file.named else ids,
        source=", ".join(Path(path).name for path in (edges, features, labels) if path is not None),
        notes=edge_file.notes,
        locate=_locator(edge_file, feature_file),
        **({} if label_file is None or rows is None else label_file.for_nodes(rows, ids.size)),
    )


def _read_edges(
    path: str | Path,
    source: Column | None,
    target: Column | None,
    weight: Column | None,
    style: dict[str, Any],
) -> EdgeFile:
    table = open_table(path, role="edges", expected=(source, target, weight), **style)
    if len(table.names) < 2:
        raise GraphError(
            f"{table.path}: an edge needs two columns, but the file has one; is the delimiter right?"
        )
    lowered = [name.lower() for name in table.names]
    usual = any(n in lowered for n in SOURCE_NAMES) and any(n in lowered for n in TARGET_NAMES)
    start = pick_column(
        table.names, source, known=SOURCE_NAMES if usual else (), default=0, path=table.path, what="source"
    )
    end = pick_column(
        table.names, target, known=TARGET_NAMES if usual else (), default=1, path=table.path, what="target"
    )
    if start is None or end is None or start == end:
        raise GraphError(f"{table.path}: source and target are the same column; name both columns")
    heavy = pick_column(table.names, weight, known=WEIGHT_NAMES, default=None, path=table.path, what="weight")
    ids = read_ids(table, (start, end))
    weights = None if heavy is None else table.numbers((heavy,))[:, 0]
    unused = [name for column, name in enumerate(table.names) if column not in (start, end, heavy)]
    notes = (f"{table.path.name}: not used: {', '.join(unused[:8])}",) if unused else ()
    return EdgeFile(ids[0], ids[1], weights, table, notes)


def read_features(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureFile:
    """Read the features and the ids of their rows."""
    if Path(path).suffix.lower() in ARRAY_SUFFIXES:
        values = read_array_features(path)
        if len(values.shape) != 2:
            raise GraphError(f"{path}: features need the shape [nodes, features], not {list(values.shape)}")
        ids = np.arange(values.shape[0], dtype=np.int64)
        return FeatureFile(values, ids, False, lambda row: f"{path}, row {row} (counted from 0)", Path(path))
    table = open_table(path, role="features", expected=(id_column, *(columns or ())), **style)
    key = pick_column(table.names, id_column, known=ID_NAMES, default=0, path=table.path, what="node ids")
    if columns is None:
        chosen = [column for column in range(len(table.names)) if column != key]
    else:
        picked = [
            pick_column(table.names, one, known=(), default=None, path=table.path, what="features")
            for one in columns
        ]
        chosen = [column for column in picked if column is not None]
    if not chosen:
        raise GraphError(f"{table.path} has no column of features beside the node ids")
    ids = read_ids(table, (key or 0,))[0]
    _check_once(ids, table)
    values = table.numbers(chosen)
    _check_cells(values, table, chosen)
    return FeatureFile(values, ids, True, table.place, table.path, tuple(chosen))


def _check_cells(values: npt.NDArray[np.float64], table: Table, columns: Sequence[int]) -> None:
    """Name the cell of a gap here, where its column is still known."""
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        row, position = (int(one) for one in bad[0])
        column = columns[position] if values.shape[1] == len(columns) else None
        word = "empty or NaN" if np.isnan(values[row, position]) else "infinite"
        raise GraphError(
            f"{table.place(row, column)}: the value is {word}; fill the gap or leave the column out"
        )


def _check_once(ids: npt.NDArray[Any], table: Table) -> None:
    import pandas as pd

    again = np.flatnonzero(pd.Index(ids).duplicated())
    if again.size:
        row = int(again[0])
        first = int(np.flatnonzero(ids == ids[row])[0])
        raise GraphError(f"{table.place(row)}: node {_word(ids[row])} stands already in {table.place(first)}")


def _all_ids(edges: EdgeFile, features: FeatureFile | None, labels: LabelFile | None) -> npt.NDArray[Any]:
    if features is not None:
        return features.ids
    import pandas as pd

    parts = [edges.source, edges.target, *([] if labels is None else [labels.ids])]
    if len({part.dtype.kind for part in parts}) > 1:
        parts = [as_text(part) for part in parts]
    if edges.table.guessed and not edges.table.header:
        _check_not_a_header(parts, edges.table)
    return np.sort(np.asarray(pd.unique(np.concatenate(parts))))


def _check_not_a_header(parts: list[npt.NDArray[Any]], table: Table) -> None:
    """Ask where names might have been taken for nodes: text, and met nowhere but in the first row."""
    first = [parts[0][0], parts[1][0]]
    everything = np.concatenate(parts)
    if everything.dtype.kind == "O" and all(int((everything == one).sum()) == 1 for one in first):
        raise GraphError(
            f"{table.place(0)}: {_word(first[0])} and {_word(first[1])} may be names of columns or nodes, "
            "for they stand nowhere else; say which with header"
        )


def _positions(
    wanted: npt.NDArray[Any], ids: npt.NDArray[Any], known_by: Path | None, place: Place, table: Table
) -> npt.NDArray[np.int64]:
    found = find_ids(wanted, ids)
    strangers = np.flatnonzero(found < 0)
    if strangers.size:
        row = int(strangers[0])
        hint = "; if this line is a header, say so" if row == 0 and table.guessed and not table.header else ""
        raise GraphError(f"{place(row)}: node {_word(wanted[row])} is unknown; it is not in {known_by}{hint}")
    return found


def _locator(edges: EdgeFile, features: FeatureFile | None) -> Callable[[str, int], str]:
    def locate(part: str, index: int) -> str:
        if part == "edges":
            return edges.table.place(index % edges.source.size)
        if part == "features" and features is not None:
            return features.place(index)
        return f"{part}, position {index}"

    return locate


def _word(one: Any) -> str:
    return repr(one) if isinstance(one, str) else str(one)
