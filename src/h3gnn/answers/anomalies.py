"""Anomaly detection: nodes whose features or edges their neighbours do not predict."""

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
from h3gnn.answers.similarity import unit_rows
from h3gnn.graphs.graph import Graph, node_order, reorder_nodes
from h3gnn.graphs.ids import check_ids

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
COMPONENTS = 64
"""Features and their predictors are reduced to this many principal components."""
FOLDS, ALPHA = 5, 10.0
"""Folds and penalty of the ridge regressions that predict features of held-out nodes."""
LANDMARKS = 256
"""Models are compared by the similarity of each node to this many others."""


def find_anomalies(
    graph: Graph,
    by_model: Floats,
    members: Sequence[str],
    difficulty: npt.NDArray[Any] | None = None,
    *,
    edges: bool = True,
) -> pd.DataFrame:
    """Return every node with its anomaly score and the parts of the score, the highest first.

    Columns: `node`, `score`, the two parts of the score, and two measures of training:

    - `features`: distance of the node's features from a prediction by its neighbours' features and
      embeddings;
    - `neighbours`: the sum of its distances to its neighbours, if `edges`;
    - `difficulty`: the percentile of its difficulty in training, mean over the models;
    - `disagreement`: how much the models differ in its neighbourhood; with several models only.

    With p the share of nodes with at least the same value of a part, the score is −log10 of the smaller p
    (Tippett's combination of tests). Difficulty and disagreement made it worse (docs/answers.md).

    Args:
        graph: the graph of the embedding.
        by_model: the embedding, `[nodes, models, D]`.
        members: the objective of each model.
        difficulty: of the last epoch, `[models, nodes]`; None without training.
        edges: whether an edge between unlike nodes is unusual. It is not where edges only join the rows of a
            table that share a linked row, such as the lines of one order.
    """
    check_ids(graph.node_ids)
    order = node_order(graph)
    graph, by_model = reorder_nodes(graph, order), by_model[order]
    difficulty = None if difficulty is None else np.asarray(difficulty)[:, order]
    around, features = Neighbourhood(graph.edge_index, graph.num_nodes), reduced_features(graph, COMPONENTS)
    embedding = principal(by_model.reshape(len(by_model), -1), COMPONENTS)
    parts = {"features": feature_surprise(features, embedding, around)}
    if edges:
        parts["neighbours"] = edge_surprise(features, around)
    log_p = [-np.log10(rankdata(-one, "max") / len(one)) for one in parts.values()]
    if difficulty is not None:
        ranks = [rankdata(one) / len(one) for one in np.asarray(difficulty, dtype=np.float64)]
        parts["difficulty"] = np.mean(ranks, axis=0)
    if by_model.shape[1] > 1:
        parts["disagreement"] = disagreement(by_model, members)
    table = pd.DataFrame({"node": graph.node_ids, "score": np.max(log_p, axis=0), **parts})
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def feature_surprise(features: Floats, embedding: Floats, around: Neighbourhood) -> Doubles:
    """Return the distance of each node's features from their prediction by its neighbours, out of fold.

    A node without neighbours gets the median.
    """
    mean = sp.diags_array(1 / np.maximum(around.degree, 1)) @ around.adjacency
    inputs = np.concatenate([mean @ features, mean @ embedding], axis=1)
    distance = np.full(len(features), np.nan)
    nodes = np.flatnonzero(around.degree > 0)
    if len(nodes) >= 2 * FOLDS:
        for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(nodes):
            model = Ridge(alpha=ALPHA).fit(inputs[nodes[train]], features[nodes[train]])
            residual = features[nodes[test]] - model.predict(inputs[nodes[test]])
            distance[nodes[test]] = np.linalg.norm(residual, axis=1)
    median = np.nanmedian(distance) if np.isfinite(distance).any() else 0.0
    return np.where(np.isfinite(distance), distance, median)


def edge_surprise(features: Floats, around: Neighbourhood) -> Doubles:
    """Return the sum of 1 − cosine over the edges of each node."""
    unit = unit_rows(features)
    rows = np.repeat(np.arange(around.nodes), around.degree)
    cosine = np.empty(len(rows))
    for first in range(0, len(rows), 1 << 18):
        some = slice(first, first + (1 << 18))
        cosine[some] = (unit[rows[some]] * unit[around.adjacency.indices[some]]).sum(axis=1)
    return np.asarray(np.bincount(rows, weights=1 - cosine, minlength=around.nodes), dtype=np.float64)


def disagreement(by_model: Floats, members: Sequence[str]) -> Doubles:
    """Return 1 − the mean correlation between models of a node's similarities to the landmarks.

    Models with the same objective count as one, unless all have the same.
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
        rows = unit_rows(rows - rows.mean(axis=0))
        near = rows @ rows[landmarks].T
        views.append(unit_rows(near - near.mean(axis=1, keepdims=True)))
    pairs = [(views[a] * views[b]).sum(axis=1) for a in range(len(views)) for b in range(a + 1, len(views))]
    return np.asarray(1 - np.mean(pairs, axis=0, dtype=np.float64))
