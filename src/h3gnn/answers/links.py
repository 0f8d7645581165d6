"""Link prediction: candidate pairs, and a classifier of hidden edges against unconnected pairs.

Some edges are hidden and the embedding is fitted again without them; half of these train the classifier, and
the other half score it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from h3gnn.answers.similarity import nearest, nearest_of_types, nearest_to_all, unit_rows
from h3gnn.errors import InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph, node_order, reorder_nodes
from h3gnn.graphs.ids import check_ids
from h3gnn.graphs.scaling import scipy_features
from h3gnn.graphs.structural import simple_adjacency, structural_features

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
ROWS = 2_048
"""Nodes processed at a time."""


class Neighbourhood:
    """The undirected adjacency of a graph.

    With types of nodes, `pairs_of_types` says which of them edges connect; only such pairs are proposed. If
    no edge connects nodes of one type, as in a graph of users and films, pairs that can be connected have no
    common neighbours, and paths of three steps take the place of paths of two.
    """

    def __init__(self, edge_index: Tensor, nodes: int, types: Tensor | None = None) -> None:
        _, self.adjacency = simple_adjacency(edge_index, nodes)
        self.nodes, self.degree = nodes, np.diff(self.adjacency.indptr)
        rows = np.repeat(np.arange(nodes), self.degree)
        self._keys = rows * nodes + self.adjacency.indices
        weight = 1 / np.log(np.maximum(self.degree, 2) + 0.0)
        self.weighted = self.adjacency @ sp.diags_array(weight)
        self.types = np.zeros(nodes, np.int64) if types is None else types.numpy().astype(np.int64) + 1
        self.pairs_of_types = np.zeros((self.types.max() + 1,) * 2, dtype=bool)
        self.pairs_of_types[self.types[rows], self.types[self.adjacency.indices]] = True
        self.between = types is not None and not np.diag(self.pairs_of_types).any()
        self.common = "paths" if self.between else "shared_neighbours"

    def allowed(self, pairs: Integers) -> npt.NDArray[np.bool_]:
        """Return which pairs are of types that edges connect."""
        return np.asarray(self.pairs_of_types[self.types[pairs[0]], self.types[pairs[1]]])

    def _start(self, rows: Any, adjacency: Any) -> Any:
        """Return the weights with which the steps before the last reach the nodes."""
        return rows @ adjacency if self.between else rows

    def pairs(self) -> Integers:
        """Return every connected pair once, `[2, pairs]`."""
        coo = sp.triu(self.adjacency, k=1).tocoo()
        return np.stack([coo.row, coo.col]).astype(np.int64)

    def connected(self, pairs: Integers) -> npt.NDArray[np.bool_]:
        """Return which pairs are connected."""
        keys = pairs[0] * self.nodes + pairs[1]
        place = np.searchsorted(self._keys, keys).clip(max=max(0, len(self._keys) - 1))
        return self._keys[place] == keys if len(self._keys) else np.zeros(len(keys), dtype=bool)

    def shared(self, pairs: Integers) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the number of common neighbours of each pair, and their Adamic–Adar index.

        Between types it is the number of paths of three steps, and the same index of their two nodes.
        """
        count, adamic = np.empty(pairs.shape[1]), np.empty(pairs.shape[1])
        step = ROWS // 8 if self.between else ROWS
        for first in range(0, pairs.shape[1], step):
            some = slice(first, first + step)
            left, right = self.adjacency[pairs[0, some]], self.adjacency[pairs[1, some]]
            count[some] = self._start(left, self.adjacency).multiply(right).sum(axis=1)
            steps = self._start(self.weighted[pairs[0, some]], self.weighted)
            adamic[some] = steps.multiply(right).sum(axis=1)
        return count, adamic

    def two_hop(self, queries: Integers, most: int) -> Integers:
        """Return for each query the 2-hop neighbours with the highest Adamic–Adar index, `[2, pairs]`.

        Between types they are nodes three steps away.
        """
        blocks: list[Integers] = []
        step = ROWS // 8 if self.between else ROWS
        for first in range(0, len(queries), step):
            some = queries[first : first + step]
            steps: Any = (self._start(self.weighted[some], self.weighted) @ self.adjacency).tocsr()
            for row, node in enumerate(some.tolist()):
                begin, end = steps.indptr[row : row + 2]
                others, weights = steps.indices[begin:end], steps.data[begin:end]
                if self.between:  # most of them are neighbours
                    new = ~self.connected(np.stack([np.full(len(others), node), others]).astype(np.int64))
                    others, weights = others[new], weights[new]
                best = others[np.argsort(-weights, kind="stable")[: most + 1]]
                best = best[best != node].astype(np.int64)
                blocks.append(np.stack([np.full(len(best), node), best]))
        pairs = np.concatenate(blocks, axis=1) if blocks else np.empty((2, 0), dtype=np.int64)
        return pairs[:, ~self.connected(pairs) & self.allowed(pairs)]

    def negatives(self, like: Integers, random: np.random.Generator) -> Integers:
        """Return random unconnected pairs of the same types as `like`, twice as many if there are enough."""
        count = 2 * like.shape[1]
        if len(self.pairs_of_types) == 1:
            drawn = random.integers(0, self.nodes, (2, 4 * count))
        else:
            by_type = np.argsort(self.types, kind="stable")
            sizes = np.bincount(self.types, minlength=len(self.pairs_of_types))
            wanted = self.types[like[:, random.integers(0, like.shape[1], 4 * count)]]
            within = (random.random(wanted.shape) * sizes[wanted]).astype(np.int64)
            drawn = by_type[(np.cumsum(sizes) - sizes)[wanted] + within]
        drawn = drawn[:, drawn[0] != drawn[1]]
        drawn = unique_pairs(drawn[:, ~self.connected(drawn)])
        return drawn[:, random.permutation(drawn.shape[1])[:count]]


