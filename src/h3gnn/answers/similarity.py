"""Nearest neighbours in an embedding, exact or by an approximate index, with explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from h3gnn.errors import InputError, check_choice
from h3gnn.graphs.graph import Graph, node_order, reorder_nodes
from h3gnn.graphs.ids import as_ids, check_ids, find_ids, quoted
from h3gnn.graphs.scaling import Moments, MomentSums
from h3gnn.graphs.structural import simple_adjacency
from h3gnn.tables.encoders import COMPONENT, MISSING
from h3gnn.tables.plan import ColumnPlan, TablePlan

if TYPE_CHECKING:
    from h3gnn.ondisk.mapped import MappedGraph

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

ROWS = 16_384
"""Candidates compared at a time."""
FIRST = (slice(128), slice(128, 512), slice(512, 2_048), slice(2_048, None))
"""Slices of the first block: only candidates that are nearer than those already found are sorted."""
QUERIES = 1_024
"""Query nodes processed at a time."""
MANY_NODES, MAX_COMPONENTS = 10_000, 128
"""For all pairs among more nodes than this, wider embeddings are reduced to principal components."""

SEARCHES = ("auto", "exact", "approximate")
"""Exact search compares all nodes; "auto" does, too, unless there is an index of more than `LARGE` nodes."""
LARGE, INDEX_SAMPLE, LINKS, EFFORT, BEAM, CANDIDATES = 100_000, 20_000, 32, 80, 4_000, 500
"""Of the index: nodes from which the principal components are found; links of a node, effort to find them,
and nodes that a search keeps (HNSW); and candidates that are compared exactly."""


@dataclass(frozen=True)
class _Reordered:
    """The rows of an embedding in another order, without a copy."""

    rows: Floats
    order: Integers

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, some: Any) -> Floats:
        return np.asarray(self.rows[self.order[some]])


def mean_row(rows: Floats | _Reordered) -> Floats:
    """Return the mean of all rows, computed in float64."""
    total = np.zeros(rows[:1].shape[1])
    for first in range(0, len(rows), ROWS):
        total += rows[first : first + ROWS].sum(axis=0, dtype=np.float64)
    return np.asarray(total / max(1, len(rows)), dtype=np.float32)


def nearest(
    embedding: Floats | _Reordered,
    queries: Integers,
    k: int,
    candidates: Integers | None = None,
    *,
    mean: Floats | None = None,
    rows_at_once: int = ROWS,
    queries_at_once: int = QUERIES,
) -> tuple[Integers, Floats]:
    """Return the k nearest other nodes of each query and their cosine similarity, `[queries, k]` each.

    Exact, in blocks. The embedding is centred first, since the common mean carries no information. Ties keep
    the node with the lower position. There are fewer than k where there are fewer candidates.
    """
    mean = mean_row(embedding) if mean is None else mean
    pool = np.arange(len(embedding)) if candidates is None else np.unique(candidates)
    k = min(k, len(pool) - int(candidates is None))
    found = np.full((len(queries), k), -1, dtype=np.int64)
    near = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for first in range(0, len(queries) if k else 0, queries_at_once):
        block = slice(first, first + queries_at_once)
        nodes, best, which = queries[block], near[block], found[block]
        rows = unit_rows(embedding[nodes] - mean)
        for start in range(0, len(pool), rows_at_once):
            others = pool[start : start + rows_at_once]
            cosine = rows @ unit_rows(embedding[others] - mean).T
            itself = np.flatnonzero(np.isin(nodes, others))
            cosine[itself, np.searchsorted(others, nodes[itself])] = -np.inf
            for part in FIRST if start == 0 else (slice(None),):
                best, which = _best(best, which, cosine[:, part], others[part], k)
        near[block], found[block] = best, which
    return found, near


def find_faiss(what: str, instead: str) -> Any:
    """Return the library FAISS, or raise an error that says what to install."""
    try:
        import faiss
    except ImportError:
        message = f"{what} needs FAISS: `pip install 'h3gnn[index]'`; {instead}"
        raise InputError(message, code="missing-library") from None
    return faiss


class NeighbourIndex:
    """An approximate index: a graph of neighbours (HNSW) in the principal components of centred unit rows.

    The candidates that it finds are compared exactly.
    """

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def build(cls, embedding: Floats) -> Self:
        """Build the index of an embedding; one thread, so that it is the same each time."""
        faiss = find_faiss("approximate search", "exact search needs nothing else")
        nodes, width = embedding.shape
        size, mean = min(width, nodes, MAX_COMPONENTS), mean_row(embedding)
        within = faiss.IndexHNSWFlat(size, LINKS, faiss.METRIC_INNER_PRODUCT)
        within.hnsw.efConstruction = EFFORT
        found = faiss.IndexPreTransform(within)
        centre = faiss.CenteringTransform(width)
        faiss.copy_array_to_vector(mean, centre.mean)
        centre.is_trained = True
        steps = [centre, faiss.NormalizationTransform(width)]
        if width > size:
            from sklearn.decomposition import PCA

            some = np.unique(np.linspace(0, nodes - 1, INDEX_SAMPLE).astype(np.int64))
            reduction = PCA(size, random_state=0, svd_solver="randomized")
            reduction.fit(unit_rows(embedding[some] - mean))
            linear = faiss.LinearTransform(width, size, True)
            shift = -reduction.components_ @ reduction.mean_
            faiss.copy_array_to_vector(reduction.components_.astype(np.float32).ravel(), linear.A)
            faiss.copy_array_to_vector(shift.astype(np.float32), linear.b)
            linear.is_trained = True
            steps += [linear, faiss.NormalizationTransform(size)]
        for step in reversed(steps):
            found.prepend_transform(step)
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            for first in range(0, nodes, ROWS):
                found.add(np.ascontiguousarray(embedding[first : first + ROWS], dtype=np.float32))
        finally:
            faiss.omp_set_num_threads(threads)
        return cls(found)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return an index that `to_bytes` made."""
        faiss = find_faiss("the index of this run", "exact search needs nothing else")
        return cls(faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8)))

    def to_bytes(self) -> bytes:
        """Return the index as bytes, with its principal components."""
        content: bytes = find_faiss("an index", "").serialize_index(self.index).tobytes()
        return content

    def candidates(self, rows: Floats, count: int) -> Integers:
        """Return the positions of nodes near each row, `[rows, count]`; -1 where fewer are found."""
        faiss = find_faiss("approximate search", "exact search needs nothing else")
        faiss.downcast_index(self.index.index).hnsw.efSearch = max(count, BEAM)
        found = self.index.search(np.ascontiguousarray(rows, dtype=np.float32), count)[1]
        return np.asarray(found, dtype=np.int64)


