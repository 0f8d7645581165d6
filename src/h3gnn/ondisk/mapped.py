"""A graph in memory-mapped files: opened in no time, read where it is touched, never loaded as a whole.

A folder, as `h3gnn prepare` writes it, holds `graph.json`, `features.bin` (float32 rows; sparse features are
compressed rows in three files), the edges as compressed sparse rows by target (`crow.bin`, `cols.bin`,
perhaps `weight.bin`), the ids of the nodes, and perhaps their labels and splits.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.graph import AdjacencyRows, Gather, Graph, GraphLike, select_rows
from h3gnn.graphs.ids import one_kind
from h3gnn.graphs.provenance import PROVENANCE, Provenance
from h3gnn.graphs.scaling import FeatureScaler, Moments, csr_features
from h3gnn.ondisk.engine import Edges, index_type, sort_edges
from h3gnn.storage.atomic import atomic_folder
from h3gnn.storage.schema import (
    SHA256,
    Integer,
    ListOf,
    Number,
    OneOf,
    Record,
    Text,
    check_values,
    parse_json,
)

FORMAT, FORMAT_VERSION, DESCRIPTION = "h3gnn-graph", 1, "graph.json"
MOMENTS = Record(
    {
        "rows": Integer(1),
        "filled": Integer(0),
        "zeros_and_ones": bool,
        "negative": bool,
        "mean": ListOf(Number(), least=1),
        "variance": ListOf(Number(0), least=1),
    }
)
PREPARED = Record(
    {
        "format": OneOf((FORMAT,)),
        "format_version": Integer(FORMAT_VERSION, FORMAT_VERSION),
        "nodes": Integer(1),
        "edges": Integer(0),
        "features": Integer(1),
        "weighted": bool,
        "ids": OneOf(("position", "named")),
        "source": Text(),
        "sha256": SHA256,
        "moments": MOMENTS,
    },
    {
        "class_names": ListOf(Text()),
        "splits": Integer(1),
        "feature_names": ListOf(Text()),
        "stored": Integer(1),
        "unlabelled": SHA256,
        **PROVENANCE,
    },
)
"""What `graph.json` holds; others may stand beside it."""
ROWS_AT_A_TIME = 1 << 16
ROWS_IN_CACHE = 1 << 10
"""Rows of features are scaled before they leave a processor's cache."""
IDS = "ids.arrow"
FEATURE_CROW, FEATURE_COLS, FEATURE_VALUES = "feature-crow.bin", "feature-cols.bin", "feature-values.bin"


@dataclass(frozen=True, eq=False)
class MappedFeatures:
    """Sparse features in files, as compressed sparse rows.

    Attributes:
        crow: where each node's values begin `[nodes + 1]`.
        cols: their columns.
        values: float32, as many as columns.
        shape: `[nodes, features]`.
        folder: where they lie.
    """

    crow: npt.NDArray[np.int64]
    cols: npt.NDArray[Any]
    values: npt.NDArray[np.float32]
    shape: tuple[int, int]
    folder: Path

    def __getitem__(self, nodes: npt.NDArray[np.int64]) -> Tensor:
        """Return some rows as a CSR tensor."""
        begin, end = self.crow[nodes], self.crow[nodes + 1]
        if (begin < 0).any() or (end < begin).any() or (end > len(self.cols)).any():
            raise GraphError(f"{self.folder / FEATURE_CROW} is damaged: its rows do not grow")
        crow = np.concatenate([[0], np.cumsum(end - begin)])
        place = np.repeat(begin - crow[:-1], end - begin) + np.arange(crow[-1])
        cols, values = self.cols[place].astype(np.int64), np.asarray(self.values[place])
        parts = torch.from_numpy(crow), torch.from_numpy(cols), torch.from_numpy(values)
        try:
            return csr_features(*parts, (len(nodes), self.shape[1]))
        except RuntimeError:
            raise GraphError(
                f"{self.folder / FEATURE_COLS} is damaged: it holds no columns in order"
            ) from None


