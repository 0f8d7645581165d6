"""Scores of a representation beside others: probe and k-means, by class and by local homophily."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.clustering import compare_clusters, kmeans_clusters
from h3gnn.evaluation.probe import probe_candidates
from h3gnn.evaluation.protocols import VALIDATION
from h3gnn.findings import TRAINED, Floats, Score, Scores, Whole

HOMOPHILY_BINS = np.linspace(0.0, 1.0, 6)
"""Borders of the bins, from nodes whose neighbours are all of other classes to those all of their own."""

SEEDS = 3
"""k-means is run from so many seeds."""

MOST_CLUSTERS = 10
"""Without classes, the number of clusters is the one up to this with the best silhouette."""

SAMPLE = 2_000
"""The silhouette is measured on at most this many nodes."""

FEW = 5_000
"""Up to so many nodes, k-means takes the best of ten starts, beyond it the best of two."""


@dataclass(frozen=True, eq=False)
class Splits:
    """Labels, int64 `[nodes]` with -1 for unknown, and bool masks `[nodes, splits]`."""

    labels: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    @property
    def tested(self) -> npt.NDArray[np.bool_]:
        """Test nodes with a known class, `[splits, nodes]`."""
        known: npt.NDArray[np.bool_] = (self.test & (self.labels >= 0)[:, None]).t().numpy()
        return known


def score_with_labels(
    embeddings: Mapping[str, Floats], splits: Splits, class_names: tuple[str, ...], homophily: Floats
) -> tuple[Scores, Whole]:
    """Score every representation, and return the classes that the trained one predicts `[nodes]`.

    Each split's probe is fitted on its training nodes, its strength chosen on its validation nodes, and it is
    scored on its test nodes alone. The predicted classes that are returned are those of the first split.
    """
    labels, tested = splits.labels.numpy(), splits.tested
    rows, predicted_by = [], {}
    for name, embedding in embeddings.items():
        accuracy, predicted = probe_predictions(embedding, splits)
        predicted_by[name] = predicted
        right = (predicted == labels) & tested
        rows.append(
            Score(
                name,
                accuracy,
                _agreement(embedding, labels, len(class_names)),
                _shares(right, tested, labels, len(class_names)),
                _shares(right, tested, homophily_bin(homophily), len(HOMOPHILY_BINS) - 1),
            )
        )
    chosen = predicted_by.get(TRAINED, predicted)
    count = np.broadcast_to(labels, tested.shape)[tested]
    confusion = np.zeros((len(class_names), len(class_names)), dtype=np.int64)
    np.add.at(confusion, (count, chosen[tested]), 1)
    scores = Scores(
        tuple(rows),
        _protocol(tested.shape[0]),
        confusion,
        class_names,
        np.bincount(count, minlength=len(class_names)),
        HOMOPHILY_BINS,
        _counts(tested, homophily_bin(homophily), len(HOMOPHILY_BINS) - 1),
    )
    return scores, chosen[0]


def probe_predictions(embedding: Floats, splits: Splits) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the test accuracy of each split's probe, and the class it gives each node `[splits, nodes]`."""
    everywhere = torch.ones_like(splits.test)
    candidates = probe_candidates(embedding, splits.labels, splits.train, splits.val, everywhere)
    chosen = VALIDATION.choose({0: candidates})
    rows = [candidates.predicted[split][choice.position] for split, choice in enumerate(chosen)]
    predicted: npt.NDArray[np.int64] = np.stack(rows).astype(np.int64)
    tested = splits.tested
    right = ((predicted == splits.labels.numpy()) & tested).sum(axis=1)
    asked = tested.sum(axis=1)
    return np.where(asked > 0, right / np.maximum(asked, 1), np.nan), predicted


def score_without_labels(embeddings: Mapping[str, Floats]) -> tuple[Scores, Whole]:
    """Score clusters by their silhouette, and return the trained representation's clusters `[nodes]`.

    The number of clusters is the one with the best silhouette in the trained representation.
    """
    trained = embeddings[TRAINED]
    most = min(MOST_CLUSTERS, len(trained) - 1)
    if most < 2:
        return Scores((), "too few nodes to cluster"), np.zeros(len(trained), dtype=np.int64)
    found = {count: kmeans_clusters(trained, count, starts=2) for count in range(2, most + 1)}
    best = max(found, key=lambda count: silhouette(trained, found[count]))
    rows = [Score(name, None, _separation(embedding, best)) for name, embedding in embeddings.items()]
    protocol = (
        f"No labels: {best} clusters, the number with the best silhouette in the H3GNN embedding. "
        f"Mean ± standard deviation over {SEEDS} seeds of k-means."
    )
    return Scores(tuple(rows), protocol), kmeans_clusters(trained, best, starts=_starts(trained))


def silhouette(embedding: Floats, clusters: Whole) -> float:
    """Return the mean silhouette of at most `SAMPLE` evenly spaced nodes, NaN where it has no meaning."""
    from sklearn.metrics import silhouette_score

    chosen = np.unique(np.linspace(0, len(clusters) - 1, min(len(clusters), SAMPLE)).round().astype(int))
    kinds = len(np.unique(clusters[chosen]))
    if not 2 <= kinds < len(chosen):
        return float("nan")
    return float(silhouette_score(embedding[chosen], clusters[chosen]))


def homophily_bin(homophily: Floats) -> npt.NDArray[np.int64]:
    """Return each node's bin of local homophily, -1 for a node without neighbours of known class."""
    inside = np.digitize(homophily, HOMOPHILY_BINS[1:-1] - 1e-6)
    return np.where(np.isnan(homophily), -1, inside)


def _agreement(embedding: Floats, labels: Whole, classes: int) -> dict[str, Floats]:
    """Return how well k-means agrees with the classes of the labelled nodes, from each seed."""
    count, classed = min(classes, len(labels)), np.asarray(labels, dtype=np.int64)
    found = [kmeans_clusters(embedding, count, starts=_starts(embedding), seed=seed) for seed in range(SEEDS)]
    each = [compare_clusters(clusters, classed) for clusters in found]
    named = {"accuracy": "acc", "NMI": "nmi", "ARI": "ari"}
    return {name: np.array([one[measure] for one in each]) for name, measure in named.items()}


def _separation(embedding: Floats, count: int) -> dict[str, Floats]:
    found = [kmeans_clusters(embedding, count, starts=_starts(embedding), seed=seed) for seed in range(SEEDS)]
    return {"silhouette": np.array([silhouette(embedding, clusters) for clusters in found])}


def _starts(embedding: Any) -> int:
    return 10 if len(embedding) <= FEW else 2


def _counts(tested: npt.NDArray[np.bool_], group: Whole, groups: int) -> Whole:
    counted = np.broadcast_to(group, tested.shape)[tested]
    return np.bincount(counted[counted >= 0], minlength=groups)


def _shares(right: npt.NDArray[np.bool_], tested: npt.NDArray[np.bool_], group: Whole, groups: int) -> Floats:
    """Return the share of right answers among the test nodes of each group, over all splits."""
    total = _counts(tested, group, groups)
    return np.where(total > 0, _counts(right, group, groups) / np.maximum(total, 1), np.nan)


def _protocol(splits: int) -> str:
    over = "one split" if splits == 1 else f"{splits} splits"
    return (
        f"Linear probe: mean ± standard deviation of the test accuracy over {over}; fitted on training "
        "nodes, its strength chosen on validation nodes, the last epoch's embedding. "
        f"k-means: as many clusters as classes, mean ± standard deviation over {SEEDS} seeds."
    )
