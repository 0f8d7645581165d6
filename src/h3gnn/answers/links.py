"""Edges that are likely missing: candidate pairs, and a head that was learned on hidden edges.

The head tells edges that an embedding has not seen from pairs that are not joined, as the hidden-edge
objective does in training. To have such edges, some are hidden and the embedding is fitted again without
them; half of these teach the head, and the other half, which nothing has seen, score it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from h3gnn.answers.pairs import Floats, Neighbourhood, PairView, Whole, reduced_features, unique_pairs
from h3gnn.answers.similarity import nearest, nearest_to_all
from h3gnn.errors import InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.strangers import check_ids

HIDDEN, MOST_HIDDEN, LEAST_HIDDEN = 0.1, 5_000, 20
"""The share of edges that is hidden, at most and at least how many."""
NEAR, TWO_STEPS = 10, 20
"""So many candidates per node are near in the embedding, and so many two steps away."""
MOST_COLUMNS = 128
"""Features are compared in so many directions where they have more."""


@dataclass(frozen=True, eq=False)
class Links:
    """Pairs that are not joined, the likeliest first.

    Attributes:
        table: `source`, `target` (ids), `score`, `similarity` (mean cosine over the models),
            `shared_neighbours`. The score is the head's probability where edges and other pairs are equally
            many: it ranks, and is no chance that the edge exists.
        scores: AUC and average precision, of the head and of simple rules: hidden edges against random pairs;
            and hidden edges two steps apart against other pairs two steps apart, where there are enough.
            There are about twice as many other pairs as edges. Empty where nothing was checked.
        how: where score and check come from, in a sentence.
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
    asked: Whole | None = None,
    top: int = 100,
    seed: int = 0,
) -> Links:
    """Return the likeliest pairs that no edge joins.

    Args:
        graph: of the embedding.
        by_model: its embedding, `[nodes, models, D]`.
        refit: from a graph with fewer edges to its embedding, fitted in the same way; None checks nothing,
            and pairs are ranked by similarity alone.
        asked: positions of nodes, one of which every pair has; all by default.
        top: how many pairs.
        seed: of the edges that are hidden.
    """
    check_ids(graph.node_ids)
    around, features = Neighbourhood(graph.edge_index, graph.num_nodes), reduced_features(graph, MOST_COLUMNS)
    view = PairView(by_model, features, around)
    candidates = _candidates(by_model.reshape(len(by_model), -1), around, asked)
    if not candidates.shape[1]:
        raise InputError("no pair of nodes is left to propose: every candidate is joined already")
    counts = {"candidates": candidates.shape[1]}
    if refit is None:
        score, scores = view.similarity(candidates), dict[str, dict[str, float]]()
        how = "by similarity alone; nothing was checked, and the embedding has seen every edge"
    else:
        head, scores, hidden = _learn_head(graph, around, features, refit, seed)
        score = head.predict_proba(view(candidates))[:, 1]
        counts["hidden"] = hidden
        how = (
            f"a head learned on {hidden // 2:,} edges that were hidden from a fit of its own, scored on "
            f"{hidden - hidden // 2:,} others that nothing had seen"
        )
    best = np.argsort(-score, kind="stable")[:top]
    pairs = candidates[:, best]
    table = pd.DataFrame(
        {
            "source": graph.node_ids[pairs[0]],
            "target": graph.node_ids[pairs[1]],
            "score": score[best],
            "similarity": view.similarity(pairs),
            "shared_neighbours": around.shared(pairs)[0].astype(np.int64),
        }
    )
    return Links(table, scores, how, counts)


def _candidates(embedding: Floats, around: Neighbourhood, asked: Whole | None) -> Whole:
    if asked is None:
        near, _ = nearest_to_all(embedding, NEAR)
        asked = np.arange(len(embedding))
    else:
        near, _ = nearest(embedding, asked, NEAR)
    by_embedding = np.stack([np.repeat(asked, near.shape[1]), near.ravel()])
    both = unique_pairs(np.concatenate([by_embedding, around.two_steps(asked, TWO_STEPS)], axis=1))
    return both[:, ~around.joined(both)]


def hide_edges(graph: Graph, around: Neighbourhood, seed: int) -> tuple[Graph, Whole]:
    """Return the graph without some pairs, in both directions, and these pairs `[2, pairs]`, shuffled.

    Only edges between nodes that keep other neighbours are hidden.
    """
    random, pairs = np.random.default_rng(seed), around.pairs()
    able = pairs[:, (around.degree[pairs] > 1).all(axis=0)]
    count = min(int(HIDDEN * pairs.shape[1]), MOST_HIDDEN, able.shape[1])
    if count < LEAST_HIDDEN:
        raise InputError(
            f"only {count} edges could be hidden to learn from, and {LEAST_HIDDEN} are needed: rank by "
            "similarity alone, unchecked (--check none)"
        )
    hidden = able[:, random.permutation(able.shape[1])[:count]]
    ends = np.sort(graph.edge_index.numpy(), axis=0)
    keys, gone = (one[0] * graph.num_nodes + one[1] for one in (ends, hidden))
    left = ~np.isin(keys, gone)
    seen = check_graph(
        graph.features,
        graph.edge_index.numpy()[:, left],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight.numpy()[left],
        node_ids=graph.node_ids if graph.has_ids else None,
        source=graph.provenance.source,
    )
    return replace(seen, has_ids=graph.has_ids), hidden


def _learn_head(
    graph: Graph, around: Neighbourhood, features: Floats, refit: Callable[[Graph], Floats], seed: int
) -> tuple[Any, dict[str, dict[str, float]], int]:
    """Return the head, its scores, and how many edges were hidden."""
    seen, hidden = hide_edges(graph, around, seed)
    less = Neighbourhood(seen.edge_index, seen.num_nodes)
    view = PairView(refit(seen), features, less)
    random = np.random.default_rng(seed + 1)
    teach, test = np.array_split(hidden, 2, axis=1)
    far_teach, far_test = np.array_split(around.strangers(2 * hidden.shape[1], random), 2, axis=1)
    rows = np.concatenate([view(teach), view(far_teach)])
    truth = np.arange(len(rows)) < teach.shape[1]
    head = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    head.fit(rows, truth)
    near = unique_pairs(less.two_steps(np.unique(test), TWO_STEPS))
    near = near[:, ~around.joined(near)]
    near = near[:, random.permutation(near.shape[1])[: 2 * hidden.shape[1]]]
    scores = {"random pairs": _scores(view, head, test, far_test)}
    close = test[:, less.shared(test)[0] > 0]  # like with like: of the hidden edges, those two steps apart
    if min(close.shape[1], near.shape[1]) >= LEAST_HIDDEN // 2:
        scores["pairs two steps apart"] = _scores(view, head, close, near)
    return head, scores, hidden.shape[1]


def _scores(view: PairView, head: Any, edges: Whole, others: Whole) -> dict[str, float]:
    pairs = np.concatenate([edges, others], axis=1)
    truth = np.arange(pairs.shape[1]) < edges.shape[1]
    said: dict[str, npt.NDArray[Any]] = {
        "": head.predict_proba(view(pairs))[:, 1],
        "_of_similarity": view.similarity(pairs),
        "_of_shared_neighbours": view.around.shared(pairs)[1],
    }
    return {
        f"{name}{of}": float(measure(truth, score))
        for name, measure in (("auc", roc_auc_score), ("average_precision", average_precision_score))
        for of, score in said.items()
    }
