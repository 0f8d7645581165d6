"""Nodes that are near in an embedding, found exactly, and why they are near."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_ids, check_ids, find_ids, quoted
from h3gnn.graphs.scaling import MomentSums
from h3gnn.graphs.structural import simple_adjacency
from h3gnn.tables.plan import ColumnPlan

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

ROWS = 16_384
"""So many nodes are compared with the asked ones at a time."""
FIRST = (slice(128), slice(128, 512), slice(512, 2_048), slice(2_048, None))
"""Parts of the first of them: of each, only what is nearer than the nearest before it has to be sorted."""
ASKED = 1_024
"""So many nodes ask at a time."""
MANY_NODES, WIDEST = 10_000, 128
"""Where all of more nodes than this ask, wider embeddings are compared in so many principal directions."""


def nearest(embedding: Floats, asked: Whole, k: int, candidates: Whole | None = None) -> tuple[Whole, Floats]:
    """Return the k nearest other nodes of each asked one and their cosine similarity, `[asked, k]` each.

    Exact: every node is looked at, some at a time, so that no matrix of all pairs is ever made. The embedding
    is centred first: what all nodes share says nothing about who is near whom. The nearest stand first; of
    equally near nodes the one with the lower number.

    Args:
        embedding: `[nodes, D]`.
        asked: positions of the nodes that ask.
        k: how many; fewer where there are fewer other nodes.
        candidates: positions among which the nearest are sought; all by default.
    """
    mean = embedding.mean(axis=0, dtype=np.float64).astype(np.float32)
    pool = np.arange(len(embedding)) if candidates is None else np.unique(candidates)
    k = min(k, len(pool) - int(candidates is None))
    found = np.full((len(asked), k), -1, dtype=np.int64)
    near = np.full((len(asked), k), -np.inf, dtype=np.float32)
    for first in range(0, len(asked) if k else 0, ASKED):
        mine = asked[first : first + ASKED]
        rows = _unit(embedding[mine] - mean)
        best, which = near[first : first + ASKED], found[first : first + ASKED]
        for start in range(0, len(pool), ROWS):
            others = pool[start : start + ROWS]
            cosine = rows @ _unit(embedding[others] - mean).T
            itself = np.flatnonzero(np.isin(mine, others))
            cosine[itself, np.searchsorted(others, mine[itself])] = -np.inf
            for some in FIRST if start == 0 else (slice(None),):
                best, which = _best(best, which, cosine[:, some], others[some], k)
        near[first : first + ASKED], found[first : first + ASKED] = best, which
    return found, near


def nearest_to_all(embedding: Floats, k: int) -> tuple[Whole, Floats]:
    """Return the k nearest other nodes of every node, as `nearest` does.

    A wide embedding of many nodes is compared in its first principal directions, which is not exact.
    """
    rows = embedding
    if len(rows) > MANY_NODES and rows.shape[1] > WIDEST:
        from sklearn.decomposition import PCA

        reduced = PCA(WIDEST, random_state=0, svd_solver="randomized").fit_transform(rows)
        rows = reduced.astype(np.float32)
    return nearest(rows, np.arange(len(rows)), k)


def _best(near: Floats, which: Whole, cosine: Floats, others: Whole, k: int) -> tuple[Floats, Whole]:
    """Return the k best of those known so far and of some others, the best first.

    Only what is nearer than the last one known is looked at, which is hardly any after some thousand others.
    Of equally near nodes the known one has the lower number.
    """
    row, place = np.divmod(np.flatnonzero(cosine > near[:, -1:]), max(1, cosine.shape[1]))
    counts = np.bincount(row, minlength=len(cosine))
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    nearer = np.full((len(cosine), int(counts.max(initial=0))), -np.inf, dtype=np.float32)
    nodes = np.full(nearer.shape, -1, dtype=np.int64)
    nearer[row, column], nodes[row, column] = cosine[row, place], others[place]
    every, nodes = np.concatenate([near, nearer], axis=1), np.concatenate([which, nodes], axis=1)
    order = np.argsort(-every, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(every, order, axis=1), np.take_along_axis(nodes, order, axis=1)


def find_nodes(graph: Graph, wanted: Sequence[Any]) -> Whole:
    """Return the positions of nodes by their ids; one that is not there is named."""
    ids = as_ids(list(wanted), "the nodes asked for")
    found = find_ids(ids, graph.node_ids)
    if (found < 0).any():
        stranger = quoted(ids[int(np.flatnonzero(found < 0)[0])])
        some = ", ".join(quoted(one) for one in graph.node_ids[:3].tolist())
        raise InputError(f"there is no node {stranger} in this graph; its nodes are called {some}, …")
    return found


def similar_nodes(
    graph: Graph,
    embedding: Floats,
    asked: Whole,
    k: int,
    *,
    feature_names: Sequence[str] | None = None,
    tokens: Mapping[str, Whole] | None = None,
    listens: Callable[[Whole], Floats] | None = None,
    candidates: Whole | None = None,
) -> pd.DataFrame:
    """Return the k nearest nodes of each asked one, with the reasons, one pair per row.

    Columns: `node`, `similar` (ids), `rank`, `similarity` (cosine), `linked` (an edge joins them),
    `shared_neighbours` (how many), `neighbours` (some of them, those with the fewest neighbours first),
    `features` (shared ones, those that set the pair apart most first), and for each token of the encoder
    `agree: TOKEN`, the cosine of the two nodes in that token's columns; `listens: TOKEN` is the share of
    attention that the two give it, where attention is known.

    Args:
        graph: of the embedding.
        embedding: `[nodes, D]`.
        asked: positions.
        k: how many for each.
        feature_names: of the columns.
        tokens: by the name of each token, its columns of the embedding.
        listens: from positions to the share of attention that each token gets there, `[nodes, tokens]`.
        candidates: positions among which the nearest are sought.
    """
    check_ids(graph.node_ids)
    found, near = nearest(embedding, asked, k, candidates)
    there = np.isfinite(near)  # among few candidates, a node that asks may be one itself
    asking, rank = np.nonzero(there)
    node, other = asked[asking], found[there]
    reasons = Reasons(graph, feature_names)
    table = pd.DataFrame(
        {
            "node": graph.node_ids[node],
            "similar": graph.node_ids[other],
            "rank": rank + 1,
            "similarity": near[there],
        }
    )
    pairs = list(zip(node.tolist(), other.tolist(), strict=True))
    shared = [reasons.neighbours(a, b) for a, b in pairs]
    table["linked"] = [reasons.linked(a, b) for a, b in pairs]
    table["shared_neighbours"] = [len(one) for one in shared]
    table["neighbours"] = [graph.node_ids[one[:REASONS]].tolist() for one in shared]
    table["features"] = [reasons.features(a, b) for a, b in pairs]
    mean = embedding.mean(axis=0)
    for name, columns in (tokens or {}).items():
        left, right = (_unit(embedding[one][:, columns] - mean[columns]) for one in (node, other))
        table[f"agree: {name}"] = (left * right).sum(axis=1)
    if listens is not None and tokens:
        every, place = np.unique(np.concatenate([node, other]), return_inverse=True)
        of_node, of_other = np.split(listens(every)[place], 2)
        for token, name in enumerate(tokens):
            table[f"listens: {name}"] = (of_node[:, token] + of_other[:, token]) / 2
    return table


def _unit(rows: Floats) -> Floats:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Floats = (rows / np.maximum(length, 1e-12)).astype(np.float32)
    return found


Row = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

REASONS = 5
"""At most so many shared features and neighbours are named."""
NO_SPREAD = 1e-6
"""A column that varies by less than this share of its mean, or of what columns usually do, says nothing."""
PARTS = {"text": " ~", "sentences": " ~", "list": " #", "date": ", "}
"""By encoder, what follows a column's name in numbers that mean nothing to a person one by one."""
ENDS = {"number": ("low", "high"), "boolean": ("no", "yes"), "date": ("early", "late")}
"""By kind, how a person calls both ends of a column that was scaled."""
SEEN = 2_000
"""With so many nodes the likeness of two texts is compared to tell whether it is unusual."""


