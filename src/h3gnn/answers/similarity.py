"""Nodes that are near in an embedding, found exactly, and why they are near."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.reasons import REASONS, Reasons
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import as_ids, find_ids, quoted
from h3gnn.strangers import check_ids

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
