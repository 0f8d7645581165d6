"""Features of a graph that is prepared: where they come from, and how they are written, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs import tables
from h3gnn.graphs.arrays import array_place, read_array
from h3gnn.graphs.buckets import index_type
from h3gnn.graphs.checks import check_features
from h3gnn.graphs.columns import Column
from h3gnn.graphs.featuretable import FeatureTable, open_features
from h3gnn.graphs.kinds import LABEL_WORDS
from h3gnn.graphs.mapped import FEATURE_COLS, FEATURE_CROW, FEATURE_VALUES, read_ids
from h3gnn.graphs.names import INDEX_NAMES, is_id_name, one_kind
from h3gnn.graphs.plan import plain_plan
from h3gnn.graphs.scaling import MomentSums
from h3gnn.graphs.tables import Progress, Reached, TableBlock, check_once
from h3gnn.graphs.unfinished import Unfinished

Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class FeatureSource:
    """Where features come from.

    Attributes:
        blocks: gives blocks of rows from a place on; or a sparse matrix.
        place: words for a row.
        table: the columns that are meant, if it is a table.
        notes: what there is to say about them.
    """

    blocks: Callable[[Reached | None], Iterator[TableBlock]] | Tensor
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


def open_source(
    path: Path,
    node_column: Column | None,
    columns: Sequence[Column] | None,
    hidden: str | None,
    style: dict[str, Any],
    progress: Progress,
) -> FeatureSource:
    """Open the features, without the column that the labels are."""
    place = array_place(path)
    if path.suffix.lower() == ".npy":
        return FeatureSource(partial(_array_blocks, read_array(path, mapped=True), progress), place)
    if path.suffix.lower() == ".npz":
        matrix = check_features(read_array(path), lambda _, row: place(row))
        sparse = matrix.layout == torch.sparse_csr
        return FeatureSource(matrix if sparse else partial(_array_blocks, matrix.numpy(), progress), place)
    table, notes = open_features(path, node_column, columns, style), list[str]()
    kept = [column for column in table.chosen if table.table.names[column] != hidden]
    if len(kept) < len(table.chosen):
        notes.append(f"{path.name}: {hidden} is no feature, since the labels are it")
    odd = _doubtful([table.table.names[column] for column in kept])
    if odd and not table.named:
        raise GraphError(
            f"{path}: the column {odd[0]} seems to hold ids or classes, which are no features; name those "
            "that are (--feature-columns)"
        )
    table = replace(table, chosen=kept)
    return FeatureSource(partial(table.blocks, progress), table.table.place, table, tuple(notes))


def _doubtful(names: Sequence[str]) -> list[str]:
    """Return names of ids and classes, which no feature should have; y beside x is a coordinate."""
    lowered = [name.lower() for name in names]
    classes = LABEL_WORDS - ({"y"} if "x" in lowered else set())
    return [
        name
        for name, low in zip(names, lowered, strict=True)
        if low in INDEX_NAMES or low in classes or is_id_name(name)
    ]


def _array_blocks(array: npt.NDArray[Any], progress: Progress, begin: Reached | None) -> Iterator[TableBlock]:
    for start in range(0 if begin is None else begin.rows, len(array), tables.BLOCK_ROWS):
        end = min(start + tables.BLOCK_ROWS, len(array))
        yield TableBlock(start, [], array[start:end], [], Reached(end))
        progress(end / len(array))


def write_features(work: Unfinished, source: FeatureSource) -> tuple[Ids | None, MomentSums, int | None]:
    """Write the features, or go on writing them.

    Returns:
        The ids of the rows (None: their position), the moments, and how many values a sparse matrix has.
    """
    if isinstance(source.blocks, Tensor):
        return None, *_write_sparse(work.folder, source.blocks)
    rows = _Rows(work)
    if not rows.finished:
        with work.open("features.bin") as file:
            for block in source.blocks(rows.reached):
                rows.add(block, source.place, file)
                if work.is_due:
                    rows.keep(file)
            rows.keep(file, finished=True)
    assert rows.sums is not None  # a file without rows was refused
    if not rows.ids:
        return None, rows.sums, None
    ids = one_kind(rows.ids)
    check_once(ids, source.place)
    return ids, rows.sums, None


def _write_sparse(folder: Path, matrix: Tensor) -> tuple[MomentSums, int]:
    """Write a sparse matrix and return its moments and how many values are stored."""
    sums = MomentSums(matrix.shape[1])
    sums.add(matrix)
    matrix.crow_indices().numpy().tofile(folder / FEATURE_CROW)
    matrix.col_indices().numpy().astype(index_type(matrix.shape[1])).tofile(folder / FEATURE_COLS)
    matrix.values().numpy().tofile(folder / FEATURE_VALUES)
    return sums, len(matrix.values())


class _Rows:
    """Rows that were written: their ids, their moments, and how far the table was read.

    Args:
        work: which may hold some already.
    """

    def __init__(self, work: Unfinished) -> None:
        before = work.done.get("features", {"pieces": 0, "finished": False})
        self.work, self.pieces, self.finished = work, before["pieces"], before["finished"]
        self.ids: list[Ids] = [one_kind(list(read_ids(self._piece(i)))) for i in range(self.pieces)]
        self.sums = MomentSums.from_dict(before["sums"]) if "sums" in before else None
        self.reached = Reached(**before["reached"]) if "reached" in before else None
        self._fresh: list[Ids] = []

    def _piece(self, number: int) -> Path:
        return self.work.folder / f"ids-{number}.arrow"

    def add(self, block: TableBlock, place: Callable[[int], str], file: BinaryIO) -> None:
        """Write a block of rows."""
        with np.errstate(over="ignore"):
            values = np.array(block.numbers, dtype=np.float32, order="C")  # a copy: files are read-only
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if bad.size:
            where = place(block.first + int(bad[0]))
            raise GraphError(f"{where}: a feature is NaN, infinite or beyond float32")
        self.sums = MomentSums(values.shape[1]) if self.sums is None else self.sums
        if values.shape[1] != len(self.sums.mean):
            raise GraphError(f"{place(block.first)}: the list has another length than the first")
        self.sums.add(torch.from_numpy(values))
        file.write(values.tobytes())
        self.reached = block.reached
        self.ids += block.ids
        self._fresh += block.ids

    def keep(self, file: BinaryIO, *, finished: bool = False) -> None:
        """Write down what there is."""
        assert self.sums is not None
        assert self.reached is not None
        with ExitStack() as opened:
            files = [file]
            if self._fresh:
                write_ids(self._piece(self.pieces), one_kind(self._fresh))
                files.append(opened.enter_context(self._piece(self.pieces).open("r+b")))
                files[-1].seek(0, 2)
                self.pieces, self._fresh = self.pieces + 1, []
            state = {"pieces": self.pieces, "finished": finished, "reached": asdict(self.reached)}
            self.work.keep("features", {**state, "sums": self.sums.as_dict()}, files)


def write_ids(path: Path, ids: Ids) -> None:
    """Write ids as an Arrow file."""
    import pyarrow as pa

    column = pa.table({"node": pa.array(ids if ids.dtype.kind == "i" else ids.tolist())})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, column.schema) as writer:
        writer.write_table(column, max_chunksize=tables.BLOCK_ROWS)