def unique_pairs(pairs: Integers) -> Integers:
    """Return each pair once, the smaller position first."""
    return np.asarray(np.unique(np.sort(pairs, axis=0), axis=1))


class PairFeatures:
    """Features of pairs: cosine in each model's embedding and in the features, and structure."""

    def __init__(self, by_model: Floats, features: Floats, around: Neighbourhood) -> None:
        self.around = around
        parts = [*by_model.swapaxes(0, 1), features]
        self.spaces = [unit_rows(one - one.mean(axis=0)) for one in parts]

    def similarity(self, pairs: Integers) -> npt.NDArray[np.float64]:
        """Return the mean cosine over the models."""
        return np.asarray(self._cosines(pairs)[:, :-1].mean(axis=1))

    def __call__(self, pairs: Integers) -> npt.NDArray[np.float64]:
        """Return one row for each pair."""
        count, adamic = self.around.shared(pairs)
        degrees = np.log1p(np.sort(self.around.degree[pairs], axis=0))
        columns = [np.log1p(count), adamic, *degrees, (count > 0).astype(np.float64)]
        return np.column_stack([self._cosines(pairs), *columns])

    def _cosines(self, pairs: Integers) -> npt.NDArray[np.float64]:
        found = np.empty((pairs.shape[1], len(self.spaces)))
        for at, space in enumerate(self.spaces):
            for first in range(0, pairs.shape[1], 8 * ROWS):
                some = slice(first, first + 8 * ROWS)
                found[some, at] = (space[pairs[0, some]] * space[pairs[1, some]]).sum(axis=1)
        return found


def reduced_features(graph: Graph, most: int) -> Floats:
    """Return the features, scaled as for training and centred, reduced to principal components."""
    scaled: Any = graph.fit_scaler("auto")(graph.features)
    if scaled.layout == torch.sparse_csr:
        matrix = scipy_features(scaled)
        if min(matrix.shape) > most + 1:
            from sklearn.decomposition import TruncatedSVD

            reduced = TruncatedSVD(most, random_state=0).fit_transform(matrix)
            return np.asarray(reduced - reduced.mean(axis=0), dtype=np.float32)
        scaled = torch.from_numpy(matrix.toarray())
    return principal(scaled.numpy(), most)