def searches_exactly(search: str, nodes: int, *, indexed: bool = False) -> bool:
    """Whether all nodes are compared: by choice, or for "auto" among few nodes or without an index.

    To build one takes as long as tens of exact searches.
    """
    check_choice("search", search, SEARCHES)
    there = indexed and nodes > LARGE and find_spec("faiss") is not None
    return search == "exact" or (search == "auto" and not there)


def nearest_among(
    embedding: Floats | _Reordered, queries: Integers, k: int, candidates: Integers, mean: Floats
) -> tuple[Integers, Floats]:
    """Return the k nearest of each query's own candidates; -1 and minus infinity where there are fewer."""
    found = np.full((len(queries), k), -1, dtype=np.int64)
    near = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for at, (query, own) in enumerate(zip(queries, candidates, strict=True)):
        of_one = nearest(embedding, query[None], k, own[own >= 0], mean=mean)
        found[at, : of_one[0].shape[1]], near[at, : of_one[1].shape[1]] = of_one[0][0], of_one[1][0]
    return found, near


def nearest_to_all(embedding: Floats, k: int) -> tuple[Integers, Floats]:
    """Return the k nearest other nodes of every node; many wide rows are compared in principal components."""
    rows = embedding
    if len(rows) > MANY_NODES and rows.shape[1] > MAX_COMPONENTS:
        from sklearn.decomposition import PCA

        reduced = PCA(MAX_COMPONENTS, random_state=0, svd_solver="randomized").fit_transform(rows)
        rows = reduced.astype(np.float32)
    return nearest(rows, np.arange(len(rows)), k)


