"""From tables of any size to a graph in memory-mapped files, a block of rows at a time.

Memory holds one block, one bucket of edges, and the ids of all nodes (8 bytes each as whole numbers, their
length and about 60 bytes more as text).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs import tables
from h3gnn.graphs.arrays import array_place, read_array
from h3gnn.graphs.buckets import EdgeBuckets, index_type, whole_folder
from h3gnn.graphs.checks import check_features
from h3gnn.graphs.columns import Column
from h3gnn.graphs.edgefile import EdgeTable, find_nodes, open_edges
from h3gnn.graphs.featurefile import means_something_else
from h3gnn.graphs.featuretable import FeatureTable, open_features
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
from h3gnn.graphs.names import NodeIndex, one_kind
from h3gnn.graphs.plan import plain_plan
from h3gnn.graphs.scaling import MomentSums
from h3gnn.graphs.storedlabels import LABELS, SPLITS, write_labels
from h3gnn.graphs.tables import Progress, TableBlock, check_once
from h3gnn.schema import check_values


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
) -> MappedGraph:
    """Write a graph folder and open it; the folder appears when it is whole.

    Args:
        edges: CSV, TSV or Parquet: one edge per row.
        features: CSV, TSV or Parquet with an id column; or NPY, NPZ, whose row numbers are the ids. A sparse
            matrix of scipy's (NPZ) is read as a whole and stays sparse.
        out: the folder to write; it must not hold anything else.
        labels: CSV, TSV or Parquet: one node per row, with its class and perhaps its splits; read as a whole.
            Where there are no splits, ten are drawn, as the commands do for a graph in memory.
        source_column, target_column, weight_column, node_column, feature_columns, label_id_column,
            label_column, split_columns, header, delimiter: as in `read_graph`.
        features_progress, edges_progress: called with the share that has been read.

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
    rows = _open_rows(Path(features), node_column, feature_columns, hidden, style, features_progress)
    with whole_folder(out) as folder:
        ids, sums, stored = _write_features(folder, rows)
        nodes = NodeIndex(sums.rows if ids is None else ids)
        count, notes = _write_edges(folder, table, nodes, sums.rows, Path(features), edges_progress)
        known: dict[str, Any] = {}
        if told is not None:
            known, drawn = write_labels(folder, told.read(), nodes, ids, sums.rows, Path(features))
            notes += drawn
        files = [Path(edges), Path(features), *([] if labels is None else [Path(labels)])]
        about = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "nodes": sums.rows,
            "edges": count,
            "features": len(sums.mean),
            "weighted": bool(table.weight),
            "ids": _write_ids(folder, ids),
            "source": ", ".join(file.name for file in files),
            "sha256": _hash(folder),
            "mended": [*rows.notes, *table.notes, *notes],
            "moments": asdict(sums.moments()),
            "feature_names": rows.names(len(sums.mean)),
            **({} if stored is None else {"stored": stored}),
            **known,
        }
        check_values(PREPARED, about, out / DESCRIPTION, GraphError, "cannot be written")
        (folder / DESCRIPTION).write_text(json.dumps(about, indent=1))
        if out.exists():
            shutil.rmtree(out)
    return open_mapped(out)


@dataclass(frozen=True)
class _Rows:
    """Where features come from: blocks of rows or a sparse matrix, words for a row, the table, and notes."""

    blocks: Iterator[TableBlock] | Tensor
    place: Callable[[int], str]
    table: FeatureTable | None = None
    notes: tuple[str, ...] = ()

    def names(self, width: int) -> list[str]:
        """Return one name per feature, or none where the file does not give them."""
        if self.table is None or not self.table.table.header:
            return []
        names = self.table.table.unique_names(self.table.chosen)
        told = plain_plan(names, [width] if len(names) == 1 else [1] * len(names)).names
        return list(told) if len({*told}) == width else []


