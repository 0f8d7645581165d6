"""The user's own graph: a file of edges, and beside it perhaps features, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.convert import build_graph
from h3gnn.graphs.edgefile import EdgeFile, read_edges
from h3gnn.graphs.featurefile import FeatureFile, read_features
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_text, find_ids, quoted
from h3gnn.graphs.labelfile import LabelFile, read_labels
from h3gnn.graphs.tables import Column, Table, check_once


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
    edge_file = read_edges(edges, source_column, target_column, weight_column, style)
    feature_file = None if features is None else read_features(features, id_column, feature_columns, style)
    label_file = (
        None if labels is None else read_labels(labels, label_id_column, label_column, split_columns, style)
    )
    return _join(edge_file, feature_file, label_file, undirected=undirected)


def _join(
    edges: EdgeFile, features: FeatureFile | None, labels: LabelFile | None, *, undirected: bool
) -> Graph:
    """Find every id among the nodes, and hand the parts to the checks."""
    ids = _ids_of_parts(edges, labels) if features is None else features.ids
    known_by = None if features is None else features.path
    edge_index = np.stack(
        [_positions(end, ids, known_by, edges.table) for end in (edges.source, edges.target)]
    )
    weight = edges.weight
    if undirected:
        between = edge_index[0] != edge_index[1]  # a self-loop is its own opposite
        edge_index = np.concatenate([edge_index, edge_index[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
    known: dict[str, Any] = {}
    if labels is not None:
        check_once(labels.ids, labels.table)
        known = labels.for_nodes(_positions(labels.ids, ids, known_by, labels.table), ids.size)
    files = (edges.table.path, known_by, None if labels is None else labels.table.path)
    return build_graph(
        None if features is None else features.values,
        edge_index,
        nodes=ids.size,
        edge_weight=weight,
        node_ids=ids if features is None or features.named else None,
        source=", ".join(path.name for path in files if path is not None),
        notes=edges.notes,
        locate=_locator(edges, features),
        **known,
    )


def _ids_of_parts(edges: EdgeFile, labels: LabelFile | None) -> npt.NDArray[Any]:
    """Return all ids of edges and labels, sorted."""
    import pandas as pd

    parts = [edges.source, edges.target, *([] if labels is None else [labels.ids])]
    if len({part.dtype.kind for part in parts}) > 1:
        parts = [as_text(part) for part in parts]
    everything = np.concatenate(parts)
    _check_not_a_header([parts[0][0], parts[1][0]], everything, edges.table)
    if labels is not None:
        _check_not_a_header([parts[2][0]], everything, labels.table)
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


def _positions(
    wanted: npt.NDArray[Any], ids: npt.NDArray[Any], known_by: Path | None, table: Table
) -> npt.NDArray[np.int64]:
    found = find_ids(wanted, ids)
    strangers = np.flatnonzero(found < 0)
    if strangers.size:
        row = int(strangers[0])
        hint = "; if this row is a header, say so (--header)" if row == 0 and not table.header else ""
        raise GraphError(
            f"{table.place(row)}: node {quoted(wanted[row])} is unknown; it is not in {known_by}{hint}"
        )
    return found


def _locator(edges: EdgeFile, features: FeatureFile | None) -> Callable[[str, int], str]:
    def locate(part: str, index: int) -> str:
        if part == "edges":
            return edges.table.place(index % edges.source.size)
        if part == "features" and features is not None:
            return features.place(index)
        return f"{part}, position {index}"

    return locate
