"""Pairs of nodes: which are joined, which might be, and what is seen of a pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import scaler_of
from h3gnn.graphs.structural import simple_adjacency

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
ROWS = 2_048
"""Two steps along the edges are taken from so many nodes at a time."""


class Neighbourhood:
    """Who is joined to whom, without direction.

    Args:
        edge_index: `[2, edges]`.
        nodes: how many there are.
    """

    def __init__(self, edge_index: Tensor, nodes: int) -> None:
        _, self.adjacency = simple_adjacency(edge_index, nodes)
        self.nodes, self.degree = nodes, np.diff(self.adjacency.indptr)
        rows = np.repeat(np.arange(nodes), self.degree)
        self._keys = rows * nodes + self.adjacency.indices
        weight = 1 / np.log(np.maximum(self.degree, 2) + 0.0)
        self.weighted = self.adjacency @ sp.diags_array(weight)

    def pairs(self) -> Whole:
        """Return every pair that an edge joins, once, `[2, pairs]`."""
        coo = sp.triu(self.adjacency, k=1).tocoo()
        return np.stack([coo.row, coo.col]).astype(np.int64)

    def joined(self, pairs: Whole) -> npt.NDArray[np.bool_]:
        """Tell which pairs are joined."""
        keys = pairs[0] * self.nodes + pairs[1]
        place = np.searchsorted(self._keys, keys).clip(max=max(0, len(self._keys) - 1))
        return self._keys[place] == keys if len(self._keys) else np.zeros(len(keys), dtype=bool)

    def shared(self, pairs: Whole) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return how many neighbours each pair shares, and their sum of 1 / log degree (Adamic and Adar)."""
        count, adamic = np.empty(pairs.shape[1]), np.empty(pairs.shape[1])
        for first in range(0, pairs.shape[1], ROWS):
            some = slice(first, first + ROWS)
            left, right = self.adjacency[pairs[0, some]], self.adjacency[pairs[1, some]]
            count[some] = left.multiply(right).sum(axis=1)
            adamic[some] = self.weighted[pairs[0, some]].multiply(right).sum(axis=1)
        return count, adamic

    def two_steps(self, asked: Whole, most: int) -> Whole:
        """Return for each asked node the nodes two steps away that share most with it, `[2, pairs]`."""
        found: list[Whole] = []
        for first in range(0, len(asked), ROWS):
            some = asked[first : first + ROWS]
            steps: Any = (self.weighted[some] @ self.adjacency).tocsr()
            for row, node in enumerate(some.tolist()):
                begin, end = steps.indptr[row : row + 2]
                others, weights = steps.indices[begin:end], steps.data[begin:end]
                best = others[np.argsort(-weights, kind="stable")[: most + 1]]
                best = best[best != node].astype(np.int64)
                found.append(np.stack([np.full(len(best), node), best]))
        both = np.concatenate(found, axis=1) if found else np.empty((2, 0), dtype=np.int64)
        return both[:, ~self.joined(both)]

    def strangers(self, count: int, random: np.random.Generator) -> Whole:
        """Return random pairs that no edge joins; fewer than asked for in a graph that is nearly full."""
        drawn = random.integers(0, self.nodes, (2, 4 * count))
        drawn = drawn[:, drawn[0] != drawn[1]]
        drawn = unique_pairs(drawn[:, ~self.joined(drawn)])
        return drawn[:, random.permutation(drawn.shape[1])[:count]]


def unique_pairs(pairs: Whole) -> Whole:
    """Return each pair once, the smaller number first."""
    found: Whole = np.unique(np.sort(pairs, axis=0), axis=1)
    return found


class PairView:
    """What is seen of a pair of nodes: likeness in each model's embedding and in features, and the graph.

    Args:
        by_model: the embedding, `[nodes, models, D]`.
        features: of the nodes, dense or reduced, `[nodes, columns]`.
        around: the graph.
    """

    def __init__(self, by_model: Floats, features: Floats, around: Neighbourhood) -> None:
        self.around = around
        self.spaces = [_unit(by_model[:, model]) for model in range(by_model.shape[1])]
        self.spaces.append(_unit(features))

    def similarity(self, pairs: Whole) -> npt.NDArray[np.float64]:
        """Return the mean cosine over the models."""
        found: npt.NDArray[np.float64] = self._cosines(pairs)[:, :-1].mean(axis=1)
        return found

    def __call__(self, pairs: Whole) -> npt.NDArray[np.float64]:
        """Return one row for each pair."""
        count, adamic = self.around.shared(pairs)
        degrees = np.log1p(np.sort(self.around.degree[pairs], axis=0))
        columns = [np.log1p(count), adamic, *degrees, (count > 0).astype(np.float64)]
        return np.column_stack([self._cosines(pairs), *columns])

    def _cosines(self, pairs: Whole) -> npt.NDArray[np.float64]:
        found = np.empty((pairs.shape[1], len(self.spaces)))
        for at, space in enumerate(self.spaces):
            for first in range(0, pairs.shape[1], 8 * ROWS):
                some = slice(first, first + 8 * ROWS)
                found[some, at] = (space[pairs[0, some]] * space[pairs[1, some]]).sum(axis=1)
        return found


def _unit(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=0)
    found: Floats = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    return found.astype(np.float32)


def reduced_features(graph: Graph, most: int) -> Floats:
    """Return the features, scaled as for training and centred, in their first principal directions."""
    scaled: Any = scaler_of(graph)(graph.features)
    if scaled.layout == torch.sparse_csr:
        parts = (scaled.values().numpy(), scaled.col_indices().numpy(), scaled.crow_indices().numpy())
        matrix = sp.csr_array(parts, shape=(graph.num_nodes, graph.num_features))
        if min(matrix.shape) > most + 1:
            from sklearn.decomposition import TruncatedSVD

            reduced = TruncatedSVD(most, random_state=0).fit_transform(matrix)
            return np.asarray(reduced - reduced.mean(axis=0), dtype=np.float32)
        scaled = torch.from_numpy(matrix.toarray())
    return principal(scaled.numpy(), most)


def principal(rows: Floats, most: int) -> Floats:
    """Return rows centred, in their first principal directions where they have more columns."""
    if min(rows.shape) <= most:
        return np.asarray(rows - rows.mean(axis=0), dtype=np.float32)
    from sklearn.decomposition import PCA

    reduced = PCA(most, random_state=0, svd_solver="randomized").fit_transform(rows)
    return np.asarray(reduced, dtype=np.float32)