def principal(rows: Floats, most: int) -> Floats:
    """Return centred rows, reduced to principal components where they have more columns."""
    if min(rows.shape) <= most:
        return np.asarray(rows - rows.mean(axis=0), dtype=np.float32)
    from sklearn.decomposition import PCA

    reduced = PCA(most, random_state=0, svd_solver="randomized").fit_transform(rows)
    return np.asarray(reduced, dtype=np.float32)


HIDDEN, MOST_HIDDEN, LEAST_HIDDEN = 0.1, 5_000, 20
"""The share of hidden edges, and the largest and smallest number of them."""
NEAR, TWO_HOP = 10, 20
"""Candidates per node: nearest neighbours in the embedding, and 2-hop neighbours in the graph."""
MOST_COLUMNS = 128
"""Features with more columns are reduced to this many principal components."""


@dataclass(frozen=True, eq=False)
class Links:
    """Unconnected pairs, the most probable first.

    Attributes:
        table: `source`, `target` (ids), `score`, `similarity` (mean cosine over the models),
            `shared_neighbours`, or between types of nodes `paths`, the number of paths of three steps. The
            score ranks pairs; it is not the probability that the edge exists.
        scores: AUC and average precision of the classifier and of simple rules: hidden edges against random
            pairs and, if there are enough, against pairs within two hops. Empty without a check.
        how: one sentence on the origin of score and check.
        counts: numbers of candidate pairs and hidden edges.
    """

    table: pd.DataFrame
    scores: dict[str, dict[str, float]]
    how: str
    counts: dict[str, int] = field(default_factory=dict)


def find_links(
    graph: Graph,
    by_model: Floats,
    refit: Callable[[Graph], Floats] | None,
    *,
    queries: Integers | None = None,
    top: int = 100,
    seed: int = 0,
) -> Links:
    """Return the `top` most probable unconnected pairs, each with one of the `queries`, or of all nodes.

    `by_model` is the embedding `[nodes, models, D]`. `refit` fits a graph with fewer edges and returns its
    embedding; None ranks by similarity alone.
    """
    check_ids(graph.node_ids)
    order = node_order(graph)
    graph, by_model = reorder_nodes(graph, order), by_model[order]
    queries = None if queries is None else np.argsort(order)[queries]
    around = Neighbourhood(graph.edge_index, graph.num_nodes, graph.node_types)
    features = reduced_features(graph, MOST_COLUMNS)
    view = PairFeatures(by_model, features, around)
    candidates = _candidates(by_model.reshape(len(by_model), -1), around, queries)
    if not candidates.shape[1]:
        raise InputError("every candidate pair is already connected", code="no-candidate-pairs")
    counts = {"candidates": candidates.shape[1]}
    if refit is None:
        score, scores = view.similarity(candidates), dict[str, dict[str, float]]()
        how = "similarity alone, not checked: the embedding has seen every edge"
    else:
        head, scores, hidden = _learn_head(graph, around, features, refit, seed)
        score = head.predict_proba(view(candidates))[:, 1]
        counts["hidden"] = hidden
        how = (
            f"a classifier trained on {hidden // 2:,} edges hidden from a second fit, scored on "
            f"{hidden - hidden // 2:,} further hidden edges"
        )
    best = np.argsort(-score, kind="stable")[:top]
    pairs = candidates[:, best]
    table = pd.DataFrame(
        {
            "source": graph.node_ids[pairs[0]],
            "target": graph.node_ids[pairs[1]],
            "score": score[best],
            "similarity": view.similarity(pairs),
            around.common: around.shared(pairs)[0].astype(np.int64),
        }
    )
    return Links(table, scores, how, counts)


def _candidates(embedding: Floats, around: Neighbourhood, queries: Integers | None) -> Integers:
    everything = np.arange(len(embedding)) if queries is None else queries
    if len(around.pairs_of_types) > 1:
        by_embedding = nearest_of_types(embedding, everything, NEAR, around.types, around.pairs_of_types)
    else:
        near, _ = nearest_to_all(embedding, NEAR) if queries is None else nearest(embedding, queries, NEAR)
        by_embedding = np.stack([np.repeat(everything, near.shape[1]), near.ravel()])
    pairs = unique_pairs(np.concatenate([by_embedding, around.two_hop(everything, TWO_HOP)], axis=1))
    return pairs[:, ~around.connected(pairs)]


