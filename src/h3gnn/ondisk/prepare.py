"""From tables of any size to a graph in memory-mapped files, a block of rows at a time.

Memory holds one block, one bucket of edges, and the ids of all nodes (8 bytes each as whole numbers, their
length and about 60 bytes more as text). What is interrupted goes on: see `graphs.unfinished`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_features, duplicate_edges
from h3gnn.graphs.formats import array_place, read_array
from h3gnn.graphs.ids import NodeIndex, one_kind
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.scaling import MomentSums
from h3gnn.ondisk.csr import EdgeBuckets, index_type
from h3gnn.ondisk.mapped import (
    DESCRIPTION,
    FEATURE_COLS,
    FEATURE_CROW,
    FEATURE_VALUES,
    FORMAT,
    FORMAT_VERSION,
    LABELS,
    PREPARED,
    SPLITS,
    MappedGraph,
    is_prepared,
    open_mapped,
    read_ids,
    write_labels,
)
from h3gnn.storage.atomic import is_held, remove_left
from h3gnn.storage.schema import check_values
from h3gnn.tables import files
from h3gnn.tables.edges import EdgeTable, find_nodes, open_edges
from h3gnn.tables.features import FeatureTable, open_features
from h3gnn.tables.plan import plain_plan
from h3gnn.tables.read import open_labels
from h3gnn.tables.reader import Progress, Reached, TableBlock, check_once
from h3gnn.tables.roles import Column, is_no_feature

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
        count, repairs = _write_edges(work, table, nodes, sums.rows, Path(features), edges_progress)
        about: dict[str, Any] = {} if stored is None else {"stored": stored}
        if told is not None:
            known, drawn = write_labels(work.folder, told.read(), nodes, ids, sums.rows, Path(features))
            about, repairs = {**about, **known}, repairs + drawn
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
            "kind": "files",
            "structural": False,
            "repairs": [repair.as_dict() for repair in (*source.repairs, *table.repairs, *repairs)],
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
) -> tuple[int, list[Repair]]:
    """Write the edges as compressed sparse rows; return how many there are, and the repairs."""
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
    return written, [duplicate_edges(buckets.merged)] if buckets.merged else []


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


Ids = npt.NDArray[Any]


@dataclass(frozen=True)
class FeatureSource:
    """Where features come from.

    Attributes:
        blocks: gives blocks of rows from a place on; or a sparse matrix.
        place: words for a row.
        table: the columns that are meant, if it is a table.
        repairs: changes made to them.
    """

    blocks: Callable[[Reached | None], Iterator[TableBlock]] | Tensor
    place: Callable[[int], str]
    table: FeatureTable | None = None
    repairs: tuple[Repair, ...] = ()

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
    table, repairs = open_features(path, node_column, columns, style), list[Repair]()
    kept = [column for column in table.chosen if table.table.names[column] != hidden]
    if len(kept) < len(table.chosen):
        message = f"{path.name}: the column {hidden} holds the labels and is no feature"
        repairs.append(Repair("column-is-label", message, fields=(str(hidden),)))
    names = [table.table.names[column] for column in kept]
    odd = [name for name in names if is_no_feature(name, names)]
    if odd and not table.named:
        raise GraphError(
            f"{path}: the column {odd[0]} seems to hold ids or classes, which are no features; name those "
            "that are (--feature-columns)"
        )
    table = replace(table, chosen=kept)
    return FeatureSource(partial(table.blocks, progress), table.table.place, table, tuple(repairs))


def _array_blocks(array: npt.NDArray[Any], progress: Progress, begin: Reached | None) -> Iterator[TableBlock]:
    for start in range(0 if begin is None else begin.rows, len(array), files.BLOCK_ROWS):
        end = min(start + files.BLOCK_ROWS, len(array))
        yield TableBlock(start, [], array[start:end], Reached(end))
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
        writer.write_table(column, max_chunksize=files.BLOCK_ROWS)


NOTE = "begun.json"
KEEP_SECONDS = 30.0
"""So often is it written down how far a stage has come."""
HASHED = 1 << 20
"""So many bytes of the beginning and of the end of a file tell it from others."""


class Unfinished:
    """What there is of a folder in the making.

    Args:
        folder: the hidden one.
        made_of: inputs and options; other ones begin again.
    """

    def __init__(self, folder: Path, made_of: Mapping[str, Any]) -> None:
        self.folder, self.made_of = folder, dict(made_of)
        self.done: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}
        self._kept = time.monotonic()
        if not self._take_up():
            shutil.rmtree(folder)
            folder.mkdir()

    @property
    def has_begun(self) -> bool:
        """Whether there is something to go on with."""
        return (self.folder / NOTE).is_file()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed to write down how far the work is."""
        return time.monotonic() - self._kept >= KEEP_SECONDS

    def open(self, name: str) -> BinaryIO:
        """Open a file at the end that it had in the note, which is empty for a new one."""
        path, length = self.folder / name, self._lengths.get(name, 0)
        file = path.open("r+b" if path.exists() else "w+b")
        file.truncate(length)
        file.seek(length)
        return file

    def keep(self, stage: str, done: Any, files: Sequence[BinaryIO], gone: Sequence[Path] = ()) -> None:
        """Write down how far a stage has come, and remove the files that this makes unnecessary."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
            self._lengths[Path(file.name).name] = file.tell()
        for path in gone:
            self._lengths.pop(path.name, None)
        self.done[stage] = done
        note = {"made_of": self.made_of, "done": self.done, "lengths": self._lengths}
        new = self.folder / f"{NOTE}.new"
        with new.open("w", encoding="utf-8") as written:
            json.dump(note, written)
            written.flush()
            os.fsync(written.fileno())
        new.replace(self.folder / NOTE)
        for path in gone:
            path.unlink(missing_ok=True)
        self._kept = time.monotonic()

    def _take_up(self) -> bool:
        """Read the note, if it is of the same work and all its files are there."""
        try:
            note = json.loads((self.folder / NOTE).read_bytes())
            same = note["made_of"] == json.loads(json.dumps(self.made_of))
            whole = all((self.folder / n).stat().st_size >= size for n, size in note["lengths"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        if same and whole:
            self.done, self._lengths = note["done"], note["lengths"]
        return same and whole


@contextmanager
def unfinished_folder(target: Path, made_of: Mapping[str, Any]) -> Iterator[Unfinished]:
    """Yield what there is of a folder in the making; it takes the target's place when the block ends well.

    A fault of the inputs removes it, since the same command would meet it again. Whatever else ends the block
    leaves it for the next one, if anything in it is worth that.
    """
    remove_left(target.parent, target.name)
    folder = hidden_beside(target)
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else -1
    try:
        if handle >= 0 and is_held(handle):
            raise InputError(f"another process is making {target} at this moment; wait for it, or stop it")
        work = Unfinished(folder, made_of)
        try:
            yield work
        except BaseException as error:
            if isinstance(error, GraphError) or not work.has_begun:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / NOTE).unlink(missing_ok=True)
        folder.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        folder.replace(target)
    finally:
        if handle >= 0:
            os.close(handle)


def hidden_beside(target: Path) -> Path:
    """Return the folder in which a target is made."""
    return target.parent / f".{target.name}.unfinished"


def told_apart(path: Path) -> dict[str, Any]:
    """Return what tells a file from any other: place, size, time, and a hash of its two ends."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            digest = hashlib.sha256(file.read(HASHED))
            file.seek(max(0, about.st_size - HASHED))
            digest.update(file.read(HASHED))
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from None
    place = str(path.resolve())
    return {"path": place, "size": about.st_size, "time": about.st_mtime_ns, "ends": digest.hexdigest()}