def _open_rows(
    path: Path,
    node_column: Column | None,
    columns: Sequence[Column] | None,
    hidden: str | None,
    style: dict[str, Any],
    progress: Progress,
) -> _Rows:
    """Open the features, without the column that the labels are."""
    place = array_place(path)
    if path.suffix.lower() == ".npy":
        return _Rows(_array_blocks(read_array(path, mapped=True), progress), place)
    if path.suffix.lower() == ".npz":
        matrix = check_features(read_array(path), lambda _, row: place(row))
        sparse = matrix.layout == torch.sparse_csr
        return _Rows(matrix if sparse else _array_blocks(matrix.numpy(), progress), place)
    table, notes = open_features(path, node_column, columns, style), list[str]()
    kept = [column for column in table.chosen if table.table.names[column] != hidden]
    if len(kept) < len(table.chosen):
        notes.append(f"{path.name}: {hidden} is no feature, since the labels are it")
    odd = [name for name in table.table.unique_names(kept) if means_something_else(name)]
    if odd and not table.named:
        raise GraphError(
            f"{path}: the column {odd[0]} seems to hold ids or classes, which are no features; name those "
            "that are (--feature-columns)"
        )
    table = replace(table, chosen=kept)
    return _Rows(table.blocks(progress), table.table.place, table, tuple(notes))


def _array_blocks(array: npt.NDArray[Any], progress: Progress) -> Iterator[TableBlock]:
    for start in range(0, len(array), tables.BLOCK_ROWS):
        yield TableBlock(start, [], array[start : start + tables.BLOCK_ROWS], [])
        progress(min(1.0, (start + tables.BLOCK_ROWS) / len(array)))


def _write_sparse(folder: Path, matrix: Tensor) -> tuple[MomentSums, int]:
    """Write a sparse matrix and return its moments and how many values are stored."""
    sums = MomentSums(matrix.shape[1])
    sums.add(matrix)
    matrix.crow_indices().numpy().tofile(folder / FEATURE_CROW)
    matrix.col_indices().numpy().astype(index_type(matrix.shape[1])).tofile(folder / FEATURE_COLS)
    matrix.values().numpy().tofile(folder / FEATURE_VALUES)
    return sums, len(matrix.values())


def _write_features(folder: Path, rows: _Rows) -> tuple[npt.NDArray[Any] | None, MomentSums, int | None]:
    """Write the rows as they come; return their ids (None: their position), moments, and what is stored."""
    if isinstance(rows.blocks, Tensor):
        return None, *_write_sparse(folder, rows.blocks)
    sums: MomentSums | None = None
    ids: list[npt.NDArray[Any]] = []
    with (folder / "features.bin").open("wb") as file:
        for block in rows.blocks:
            with np.errstate(over="ignore"):
                values = np.array(block.numbers, dtype=np.float32, order="C")  # a copy: files are read-only
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
            if bad.size:
                where = rows.place(block.first + int(bad[0]))
                raise GraphError(f"{where}: a feature is NaN, infinite or beyond float32")
            sums = MomentSums(values.shape[1]) if sums is None else sums
            sums.add(torch.from_numpy(values))
            file.write(values.tobytes())
            ids += block.ids
    assert sums is not None  # a file without rows was refused
    if not ids:
        return None, sums, None
    check_once(one_kind(ids), rows.place)
    return one_kind(ids), sums, None


def _write_edges(
    folder: Path, edges: EdgeTable, nodes: NodeIndex, count: int, known_by: Path, progress: Progress
) -> tuple[int, list[str]]:
    """Write the edges as compressed sparse rows; return how many there are, and what was mended."""
    table = edges.table
    with EdgeBuckets(folder, count, weighted=bool(edges.weight)) as buckets:
        for block in table.blocks(edges.ends, edges.weight, progress=progress):
            source, target = (find_nodes(end, nodes, known_by, table, block.first) for end in block.ids)
            weight = block.numbers[:, 0] if edges.weight else None
            if weight is not None and (bad := np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))).size:
                place = table.place(block.first + int(bad[0]))
                raise GraphError(f"{place}: the edge weight {weight[bad[0]]:g} is not a positive number")
            buckets.add(source, target, weight)
        written = buckets.write_rows()
    return written, [f"{buckets.merged:,} duplicate edge(s) merged"] if buckets.merged else []


def _write_ids(folder: Path, ids: npt.NDArray[Any] | None) -> str:
    if ids is None:
        return "position"
    import pyarrow as pa

    column = pa.table({"node": pa.array(ids if ids.dtype.kind == "i" else ids.tolist())})
    with pa.OSFile(str(folder / "ids.arrow"), "wb") as file, pa.ipc.new_file(file, column.schema) as writer:
        writer.write_table(column, max_chunksize=tables.BLOCK_ROWS)
    return "named"


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    features = ("features.bin", FEATURE_CROW, FEATURE_COLS, FEATURE_VALUES)
    for name in (*features, "crow.bin", "cols.bin", "weight.bin", LABELS, SPLITS):
        path = folder / name
        if path.is_file():
            digest.update(name.encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
    return digest.hexdigest()
