"""From tables of any size to a graph in memory-mapped files, a block of rows at a time.

Memory holds one block, one bucket of edges, and the ids of all nodes (8 bytes each as whole numbers, their
length and about 60 bytes more as text).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.edgestream import edge_columns, write_edges
from h3gnn.graphs.featurestream import write_features
from h3gnn.graphs.mapped import DESCRIPTION, FORMAT, FORMAT_VERSION, MappedGraph, is_prepared, open_mapped
from h3gnn.graphs.streams import BLOCK_ROWS, Progress, open_stream
from h3gnn.graphs.tables import Column


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
    header: bool | None = None,
    delimiter: str | None = None,
    features_progress: Progress = lambda share: None,
    edges_progress: Progress = lambda share: None,
) -> MappedGraph:
    """Write a graph folder and open it; the folder appears when it is whole.

    Args:
        edges: CSV, TSV or Parquet: one edge per row.
        features: CSV, TSV or Parquet with an id column, or NPY, whose row numbers are the ids.
        out: the folder to write; it must not hold anything else.
        source_column, target_column, weight_column, node_column, feature_columns, header, delimiter: as in
            `read_graph`.
        features_progress, edges_progress: called with the share that has been read.

    Raises:
        GraphError: in one sentence with file and row.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not is_prepared(out))):
        raise GraphError(f"{out} exists and is no prepared graph; choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    style: dict[str, Any] = {"header": header, "delimiter": delimiter}
    with _whole_folder(out) as folder:
        ids, sums = write_features(
            folder, Path(features), node_column, feature_columns, style, features_progress
        )
        named = (source_column, target_column, weight_column)
        stream = open_stream(edges, role="edges", expected=named, **style)
        columns = edge_columns(stream, *named)
        count, notes = write_edges(folder, stream, columns, sums.rows, ids, Path(features), edges_progress)
        about = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "nodes": sums.rows,
            "edges": count,
            "features": len(sums.mean),
            "weighted": columns[2] is not None,
            "ids": _write_ids(folder, ids),
            "source": f"{Path(edges).name}, {Path(features).name}",
            "sha256": _hash(folder),
            "mended": notes,
            "moments": asdict(sums.moments()),
        }
        (folder / DESCRIPTION).write_text(json.dumps(about, indent=1))
    return open_mapped(out)


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """Yield a folder of another name that takes the place of `out` when the block has ended well."""
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield made
        if out.exists():
            shutil.rmtree(out)
        made.chmod(0o755)
        made.replace(out)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_ids(folder: Path, ids: npt.NDArray[Any] | None) -> str:
    if ids is None:
        return "position"
    import pyarrow as pa

    column = pa.table({"node": pa.array(ids if ids.dtype.kind == "i" else ids.tolist())})
    with pa.OSFile(str(folder / "ids.arrow"), "wb") as file, pa.ipc.new_file(file, column.schema) as writer:
        writer.write_table(column, max_chunksize=BLOCK_ROWS)
    return "named"


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in ("features.bin", "crow.bin", "cols.bin", "weight.bin"):
        path = folder / name
        if path.is_file():
            digest.update(name.encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
    return digest.hexdigest()