def hide_edges(graph: Graph, around: Neighbourhood, seed: int) -> tuple[Graph, Integers]:
    """Return the graph without some edges, and these pairs `[2, pairs]`; every node keeps a neighbour.

    Features that are computed from the edges are computed again, since they would contain the hidden ones.
    """
    random, pairs = np.random.default_rng(seed), around.pairs()
    able = pairs[:, (around.degree[pairs] > 1).all(axis=0)]
    count = min(int(HIDDEN * pairs.shape[1]), MOST_HIDDEN, able.shape[1])
    if count < LEAST_HIDDEN:
        raise InputError(
            f"only {count} edges can be hidden, but {LEAST_HIDDEN} are needed; rank by similarity alone "
            "(--check none)",
            code="too-few-edges-to-hide",
        )
    hidden = able[:, random.permutation(able.shape[1])[:count]]
    ends = np.sort(graph.edge_index.numpy(), axis=0)
    keys, gone = (one[0] * graph.num_nodes + one[1] for one in (ends, hidden))
    left = ~np.isin(keys, gone)
    edges, structural = graph.edge_index[:, torch.from_numpy(left)], graph.provenance.structural
    seen = check_graph(
        structural_features(edges, graph.num_nodes) if structural else graph.features,
        edges,
        edge_weight=None if graph.edge_weight is None else graph.edge_weight.numpy()[left],
        node_ids=graph.node_ids if graph.has_ids else None,
        source=graph.provenance.source,
        structural=structural,
    )
    kept = {name: getattr(graph, name) for name in ("plan", "feature_names", "node_types", "type_names")}
    return replace(seen, **kept), hidden


def _learn_head(
    graph: Graph, around: Neighbourhood, features: Floats, refit: Callable[[Graph], Floats], seed: int
) -> tuple[Any, dict[str, dict[str, float]], int]:
    """Return the classifier, its scores, and the number of hidden edges."""
    seen, hidden = hide_edges(graph, around, seed)
    less = Neighbourhood(seen.edge_index, seen.num_nodes, seen.node_types)
    features = reduced_features(seen, MOST_COLUMNS) if seen.provenance.structural else features
    view = PairFeatures(refit(seen), features, less)
    random = np.random.default_rng(seed + 1)
    teach, test = np.array_split(hidden, 2, axis=1)
    far_teach, far_test = np.array_split(around.negatives(hidden, random), 2, axis=1)
    rows = np.concatenate([view(teach), view(far_teach)])
    truth = np.arange(len(rows)) < teach.shape[1]
    head = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    head.fit(rows, truth)
    near = unique_pairs(less.two_hop(np.unique(test), TWO_HOP))
    near = near[:, ~around.connected(near)]
    near = near[:, random.permutation(near.shape[1])[: 2 * hidden.shape[1]]]
    scores = {"random pairs": _scores(view, head, test, far_test)}
    close = test[:, less.shared(test)[0] > 0]  # hidden edges within two hops
    if min(close.shape[1], near.shape[1]) >= LEAST_HIDDEN // 2:
        steps = "three" if around.between else "two"
        scores[f"pairs {steps} steps apart"] = _scores(view, head, close, near)
    return head, scores, hidden.shape[1]


def _scores(view: PairFeatures, head: Any, edges: Integers, others: Integers) -> dict[str, float]:
    pairs = np.concatenate([edges, others], axis=1)
    truth = np.arange(pairs.shape[1]) < edges.shape[1]
    predictions: dict[str, npt.NDArray[Any]] = {
        "": head.predict_proba(view(pairs))[:, 1],
        "_of_similarity": view.similarity(pairs),
        f"_of_{view.around.common}": view.around.shared(pairs)[1],
    }
    return {
        f"{name}{of}": float(measure(truth, score))
        for name, measure in (("auc", roc_auc_score), ("average_precision", average_precision_score))
        for of, score in predictions.items()
    }
