"""What a search makes large: accuracy of probe or k-means on validation nodes, or clusters that agree."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters
from h3gnn.evaluation.probe import probe_candidates
from h3gnn.evaluation.protocols import VALIDATION
from h3gnn.evaluation.ridge import RidgeValidation
from h3gnn.evaluation.rows import standardise


class ValidationAccuracy:
    """Mean over splits of the accuracy on validation nodes, by ridge regression."""

    def __init__(self, ridge: RidgeValidation) -> None:
        self.ridge = ridge

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model."""
        scores: list[float] = self.ridge.accuracies(embeddings).mean(dim=1).tolist()
        return scores


class ProbeAccuracy:
    """The same by the linear probe itself, with the strength that it would choose: slower, and to the point.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        train_mask, val_mask: bool `[nodes, splits]`.
    """

    def __init__(self, labels: Tensor, train_mask: Tensor, val_mask: Tensor) -> None:
        self.known = (labels, train_mask, val_mask, torch.zeros_like(val_mask))

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model; a model that is not finite scores 0."""
        return [self._accuracy(one) if bool(one.isfinite().all()) else 0.0 for one in embeddings]

    def _accuracy(self, embedding: Tensor) -> float:
        found = probe_candidates(embedding, *self.known)
        choices = VALIDATION.choose({0: found})
        return float(np.mean([found.val_accuracy[i, one.position] for i, one in enumerate(choices)]))


class ClusterAccuracy:
    """k-means on all nodes, and its accuracy on validation nodes under the best matching; mean over splits.

    Args:
        labels: int64 `[nodes]`, negative where unknown.
        val_mask: bool `[nodes, splits]`.
        clusters: how many.
        starts: of k-means; the best by its own loss is taken, as where clusters are scored.
    """

    def __init__(self, labels: Tensor, val_mask: Tensor, clusters: int, starts: int = 10) -> None:
        self.clusters, self.starts = clusters, starts
        known = labels.cpu().numpy()
        seen = [val.cpu().numpy() & (known >= 0) for val in val_mask.t()]
        self.splits = [(one, known[one]) for one in seen]

    def __call__(self, embeddings: Tensor) -> list[float]:
        """Return the score of each model; a model that is not finite scores 0."""
        return [self._accuracy(one) if bool(one.isfinite().all()) else 0.0 for one in embeddings]

    def _accuracy(self, embedding: Tensor) -> float:
        found = kmeans_clusters(embedding, self.clusters, starts=self.starts)
        return float(np.mean([clustering_accuracy(found[seen], truth) for seen, truth in self.splits]))


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