@dataclass(frozen=True, eq=False)
class MappedGraph(GraphLike):
    """What `Graph` is in memory, in files; labels and ids, which are short, are read when they are asked for.

    Attributes:
        folder: where the files are.
        features: float32 `[nodes, features]`, dense or sparse.
        rows: the edges.
        provenance: source, content hash and repairs.
        moments: what a scaling asks of all features at once.
        has_ids: whether the user named the nodes.
        has_labels: whether there are labels.
        class_names: the class that each label stands for.
        num_splits: number of train/validation/test splits.
        unlabelled: the content hash without labels and splits, which no model is trained on.
    """

    folder: Path
    features: npt.NDArray[np.float32] | MappedFeatures
    rows: AdjacencyRows
    provenance: Provenance
    moments: Moments
    has_ids: bool
    has_labels: bool = False
    class_names: tuple[str, ...] = ()
    num_splits: int = 0
    feature_names: tuple[str, ...] = ()
    unlabelled: str = ""
    plan: None = None

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return len(self.rows.cols)

    @cached_property
    def labels(self) -> Tensor | None:
        """Labels int64 `[nodes]`, -1 where unknown, or None."""
        return read_labels(self.folder, self.num_nodes, self.num_classes) if self.has_labels else None

    @cached_property
    def masks(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Training, validation and test nodes, bool `[nodes, splits]`, or None without splits."""
        return read_splits(self.folder, self.num_nodes, self.num_splits) if self.num_splits else None

    @cached_property
    def node_ids(self) -> npt.NDArray[Any]:
        """The ids as `Graph` has them, int64 or object `[nodes]`."""
        return one_kind([_listed(block) for block in self.id_blocks()])

    @property
    def in_memory(self) -> Literal[False]:
        """False: features and edges are read from files as they are needed."""
        return False

    def fit_scaler(self, kind: str) -> FeatureScaler:
        """Return the scaling of the features, from moments computed when the graph was prepared."""
        return self.moments.scaler(kind)

    def dense_rows(self, start: int, stop: int) -> Tensor:
        """Return the features of consecutive nodes, dense."""
        return self.feature_reader(FeatureScaler("none"))(torch.arange(start, stop)).to_dense()

    def adjacency(self, *, undirected: bool, self_loops: bool) -> AdjacencyRows:
        """Return the rows that `Graph.adjacency` returns, from a folder that is built on first use."""
        return support_rows(self, undirected=undirected, self_loops=self_loops)

    def feature_reader(
        self, scaler: FeatureScaler, order: list[int] | None = None, gather: Gather = select_rows
    ) -> Callable[[Tensor], Tensor]:
        """Return a function from node numbers to their scaled features, dense or CSR, on the same device.

        Args:
            scaler: applied to the rows.
            order: of the columns, where it differs from that of the files.
            gather: takes rows to the device of the node numbers, where they are scaled.
        """
        stored = self.features
        if not isinstance(stored, np.ndarray):  # sparse columns have no names to be ordered by
            return lambda nodes: scaler(stored[nodes.cpu().numpy()]).to(nodes.device)
        with warnings.catch_warnings(action="ignore"):  # the file is read-only
            rows = torch.from_numpy(stored)

        def scaled(nodes: Tensor) -> Tensor:
            found = gather(rows, nodes)
            return scaler(found if order is None else found[:, order])

        def read(nodes: Tensor) -> Tensor:
            if nodes.is_cuda:
                return scaled(nodes)
            found = torch.empty(len(nodes), rows.shape[1])
            pieces = torch.split(nodes, ROWS_IN_CACHE), torch.split(found, ROWS_IN_CACHE)
            for some, place in zip(*pieces, strict=True):
                place.copy_(scaled(some))
            return found

        return read

    def id_blocks(self) -> Iterator[Any]:
        """Yield the ids, some at a time, as Arrow arrays."""
        import pyarrow as pa

        if not self.has_ids:
            for start in range(0, self.num_nodes, ROWS_AT_A_TIME):
                yield pa.array(np.arange(start, min(start + ROWS_AT_A_TIME, self.num_nodes)))
            return
        path, found = self.folder / IDS, 0
        for block in _id_arrays(path):
            found += len(block)
            yield block
        if found != self.num_nodes:
            raise GraphError(f"{path} is damaged: {found} ids instead of {self.num_nodes}")


def _id_arrays(path: Path) -> Iterator[Any]:
    """Yield the ids of an Arrow file as Arrow arrays."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)
                yield batch.column(0)
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:  # names that are no text, no column
        raise GraphError(f"{path} is damaged: {' '.join(str(error).split())[:120]}") from None


def _listed(block: Any) -> npt.NDArray[Any]:
    """Return ids of an Arrow array as whole numbers or texts."""
    import pyarrow as pa

    if pa.types.is_integer(block.type):
        return np.asarray(block.to_numpy(zero_copy_only=False), dtype=np.int64)
    texts = np.empty(len(block), dtype=object)
    texts[:] = block.to_pylist()
    return texts


def labelled_nodes(graph: MappedGraph) -> tuple[Tensor, Graph]:
    """Return which nodes have labels, and a graph of these alone, without features and edges, to score by."""
    if graph.labels is None or not bool((graph.labels >= 0).any()):
        raise GraphError(f"{graph.folder} has no labels; prepare it with them (`h3gnn prepare --labels`)")
    nodes = torch.nonzero(graph.labels >= 0).flatten()
    assert graph.masks is not None  # where there are none, `prepare` draws some
    train, val, test = (mask[nodes] for mask in graph.masks)
    return nodes, Graph(
        torch.empty(len(nodes), 0),
        torch.empty(2, 0, dtype=torch.int64),
        graph.provenance,
        labels=graph.labels[nodes],
        class_names=graph.class_names,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        node_ids=graph.node_ids[nodes.numpy()],
        has_ids=graph.has_ids,
    )


def is_prepared(path: Path) -> bool:
    """Tell whether `h3gnn prepare` wrote this folder."""
    return (path / DESCRIPTION).is_file()


def open_mapped(folder: str | Path) -> MappedGraph:
    """Open a prepared folder; sizes are checked, values were checked when it was written."""
    path = Path(folder)
    if not is_prepared(path):
        raise GraphError(f"{path} holds no prepared graph: {DESCRIPTION} is not there; see `h3gnn prepare`")
    told = path / DESCRIPTION
    try:
        content = told.read_bytes()
    except OSError as error:
        raise GraphError(f"{told} cannot be read: {error.strerror or error}") from None
    about = parse_json(content, told, GraphError)
    if isinstance(about, dict) and (about.get("format"), about.get("format_version")) != (
        FORMAT,
        FORMAT_VERSION,
    ):
        raise GraphError(f"{told} is not of a format that this h3gnn reads")
    check_values(PREPARED, about, told, GraphError)
    nodes, edges, columns = about["nodes"], about["edges"], about["features"]
    moments = Moments(**about["moments"])
    if {len(moments.mean), len(moments.variance)} != {columns} or moments.rows != nodes:
        raise GraphError(f"{told} is damaged: moments are of another number of nodes or features")
    names = tuple(about.get("feature_names", ()))
    if names and len(names) != columns:
        raise GraphError(f"{told} is damaged: {len(names)} names of {columns} features")
    provenance = Provenance.from_dict(about)
    features = _open_features(path, nodes, columns, about.get("stored"))
    rows = _open_rows(path, nodes, edges, weighted=about["weighted"])
    return MappedGraph(
        path,
        features,
        rows,
        provenance,
        moments,
        has_ids=about["ids"] == "named",
        has_labels="class_names" in about,
        class_names=tuple(about.get("class_names", ())),
        num_splits=about.get("splits", 0),
        feature_names=names,
        unlabelled=about.get("unlabelled", about["sha256"]),
    )


def _open_features(
    folder: Path, nodes: int, columns: int, stored: int | None
) -> npt.NDArray[np.float32] | MappedFeatures:
    if stored is None:
        return _map(folder / "features.bin", np.dtype(np.float32), (nodes, columns))
    crow = _map(folder / FEATURE_CROW, np.dtype(np.int64), (nodes + 1,))
    cols = _map(folder / FEATURE_COLS, np.dtype(index_type(columns)), (stored,))
    values = _map(folder / FEATURE_VALUES, np.dtype(np.float32), (stored,))
    return MappedFeatures(crow, cols, values, (nodes, columns), folder)


def _open_rows(folder: Path, nodes: int, edges: int, *, weighted: bool) -> AdjacencyRows:
    cols = _map(folder / "cols.bin", np.dtype(index_type(nodes)), (edges,))
    weight = _map(folder / "weight.bin", np.dtype(np.float32), (edges,)) if weighted else None
    crow = _map(folder / "crow.bin", np.dtype(np.int64), (nodes + 1,))
    if crow[0] != 0 or crow[-1] != edges:
        raise GraphError(f"{folder / 'crow.bin'} is damaged: it does not begin and end with the edges")
    return AdjacencyRows(crow, cols, weight)


def _map(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    wanted = math.prod(shape) * kind.itemsize
    if not path.is_file() or path.stat().st_size != wanted:
        found = path.stat().st_size if path.is_file() else "no"
        raise GraphError(f"{path} is damaged: {found} bytes instead of {wanted}; prepare the graph again")
    if wanted == 0:
        return np.empty(shape, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r", shape=shape)


def support_rows(graph: MappedGraph, *, undirected: bool, self_loops: bool) -> AdjacencyRows:
    """Return the rows that `build_support` builds, from a folder beside the edges that is written once.

    One process writes it while the others, such as the ranks of a job, wait for it.
    """
    folder = graph.folder / f"support{'-undirected' * undirected}{'-loops' * self_loops}"
    with _locked(graph.folder):
        if not (folder / "done").is_file():
            try:
                with atomic_folder(folder) as made:
                    _build_support(graph, made, undirected=undirected, self_loops=self_loops)
            except OSError:
                if not (folder / "done").is_file():  # without locks another process may be faster
                    raise
    written = (folder / "done").read_bytes()[:20]
    if not written.isdigit():
        raise GraphError(f"{folder / 'done'} is damaged; remove {folder}, and it is made again")
    edges = int(written)
    return _open_rows(folder, graph.num_nodes, edges, weighted=graph.rows.weight is not None)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process holds the folder, and hold it; not where the system has no such locks."""
    handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else -1
    try:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _build_support(graph: MappedGraph, folder: Path, *, undirected: bool, self_loops: bool) -> None:
    """Write A or A + I without the loops of the data; a loop weighs as much as the mean edge."""
    weighted = graph.rows.weight is not None
    blocks = _support_blocks(graph, undirected=undirected, self_loops=self_loops)
    edges = sort_edges(blocks, folder, graph.num_nodes, weighted=weighted, strongest=True)
    (folder / "done").write_text(str(edges))


def _support_blocks(graph: MappedGraph, *, undirected: bool, self_loops: bool) -> Iterator[Edges]:
    rows, nodes = graph.rows, graph.num_nodes
    total, kept = 0.0, 0
    for start in range(0, nodes, ROWS_AT_A_TIME):
        end = min(start + ROWS_AT_A_TIME, nodes)
        begins = rows.crow[start : end + 1]
        degrees = np.diff(begins)
        if ((begins < 0) | (begins > len(rows.cols))).any() or (degrees < 0).any():
            raise GraphError(
                f"{graph.folder / 'crow.bin'} is damaged: its rows do not grow",
                code="prepared-folder-damaged",
            )
        span = slice(int(begins[0]), int(begins[-1]))
        target = np.repeat(np.arange(start, end), degrees)
        source = np.asarray(rows.cols[span], dtype=np.int64)
        if len(target) != len(source) or ((source < 0) | (source >= nodes)).any():
            raise GraphError(
                f"{graph.folder} is damaged: it has edges of unknown nodes", code="prepared-folder-damaged"
            )
        between = source != target
        source, target = source[between], target[between]
        weight = None if rows.weight is None else np.asarray(rows.weight[span], dtype=np.float64)[between]
        yield target, source, weight
        if undirected:
            yield source, target, weight
        kept += len(source)
        total += 0.0 if weight is None else float(weight.sum())
    mean = total / kept if rows.weight is not None and kept else 1.0
    for start in range(0, nodes if self_loops else 0, ROWS_AT_A_TIME):
        loop = np.arange(start, min(start + ROWS_AT_A_TIME, nodes))
        yield loop, loop, None if rows.weight is None else np.full(len(loop), mean)


LABELS, SPLITS = "labels.bin", "splits.bin"
"""int32 `[nodes]`, -1 where unknown; int8 `[nodes, splits]`, -1 none, 0 training, 1 validation, 2 test."""


def read_labels(folder: Path, nodes: int, classes: int) -> Tensor:
    """Return int64 `[nodes]`."""
    labels = torch.from_numpy(np.fromfile(folder / LABELS, dtype=np.int32)).long()
    return _checked(folder / LABELS, labels, (nodes,), classes)


def read_splits(folder: Path, nodes: int, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the training, validation and test nodes, bool `[nodes, splits]` each."""
    codes = torch.from_numpy(np.fromfile(folder / SPLITS, dtype=np.int8))
    found = _checked(folder / SPLITS, codes, (nodes, splits), 3)
    return found == 0, found == 1, found == 2


def _checked(path: Path, values: Tensor, shape: tuple[int, ...], below: int) -> Tensor:
    """Return values between -1 and what they stay below, in their shape, or say that the file is damaged."""
    sized = values.numel() == torch.Size(shape).numel()
    if not sized or bool(((values < -1) | (values >= below)).any()):
        what = f"it holds other numbers than -1 to {below - 1}" if sized else "its length is another"
        raise GraphError(f"{path} is damaged: {what}; prepare the graph again")
    return values.view(shape)
