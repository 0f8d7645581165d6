"""From tables of any size to a graph in memory-mapped files, a block of rows at a time.

Memory holds one block, one bucket of edges, and the ids of all nodes (8 bytes each as whole numbers, their
length and about 60 bytes more as text). What is interrupted goes on: see `graphs.unfinished`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.errors import GraphError
from h3gnn.graphs.buckets import EdgeBuckets
from h3gnn.graphs.columns import Column
from h3gnn.graphs.edgefile import EdgeTable, find_nodes, open_edges
from h3gnn.graphs.labelfile import open_labels
from h3gnn.graphs.mapped import (
    DESCRIPTION,
    FEATURE_COLS,
    FEATURE_CROW,
    FEATURE_VALUES,
    FORMAT,
    FORMAT_VERSION,
    PREPARED,
    MappedGraph,
    is_prepared,
    open_mapped,
)
from h3gnn.graphs.names import NodeIndex
from h3gnn.graphs.preparedfeatures import FeatureSource, open_source, write_features, write_ids
from h3gnn.graphs.storedlabels import LABELS, SPLITS, write_labels
from h3gnn.graphs.tables import Progress, Reached
from h3gnn.graphs.unfinished import Unfinished, told_apart, unfinished_folder
from h3gnn.schema import check_values

MADE_BY = 1
"""Counts the ways in which folders were begun: what another way left is begun again."""


def prepare_graph(
    edges: str | Path,
    features: str | Path,
    out: str | Path,
    *,
    source_column: Column | None = None,
    target_column: Column | None = None,
    weight_column: Column | None = None,
    node_column: Column | None = None,
    feature_columns: Sequence[Column] | None = None,
    labels: str | Path | None = None,
    label_id_column: Column | None = None,
    label_column: Column | None = None,
    split_columns: Sequence[Column] | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    features_progress: Progress = lambda share: None,
    edges_progress: Progress = lambda share: None,
    going_on: Callable[[str], None] = lambda words: None,
) -> MappedGraph:
    """Write a graph folder and open it; the folder appears when it is whole.

    What is interrupted, by a signal or a full disk, is kept in a hidden folder beside it, and the same call
    goes on there; other files or columns begin again.

    Args:
        edges: CSV, TSV or Parquet: one edge per row.
        features: CSV, TSV or Parquet with an id column; or NPY, NPZ, whose row numbers are the ids. A sparse
            matrix of scipy's (NPZ) is read as a whole and stays sparse.
        out: the folder to write; it must not hold anything else.
        labels: CSV, TSV or Parquet: one node per row, with its class and perhaps its splits; read as a whole.
            Where there are no splits, ten are drawn, as the commands do for a graph in memory.
        source_column, target_column, weight_column, node_column, feature_columns: as in `read_graph`.
        label_id_column, label_column, split_columns, header, delimiter: as in `read_graph`.
        features_progress, edges_progress: called with the share that has been read.
        going_on: told what an interrupted call has done already.

    Raises:
        GraphError: in one sentence with file and row.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not is_prepared(out))):
        raise GraphError(f"{out} exists and is no prepared graph; choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    style: dict[str, Any] = {"header": header, "delimiter": delimiter}
    table = open_edges(edges, source_column, target_column, weight_column, style)
    told = None
    if labels is not None:
        told = open_labels(labels, label_id_column, label_column, split_columns, style)
    hidden = None if told is None or told.label is None else told.table.names[told.label]
    source = open_source(Path(features), node_column, feature_columns, hidden, style, features_progress)
    with unfinished_folder(out, _made_of(table, source, Path(features), style)) as work:
        if work.done:
            going_on(_how_far(work))
        ids, sums, stored = write_features(work, source)
        nodes = NodeIndex(sums.rows if ids is None else ids)
        count, notes = _write_edges(work, table, nodes, sums.rows, Path(features), edges_progress)
        about: dict[str, Any] = {} if stored is None else {"stored": stored}
        if told is not None:
            known, drawn = write_labels(work.folder, told.read(), nodes, ids, sums.rows, Path(features))
            about, notes = {**about, **known}, notes + drawn
        if ids is not None:
            write_ids(work.folder / "ids.arrow", ids)
        files = [Path(edges), Path(features), *([] if labels is None else [Path(labels)])]
        about |= {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "nodes": sums.rows,
            "edges": count,
            "features": len(sums.mean),
            "weighted": bool(table.weight),
            "ids": "position" if ids is None else "named",
            "source": ", ".join(file.name for file in files),
            **_hashes(work.folder),
            "mended": [*source.notes, *table.notes, *notes],
            "moments": asdict(sums.moments()),
            "feature_names": source.names(len(sums.mean)),
        }
        _finish(work.folder, about, out)
    return open_mapped(out)


def _finish(folder: Path, about: dict[str, Any], out: Path) -> None:
    """Write what the graph is, and remove what only its making needed."""
    check_values(PREPARED, about, out / DESCRIPTION, GraphError, "cannot be written")
    (folder / DESCRIPTION).write_text(json.dumps(about, indent=1))
    for piece in folder.glob("ids-*.arrow"):
        piece.unlink()


def _made_of(
    edges: EdgeTable, source: FeatureSource, features: Path, style: dict[str, Any]
) -> dict[str, Any]:
    """Return what the features and edges of a folder depend on."""
    return {
        "made_by": MADE_BY,
        "files": [told_apart(edges.table.path), told_apart(features)],
        "style": style,
        "edges": [edges.ends, edges.weight],
        "features": None if source.table is None else [source.table.key, source.table.chosen],
    }


def _how_far(work: Unfinished) -> str:
    """Say what an earlier command has done already."""
    rows = work.done.get("features", {"reached": {"rows": 0}})["reached"]["rows"]
    if "sorted" in work.done:
        buckets = work.done["sorted"]["buckets"]
        return f"{rows:,} rows of features and all edges, {buckets:,} buckets of them sorted,"
    edges = work.done.get("edges", {"rows": 0})["rows"]
    return f"{rows:,} rows of features and {edges:,} of edges"


def _write_edges(
    work: Unfinished, edges: EdgeTable, nodes: NodeIndex, count: int, known_by: Path, progress: Progress
) -> tuple[int, list[str]]:
    """Write the edges as compressed sparse rows; return how many there are, and what was mended."""
    table, before = edges.table, work.done.get("edges")
    begin = None if before is None else Reached(**before)
    with EdgeBuckets(work.folder, count, weighted=bool(edges.weight), work=work) as buckets:
        if "sorted" not in work.done:
            for block in table.blocks(edges.ends, edges.weight, progress=progress, begin=begin):
                source, target = (find_nodes(end, nodes, known_by, table, block.first) for end in block.ids)
                weight = block.numbers[:, 0] if edges.weight else None
                if weight is not None and (bad := np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))).size:
                    place = table.place(block.first + int(bad[0]))
                    raise GraphError(f"{place}: the edge weight {weight[bad[0]]:g} is not a positive number")
                buckets.add(source, target, weight)
                if work.is_due:
                    work.keep("edges", asdict(block.reached), buckets.files)
            work.keep("sorted", {"buckets": 0, "edges": 0, "merged": 0}, buckets.files)
        written = buckets.write_rows()
    return written, [f"{buckets.merged:,} duplicate edge(s) merged"] if buckets.merged else []


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of all content, and of what a model is trained on: all but labels and splits."""
    digest = hashlib.sha256()
    features = ("features.bin", FEATURE_CROW, FEATURE_COLS, FEATURE_VALUES)
    unlabelled = ""
    for name in (*features, "crow.bin", "cols.bin", "weight.bin", LABELS, SPLITS):
        if name == LABELS:
            unlabelled = digest.hexdigest()
        path = folder / name
        if path.is_file():
            digest.update(name.encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
    return {"sha256": digest.hexdigest(), "unlabelled": unlabelled}
