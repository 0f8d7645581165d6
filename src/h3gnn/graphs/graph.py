"""The graph classes, their content hash, random splits, and the canonical order of nodes."""

from __future__ import annotations

import hashlib
import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.provenance import EdgePlan, Provenance, Repair
from h3gnn.graphs.scaling import FeatureScaler, fit_scaler, scipy_features, torch_features
from h3gnn.resources import check_memory

if TYPE_CHECKING:
    from h3gnn.graphs.link_columns import LinkColumns
    from h3gnn.graphs.type_view import PathColumns
    from h3gnn.tables.plan import TablePlan


SPLITS = 10
TRAIN_SHARE = 0.48
VAL_SHARE = 0.32
SEED = 0
MASKS = ("train_mask", "val_mask", "test_mask")


def random_splits_repair(seed: int = SEED) -> Repair:
    """Record that the input has no splits and random ones are drawn."""
    message = f"no splits in the data: {SPLITS} random splits drawn, stratified 48/32/20 % with seed {seed}"
    return Repair("random-splits", message, SPLITS)


Gather = Callable[[Tensor, Tensor], Tensor]
"""Returns some rows of a matrix, on the device of the row numbers."""


def select_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a dense matrix."""
    return matrix.index_select(0, rows)


ROWS = 1 << 16
"""Rows of an adjacency that are processed at a time."""


class AdjacencyRows(NamedTuple):
    """A weighted adjacency matrix as compressed sparse rows: row = target, column = source.

    `crow [nodes + 1]` holds the start of each row, `cols [entries]` the columns, sorted within each row, and
    `weight [entries]` the weights, or None for ones.
    """

    crow: npt.NDArray[Any]
    cols: npt.NDArray[Any]
    weight: npt.NDArray[np.float32] | None

    def mean(self, values: npt.NDArray[Any], first: int = 0) -> npt.NDArray[Any]:
        """Return the weighted mean of values `[nodes, D]` over each row from `first`; 0 for an empty row."""
        means = np.zeros((len(self.crow) - 1 - first, values.shape[1]), dtype=values.dtype)
        for start in range(first, len(self.crow) - 1, ROWS):
            crow = np.asarray(self.crow[start : start + ROWS + 1])
            span = slice(int(crow[0]), int(crow[-1]))
            weight = np.ones(span.stop - span.start, dtype=np.float32)
            weight = weight if self.weight is None else np.asarray(self.weight[span])
            shape = (len(crow) - 1, len(values))
            rows = sp.csr_array((weight, np.asarray(self.cols[span]), crow - span.start), shape=shape)
            total = np.asarray(rows.sum(axis=1)).reshape(-1, 1)
            means[start - first : start - first + shape[0]] = (rows @ values) / np.where(total > 0, total, 1)
        return means


class GraphLike(ABC):
    """A graph in memory (`Graph`) or on disk (`MappedGraph`), as far as both are used alike."""

    features: Any
    provenance: Provenance
    labels: Any
    class_names: tuple[str, ...]
    targets: Any
    target_name: str
    node_ids: Any
    has_ids: bool
    plan: TablePlan | None
    edge_plan: EdgePlan | None
    feature_names: tuple[str, ...]
    node_types: Any
    link_columns: LinkColumns | None
    type_names: tuple[str, ...]
    relations: Any = None
    relation_names: tuple[str, ...] = ()
    path_columns: PathColumns | None = None

    @property
    @abstractmethod
    def in_memory(self) -> bool:
        """Whether features and edges are in memory."""

    @property
    @abstractmethod
    def num_edges(self) -> int:
        """Number of directed edges, self-loops of the data included."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.features.shape[0])

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return int(self.features.shape[1])

    @property
    def num_classes(self) -> int:
        """Number of classes, 0 without labels."""
        return len(self.class_names)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """Which nodes have a class or a number."""
        if self.targets is not None:
            return np.asarray(~self.targets.isnan())
        return np.zeros(self.num_nodes, bool) if self.labels is None else np.asarray(self.labels >= 0)

    @abstractmethod
    def fit_scaler(self, kind: str) -> FeatureScaler:
        """Learn the scaling of the features; see `graphs.scaling.fit_scaler`."""

    @abstractmethod
    def adjacency(self, *, undirected: bool, self_loops: bool) -> AdjacencyRows:
        """Return A or A + I as compressed sparse rows, without self-loops of the data.

        Of an edge that exists both ways with two weights, the larger counts. A self-loop of A + I has the
        mean weight of the edges.
        """

    @abstractmethod
    def feature_reader(
        self, scaler: FeatureScaler, order: list[int] | None = None, gather: Gather = ...
    ) -> Callable[[Tensor], Tensor]:
        """Return a function from node numbers to their scaled features, dense or CSR, on the same device.

        `order` rearranges the columns; `gather` moves rows to the device of the node numbers.
        """

    @abstractmethod
    def dense_rows(self, start: int, stop: int) -> Tensor:
        """Return the features of consecutive nodes, dense."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph(GraphLike):
    """Nodes with features, directed edges, and labels where they are known.

    Build one with `check_graph` (arrays), `as_graph` (other libraries' objects) or a reader, which validate
    the fields. An undirected graph holds each edge in both directions.

    Attributes:
        features: float32 `[nodes, features]`, dense or `torch.sparse_csr`.
        edge_index: int64 `[2, edges]`, source above target, sorted by target and without duplicates.
            Self-loops of the data stay in.
        provenance: source, content hash and repairs.
        edge_weight: float32 `[edges]`, positive, or None where the data has no weights.
        labels: int64 `[nodes]`, -1 where unknown, or None.
        class_names: the name of each class.
        targets: float64 `[nodes]`, numbers to predict in place of classes, NaN where unknown, or None.
        target_name: name of their column, if known.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`, or None without splits.
        node_ids: int64 or object (str) `[nodes]`; the position where the user gave no ids.
        has_ids: whether the user named the nodes.
        plan: how the columns of a table became the features; None where there was no table.
        edge_plan: how tables of edges were read; None where there were none.
        feature_names: one name per column of features, or none where the user gave none.
        node_types: int16 `[nodes]`, the type of each node, -1 where unknown; None where all are of one type.
        link_columns: what tables of edges say about each node; None without.
        type_names: the name of each type: of its table of features, or of its column of edges.
        relations: bool `[relations, edges]`, which relations an edge belongs to; None where all are of one.
        relation_names: the name of each relation.
        path_columns: what other node types say about each node; see `type_view`.
    """

    features: Tensor
    edge_index: Tensor
    provenance: Provenance
    edge_weight: Tensor | None = None
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    targets: Tensor | None = None
    target_name: str = ""
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    node_ids: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    has_ids: bool = False
    plan: TablePlan | None = None
    edge_plan: EdgePlan | None = None
    feature_names: tuple[str, ...] = ()
    node_types: Tensor | None = None
    link_columns: LinkColumns | None = None
    type_names: tuple[str, ...] = ()
    relations: Tensor | None = None
    relation_names: tuple[str, ...] = ()
    path_columns: PathColumns | None = None

    def __post_init__(self) -> None:
        ids = self.node_ids.view()
        ids.flags.writeable = False
        vars(self).update(node_ids=ids, _versions=self._changes())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Count changes from here on."""
        vars(self).update(state)
        self.__post_init__()

    def _changes(self) -> list[int]:
        """Return how often each tensor has been written to."""
        tensors = [one for name, one in vars(self).items() if isinstance(one, Tensor)]
        return [-1 if one.is_inference() else one._version for one in tensors]

    def check_unchanged(self) -> None:
        """Reject a graph whose tensors were written to: everything that follows from them is outdated."""
        if self._changes() != vars(self)["_versions"]:
            message = "a tensor of the graph was changed in place; build a new graph from changed copies"
            raise GraphError(message, code="graph-changed")

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.edge_index.shape[1]

    @property
    def num_splits(self) -> int:
        """Number of train/validation/test splits."""
        return 0 if self.train_mask is None else self.train_mask.shape[1]

    @property
    def in_memory(self) -> Literal[True]:
        """True: features and edges are in memory."""
        return True

    def fit_scaler(self, kind: str) -> FeatureScaler:
        """Learn the scaling; `"auto"` does not scale columns encoded from a table, or means along paths."""
        encoded = self.plan is not None and not self.plan.as_is
        encoded |= self.path_columns is not None and self.path_columns.are_features
        return fit_scaler(self.features, "none" if encoded and kind == "auto" else kind)

    def adjacency(self, *, undirected: bool, self_loops: bool) -> AdjacencyRows:
        """Return A or A + I as compressed sparse rows."""
        source, target = self.edge_index.numpy()
        weight = np.ones(len(source), np.float32) if self.edge_weight is None else self.edge_weight.numpy()
        between = source != target
        source, target, weight = source[between], target[between], weight[between].astype(np.float32)
        shape = (self.num_nodes, self.num_nodes)
        rows = sp.csr_array((weight, (target, source)), shape=shape)
        rows = rows.maximum(rows.T) if undirected else rows
        if self_loops:
            typical = weight.mean(dtype=np.float64) if len(weight) else 1.0
            rows = rows + sp.diags_array(np.full(self.num_nodes, typical, dtype=np.float32)).tocsr()
        rows = rows.tocsr()
        rows.sort_indices()
        return AdjacencyRows(rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data)

    def feature_reader(
        self, scaler: FeatureScaler, order: list[int] | None = None, gather: Gather = select_rows
    ) -> Callable[[Tensor], Tensor]:
        """Return a function from node numbers to their scaled features."""
        features = scaler(self.features if order is None else with_columns(self, order, ()).features)
        if features.layout != torch.sparse_csr:
            return lambda nodes: gather(features, nodes)
        rows = scipy_features(features)

        def read(nodes: Tensor) -> Tensor:
            return torch_features(rows[nodes.cpu().numpy()]).to(nodes.device)

        return read

    def __repr__(self) -> str:
        return f"Graph({self.provenance.source}: {', '.join(f'{n:,} {name}' for name, n in self._counts())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{number:,}</td></tr>" for name, number in self._counts())
        notes = "".join(f"<li>{html.escape(repair.message)}</li>" for repair in self.provenance.repairs)
        title = f"<caption>{html.escape(self.provenance.source)}</caption>"
        return f"<table>{title}{rows}</table>{f'<ul>{notes}</ul>' if notes else ''}"

    def _counts(self) -> list[tuple[str, int]]:
        counts = {"nodes": self.num_nodes, "edges": self.num_edges, "features": self.num_features}
        known = {"classes": self.num_classes, "labelled": int(self.labelled.sum()), "splits": self.num_splits}
        return [*counts.items(), *((name, number) for name, number in known.items() if number)]

    def __sklearn_clone__(self) -> Graph:
        """Return itself: a graph is immutable, so clones of an estimator share it."""
        return self

    def dense_features(self) -> Tensor:
        """Return the features as a dense tensor, whatever their storage."""
        if self.features.layout == torch.strided:
            return self.features
        size = 4 * self.num_nodes * self.num_features
        check_memory(size, f"dense features of {self.num_nodes:,} x {self.num_features:,}", GraphError)
        return self.features.to_dense()

    def dense_rows(self, start: int, stop: int) -> Tensor:
        """Return the features of consecutive nodes, dense."""
        if self.features.layout == torch.strided:
            return self.features[start:stop]
        return torch.from_numpy(scipy_features(self.features)[start:stop].toarray())

    def with_repairs(self, *repairs: Repair) -> Graph:
        """Return the same graph with more entries in `provenance.repairs`."""
        every = (*self.provenance.repairs, *repairs)
        return replace(self, provenance=replace(self.provenance, repairs=every))


def with_columns(graph: Graph, order: Sequence[int], names: tuple[str, ...]) -> Graph:
    """Return the graph with its feature columns in another order, under these names."""
    if graph.features.layout == torch.strided:
        features = graph.features[:, list(order)].contiguous()
    else:
        matrix = scipy_features(graph.features)[:, list(order)]
        matrix.sort_indices()
        features = torch_features(matrix)
    return with_hash(replace(graph, features=features, feature_names=names))


def canonical_graph(graph: Graph) -> Graph:
    """Return the graph with its nodes, and its columns by name, in an order that follows from it alone."""
    if graph.provenance.kind in FIXED_ORDER:
        return graph
    names = graph.feature_names
    columns = sorted(range(len(names)), key=names.__getitem__)
    sorted_columns = with_columns(graph, columns, tuple(names[at] for at in columns)) if names else graph
    return replace(reorder_nodes(sorted_columns, canonical_order(graph)), provenance=graph.provenance)


def reorder_nodes(graph: Graph, order: npt.NDArray[np.int64]) -> Graph:
    """Return the graph with its nodes in another order; edges stay sorted by target."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    ends = position[graph.edge_index.numpy()]
    by_target = np.lexsort((ends[0], ends[1]))
    chosen, edges = torch.from_numpy(order), torch.from_numpy(by_target)
    if graph.features.layout == torch.strided:
        features = graph.features[chosen]
    else:
        features = torch_features(scipy_features(graph.features)[order])
    parts = {name: getattr(graph, name) for name in ("labels", "targets", "node_types", *MASKS)}
    moved: dict[str, Any] = {name: None if part is None else part[chosen] for name, part in parts.items()}
    links, paths = graph.link_columns, graph.path_columns
    return replace(
        graph,
        features=features,
        relations=None if graph.relations is None else graph.relations[:, edges],
        path_columns=None if paths is None else replace(paths, values=paths.values[order]),
        link_columns=None if links is None else replace(links, values=links.values[order]),
        edge_index=torch.from_numpy(ends[:, by_target]),
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[edges],
        node_ids=graph.node_ids[order],
        **moved,
    )


def with_hash(graph: Graph) -> Graph:
    """Return the graph with the content hash of its parts in its provenance."""
    masks, links = (graph.train_mask, graph.val_mask, graph.test_mask), graph.link_columns
    parts = graph.features, graph.edge_index, graph.edge_weight, graph.labels, *masks
    values = None if links is None else torch.from_numpy(links.values)
    paths = None if graph.path_columns is None else torch.from_numpy(graph.path_columns.values)
    digest = content_hash(*parts, targets=graph.targets, links=values, relations=graph.relations, paths=paths)
    return replace(graph, provenance=replace(graph.provenance, sha256=digest))


def content_hash(
    features: Tensor,
    edge_index: Tensor,
    *others: Tensor | None,
    targets: Tensor | None = None,
    links: Tensor | None = None,
    relations: Tensor | None = None,
    paths: Tensor | None = None,
) -> str:
    """Return the SHA-256 of the arrays that a result depends on; of sparse features, as they are stored."""
    digest = hashlib.sha256()
    stored = [features]
    if features.layout == torch.sparse_csr:
        stored = [features.crow_indices(), features.col_indices(), features.values()]
    known = [part for part in (targets, links, relations, paths) if part is not None]
    for part in (*stored, edge_index, *others, *known):
        if part is None:
            digest.update(b"none")
            continue
        array = np.ascontiguousarray(part.detach().cpu().numpy())
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def random_splits(
    labels: Tensor,
    *,
    generator: torch.Generator,
    splits: int = SPLITS,
    train_share: float = TRAIN_SHARE,
    val_share: float = VAL_SHARE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw stratified random splits of 48, 32 and 20 %, as Geom-GCN does: three bool masks `[nodes, splits]`.

    Shares are rounded class by class; every class has at least one training node. Nodes without a label
    (negative) are in no split.
    """
    codes = torch.full((labels.numel(), splits), -1, dtype=torch.int8)  # 0 train, 1 validation, 2 test
    for split in range(splits):
        for label in torch.unique(labels[labels >= 0]).tolist():
            members = torch.nonzero(labels == label).flatten()
            shuffled = members[torch.randperm(members.numel(), generator=generator)]
            train = max(1, round(train_share * members.numel()))
            val = round(val_share * members.numel())
            codes[shuffled[:train], split] = 0
            codes[shuffled[train : train + val], split] = 1
            codes[shuffled[train + val :], split] = 2
    return codes == 0, codes == 1, codes == 2


def stratify(targets: Tensor) -> Tensor:
    """Return the quantile of each node's number, up to ten of at least ten nodes each; -1 where unknown."""
    known = torch.nonzero(~targets.isnan()).flatten()
    codes = torch.full(targets.shape, -1, dtype=torch.int64)
    bins = max(1, min(10, len(known) // 10))
    ranks = targets[known].argsort(stable=True).argsort()
    codes[known] = ranks * bins // max(1, len(known))
    return codes


def first_splits(graph: Graph, splits: int | None) -> Graph:
    """Return the graph with its first `splits` splits only."""
    if splits is None or graph.train_mask is None:
        return graph
    return replace(graph, **{name: getattr(graph, name)[:, :splits] for name in MASKS})


def with_splits(graph: Graph, seed: int = SEED) -> Graph:
    """Return the graph with ten random splits if it has labels but no splits; otherwise unchanged.

    They are drawn in an order that follows from the graph alone, not in that of the rows.
    """
    if graph.train_mask is not None or not graph.labelled.any():
        return graph
    order = torch.from_numpy(node_order(graph))
    codes = graph.labels[order] if graph.labels is not None else stratify(graph.targets[order])  # type: ignore[index]
    drawn = random_splits(codes, generator=torch.Generator().manual_seed(seed))
    train, val, test = (mask[order.argsort()] for mask in drawn)
    split = with_hash(replace(graph, train_mask=train, val_mask=val, test_mask=test))
    return split.with_repairs(random_splits_repair(seed))


HOPS = 4
FIXED_ORDER = ("dataset", "generated")
"""Kinds of graphs that keep the order of their files, so that stored results stay comparable."""


def node_order(graph: GraphLike) -> npt.NDArray[np.int64]:
    """Return the nodes of a graph in memory in their canonical order, of others in that of the files.

    Random numbers are drawn by position: which nodes are masked, which of them form a fold. In this order, a
    result depends neither on the order of the rows, edges and columns of the input nor on ids.
    """
    if not graph.in_memory or graph.provenance.kind in FIXED_ORDER:
        return np.arange(graph.num_nodes)
    return canonical_order(graph)  # type: ignore[arg-type]


def canonical_order(graph: Graph) -> npt.NDArray[np.int64]:
    """Return the nodes sorted by a random projection of their features and neighbourhoods.

    Nodes with equal features and equal neighbourhoods up to `HOPS` hops keep their order; nothing that is
    learned depends on which of them comes first.
    """
    key = _standardized(_project(graph))
    source, target = graph.edge_index.numpy()
    weight = None if graph.edge_weight is None else graph.edge_weight.double().numpy()
    for _ in range(HOPS):
        received = _neighbour_mean(key, source, target, weight)
        sent = _neighbour_mean(key, target, source, weight)
        key = _standardized(key + 0.7 * received + 0.4 * sent)
    return np.argsort(np.round(key, 9), kind="stable")


def _project(graph: Graph) -> npt.NDArray[np.float64]:
    """Return one number per node: its columns, scaled to one standard deviation, in a random direction."""
    features: Any
    if graph.features.layout == torch.strided:
        features = graph.features.double().numpy()
        deviation = features.std(axis=0)
    else:
        features = scipy_features(graph.features).astype(np.float64)
        mean, square = (np.asarray(part.mean(axis=0)).ravel() for part in (features, features * features))
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
    direction = np.random.default_rng(0).normal(size=graph.num_features)
    if graph.feature_names:  # the order of columns is not that of their names
        direction = direction[np.argsort(np.argsort(graph.feature_names))]
    return np.asarray(features @ (direction / np.where(deviation > 0, deviation, 1)))


def _neighbour_mean(
    key: npt.NDArray[np.float64],
    source: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64] | None,
) -> npt.NDArray[np.float64]:
    """Return a function of the neighbours of each node that also depends on their number."""
    values = np.tanh(key[source]) if weight is None else weight * np.tanh(key[source])
    total = np.bincount(target, values, minlength=len(key))
    count = np.bincount(target, weight, minlength=len(key))
    return total / np.sqrt(1 + count) + 0.1 * np.log1p(count)


def _standardized(key: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    deviation = key.std()
    return np.asarray((key - key.mean()) / (deviation if deviation > 0 else 1))
