"""Exact nearest-neighbour search in an embedding, with explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph, node_order, reorder_nodes
from h3gnn.graphs.ids import as_ids, check_ids, find_ids, quoted
from h3gnn.graphs.scaling import MomentSums
from h3gnn.graphs.structural import simple_adjacency
from h3gnn.tables.encoders import COMPONENT, MISSING
from h3gnn.tables.plan import ColumnPlan, TablePlan

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


def nearest(
    embedding: Floats,
    queries: Integers,
    k: int,
    candidates: Integers | None = None,
    *,
    rows_at_once: int = ROWS,
    queries_at_once: int = QUERIES,
) -> tuple[Integers, Floats]:
    """Return the k nearest other nodes of each query and their cosine similarity, `[queries, k]` each.

    Exact, in blocks. The embedding is centred first, since the common mean carries no information. Ties keep
    the node with the lower position. There are fewer than k where there are fewer candidates.
    """
    mean = embedding.mean(axis=0, dtype=np.float64).astype(np.float32)
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


def find_nodes(graph: Graph, wanted: Any) -> Integers:
    """Return the positions of nodes by their ids, a list or an array."""
    ids = as_ids(wanted if hasattr(wanted, "dtype") else list(wanted), "the requested nodes")
    found = find_ids(ids, graph.node_ids)
    if (found < 0).any():
        unknown = quoted(ids[int(np.flatnonzero(found < 0)[0])])
        some = ", ".join(quoted(one) for one in graph.node_ids[:3].tolist())
        raise InputError(f"the graph has no node {unknown}; its ids look like {some}, …", code="unknown-node")
    return found


def similar_nodes(
    graph: Graph,
    embedding: Floats,
    queries: Integers,
    k: int,
    *,
    feature_names: Sequence[str] | None = None,
    tokens: Mapping[str, Integers] | None = None,
    attention: Callable[[Integers], Floats] | None = None,
    candidates: Integers | None = None,
) -> pd.DataFrame:
    """Return the k nearest nodes of each query with an explanation, one pair per row.

    Columns: `node`, `similar` (ids), `rank`, `similarity` (cosine), `linked` (connected by an edge),
    `shared_neighbours` (their number), `neighbours` (some of them, lowest degree first), `features` (shared
    ones, the most distinctive first), `reasons` (features and tokens, ranked by how many standard deviations
    more alike the pair is than random pairs), and for each token of the encoder `agree: TOKEN`, the cosine of
    the two nodes in the columns of that token, and `listens: TOKEN`, their mean attention to it.

    Args:
        graph: the graph of the embedding.
        embedding: `[nodes, D]`.
        queries: positions of the query nodes.
        k: number of neighbours of each query.
        feature_names: names of the feature columns.
        tokens: columns of the embedding that belong to each token.
        attention: maps positions to the attention to each token, `[nodes, tokens]`.
        candidates: positions to choose from.
    """
    check_ids(graph.node_ids)
    order = node_order(graph)  # decides between equally near nodes
    place = np.argsort(order)
    graph, embedding, queries = reorder_nodes(graph, order), embedding[order], place[queries]
    found, near = nearest(embedding, queries, k, None if candidates is None else place[candidates])
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
        agree = _agreement(embedding[:, columns], np.stack([node, other]))
        drawn = _agreement(embedding[:, columns], explanations.drawn)
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


def _agreement(rows: Floats, pairs: Integers) -> npt.NDArray[np.float64]:
    """Return the cosine of the centred rows of each pair."""
    centred = rows - rows.mean(axis=0)
    left, right = (unit_rows(centred[one]) for one in pairs)
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


class Explanations:
    """Common neighbours and features of two nodes of a graph, link columns included.

    Attributes:
        drawn: random pairs of different nodes, `[2, pairs]`.
    """

    def __init__(self, graph: Graph, names: Sequence[str] | None) -> None:
        self.graph, self.names = graph, names
        _, self.adjacency = simple_adjacency(graph.edge_index, graph.num_nodes)
        sums = MomentSums(graph.num_features)
        sums.add(graph.features)
        moments = sums.moments()
        self.mean, variance = np.array(moments.mean), np.array(moments.variance)
        spread = np.sqrt(variance)
        least = NO_SPREAD * np.maximum(np.abs(self.mean), np.median(spread) if spread.size else 0)
        self.spread = np.where(spread > np.maximum(least, 1e-12), spread, np.inf)
        bag = not moments.negative and moments.filled <= 0.5 * (moments.rows * len(moments.mean))
        # an indicator column is shared only where both nodes have it
        indicator = np.isclose(variance, self.mean * (1 - self.mean), rtol=1e-3, atol=0) & (self.mean > 0)
        self.counted = indicator | (moments.zeros_and_ones or bag)
        if graph.path_columns is not None and graph.path_columns.are_features:
            self.spread[:] = np.inf  # principal components have no meaning by themselves
        self.drawn = np.random.default_rng(0).integers(0, graph.num_nodes, (2, SAMPLE))
        self.drawn = self.drawn[:, self.drawn[0] != self.drawn[1]]
        links = graph.link_columns
        self.linked_values = (
            np.empty((graph.num_nodes, 0)) if links is None else links.values.astype(np.float64)
        )
        self.linked_names = () if links is None else links.names
        scale = self.linked_values.std(axis=0)
        self.mean = np.concatenate([self.mean, self.linked_values.mean(axis=0)])
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
        columns = self.graph.path_columns
        return columns is None or not columns.are_features or not token.startswith("own features")

    def _neighbors(self, node: int) -> Integers:
        start, end = self.adjacency.indptr[node : node + 2]
        return np.asarray(self.adjacency.indices[start:end], dtype=np.int64)

    def linked(self, a: int, b: int) -> bool:
        """Return whether an edge connects two nodes."""
        return bool(np.isin(b, self._neighbors(a)))

    def neighbours(self, a: int, b: int) -> Integers:
        """Return the common neighbours, those with the lowest degree first: they are most informative."""
        both = np.intersect1d(self._neighbors(a), self._neighbors(b))
        return both[np.argsort(np.diff(self.adjacency.indptr)[both], kind="stable")]

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
        if stored.layout != torch.sparse_csr:
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
