"""A graph in memory-mapped files: it opens at once, and rows are read on request.

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
from h3gnn.graphs.link_columns import STORED_LINKS, LinkColumns, LinkPlan
from h3gnn.graphs.provenance import PROVENANCE, Provenance
from h3gnn.graphs.scaling import FeatureScaler, Moments, csr_features
from h3gnn.ondisk.engine import Edges, index_type, sort_edges
from h3gnn.storage import schema
from h3gnn.storage.atomic import atomic_folder
from h3gnn.storage.schema import Integer, ListOf, Number, OneOf, Record, Text

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
        "sha256": schema.SHA256,
        "moments": MOMENTS,
    },
    {
        "class_names": ListOf(Text()),
        "splits": Integer(1),
        "target_name": Text(),
        "feature_names": ListOf(Text()),
        "stored": Integer(1),
        "links": STORED_LINKS,
        "unlabelled": schema.SHA256,
        **PROVENANCE,
    },
)
"""Fields of `graph.json`; others are allowed."""
ROWS_AT_A_TIME = 1 << 16
ROWS_IN_CACHE = 1 << 10
"""Rows of features that are scaled at a time, within the processor's cache."""
IDS = "ids.arrow"
LABELS, TARGETS, SPLITS = "labels.bin", "targets.bin", "splits.bin"
"""int32 `[nodes]`, -1 where unknown; float64 `[nodes]`, NaN where unknown; int8 `[nodes, splits]`, -1 none, 0
training, 1 validation, 2 test."""
LINKS = "links.bin"
"""float32 `[nodes, link columns]`."""
FEATURE_CROW, FEATURE_COLS, FEATURE_VALUES = "feature-crow.bin", "feature-cols.bin", "feature-values.bin"


@dataclass(frozen=True, eq=False)
class MappedFeatures:
    """Sparse features in files, as compressed sparse rows."""

    crow: npt.NDArray[np.int64]
    cols: npt.NDArray[Any]
    values: npt.NDArray[np.float32]
    shape: tuple[int, int]
    folder: Path

    def __getitem__(self, nodes: npt.NDArray[np.int64]) -> Tensor:
        """Return some rows as a CSR tensor."""
        begin, end = self.crow[nodes], self.crow[nodes + 1]
        if (begin < 0).any() or (end < begin).any() or (end > len(self.cols)).any():
            raise _damaged(self.folder / FEATURE_CROW, "row pointers are invalid")
        crow = np.concatenate([[0], np.cumsum(end - begin)])
        place = np.repeat(begin - crow[:-1], end - begin) + np.arange(crow[-1])
        cols, values = self.cols[place].astype(np.int64), np.asarray(self.values[place])
        parts = torch.from_numpy(crow), torch.from_numpy(cols), torch.from_numpy(values)
        try:
            return csr_features(*parts, (len(nodes), self.shape[1]))
        except RuntimeError:
            raise _damaged(self.folder / FEATURE_COLS, "columns are out of range or order") from None


