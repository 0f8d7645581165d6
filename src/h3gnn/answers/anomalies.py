"""Nodes that neither their features nor their neighbours predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
from scipy.stats import rankdata
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from h3gnn.answers.links import Neighbourhood, principal, reduced_features
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.ids import check_ids

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
DIRECTIONS = 64
"""Features, and what predicts them, are seen in so many directions where they have more."""
FOLDS, STRENGTH = 5, 10.0
"""A node's features are predicted by ridge regressions that were fitted on the others."""
LANDMARKS = 256
"""Members are compared by how near they put each node to so many others."""


def find_anomalies(
    graph: Graph,
    by_model: Floats,
    members: Sequence[str],
    difficulty: npt.NDArray[Any] | None = None,
) -> pd.DataFrame:
    """Return every node with its score, the oddest first, and what the score is made of.

    Columns: `node`, `score`, the two parts of the score, and what training noticed beside them:

    - `features`: how far the node's features are from what its neighbours' features and embeddings predict;
    - `neighbours`: how many of its edges nothing explains: the sum of its distances to its neighbours;
    - `difficulty`: how hard the node was in training, the mean percentile over the models;
    - `disagreement`: how differently the models place it among the others; only where there are several.

    With p the share of nodes that are at least as odd in a part, the score is −log10 p of the part in which
    the node is oddest (Tippett's way to combine tests). Difficulty and disagreement do not enter: they are
    high for much that is not odd, and made the score worse where that was tried (docs/answers.md).

    Args:
        graph: of the embedding.
        by_model: its embedding, `[nodes, models, D]`.
        members: the objective of each model.
        difficulty: of the last epoch, `[models, nodes]`; None where nothing was trained.
    """
    check_ids(graph.node_ids)
    around, features = Neighbourhood(graph.edge_index, graph.num_nodes), reduced_features(graph, DIRECTIONS)
    embedding = principal(by_model.reshape(len(by_model), -1), DIRECTIONS)
    parts = {
        "features": feature_surprise(features, embedding, around),
        "neighbours": edge_surprise(features, around),
    }
    oddness = [-np.log10(rankdata(-one, "max") / len(one)) for one in parts.values()]
    if difficulty is not None:
        ranks = [rankdata(one) / len(one) for one in np.asarray(difficulty, dtype=np.float64)]
        parts["difficulty"] = np.mean(ranks, axis=0)
    if by_model.shape[1] > 1:
        parts["disagreement"] = disagreement(by_model, members)
    table = pd.DataFrame({"node": graph.node_ids, "score": np.max(oddness, axis=0), **parts})
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def feature_surprise(features: Floats, embedding: Floats, around: Neighbourhood) -> Doubles:
    """Return how far each node's features are from what its neighbours predict, by regressions on others.

    A node without neighbours has as much as the median.
    """
    some = around.degree > 0
    mean = sp.diags_array(1 / np.maximum(around.degree, 1)) @ around.adjacency
    heard = np.concatenate([mean @ features, mean @ embedding], axis=1)
    found = np.full(len(features), np.nan)
    nodes = np.flatnonzero(some)
    if len(nodes) >= 2 * FOLDS:
        for seen, asked in KFold(FOLDS, shuffle=True, random_state=0).split(nodes):
            model = Ridge(alpha=STRENGTH).fit(heard[nodes[seen]], features[nodes[seen]])
            apart = features[nodes[asked]] - model.predict(heard[nodes[asked]])
            found[nodes[asked]] = np.linalg.norm(apart, axis=1)
    middle = np.nanmedian(found) if np.isfinite(found).any() else 0.0
    return np.where(np.isfinite(found), found, middle)


def edge_surprise(features: Floats, around: Neighbourhood) -> Doubles:
    """Return the sum over a node's edges of how unlike the two ends are, from 0 (alike) to 2 each."""
    length = np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    unit = features / length
    rows = np.repeat(np.arange(around.nodes), around.degree)
    cosine = np.empty(len(rows))
    for first in range(0, len(rows), 1 << 18):
        some = slice(first, first + (1 << 18))
        cosine[some] = (unit[rows[some]] * unit[around.adjacency.indices[some]]).sum(axis=1)
    return np.asarray(np.bincount(rows, weights=1 - cosine, minlength=around.nodes), dtype=np.float64)


def disagreement(by_model: Floats, members: Sequence[str]) -> Doubles:
    """Return how little the members agree on which landmarks a node is near: 1 less their mean correlation.

    Models with one objective are one member; where all have the same, each is one.
    """
    names = list(dict.fromkeys(members))
    groups = [[at for at, one in enumerate(members) if one == name] for name in names]
    if len(groups) < 2:
        groups = [[at] for at in range(len(members))]
    draw = np.random.default_rng(0)
    landmarks = draw.permutation(len(by_model))[:LANDMARKS]
    views = []
    for group in groups:
        rows = by_model[:, group].reshape(len(by_model), -1)
        rows = rows - rows.mean(axis=0)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        near = rows @ rows[landmarks].T
        near -= near.mean(axis=1, keepdims=True)
        views.append(near / np.maximum(np.linalg.norm(near, axis=1, keepdims=True), 1e-12))
    pairs = [(views[a] * views[b]).sum(axis=1) for a in range(len(views)) for b in range(a + 1, len(views))]
    return np.asarray(1 - np.mean(pairs, axis=0, dtype=np.float64))
