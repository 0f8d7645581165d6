"""Edges that come a block at a time, written as compressed sparse rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.buckets import EdgeBuckets
from h3gnn.graphs.headers import SOURCE_NAMES, TARGET_NAMES, WEIGHT_NAMES, pick_column
from h3gnn.graphs.ids import as_text, quoted
from h3gnn.graphs.streams import Progress, Stream, id_column
from h3gnn.graphs.tables import Column


def edge_columns(
    stream: Stream, source: Column | None, target: Column | None, weight: Column | None
) -> tuple[int, int, int | None]:
    """Return the columns of source, target and weight, chosen as for tables in memory."""
    lowered = [name.lower() for name in stream.names]
    usual = any(one in lowered for one in SOURCE_NAMES) and any(one in lowered for one in TARGET_NAMES)
    starts, ends = (SOURCE_NAMES, TARGET_NAMES) if usual else ((), ())
    path, names = stream.path, stream.names
    start = pick_column(names, source, known=starts, default=0, path=path, what="source")
    end = pick_column(names, target, known=ends, default=1, path=path, what="target")
    heavy = pick_column(names, weight, known=WEIGHT_NAMES, default=None, path=path, what="weight")
    if start is None or end is None or len(names) < 2 or len({start, end, heavy}) < 3:
        raise GraphError(f"{path}: source, target and weight must be different columns; name each of them")
    return start, end, heavy


def write_edges(
    folder: Path,
    stream: Stream,
    columns: tuple[int, int, int | None],
    nodes: int,
    ids: npt.NDArray[Any] | None,
    known_by: Path,
    progress: Progress,
) -> tuple[int, list[str]]:
    """Write the edges as compressed sparse rows; return how many there are, and what was mended.

    Args:
        folder: where to.
        stream: the table.
        columns: source, target and perhaps weight.
        nodes: how many there are.
        ids: their names; None where they are called by position.
        known_by: the file that names them, for the message.
        progress: called with the share that has been read.
    """
    import pandas as pd

    start, end, heavy = columns
    index = None if ids is None else pd.Index(ids)
    done = 0
    with EdgeBuckets(folder, nodes, weighted=heavy is not None) as buckets:
        for batch in stream.blocks([start, end], [] if heavy is None else [heavy], progress):
            ends = []
            for side in (0, 1):
                named = id_column(batch.column(side))
                ends.append(_find(named, index, nodes))
                _check_known(ends[side], named, stream, done, known_by)
            weight = None if heavy is None else batch.column(2).to_numpy(zero_copy_only=False)
            if weight is not None and (bad := np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))).size:
                place = stream.place(done + int(bad[0]))
                raise GraphError(f"{place}: the edge weight is not a positive number")
            buckets.add(ends[0], ends[1], weight)
            done += batch.num_rows
        count = buckets.write_rows()
    return count, [f"{buckets.merged:,} duplicate edge(s) merged"] if buckets.merged else []


def _check_known(
    at: npt.NDArray[np.int64], named: npt.NDArray[Any], stream: Stream, done: int, known_by: Path
) -> None:
    strangers = np.flatnonzero(at < 0)
    if strangers.size:
        row = int(strangers[0])
        raise GraphError(
            f"{stream.place(done + row)}: node {quoted(named[row])} is unknown; it is not in {known_by}"
        )


def _find(named: npt.NDArray[Any], index: Any, nodes: int) -> npt.NDArray[np.int64]:
    if index is None:
        if named.dtype.kind != "i":
            return np.full(len(named), -1)
        return np.where((named >= 0) & (named < nodes), named, -1)
    known_text = index.dtype.kind != "i"
    wanted = as_text(named) if known_text else named
    if not known_text and wanted.dtype.kind != "i":
        return np.full(len(named), -1)
    return np.asarray(index.get_indexer(wanted), dtype=np.int64)