class Reasons:
    """What two nodes of a graph have in common.

    Args:
        graph: of the nodes.
        names: of the columns of features.
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
        # a mark of 0 and 1, alone among measurements or not, is shared where both nodes have it
        marks = np.isclose(variance, self.mean * (1 - self.mean), rtol=1e-3, atol=0) & (self.mean > 0)
        self.counted = marks | (moments.zeros_and_ones or bag)
        self.columns = _columns(graph, names)
        self.blocks: dict[str, list[int]] = {}  # by column of text or of hashed lists, the numbers it became
        self.gaps: dict[
            int, list[int]
        ] = {}  # by the mark of a missing value, the numbers that stand in for it
        self._sampled: dict[str, Row] = {}
        for at, name in enumerate(names if names is not None else ()):
            column = self.columns.get(name)
            if column is not None and name == f"{column.name} is missing":
                made = column.learned.names
                self.gaps[at] = [at - made.index(name) + one for one in range(len(made)) if made[one] != name]
            elif column is not None and name.startswith(
                f"{column.name}{PARTS.get(column.encoder, ' never')}"
            ):
                self.spread[at] = np.inf  # says nothing to a person by itself
                if column.encoder != "date":
                    self.blocks.setdefault(column.name, []).append(at)

    def _heard(self, node: int) -> Whole:
        start, end = self.adjacency.indptr[node : node + 2]
        heard: Whole = self.adjacency.indices[start:end].astype(np.int64)
        return heard

    def linked(self, a: int, b: int) -> bool:
        """Tell whether an edge joins two nodes."""
        return bool(np.isin(b, self._heard(a)))

    def neighbours(self, a: int, b: int) -> Whole:
        """Return the neighbours of both, those with the fewest neighbours first: they tell most."""
        both = np.intersect1d(self._heard(a), self._heard(b))
        return both[np.argsort(np.diff(self.adjacency.indptr)[both], kind="stable")]

    def features(self, a: int, b: int) -> list[str]:
        """Return the features that set both nodes apart from the rest in the same way, strongest first.

        Of counts, marks and bags of words, only what both nodes have; of measurements, both above or both
        below the mean. A column of text is one feature: how alike the two texts are, if more than texts
        usually are.
        """
        left, right = (self._row(one) for one in (a, b))
        together = ((left - self.mean) / self.spread) * ((right - self.mean) / self.spread)
        together = np.where(self.counted & ((left == 0) | (right == 0)), 0, together)
        for mark, filled in self.gaps.items():
            if left[mark] or right[mark]:
                together[filled] = 0  # what was put into a gap is nothing that the node has
        best = np.argsort(-together, kind="stable")[:REASONS]
        found = [
            (float(together[one]), self._named(int(one), left, right)) for one in best if together[one] > 0
        ]
        for name, columns in self.blocks.items():
            alike, unusual = self._alike(name, left[columns], right[columns])
            if unusual > 0:
                found.append((unusual, f"{name} ({alike:.0%} alike)"))
        found.sort(key=lambda one: -one[0])
        return [words for _, words in found[:REASONS]]

    def _alike(self, name: str, left: Row, right: Row) -> tuple[float, float]:
        """Return the cosine of two texts, and how far above the usual it is for both, as a product."""
        left, right = (one / max(float(np.linalg.norm(one)), 1e-12) for one in (left, right))
        alike, unusual = float(left @ right), 1.0
        for one in (left, right):
            usual = self._sample(name) @ one
            above = (alike - usual.mean()) / max(float(usual.std()), 1e-12)
            unusual *= max(float(above), 0.0) if one.any() else 0.0
        return alike, unusual

    def _sample(self, name: str) -> Row:
        if name not in self._sampled:
            nodes = np.unique(np.linspace(0, self.graph.num_nodes - 1, SEEN).astype(np.int64))
            rows = np.array([self._row(int(one))[self.blocks[name]] for one in nodes])
            self._sampled[name] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return self._sampled[name]

    def _row(self, node: int) -> Row:
        stored = self.graph.features
        if stored.layout != torch.sparse_csr:
            return stored[node].double().numpy()
        start, end = stored.crow_indices()[node : node + 2].tolist()
        row = np.zeros(self.graph.num_features)
        row[stored.col_indices()[start:end].numpy()] = stored.values()[start:end].numpy()
        return row

    def _named(self, column: int, left: Row, right: Row) -> str:
        name = f"feature {column}" if self.names is None else str(self.names[column])
        a, b = left[column], right[column]
        if a == b == 1:
            return name
        if name in self.columns and self.columns[name].kind in ENDS:
            return f"{name} (both {ENDS[self.columns[name].kind][int(a > self.mean[column])]})"
        return f"{name} ({a:.3g}, {b:.3g})"


def _columns(graph: Graph, names: Sequence[str] | None) -> dict[str, ColumnPlan]:
    """Return, by the name of each number that an encoder made, the column that it was made of."""
    plan = graph.plan
    if plan is None or names is None or tuple(names) != plan.names:
        return {}
    return {name: one for one in plan.columns if one.encoder != "plain" for name in one.learned.names}
