"""What a search makes large: accuracy on validation nodes or, without labels, agreement of clusters."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from h3gnn.evaluation.clustering import kmeans_clusters
from h3gnn.evaluation.ridge import RidgeValidation
from h3gnn.evaluation.rows import standardise


class ValidationAccuracy:
    """Mean over splits of the accuracy on validation nodes."""

    def __init__(self, ridge: RidgeValidation) -> None:
        self.ridge = ridge

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model."""
        scores: list[float] = self.ridge.accuracies(embeddings).mean(dim=1).tolist()
        return scores


class ClusterAgreement:
    """Label-free: how far the k-means clusters of several starts agree, by the adjusted Rand index.

    A representation with structure falls into the same clusters wherever k-means starts; noise does not. The
    agreement is multiplied by the clusters' evenness (their entropy over its largest value), so that a
    collapsed representation with one large cluster does not win.

    Args:
        clusters: how many.
        starts: k-means runs to compare, one start each.
    """

    def __init__(self, clusters: int, starts: int = 4) -> None:
        self.clusters, self.starts = clusters, starts

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model; a model that is not finite scores 0."""
        return [
            self._agreement(one.cpu().numpy()) if bool(one.isfinite().all()) else 0.0
            for one in standardise(embeddings)
        ]

    def _agreement(self, embedding: npt.NDArray[Any]) -> float:
        from sklearn.metrics import adjusted_rand_score

        found = [
            kmeans_clusters(embedding, self.clusters, starts=1, seed=seed) for seed in range(self.starts)
        ]
        agreement = np.mean([adjusted_rand_score(a, b) for a, b in combinations(found, 2)])
        sizes = np.mean([np.sort(np.bincount(one, minlength=self.clusters)) for one in found], axis=0)
        shares = sizes[sizes > 0] / sizes.sum()
        evenness = -(shares * np.log(shares)).sum() / np.log(max(2, self.clusters))
        return float(agreement * evenness)
