"""Features that come a block of rows at a time, written as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import GraphError
from h3gnn.graphs.headers import ID_NAMES, pick_column
from h3gnn.graphs.ids import as_text, quoted
from h3gnn.graphs.moments import MomentSums
from h3gnn.graphs.opening import check_file, reading
from h3gnn.graphs.streams import BLOCK_ROWS, Progress, id_column, open_stream
from h3gnn.graphs.tables import Column


def write_features(
    folder: Path,
    path: Path,
    key: Column | None,
    columns: Sequence[Column] | None,
    style: dict[str, Any],
    progress: Progress,
) -> tuple[npt.NDArray[Any] | None, MomentSums]:
    """Write the rows as they come and return their ids (None: their position) and moments."""
    sums: MomentSums | None = None
    ids: list[npt.NDArray[Any]] = []
    blocks = (
        _array_blocks(path, progress)
        if path.suffix.lower() == ".npy"
        else _table_blocks(path, key, columns, style, progress)
    )
    with (folder / "features.bin").open("wb") as file:
        for names, values, place in blocks:
            with np.errstate(over="ignore"):
                block = np.array(values, dtype=np.float32, order="C")  # a copy: files are read-only
            bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
            if bad.size:
                raise GraphError(
                    f"{place(int(bad[0]))}: a feature is missing, NaN, infinite or beyond float32"
                )
            sums = MomentSums(block.shape[1]) if sums is None else sums
            sums.add(torch.from_numpy(block))
            file.write(block.tobytes())
            if names is not None:
                ids.append(names)
    if sums is None or not sums.rows:
        raise GraphError(f"{path} has no row")
    return (_one_kind(ids, path) if ids else None), sums


def _table_blocks(
    path: Path,
    key: Column | None,
    columns: Sequence[Column] | None,
    style: dict[str, Any],
    progress: Progress,
) -> Iterator[tuple[Any, Any, Any]]:
    stream = open_stream(path, role="features", expected=(key, *(columns or ())), **style)
    names = stream.names
    at = pick_column(names, key, known=ID_NAMES, default=0, path=stream.path, what="node ids") or 0
    if columns is None:
        chosen = [column for column in range(len(names)) if column != at]
    else:
        picked = [
            pick_column(names, one, known=(), default=0, path=stream.path, what="features") for one in columns
        ]
        chosen = [one for one in picked if one is not None]
    if not chosen:
        raise GraphError(f"{stream.path} has no column of features beside the node ids")
    done = 0
    for batch in stream.blocks([at], chosen, progress):
        values = np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns[1:]], axis=1)
        yield id_column(batch.column(0)), values, lambda row, done=done: stream.place(done + row)
        done += batch.num_rows


def _array_blocks(path: Path, progress: Progress) -> Iterator[tuple[None, Any, Any]]:
    with reading(check_file(path, (".npy",), role="array of features"), "an array"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.dtype.kind not in "biuf" or 0 in array.shape:
        raise GraphError(f"{path}: features need the shape [nodes, features] and numbers")
    for start in range(0, len(array), BLOCK_ROWS):
        block = array[start : start + BLOCK_ROWS]
        yield None, block, lambda row, start=start: f"{path}, row {start + row} (counted from 0)"
        progress(min(1.0, (start + BLOCK_ROWS) / len(array)))


def _one_kind(blocks: list[npt.NDArray[Any]], path: Path) -> npt.NDArray[Any]:
    """Join the ids of all blocks: whole numbers if all are, else text; each must stand once."""
    import pandas as pd

    whole = all(block.dtype.kind == "i" for block in blocks)
    ids = np.concatenate(blocks if whole else [as_text(block) for block in blocks])
    if not whole and (gaps := np.flatnonzero(ids == "")).size:
        raise GraphError(f"{path}, row {int(gaps[0]) + 1}: the node id is missing")
    again = np.flatnonzero(pd.Index(ids).duplicated())
    if again.size:
        raise GraphError(
            f"{path}, row {int(again[0]) + 1}: node {quoted(ids[again[0]])} stands there already"
        )
    return ids