@dataclass(frozen=True, eq=False)
class MappedGraph(GraphLike):
    """A `Graph` in files; labels and ids, which are short, are read when they are needed.

    Attributes:
        folder: the folder of the files.
        features: float32 `[nodes, features]`, dense or sparse.
        rows: the edges.
        provenance: source, content hash and repairs.
        moments: statistics of the features, from which a scaling is fitted.
        has_ids: whether the user named the nodes.
        has_labels, has_targets: whether there are classes, and whether there are numbers to predict.
        class_names: the name of each class.
        target_name: name of the column of the numbers.
        num_splits: number of train/validation/test splits.
        unlabelled: the content hash without labels and splits, on which no model is trained.
    """

    folder: Path
    features: npt.NDArray[np.float32] | MappedFeatures
    rows: AdjacencyRows
    provenance: Provenance
    moments: Moments
    has_ids: bool
    has_labels: bool = False
    has_targets: bool = False
    class_names: tuple[str, ...] = ()
    target_name: str = ""
    num_splits: int = 0
    feature_names: tuple[str, ...] = ()
    unlabelled: str = ""
    plan: None = None
    edge_plan: None = None
    node_types: None = None
    link_columns: LinkColumns | None = None
    type_names: tuple[()] = ()

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return len(self.rows.cols)

    @cached_property
    def labels(self) -> Tensor | None:
        """Labels int64 `[nodes]`, -1 where unknown, or None."""
        if not self.has_labels:
            return None
        return _read_codes(self.folder / LABELS, np.int32, (self.num_nodes,), self.num_classes).long()

    @cached_property
    def targets(self) -> Tensor | None:
        """Numbers to predict, float64 `[nodes]`, NaN where unknown, or None."""
        if not self.has_targets:
            return None
        path = self.folder / TARGETS
        numbers = np.array(_map(path, np.dtype(np.float64), (self.num_nodes,)))
        if np.isinf(numbers).any():
            raise _damaged(path, "it holds infinity")
        return torch.from_numpy(numbers)

    @cached_property
    def masks(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Training, validation and test nodes, bool `[nodes, splits]`, or None."""
        if not self.num_splits:
            return None
        codes = _read_codes(self.folder / SPLITS, np.int8, (self.num_nodes, self.num_splits), 3)
        return codes == 0, codes == 1, codes == 2

    @cached_property
    def node_ids(self) -> npt.NDArray[Any]:
        """The ids as `Graph` has them, int64 or object `[nodes]`."""
        from h3gnn.tables.reader import decode_ids

        return one_kind([decode_ids(block, str(self.folder / IDS)) for block in self.id_blocks()])

    @property
    def in_memory(self) -> Literal[False]:
        """False: features and edges are read from files as they are needed."""
        return False

    def fit_scaler(self, kind: str) -> FeatureScaler:
        """Return the scaling of the features, from their stored moments."""
        return self.moments.scaler(kind)

    def dense_rows(self, start: int, stop: int) -> Tensor:
        """Return the features of consecutive nodes, dense."""
        return self.feature_reader(FeatureScaler("none"))(torch.arange(start, stop)).to_dense()

    def adjacency(self, *, undirected: bool, self_loops: bool) -> AdjacencyRows:
        """Return A or A + I as compressed sparse rows, from a folder that is built on first use.

        One process builds it while others, such as the ranks of a job, wait.
        """
        folder = self.folder / f"support{'-undirected' * undirected}{'-loops' * self_loops}"
        with _locked(self.folder):
            if not (folder / "done").is_file():
                try:
                    with atomic_folder(folder) as part:
                        _build_support(self, part, undirected=undirected, self_loops=self_loops)
                except OSError:
                    if not (folder / "done").is_file():  # without locks another process may be faster
                        raise
        written = (folder / "done").read_bytes()[:20]
        if not written.isdigit():
            message = f"{folder / 'done'} is damaged; remove {folder}, and it is built again"
            raise GraphError(message, code="prepared-folder-damaged")
        return _open_rows(folder, self.num_nodes, int(written), weighted=self.rows.weight is not None)

    def feature_reader(
        self, scaler: FeatureScaler, order: list[int] | None = None, gather: Gather = select_rows
    ) -> Callable[[Tensor], Tensor]:
        """Return a function from node numbers to their scaled features."""
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
        try:
            with pa.memory_map(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    batch.validate(full=True)
                    found += len(batch)
                    yield batch.column(0)
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            raise _damaged(path, " ".join(str(error).split())[:120]) from None
        if found != self.num_nodes:
            raise _damaged(path, f"{found} ids instead of {self.num_nodes}")


def labelled_nodes(graph: MappedGraph) -> tuple[Tensor, Graph]:
    """Return the nodes with labels, and a graph of these without features and edges, for scoring."""
    if not graph.labelled.any():
        message = f"{graph.folder} has no labels; prepare it with them (`h3gnn prepare --labels`)"
        raise GraphError(message, code="labels-missing")
    nodes = torch.from_numpy(np.flatnonzero(graph.labelled))
    assert graph.masks is not None  # `prepare` draws missing splits
    train, val, test = (mask[nodes] for mask in graph.masks)
    return nodes, Graph(
        torch.empty(len(nodes), 0),
        torch.empty(2, 0, dtype=torch.int64),
        graph.provenance,
        labels=None if graph.labels is None else graph.labels[nodes],
        class_names=graph.class_names,
        targets=None if graph.targets is None else graph.targets[nodes],
        target_name=graph.target_name,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        node_ids=graph.node_ids[nodes.numpy()],
        has_ids=graph.has_ids,
    )


def is_prepared(path: Path) -> bool:
    """Return whether `h3gnn prepare` wrote this folder."""
    return (path / DESCRIPTION).is_file()


def open_mapped(folder: str | Path) -> MappedGraph:
    """Open a prepared folder; sizes are checked, values were checked when it was written."""
    path = Path(folder)
    file = path / DESCRIPTION
    if not is_prepared(path):
        message = f"{path} holds no prepared graph: {DESCRIPTION} is missing; see `h3gnn prepare`"
        raise GraphError(message, code="not-a-prepared-folder")
    try:
        about = schema.parse_json(file.read_bytes(), file, GraphError)
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror or error}"
        raise GraphError(message, code="file-unreadable") from None
    version = (about.get("format"), about.get("format_version")) if isinstance(about, dict) else None
    if version not in (None, (FORMAT, FORMAT_VERSION)):
        raise GraphError(f"{file} is not of a format that this h3gnn reads", code="format-unknown")
    schema.check_values(PREPARED, about, file, GraphError)
    nodes, edges, columns = about["nodes"], about["edges"], about["features"]
    moments = Moments(**about["moments"])
    if {len(moments.mean), len(moments.variance)} != {columns} or moments.rows != nodes:
        raise _damaged(file, "the moments are of another number of nodes or features")
    names = tuple(about.get("feature_names", ()))
    if names and len(names) != columns:
        raise _damaged(file, f"{len(names)} names of {columns} features")
    return MappedGraph(
        path,
        _open_features(path, nodes, columns, about.get("stored")),
        _open_rows(path, nodes, edges, weighted=about["weighted"]),
        Provenance.from_dict(about),
        moments,
        has_ids=about["ids"] == "named",
        has_labels="class_names" in about,
        has_targets="target_name" in about,
        class_names=tuple(about.get("class_names", ())),
        target_name=about.get("target_name", ""),
        num_splits=about.get("splits", 0),
        feature_names=names,
        unlabelled=about.get("unlabelled", about["sha256"]),
        link_columns=_open_links(path, nodes, about.get("links")),
    )


def _open_links(folder: Path, nodes: int, stored: dict[str, Any] | None) -> LinkColumns | None:
    if stored is None:
        return None
    plan = LinkPlan.from_dict(stored)
    if len(plan.names) != len(plan.scales):
        raise _damaged(folder / DESCRIPTION, "the scales are of another number of link columns")
    return LinkColumns(_map(folder / LINKS, np.dtype(np.float32), (nodes, len(plan.names))), plan)


def _damaged(path: Path, what: str) -> GraphError:
    message = f"{path} is damaged: {what}; prepare the graph again"
    return GraphError(message, code="prepared-folder-damaged")


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
        raise _damaged(folder / "crow.bin", "it does not begin and end with the edges")
    return AdjacencyRows(crow, cols, weight)


def _map(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    wanted = math.prod(shape) * kind.itemsize
    if not path.is_file() or path.stat().st_size != wanted:
        found = path.stat().st_size if path.is_file() else "no"
        raise _damaged(path, f"{found} bytes instead of {wanted}")
    if wanted == 0:
        return np.empty(shape, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r", shape=shape)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, if the system has locks, after waiting for other processes."""
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
    """Write A or A + I; see `GraphLike.adjacency`."""
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
            raise _damaged(graph.folder / "crow.bin", "row pointers are invalid")
        span = slice(int(begins[0]), int(begins[-1]))
        target = np.repeat(np.arange(start, end), degrees)
        source = np.asarray(rows.cols[span], dtype=np.int64)
        if len(target) != len(source) or ((source < 0) | (source >= nodes)).any():
            raise _damaged(graph.folder, "it has edges of unknown nodes")
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


def _read_codes(path: Path, dtype: Any, shape: tuple[int, ...], below: int) -> Tensor:
    """Return stored codes from -1 to `below` - 1."""
    values = torch.from_numpy(np.fromfile(path, dtype=dtype))
    if values.numel() != math.prod(shape):
        raise _damaged(path, "its length is wrong")
    if bool(((values < -1) | (values >= below)).any()):
        raise _damaged(path, f"it holds other numbers than -1 to {below - 1}")
    return values.view(shape)
