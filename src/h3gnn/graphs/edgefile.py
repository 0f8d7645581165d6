"""Edges in a table: one per row, with the ids of both ends and perhaps a weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.headers import SOURCE_NAMES, TARGET_NAMES, WEIGHT_NAMES, pick_column
from h3gnn.graphs.tables import Column, Table, open_table, read_ids


@dataclass(frozen=True)
class EdgeFile:
    """Edges as the file names them."""

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    weight: npt.NDArray[np.float64] | None
    table: Table
    notes: tuple[str, ...]


def read_edges(
    path: str | Path,
    source: Column | None,
    target: Column | None,
    weight: Column | None,
    style: dict[str, Any],
) -> EdgeFile:
    """Read a table of edges; columns that are not used are noted."""
    table = open_table(path, role="edges", expected=(source, target, weight), **style)
    file, names = table.path, table.names
    if len(names) < 2:
        raise GraphError(f"{file}: an edge needs two columns, but the file has one; is the delimiter right?")
    lowered = [name.lower() for name in names]
    usual = any(one in lowered for one in SOURCE_NAMES) and any(one in lowered for one in TARGET_NAMES)
    starts, ends = (SOURCE_NAMES, TARGET_NAMES) if usual else ((), ())
    start = pick_column(names, source, known=starts, default=0, path=file, what="source")
    end = pick_column(names, target, known=ends, default=1, path=file, what="target")
    heavy = pick_column(names, weight, known=WEIGHT_NAMES, default=None, path=file, what="weight")
    if start is None or end is None or len({start, end, heavy}) < 3:
        raise GraphError(f"{file}: source, target and weight must be different columns; name each of them")
    source_ids, target_ids = read_ids(table, (start, end))
    weights = None if heavy is None else table.numbers((heavy,))[:, 0]
    unused = [name for column, name in enumerate(names) if column not in (start, end, heavy)]
    notes = (f"{file.name}: not used: {', '.join(unused[:8])}",) if unused else ()
    return EdgeFile(source_ids, target_ids, weights, table, notes)