def nearest_of_types(
    embedding: Floats, queries: Integers, k: int, types: Integers, pairs: npt.NDArray[np.bool_]
) -> Integers:
    """Return pairs `[2, pairs]` of each query with its k nearest nodes of each type that `pairs` allows."""
    found = [np.empty((2, 0), dtype=np.int64)]
    for own, other in np.argwhere(pairs).tolist():
        some, among = queries[types[queries] == own], np.flatnonzero(types == other)
        if some.size and among.size:
            near, cosine = nearest(embedding, some, k, among)
            listed = np.stack([np.repeat(some, near.shape[1]), near.ravel()])
            found.append(listed[:, np.isfinite(cosine.ravel())])
    return np.concatenate(found, axis=1)


def _best(near: Floats, which: Integers, cosine: Floats, others: Integers, k: int) -> tuple[Floats, Integers]:
    """Merge the k best so far with further candidates; ties keep the lower position."""
    row, place = np.divmod(np.flatnonzero(cosine > near[:, -1:]), max(1, cosine.shape[1]))
    counts = np.bincount(row, minlength=len(cosine))
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    nearer = np.full((len(cosine), int(counts.max(initial=0))), -np.inf, dtype=np.float32)
    nodes = np.full(nearer.shape, -1, dtype=np.int64)
    nearer[row, column], nodes[row, column] = cosine[row, place], others[place]
    every, nodes = np.concatenate([near, nearer], axis=1), np.concatenate([which, nodes], axis=1)
    order = np.argsort(-every, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(every, order, axis=1), np.take_along_axis(nodes, order, axis=1)


def find_nodes(graph: Graph | MappedGraph, wanted: Any) -> Integers:
    """Return the positions of nodes by their ids, a list or an array."""
    ids = as_ids(wanted if hasattr(wanted, "dtype") else list(wanted), "the requested nodes")
    found = find_ids(ids, graph.node_ids)
    if (found < 0).any():
        unknown = quoted(ids[int(np.flatnonzero(found < 0)[0])])
        some = ", ".join(quoted(one) for one in graph.node_ids[:3].tolist())
        raise InputError(f"the graph has no node {unknown}; its ids look like {some}, …", code="unknown-node")
    return found


def similar_nodes(
    graph: Graph | MappedGraph,
    embedding: Floats,
    queries: Integers,
    k: int,
    *,
    feature_names: Sequence[str] | None = None,
    tokens: Mapping[str, Integers] | None = None,
    attention: Callable[[Integers], Floats] | None = None,
    candidates: Integers | None = None,
    index: NeighbourIndex | None = None,
) -> pd.DataFrame:
    """Return the k nearest nodes of each query with an explanation, one pair per row.

    Columns: `node`, `similar` (ids), `rank`, `similarity` (cosine), `linked` (connected by an edge),
    `shared_neighbours` (their number), `neighbours` (some of them, lowest degree first), `features` (shared
    ones, the most distinctive first), `reasons` (features and tokens, ranked by how many standard deviations
    more alike the pair is than random pairs), and for each token of the encoder `agree: TOKEN`, the cosine of
    the two nodes in the columns of that token, and `listens: TOKEN`, their mean attention to it.

    Args:
        graph: the graph of the embedding, in memory or on disk.
        embedding: `[nodes, D]`.
        queries: positions of the query nodes.
        k: number of neighbours of each query.
        feature_names: names of the feature columns.
        tokens: columns of the embedding that belong to each token.
        attention: maps positions to the attention to each token, `[nodes, tokens]`.
        candidates: positions to choose from.
        index: finds candidates among all nodes; without it, all are compared.
    """
    order = np.arange(graph.num_nodes)  # decides between equally near nodes
    if isinstance(graph, Graph):
        check_ids(graph.node_ids)
        order = node_order(graph)
        graph = reorder_nodes(graph, order)
    place, rows = np.argsort(order), _Reordered(embedding, order)
    mean = mean_row(rows)
    if index is None or candidates is not None:
        chosen = None if candidates is None else place[candidates]
        found, near = nearest(rows, place[queries], k, chosen, mean=mean)
    else:
        likely = index.candidates(embedding[queries], min(len(rows), max(CANDIDATES, 10 * k)))
        found, near = nearest_among(rows, place[queries], k, np.where(likely < 0, -1, place[likely]), mean)
    queries = place[queries]
    known = np.isfinite(near)  # a query may itself be among few candidates
    if not known.any():
        message = "similar nodes need another node to choose from, and there is none"
        raise InputError(message, code="too-few-nodes")
    query, rank = np.nonzero(known)
    node, other = queries[query], found[known]
    explanations = Explanations(graph, feature_names)
    table = pd.DataFrame(
        {
            "node": graph.node_ids[node],
            "similar": graph.node_ids[other],
            "rank": rank + 1,
            "similarity": near[known],
        }
    )
    pairs = list(zip(node.tolist(), other.tolist(), strict=True))
    shared = [explanations.neighbours(a, b) for a, b in pairs]
    found_alike = [explanations.features(a, b) for a, b in pairs]
    table["linked"] = [explanations.linked(a, b) for a, b in pairs]
    table["shared_neighbours"] = [len(one) for one in shared]
    table["neighbours"] = [graph.node_ids[one[:MAX_SHOWN]].tolist() for one in shared]
    table["features"] = [[text for _, text in one] for one in found_alike]
    for name, columns in (tokens or {}).items():
        agree = _agreement(rows, np.stack([node, other]), columns, mean)
        drawn = _agreement(rows, explanations.drawn, columns, mean)
        usual = float(drawn.mean())
        z = (agree - usual) / max(float(drawn.std()), LEAST_SPREAD)
        for at in np.flatnonzero(z > 0).tolist() if explanations.explains(name) else ():
            found_alike[at].append(
                (float(z[at]), f"{name} ({agree[at]:.0%} alike, usually {max(usual, 0):.0%})")
            )
        table[f"agree: {name}"] = agree
    ranked = [sorted(one, key=lambda reason: -reason[0])[:MAX_SHOWN] for one in found_alike]
    table.insert(list(table).index("features"), "reasons", [[text for _, text in one] for one in ranked])
    if attention is not None and tokens:
        nodes, place = np.unique(np.concatenate([node, other]), return_inverse=True)
        of_node, of_other = np.split(attention(order[nodes])[place], 2)
        for token, name in enumerate(tokens):
            table[f"listens: {name}"] = (of_node[:, token] + of_other[:, token]) / 2
    return table


def _agreement(rows: _Reordered, pairs: Integers, columns: Integers, mean: Floats) -> npt.NDArray[np.float64]:
    """Return the cosine of the centred rows of each pair in some columns."""
    left, right = (unit_rows(rows[one][:, columns] - mean[columns]) for one in pairs)
    return np.asarray((left * right).sum(axis=1), dtype=np.float64)


def unit_rows(rows: Floats) -> Floats:
    """Return rows of length 1; those of zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, 1e-12), dtype=np.float32)


Row = npt.NDArray[np.float64]

MAX_SHOWN = 5
"""The number of shared features and neighbours that are listed."""
NO_SPREAD = 1e-6
"""A column is constant if it varies by less than this share of its mean, or of the median spread."""
ENDS = {"number": ("low", "high"), "boolean": ("no", "yes"), "date": ("early", "late")}
"""By kind of column, the words for small and large values."""
SAMPLE = 2_000
"""Nodes to which the similarity of two texts is compared, and random pairs to which a pair is compared."""
LEAST_SPREAD = 0.01
"""Smallest standard deviation of a cosine among random pairs."""


def _edges_and_moments(graph: Graph | MappedGraph) -> tuple[Any, Any, Moments]:
    """Return the undirected edges as compressed sparse rows, and the moments of the features."""
    if not isinstance(graph, Graph):
        rows = graph.adjacency(undirected=True, self_loops=False)
        return rows.crow, rows.cols, graph.moments
    _, adjacency = simple_adjacency(graph.edge_index, graph.num_nodes)
    sums = MomentSums(graph.num_features)
    sums.add(graph.features)
    return adjacency.indptr, adjacency.indices, sums.moments()


class Explanations:
    """Common neighbours and features of two nodes of a graph, link columns included.

    Attributes:
        drawn: random pairs of different nodes, `[2, pairs]`.
    """

    def __init__(self, graph: Graph | MappedGraph, names: Sequence[str] | None) -> None:
        self.graph, self.names = graph, names
        self.starts, self.ends, moments = _edges_and_moments(graph)
        self.mean, variance = np.array(moments.mean), np.array(moments.variance)
        spread = np.sqrt(variance)
        least = NO_SPREAD * np.maximum(np.abs(self.mean), np.median(spread) if spread.size else 0)
        self.spread = np.where(spread > np.maximum(least, 1e-12), spread, np.inf)
        bag = not moments.negative and moments.filled <= 0.5 * (moments.rows * len(moments.mean))
        # an indicator column is shared only where both nodes have it
        indicator = np.isclose(variance, self.mean * (1 - self.mean), rtol=1e-3, atol=0) & (self.mean > 0)
        self.counted = indicator | (moments.zeros_and_ones or bag)
        paths = graph.path_columns if isinstance(graph, Graph) else None
        if paths is not None and paths.are_features:
            self.spread[:] = np.inf  # principal components have no meaning by themselves
        self.drawn = np.random.default_rng(0).integers(0, graph.num_nodes, (2, SAMPLE))
        self.drawn = self.drawn[:, self.drawn[0] != self.drawn[1]]
        links = graph.link_columns
        self.linked_values = np.empty((graph.num_nodes, 0)) if links is None else links.values
        self.linked_names = () if links is None else links.names
        some = np.unique(np.linspace(0, graph.num_nodes - 1, LARGE).astype(np.int64))
        of_links = self.linked_values[some].astype(np.float64)
        scale = of_links.std(axis=0)
        self.mean = np.concatenate([self.mean, of_links.mean(axis=0)])
        self.spread = np.concatenate([self.spread, np.where(scale > NO_SPREAD, scale, np.inf)])
        self.counted = np.concatenate([self.counted, np.zeros(len(scale), bool)])
        self.columns: dict[int, ColumnPlan] = {}  # by feature, the column of the table that it encodes
        self.texts: dict[str, list[int]] = {}  # by column of text or of hashed lists, its features
        self.gaps: dict[int, list[int]] = {}  # by indicator of a missing value, the features that are imputed
        self._samples: dict[str, Row] = {}
        if graph.plan is not None and names is not None and tuple(names) == graph.plan.names:
            self._read_plan(graph.plan)

    def _read_plan(self, plan: TablePlan) -> None:
        for at, feature in enumerate(plan.features):
            column = feature.column
            if column.fitted is None:
                continue
            self.columns[at] = column
            if feature.role == MISSING:
                self.gaps[at] = list(range(at + 1 - len(column.names), at))
            elif feature.role == COMPONENT:  # has no meaning by itself
                self.spread[at] = np.inf
                if column.encoder != "date":
                    self.texts.setdefault(column.name, []).append(at)

    def explains(self, token: str) -> bool:
        """Whether the name of a token says something: a type without columns has no own features."""
        columns = self.graph.path_columns if isinstance(self.graph, Graph) else None
        return columns is None or not columns.are_features or not token.startswith("own features")

    def _neighbors(self, node: int) -> Integers:
        start, end = self.starts[node : node + 2]
        own: Integers = np.asarray(self.ends[start:end], dtype=np.int64)
        return np.asarray(own[own != node])

    def linked(self, a: int, b: int) -> bool:
        """Return whether an edge connects two nodes."""
        return bool(np.isin(b, self._neighbors(a)))

    def neighbours(self, a: int, b: int) -> Integers:
        """Return the common neighbours, those with the lowest degree first: they are most informative."""
        both = np.intersect1d(self._neighbors(a), self._neighbors(b))
        degree: Integers = self.starts[both + 1] - self.starts[both]
        order = np.argsort(degree, kind="stable")
        return np.asarray(both[order])

    def features(self, a: int, b: int) -> list[tuple[float, str]]:
        """Return the features that distinguish both nodes from the rest in the same way, strongest first.

        Counts, indicators and words must be present in both nodes; measurements must be on the same side of
        the mean. A column of text is one feature: the similarity of both texts, if unusual. The strength is
        the product of the z-scores, of variance 1 among random pairs.
        """
        left, right = (self._row(one) for one in (a, b))
        product = ((left - self.mean) / self.spread) * ((right - self.mean) / self.spread)
        product = np.where(self.counted & ((left == 0) | (right == 0)), 0, product)
        for indicator, imputed in self.gaps.items():
            if left[indicator] or right[indicator]:
                product[imputed] = 0
        best = np.argsort(-product, kind="stable")[:MAX_SHOWN]
        found = [
            (float(product[one]), self._named(int(one), left, right)) for one in best if product[one] > 0
        ]
        for name, columns in self.texts.items():
            similarity, unusual = self._text_similarity(name, left[columns], right[columns])
            if unusual > 0:
                found.append((unusual, f"{name} ({similarity:.0%} alike)"))
        found.sort(key=lambda one: -one[0])
        return found[:MAX_SHOWN]

    def _text_similarity(self, name: str, left: Row, right: Row) -> tuple[float, float]:
        """Return the cosine of two texts, and the product of its z-scores for either text."""
        left, right = (one / max(float(np.linalg.norm(one)), 1e-12) for one in (left, right))
        cosine, unusual = float(left @ right), 1.0
        for one in (left, right):
            usual = self._sample(name) @ one
            z = (cosine - usual.mean()) / max(float(usual.std()), 1e-12)
            unusual *= max(float(z), 0.0) if one.any() else 0.0
        return cosine, unusual

    def _sample(self, name: str) -> Row:
        if name not in self._samples:
            nodes = np.unique(np.linspace(0, self.graph.num_nodes - 1, SAMPLE).astype(np.int64))
            rows = np.array([self._row(int(one))[self.texts[name]] for one in nodes])
            self._samples[name] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return self._samples[name]

    def _row(self, node: int) -> Row:
        stored = self.graph.features
        if not isinstance(stored, torch.Tensor):
            row = self.graph.dense_rows(node, node + 1)[0].double().numpy()
        elif stored.layout != torch.sparse_csr:
            row = stored[node].double().numpy()
        else:
            start, end = stored.crow_indices()[node : node + 2].tolist()
            row = np.zeros(self.graph.num_features)
            row[stored.col_indices()[start:end].numpy()] = stored.values()[start:end].numpy()
        return np.concatenate([row, self.linked_values[node]])

    def _named(self, feature: int, left: Row, right: Row) -> str:
        a, b, own = left[feature], right[feature], self.graph.num_features
        if feature >= own:  # scaled
            return f"{self.linked_names[feature - own]} (both {'high' if a > self.mean[feature] else 'low'})"
        name = f"feature {feature}" if self.names is None else str(self.names[feature])
        if a == b == 1:
            return name
        column = self.columns.get(feature)
        if column is not None and column.kind in ENDS:
            return f"{name} (both {ENDS[column.kind][int(a > self.mean[feature])]})"
        return f"{name} ({a:.3g}, {b:.3g})"
